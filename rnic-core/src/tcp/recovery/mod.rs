//! Loss recovery: detects losses, decides what is retransmitted, and undoes a recovery that was
//! spurious.
//!
//! With SACK, RACK finds losses (RFC 8985, which contains RFC 6675's rule) and a tail loss probe
//! elicits an ACK where none comes; without it duplicate ACKs do (RFC 5681, RFC 6582). In fast
//! recovery proportional rate reduction says how much may be sent; before and after it, congestion
//! control does.

mod ack;
mod arrival;
mod prr;
mod rack;
mod spurious;
mod tail;

use core::mem::offset_of;
use core::ops::Range;

pub(super) use self::ack::Ack;
use self::prr::Prr;
use self::rack::Rack;
use self::spurious::{Frto, Retransmissions};
use self::tail::TailProbe;
use super::congestion::{Congestion, CongestionAlgorithm, Rounds};
use super::rtt::RttEstimator;
use super::send::Sender;
use crate::counters::TcpCounters;
use crate::time::{Instant, Span};

/// Where recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPhase {
    /// No loss is known.
    Open,
    /// A loss was found: until everything that had been sent by then is acknowledged.
    Fast { recovery_point: u64 },
    /// The timer expired: until everything that had been sent by then is acknowledged.
    Timeout { recovery_point: u64, frto: Frto },
}

/// An acknowledgment of the only segment in flight, which was sent once.
pub(super) struct SoleAcknowledgment {
    pub(super) now: Instant,
    /// When the segment was sent.
    pub(super) sent_at: Instant,
    /// What is acknowledged now: nothing more was sent.
    pub(super) acked: Range<u64>,
    pub(super) round_trip: Span,
}

/// How a connection recovers from loss.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Recovery {
    tail: TailProbe,
    rack: Rack,
    mss: u64,
    dup_acks: u32,
    sack: bool,
    /// The next retransmission does not wait for the congestion window.
    retransmit_now: bool,
    phase: RecoveryPhase,
    /// Octets delivered by duplicate ACKs of a peer without SACK, which do not name them.
    dup_acked: u64,
    last_sent_at: Option<Instant>,
    /// In a box: most connections never have any.
    retransmissions: Option<Box<Retransmissions>>,
    congestion: Congestion,
    rounds: Rounds,
    /// RFC 6582's recover: SND.NXT when the last recovery began; duplicate ACKs up to there may be
    /// echoes of its retransmissions and begin no other (RFC 6582 section 3.2).
    recover: Option<u64>,
    prr: Prr,
}

/// State, and what is sent.
impl Recovery {
    /// Octets of it that hold timers.
    pub(super) const TIMERS: usize = offset_of!(Self, mss);

    /// Creates the recovery of a connection with segments of `mss` octets.
    pub(super) fn new(algorithm: CongestionAlgorithm, mss: u64, sack: bool) -> Self {
        Self {
            phase: RecoveryPhase::Open,
            recover: None,
            dup_acks: 0,
            dup_acked: 0,
            retransmit_now: false,
            congestion: Congestion::new(algorithm, mss),
            rounds: Rounds::default(),
            last_sent_at: None,
            prr: Prr::default(),
            rack: Rack::new(),
            tail: TailProbe::default(),
            retransmissions: None,
            mss,
            sack,
        }
    }

    /// Sets the segment size and the use of SACK that the handshake has agreed on.
    pub(super) fn agree(&mut self, mss: u64, sack: bool) {
        (self.mss, self.sack) = (mss, sack);
        self.congestion.agree(mss);
    }

