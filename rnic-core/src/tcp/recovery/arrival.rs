//! What an acknowledgment does.

use super::rack::DUPLICATE_THRESHOLD;
use super::spurious::Frto;
use super::tail::Verdict;
use super::{Ack, Phase, Recovery, SoleAck};
use crate::counters::TcpCounters;
use crate::tcp::congestion::Acked;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::send::Sender;

impl Recovery {
    /// Takes an acknowledgment.
    pub(in crate::tcp) fn on_ack(
        &mut self,
        send: &mut Sender,
        ack: &Ack<'_>,
        rtt: &mut RttEstimator,
        counters: &mut TcpCounters,
    ) {
        if self.sack {
            self.learn(send, ack, rtt, counters);
        }
        self.undo_if_spurious(send, ack, rtt, counters);
        let used = self.used(send, ack.flight);
        let acked = self.measure(send, ack, rtt);
        let mut delivered = ack.news.delivered;
        if ack.news.acked > 0 {
            delivered = delivered.saturating_sub(self.on_progress(send, &acked));
        } else if ack.is_duplicate() && !self.sack {
            delivered += self.on_duplicate(send, counters);
        }
        let found = self.sack && self.find_losses(send, ack.now, (used, delivered), rtt, counters);
        if matches!(self.phase, Phase::Fast { .. }) {
            let progress = ack.news.acked > 0 && !found;
            let pipe = self.pipe(send);
            self.prr.on_delivered(delivered, pipe, progress, self.mss);
        }
    }

    /// Takes an acknowledgment of the only segment in flight, while [calm](Self::is_calm): as
    /// [`on_ack`](Self::on_ack) does, but that there is nothing to be found.
    #[inline]
    pub(in crate::tcp) fn on_sole_ack(&mut self, sole: &SoleAck, rtt: &RttEstimator) {
        let (now, acked) = (sole.now, &sole.acked);
        self.rack
            .learn_sole_ack(sole.round_trip, (sole.sent_at, acked.end));
        self.tail.due = false;
        self.tail.restart(now);
        self.duplicate_acks = 0;
        self.arrived = 0;
        let octets = acked.end - acked.start;
        let limited = self.rounds.on_sole_ack(now, acked);
        // Most of these acknowledge too little to say anything of congestion.
        if self.congestion.heeds(octets, limited) {
            self.congestion.on_ack(&Acked {
                now,
                octets,
                flight: octets,
                window_limited: limited,
                rtt: Some(sole.round_trip),
                smoothed_rtt: rtt.smoothed().unwrap_or_default(),
                round_ended: true,
            });
        }
    }

    /// What congestion control is told.
    fn measure(&mut self, send: &Sender, ack: &Ack<'_>, rtt: &RttEstimator) -> Acked {
        let news = ack.news;
        let places = (send.una() - news.acked, send.una(), send.nxt());
        let round = self.rounds.on_ack(ack.now, places, news.delivered);
        Acked {
            now: ack.now,
            octets: news.acked,
            flight: ack.flight,
            window_limited: round.limited,
            rtt: ack.round_trip,
            smoothed_rtt: rtt.smoothed().unwrap_or_default(),
            round_ended: round.ended,
        }
    }

    /// What RACK and the tail probe learn.
    fn learn(
        &mut self,
        send: &Sender,
        ack: &Ack<'_>,
        rtt: &RttEstimator,
        counters: &mut TcpCounters,
    ) {
        counters.reordering_seen += u64::from(self.rack.learn(send, ack, rtt));
        if let Some(duplicated) = &ack.news.duplicated {
            counters.dsacks_received += 1;
            // A needless tail probe says nothing about the order of arrival.
            if !self.tail.is_duplicated(duplicated) {
                self.rack.on_duplicated(send);
            }
        }
        if self.tail.settle(send, ack) == Verdict::Repaired && !self.is_recovering() {
            self.congestion.on_loss(ack.flight);
        }
        if ack.news.acked > 0 || ack.news.sacked {
            self.tail.due = false;
        }
        if ack.news.acked > 0 || (ack.news.sacked && self.is_recovering()) {
            self.tail.restart(ack.now);
        }
    }

