//! Loss recovery: fast retransmit and NewReno's fast recovery (RFC 5681, RFC 6582), led by SACK where the peer
//! sends it (RFC 6675), and recovery after a timeout.

use super::congestion::{Acked, NewReno};
use super::send::{DUPLICATE_THRESHOLD, Sender};

/// Where recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No loss is known.
    Open,
    /// A loss was found by duplicate ACKs: until everything that had been sent by then is acknowledged.
    Fast { until: u64 },
    /// The timer expired: until everything that had been sent by then is acknowledged.
    Timeout { until: u64 },
}

/// How a connection recovers from loss.
#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    /// What had been sent when the last recovery began: duplicate ACKs up to there may be echoes of its
    /// retransmissions and begin no other (RFC 6582 section 3.2).
    last_until: Option<u64>,
    duplicate_acks: u32,
    /// Octets that have left the network unnamed: duplicate ACKs of a peer without SACK.
    arrived: u64,
    /// The next retransmission does not wait for the congestion window.
    urgent: bool,
    congestion: NewReno,
    mss: u64,
    sack: bool,
}

impl Recovery {
    /// For segments of `mss` octets.
    pub(super) fn new(mss: u64, sack: bool) -> Self {
        Self {
            phase: Phase::Open,
            last_until: None,
            duplicate_acks: 0,
            arrived: 0,
            urgent: false,
            congestion: NewReno::new(mss),
            mss,
            sack,
        }
    }

    pub(super) fn congestion(&self) -> &NewReno {
        &self.congestion
    }

    /// Octets thought to be in the network.
    pub(super) fn pipe(&self, send: &Sender) -> u64 {
        send.pipe().saturating_sub(self.arrived)
    }

    /// Whether the congestion window has room for `len` new octets.
    pub(super) fn allows(&self, send: &Sender, len: u64) -> bool {
        self.pipe(send) + len <= self.congestion.window() || send.flight() == 0
    }

    /// Whether `len` octets thought lost may be sent again now.
    pub(super) fn allows_retransmission(&self, send: &Sender, len: u64) -> bool {
        let pipe = self.pipe(send);
        self.urgent || pipe == 0 || pipe + len <= self.congestion.window()
    }

    /// Whether the retransmission that recovery begins with has not been sent yet.
    pub(super) fn waits_to_retransmit(&self, send: &Sender) -> bool {
        self.urgent && send.head_is_lost()
    }

    /// Segments have become smaller.
    pub(super) fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.congestion.set_mss(mss);
    }

    /// Segments were too large for the path, and are to be sent again: not because of congestion. As after a timeout,
    /// what the peer says of their absence is no news.
    pub(super) fn on_too_big(&mut self, send: &Sender) {
        if self.phase == Phase::Open {
            let until = send.nxt();
            self.phase = Phase::Timeout { until };
            self.last_until = Some(until);
        }
        self.duplicate_acks = 0;
        self.urgent = send.has_lost();
    }

    /// A retransmission was sent.
    pub(super) fn on_retransmission(&mut self) {
        self.urgent = false;
    }

    /// The SYN had to be sent again.
    pub(super) fn on_lost_syn(&mut self) {
        self.congestion.on_lost_syn();
    }

    /// `octets` were newly acknowledged; `flight` were not acknowledged before.
    pub(super) fn on_progress(&mut self, send: &mut Sender, octets: u64, flight: u64) {
        self.duplicate_acks = 0;
        let acked = Acked {
            octets,
            window_used: self.used_window(flight),
        };
        match self.phase {
            Phase::Open => {
                self.arrived = 0;
                self.congestion.on_ack(acked);
            }
            Phase::Fast { until } if send.una() >= until => {
                self.arrived = 0;
                self.phase = Phase::Open;
                self.congestion.on_recovered(send.flight());
            }
            Phase::Fast { .. } => {
                // A partial ACK: what follows was lost as well, and one segment of it leaves the network as
                // the retransmission arrived (RFC 6582 section 3.2, step 3).
                self.arrived = self.arrived.saturating_sub(octets.saturating_sub(self.mss));
                // A peer with SACK would have told of what it has beyond (RFC 6675's NextSeg, rule 3).
                if !self.sack || send.has_sacked() {
                    send.lose_head();
                }
                self.urgent = send.has_lost();
            }
            Phase::Timeout { until } => {
                self.congestion.on_ack(acked);
                if send.una() >= until {
                    self.phase = Phase::Open;
                }
            }
        }
    }

    /// Whether the flight filled the congestion window, or half of it in slow start, which doubles it.
    fn used_window(&self, flight: u64) -> bool {
        let window = self.congestion.window();
        if window < self.congestion.slow_start_threshold() {
            flight * 2 >= window
        } else {
            flight + self.mss > window
        }
    }

    /// The same acknowledgment again, and nothing else in the segment. `sacked`: it names new octets. Returns
    /// whether a fast retransmit begins.
    pub(super) fn on_duplicate(&mut self, send: &mut Sender, sacked: bool) -> bool {
        if self.sack && !sacked {
            return false;
        }
        self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        if !self.sack && !matches!(self.phase, Phase::Timeout { .. }) {
            // Not more than what is in flight behind the missing segment: a peer cannot conjure up room.
            let others = send.flight().saturating_sub(self.mss);
            self.arrived = (self.arrived + self.mss).min(others);
        }
        if self.duplicate_acks as usize >= DUPLICATE_THRESHOLD {
            return self.begin(send);
        }
        false
    }

    /// SACK blocks brought news. Returns whether a fast retransmit begins.
    pub(super) fn on_sack(&mut self, send: &mut Sender) -> bool {
        send.judge_by_sack();
        send.has_lost() && self.begin(send)
    }

    fn begin(&mut self, send: &mut Sender) -> bool {
        // Without SACK a duplicate may be an echo of the last recovery's retransmissions.
        let echo = !self.sack && self.last_until.is_some_and(|until| send.una() <= until);
        if self.phase != Phase::Open || echo {
            return false;
        }
        let until = send.nxt();
        self.phase = Phase::Fast { until };
        self.last_until = Some(until);
        self.congestion.on_loss(send.flight());
        send.lose_head();
        self.urgent = true;
        true
    }

    /// The retransmission timer expired. `first`: for the first time since the peer acknowledged anything new.
    pub(super) fn on_timeout(&mut self, send: &mut Sender, first: bool) {
        self.congestion.on_timeout(first.then_some(send.flight()));
        let until = send.nxt();
        self.phase = Phase::Timeout { until };
        self.last_until = Some(until);
        self.duplicate_acks = 0;
        self.arrived = 0;
        self.urgent = true;
        send.lose_all();
    }
}