    pub(super) fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    pub(super) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Returns whether the connection is calm: no loss is known, and no ACK is awaited that would
    /// tell of one.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.phase == RecoveryPhase::Open
            && self.sack
            && self.rack.latest_is_original()
            && !self.tail.is_outstanding()
    }

    fn is_recovering(&self) -> bool {
        self.phase != RecoveryPhase::Open
    }

    /// Returns how long RACK lets a segment arrive later than one that was sent after it.
    pub(super) fn reo_wnd(&self, send: &Sender, rtt: &RttEstimator) -> Span {
        self.rack.reo_wnd(send, self.is_recovering(), rtt)
    }

    /// Returns the number of octets thought to be in the network.
    pub(super) fn pipe(&self, send: &Sender) -> u64 {
        send.pipe().saturating_sub(self.dup_acked)
    }

    /// Returns what may be in the network.
    fn cwnd(&self) -> u64 {
        match self.phase {
            RecoveryPhase::Fast { .. } => self.prr.cwnd(),
            _ => self.congestion.cwnd(),
        }
    }

    /// Returns whether `len` new octets may be sent: the congestion window has room, or they are to
    /// probe the tail.
    pub(super) fn allows(&self, send: &Sender, len: u64) -> bool {
        self.tail.due || self.pipe(send) + len <= self.cwnd() || send.flight() == 0
    }

    /// Returns whether new data may go out as the window allows, and is only counted in sum.
    pub(super) fn runs(&self) -> bool {
        !matches!(self.phase, RecoveryPhase::Timeout { .. })
    }

    /// Returns how many new octets may be sent, the first of a flight and tail probes apart.
    pub(super) fn room(&self, send: &Sender) -> u64 {
        self.cwnd().saturating_sub(self.pipe(send))
    }

    /// Returns whether `len` octets thought lost may be sent again now.
    pub(super) fn allows_retransmission(&self, send: &Sender, len: u64) -> bool {
        let pipe = self.pipe(send);
        self.retransmit_now || pipe == 0 || pipe + len <= self.cwnd()
    }

    /// Returns whether new data goes before what is thought lost: F-RTO asks so if the timeout was
    /// needed at all.
    pub(super) fn prefers_new_data(&self) -> bool {
        matches!(
            self.phase,
            RecoveryPhase::Timeout {
                frto: Frto::Second(_),
                ..
            }
        )
    }

    /// Notes that no (more) new data can be sent now. Returns whether retransmissions wait
    /// nevertheless, for the ACK of the new data that were sent.
    pub(super) fn lacks_new_data(&mut self) -> bool {
        let RecoveryPhase::Timeout { frto, .. } = &mut self.phase else {
            return false;
        };
        if *frto == Frto::Second(2) {
            *frto = Frto::Off;
        }
        matches!(frto, Frto::Second(_))
    }

    /// Returns whether F-RTO has sent the new data that it needs.
    pub(super) fn has_probed_timeout(&self) -> bool {
        matches!(
            self.phase,
            RecoveryPhase::Timeout {
                frto: Frto::Second(0),
                ..
            }
        )
    }

    /// Returns whether the retransmission that recovery begins with has not been sent yet.
    pub(super) fn waits_to_retransmit(&self, send: &Sender) -> bool {
        self.retransmit_now && send.head_is_lost()
    }

    /// Sets a smaller segment size.
    pub(super) fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.congestion.set_mss(mss);
    }

    /// Handles that segments were too large for the path. They are to be sent again, but not
    /// because of congestion. As after a timeout, what the peer says of their absence is no news.
    pub(super) fn on_too_big(&mut self, send: &Sender) {
        if self.phase == RecoveryPhase::Open {
            let recovery_point = send.nxt();
            let frto = Frto::Off;
            self.phase = RecoveryPhase::Timeout {
                recovery_point,
                frto,
            };
            self.recover = Some(recovery_point);
        }
        self.dup_acks = 0;
        self.retransmit_now = send.has_lost();
    }

    /// Records that octets were retransmitted.
    pub(super) fn on_retransmission(&mut self, now: Instant, range: Range<u64>) {
        self.retransmit_now = false;
        self.prr.on_sent(range.end - range.start);
        self.tail.restart(now);
        if let Some(retransmissions) = &mut self.retransmissions {
            retransmissions.add(now, range);
        }
    }

    /// Records that `octets` were sent for the first time.
    pub(super) fn on_new_data(
        &mut self,
        now: Instant,
        send: &Sender,
        octets: u64,
        rtt: &RttEstimator,
    ) {
        let idle = send.flight() == octets;
        if idle && let Some(last) = self.last_sent_at {
            self.congestion.on_idle(now.span_since(last), rtt.rto());
        }
        self.last_sent_at = Some(now);
        // Where nothing else is in flight, nothing is known of anything else either.
        let pipe = if idle { octets } else { self.pipe(send) };
        let full = self.congestion.is_full(pipe);
        let places = (send.nxt() - octets, send.nxt());
        self.rounds.on_sent(now, places, idle, full);
        match &mut self.phase {
            RecoveryPhase::Open => self.tail.restart(now),
            RecoveryPhase::Fast { .. } => {
                self.prr.on_sent(octets);
                self.tail.restart(now);
            }
            RecoveryPhase::Timeout { frto, .. } => {
                if let Frto::Second(left) = frto {
                    *left = left.saturating_sub(1);
                }
            }
        }
    }

    /// Records that the only octets in flight were sent for the first time, as
    /// [`on_new_data`](Self::on_new_data) does. No recovery is under way then.
    #[inline(always)]
    pub(super) fn on_sole_data(
        &mut self,
        now: Instant,
        send: &Sender,
        octets: u64,
        rtt: &RttEstimator,
    ) {
        debug_assert!(!self.is_recovering());
        if let Some(last) = self.last_sent_at.replace(now) {
            self.congestion.on_idle(now.span_since(last), rtt.rto());
        }
        let full = self.congestion.is_full(octets);
        let places = (send.nxt() - octets, send.nxt());
        self.rounds.on_sent(now, places, true, full);
        self.tail.restart(now);
    }

    /// The least time that a [segment alone](Self::on_sole_data) waits for a tail probe.
    pub(super) const PROBES_SOLE_AFTER: Span = tail::MAX_ACK_DELAY;

    /// Returns whether a tail probe is to be sent.
    pub(super) fn tail_probe_due(&self) -> bool {
        self.tail.due
    }

    /// Records that a tail probe with data up to `end` was sent. `again`: it was a retransmission.
    pub(super) fn on_tail_probe(&mut self, end: u64, rtt: &mut RttEstimator, again: bool) {
        self.tail.on_sent(end, again, self.is_recovering());
        rtt.on_tail_probe();
    }

    /// Returns whether a tail probe without new data is the first missing segment, and not the last
    /// one sent.
    pub(super) fn probes_head(&self) -> bool {
        self.is_recovering()
    }

    /// Drops the tail probe: it is not needed, or cannot be sent.
    pub(super) fn drop_tail_probe(&mut self) {
        self.tail.due = false;
    }

    /// Handles an ECE of the peer, with `flight` octets unacknowledged before. Reduces cwnd once
    /// for what is in flight (RFC 3168 section 6.1.2), as a loss does. Returns whether it did.
    pub(super) fn on_congestion_echo(&mut self, send: &Sender, flight: u64) -> bool {
        let known = self
            .recover
            .is_some_and(|recovery_point| send.una() <= recovery_point);
        if known || self.phase != RecoveryPhase::Open {
            return false;
        }
        self.recover = Some(send.nxt());
        self.congestion.on_loss(flight);
        true
    }

    /// Returns whether CWR is to be sent.
    #[inline]
    pub(super) fn cwr_due(&self) -> bool {
        self.congestion.cwr_due()
    }

    /// Returns whether CWR is to be sent; the caller sends it now.
    pub(super) fn take_cwr(&mut self) -> bool {
        self.congestion.take_cwr()
    }

    /// Handles that the SYN was lost more than once.
    pub(super) fn on_lost_syn(&mut self) {
        self.congestion.on_lost_syn();
    }
}