    /// Takes the reduction of the window back if nothing was lost, and stops sending again what was not.
    fn undo_if_spurious(
        &mut self,
        send: &mut Sender,
        ack: &Ack<'_>,
        rtt: &mut RttEstimator,
        counters: &mut TcpCounters,
    ) {
        let recovering = self.is_recovering();
        let in_vain = match &mut self.retransmissions {
            Some(retransmissions) => retransmissions.in_vain(ack, recovering, send),
            None => false,
        };
        if !in_vain && !self.timeout_was_spurious(send, ack) {
            return;
        }
        counters.spurious_recoveries += 1;
        self.retransmissions = None;
        self.congestion.undo();
        match self.phase {
            Phase::Open => return,
            Phase::Fast { .. } => self.rack.see_reordering(),
            Phase::Timeout { .. } => rtt.end_backoff(),
        }
        send.unlose();
        self.phase = Phase::Open;
        self.arrived = 0;
        self.urgent = false;
        self.tail.restart(ack.now);
    }

    /// F-RTO (RFC 5682 sections 2.1 and 3.1).
    fn timeout_was_spurious(&mut self, send: &Sender, ack: &Ack<'_>) -> bool {
        let Phase::Timeout { until, frto } = &mut self.phase else {
            return false;
        };
        match *frto {
            Frto::Off => {}
            // Nothing but the first segment has been sent again: whether more was needed is still open.
            Frto::First if ack.news.acked > 0 && send.una() < *until => *frto = Frto::Second(2),
            Frto::First if ack.news.acked > 0 || ack.is_duplicate() || ack.news.sacked => {
                *frto = Frto::Off;
            }
            Frto::First => {}
            Frto::Second(_) => {
                let original = ack.news.lowest_original.is_some_and(|at| at < *until);
                if original {
                    return true;
                }
                if ack.is_duplicate() || ack.news.delivered > 0 {
                    // It was needed. The new segments have left the network, whether they are named or not.
                    *frto = Frto::Off;
                    self.urgent = true;
                    if !self.sack {
                        self.arrived = 2 * self.mss;
                    }
                }
            }
        }
        false
    }

    /// New data is acknowledged. Returns how much of it was known to have left the network.
    fn on_progress(&mut self, send: &mut Sender, acked: &Acked) -> u64 {
        self.duplicate_acks = 0;
        let octets = acked.octets;
        let arrived = self.arrived;
        match self.phase {
            Phase::Open => {
                self.arrived = 0;
                self.congestion.on_ack(acked);
            }
            Phase::Fast { until } if send.una() >= until => {
                self.end(acked.now);
            }
            Phase::Fast { .. } => {
                // A partial ACK: one segment of it leaves the network as the retransmission arrived, and without
                // SACK it shows that what follows was lost as well (RFC 6582 section 3.2, step 3).
                self.arrived = self.arrived.saturating_sub(octets.saturating_sub(self.mss));
                if !self.sack {
                    send.lose_head();
                    self.urgent = send.has_lost();
                }
            }
            Phase::Timeout { until, .. } => {
                self.congestion.on_ack(acked);
                if send.una() >= until {
                    self.end(acked.now);
                }
            }
        }
        arrived - self.arrived
    }

    /// A duplicate ACK of a peer without SACK. Returns how much has left the network.
    fn on_duplicate(&mut self, send: &mut Sender, counters: &mut TcpCounters) -> u64 {
        self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        let before = self.arrived;
        if !matches!(self.phase, Phase::Timeout { .. }) {
            // Not more than what is in flight behind the missing segment: a peer cannot conjure up room.
            let others = send.flight().saturating_sub(self.mss);
            self.arrived = (self.arrived + self.mss).min(others);
        }
        // A duplicate may be an echo of the last recovery's retransmissions.
        let echo = self.last_until.is_some_and(|until| send.una() <= until);
        let enough = self.duplicate_acks as usize >= DUPLICATE_THRESHOLD;
        if enough && !echo && self.phase == Phase::Open {
            send.lose_head();
            self.begin(send, (self.used(send, send.flight()), 0), counters);
        }
        self.arrived.saturating_sub(before)
    }
}