/// Beginning and end.
impl Recovery {
    /// Ends a recovery.
    fn end_recovery(&mut self, now: Instant) {
        self.phase = RecoveryPhase::Open;
        self.dup_acked = 0;
        self.rack.on_recovered();
        self.tail.restart(now);
    }

    /// Finds what is lost, by RACK. Returns whether anything is. Of `flight` octets `delivered`
    /// have just left the network.
    fn find_losses(
        &mut self,
        send: &mut Sender,
        now: Instant,
        (flight, delivered): (u64, u64),
        rtt: &RttEstimator,
        counters: &mut TcpCounters,
    ) -> bool {
        let lost = self.rack.detect_loss(now, send, self.is_recovering(), rtt);
        if lost == 0 {
            return false;
        }
        counters.rack_losses += lost as u64;
        if self.phase == RecoveryPhase::Open {
            self.enter_fast_recovery(send, (flight, delivered), counters);
        }
        true
    }

    /// Returns what was in flight when the octets that are in flight now were sent, as far as it is
    /// known: at least `flight`, what was unacknowledged before this ACK. Of the ACKs of a batch
    /// one may acknowledge most of a window, and the next report a loss in the rest: ssthresh
    /// follows from the whole window.
    fn flight_when_sent(&self, send: &Sender, flight: u64) -> u64 {
        if self.rounds.was_cwnd_limited(send.una()) {
            self.congestion.cwnd()
        } else {
            flight
        }
    }

    /// Enters fast recovery. Of `flight` octets `delivered` have just left the network.
    fn enter_fast_recovery(
        &mut self,
        send: &mut Sender,
        (flight, delivered): (u64, u64),
        counters: &mut TcpCounters,
    ) {
        let recovery_point = send.nxt();
        self.phase = RecoveryPhase::Fast { recovery_point };
        self.recover = Some(recovery_point);
        self.retransmit_now = true;
        self.tail.cancel();
        self.retransmissions = Some(Box::default());
        self.congestion.on_loss(flight);
        let flight = send.flight().saturating_sub(send.sacked()) + delivered;
        self.prr = Prr::begin(
            self.congestion.ssthresh(),
            flight,
            self.pipe(send),
            self.mss,
        );
        counters.fast_retransmits += 1;
    }
}

/// Timers.
impl Recovery {
    /// Stops the timers: the connection is over.
    pub(super) fn stop(&mut self) {
        self.rack.timer_at = None;
        self.tail.cancel();
    }

    /// Returns the next time that RACK or the tail probe have something to do, where the
    /// retransmission timer is due at `timeout_at`.
    #[inline]
    pub(super) fn next_timeout(
        &self,
        send: &Sender,
        rtt: &RttEstimator,
        timeout_at: Option<Instant>,
    ) -> Option<Instant> {
        match self.rack.timer_at {
            Some(at) => Some(at),
            None if timeout_at.is_none() => None,
            None => self.tail_probe_at(send, rtt, timeout_at),
        }
    }

    /// Returns a time before which surely neither the retransmission timer, due at `timeout_at`,
    /// nor [one of these](Self::next_timeout) has anything to do.
    #[inline]
    pub(super) fn no_timeout_before(
        &self,
        send: &Sender,
        timeout_at: Option<Instant>,
    ) -> Option<Instant> {
        let probe_at = match timeout_at {
            Some(_) => self.tail.earliest_pto(send, self.is_recovering()),
            None => None,
        };
        Instant::earliest([timeout_at, self.rack.timer_at, probe_at])
    }

    fn tail_probe_at(
        &self,
        send: &Sender,
        rtt: &RttEstimator,
        timeout_at: Option<Instant>,
    ) -> Option<Instant> {
        let timeout_at = timeout_at?;
        // Where something has arrived behind a hole, RACK's timer watches it, until recovery
        // begins.
        let watches = match self.phase {
            RecoveryPhase::Open => send.sacked_segments() == 0,
            RecoveryPhase::Fast { .. } => true,
            RecoveryPhase::Timeout { .. } => false,
        };
        if !self.sack || !watches || send.flight() == 0 {
            return None;
        }
        let recovering = self.is_recovering();
        self.tail.pto_at(send, rtt, timeout_at, recovering)
    }

    /// Handles the expiry of RACK's timer.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        send: &mut Sender,
        rtt: &RttEstimator,
        counters: &mut TcpCounters,
    ) {
        if self.rack.timer_at.is_some_and(|at| at <= now) {
            let flight = self.flight_when_sent(send, send.flight());
            self.find_losses(send, now, (flight, 0), rtt, counters);
        }
    }

    /// Returns whether the tail is to be probed now, instead of waiting for the retransmission
    /// timer.
    pub(super) fn expire_tail_probe(
        &mut self,
        now: Instant,
        send: &Sender,
        rtt: &RttEstimator,
        timeout_at: Option<Instant>,
    ) -> bool {
        let expired = self
            .tail_probe_at(send, rtt, timeout_at)
            .is_some_and(|at| at <= now);
        if expired {
            self.tail.expire();
        }
        expired
    }

    /// Handles a retransmission timeout. `first`: the first one since the peer acknowledged new
    /// data.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        send: &mut Sender,
        rtt: &RttEstimator,
        first: bool,
    ) {
        let recovery_point = send.nxt();
        let frto = match self.phase {
            // Still nothing but the first segment was sent again.
            RecoveryPhase::Timeout {
                frto: Frto::First, ..
            } => Frto::First,
            _ if self.recover.is_some_and(|last| send.una() < last) => Frto::Off,
            _ => Frto::First,
        };
        self.congestion
            .on_timeout(self.flight_when_sent(send, send.flight()), first);
        if first {
            self.retransmissions = Some(Box::default());
        }
        let loss_delay = self
            .sack
            .then(|| self.rack.loss_delay(self.reo_wnd(send, rtt)));
        self.phase = RecoveryPhase::Timeout {
            recovery_point,
            frto,
        };
        self.recover = Some(recovery_point);
        self.dup_acks = 0;
        self.dup_acked = 0;
        self.retransmit_now = true;
        self.tail.cancel();
        self.rack.timer_at = None;
        // RFC 8985 section 6.3. What was sent just now has not had time to arrive.
        send.mark_lost_on_timeout(|sent_at| {
            loss_delay.is_none_or(|loss_delay| sent_at + loss_delay <= now)
        });
    }
}
