//! What an acknowledgment does.

use super::rack::DUP_THRESH;
use super::spurious::Frto;
use super::tail::ProbeOutcome;
use super::{Ack, Recovery, RecoveryPhase, SoleAcknowledgment};
use crate::counters::TcpCounters;
use crate::tcp::congestion::Acked;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::send::Sender;

impl Recovery {
    /// Handles an acknowledgment.
    pub(in crate::tcp) fn on_ack(
        &mut self,
        send: &mut Sender,
        ack: &Ack<'_>,
        rtt: &mut RttEstimator,
        counters: &mut TcpCounters,
    ) {
        if self.sack {
            self.update_rack_and_tlp(send, ack, rtt, counters);
        }
        self.undo_if_spurious(send, ack, rtt, counters);
        let flight = self.flight_when_sent(send, ack.flight);
        let acked = self.measure(send, ack, rtt);
        let mut delivered = ack.outcome.delivered;
        if ack.outcome.acked > 0 {
            delivered = delivered.saturating_sub(self.on_progress(send, &acked));
        } else if ack.is_duplicate() && !self.sack {
            delivered += self.on_duplicate(send, counters);
        }
        let found =
            self.sack && self.find_losses(send, ack.now, (flight, delivered), rtt, counters);
        if matches!(self.phase, RecoveryPhase::Fast { .. }) {
            let progress = ack.outcome.acked > 0 && !found;
            let pipe = self.pipe(send);
            self.prr.on_delivered(delivered, pipe, progress, self.mss);
        }
    }

    /// Handles an acknowledgment of the only segment in flight, while [calm](Self::is_calm). Does
    /// what [`on_ack`](Self::on_ack) does, except that there is no loss to find.
    #[inline]
    pub(in crate::tcp) fn on_sole_ack(&mut self, sole: &SoleAcknowledgment, rtt: &RttEstimator) {
        let (now, acked) = (sole.now, &sole.acked);
        self.rack
            .learn_sole_ack(sole.round_trip, (sole.sent_at, acked.end));
        self.tail.due = false;
        self.tail.restart(now);
        self.dup_acks = 0;
        self.dup_acked = 0;
        let octets = acked.end - acked.start;
        let limited = self
            .rounds
            .on_sole_ack(now, acked, sole.sent_at, rtt.min_rtt());
        // Most of these acknowledge too little to say anything of congestion.
        if self.congestion.responds_to(octets, limited) {
            self.congestion.on_ack(&Acked {
                now,
                octets,
                flight: octets,
                cwnd_limited: limited,
                rtt: Some(sole.round_trip),
                srtt: rtt.srtt().unwrap_or_default(),
                round_ended: true,
            });
        }
    }

    /// Returns what an ACK says to congestion control.
    fn measure(&mut self, send: &Sender, ack: &Ack<'_>, rtt: &RttEstimator) -> Acked {
        let outcome = ack.outcome;
        let places = (send.una() - outcome.acked, send.una(), send.nxt());
        let round = self.rounds.on_ack(
            ack.now,
            places,
            outcome.delivered,
            outcome.sent_at,
            rtt.min_rtt(),
        );
        Acked {
            now: ack.now,
            octets: outcome.acked,
            flight: ack.flight,
            cwnd_limited: round.limited,
            rtt: ack.round_trip,
            srtt: rtt.srtt().unwrap_or_default(),
            round_ended: round.ended,
        }
    }

    /// Updates RACK and the tail loss probe.
    fn update_rack_and_tlp(
        &mut self,
        send: &Sender,
        ack: &Ack<'_>,
        rtt: &RttEstimator,
        counters: &mut TcpCounters,
    ) {
        counters.reordering_seen += u64::from(self.rack.update(send, ack, rtt));
        if let Some(dsack) = &ack.outcome.dsack {
            counters.dsacks_received += 1;
            // A needless tail probe says nothing about the order of arrival.
            if !self.tail.is_probe_dsack(dsack) {
                self.rack.on_dsack(send);
            }
        }
        if self.tail.process_ack(send, ack) == ProbeOutcome::RepairedLoss && !self.is_recovering() {
            self.congestion.on_loss(ack.flight);
        }
        if ack.outcome.acked > 0 || ack.outcome.sacked {
            self.tail.due = false;
        }
        if ack.outcome.acked > 0 || (ack.outcome.sacked && self.is_recovering()) {
            self.tail.restart(ack.now);
        }
    }

    /// Undoes the reduction of cwnd if all retransmissions were spurious, and stops retransmitting.
    fn undo_if_spurious(
        &mut self,
        send: &mut Sender,
        ack: &Ack<'_>,
        rtt: &mut RttEstimator,
        counters: &mut TcpCounters,
    ) {
        let recovering = self.is_recovering();
        let all_spurious = match &mut self.retransmissions {
            Some(retransmissions) => retransmissions.all_spurious(ack, recovering, send),
            None => false,
        };
        if !all_spurious && !self.timeout_was_spurious(send, ack) {
            return;
        }
        counters.spurious_recoveries += 1;
        self.retransmissions = None;
        self.congestion.undo();
        match self.phase {
            RecoveryPhase::Open => return,
            RecoveryPhase::Fast { .. } => self.rack.note_reordering(),
            RecoveryPhase::Timeout { .. } => rtt.end_backoff(),
        }
        send.unmark_lost();
        self.phase = RecoveryPhase::Open;
        self.dup_acked = 0;
        self.retransmit_now = false;
        self.tail.restart(ack.now);
    }

    /// Returns whether a timeout turns out to be spurious, by F-RTO (RFC 5682 sections 2.1 and
    /// 3.1).
    fn timeout_was_spurious(&mut self, send: &Sender, ack: &Ack<'_>) -> bool {
        let RecoveryPhase::Timeout {
            recovery_point,
            frto,
        } = &mut self.phase
        else {
            return false;
        };
        match *frto {
            Frto::Off => {}
            // Nothing but the first segment has been sent again: whether more was needed is still
            // open.
            Frto::First if ack.outcome.acked > 0 && send.una() < *recovery_point => {
                *frto = Frto::Second(2)
            }
            Frto::First if ack.outcome.acked > 0 || ack.is_duplicate() || ack.outcome.sacked => {
                *frto = Frto::Off;
            }
            Frto::First => {}
            Frto::Second(_) => {
                let original = ack
                    .outcome
                    .lowest_original
                    .is_some_and(|at| at < *recovery_point);
                if original {
                    return true;
                }
                if ack.is_duplicate() || ack.outcome.delivered > 0 {
                    // It was needed. The new segments have left the network, whether they are named
                    // or not.
                    *frto = Frto::Off;
                    self.retransmit_now = true;
                    if !self.sack {
                        self.dup_acked = 2 * self.mss;
                    }
                }
            }
        }
        false
    }

    /// Handles an ACK of new data. Returns how much of it was known to have left the network.
    fn on_progress(&mut self, send: &mut Sender, acked: &Acked) -> u64 {
        self.dup_acks = 0;
        let octets = acked.octets;
        let dup_acked = self.dup_acked;
        match self.phase {
            RecoveryPhase::Open => {
                self.dup_acked = 0;
                self.congestion.on_ack(acked);
            }
            RecoveryPhase::Fast { recovery_point } if send.una() >= recovery_point => {
                self.end_recovery(acked.now);
            }
            RecoveryPhase::Fast { .. } => {
                // A partial ACK: one segment of it leaves the network as the retransmission
                // arrived, and without SACK it shows that what follows was lost as well (RFC 6582
                // section 3.2, step 3).
                self.dup_acked = self
                    .dup_acked
                    .saturating_sub(octets.saturating_sub(self.mss));
                if !self.sack {
                    send.mark_head_lost();
                    self.retransmit_now = send.has_lost();
                }
            }
            RecoveryPhase::Timeout { recovery_point, .. } => {
                self.congestion.on_ack(acked);
                if send.una() >= recovery_point {
                    self.end_recovery(acked.now);
                }
            }
        }
        dup_acked - self.dup_acked
    }

    /// Handles a duplicate ACK of a peer without SACK. Returns how much has left the network.
    fn on_duplicate(&mut self, send: &mut Sender, counters: &mut TcpCounters) -> u64 {
        self.dup_acks = self.dup_acks.saturating_add(1);
        let before = self.dup_acked;
        if !matches!(self.phase, RecoveryPhase::Timeout { .. }) {
            // Not more than what is in flight behind the missing segment: a peer cannot conjure up
            // room.
            let others = send.flight().saturating_sub(self.mss);
            self.dup_acked = (self.dup_acked + self.mss).min(others);
        }
        // A duplicate may be an echo of the last recovery's retransmissions.
        let echo = self
            .recover
            .is_some_and(|recovery_point| send.una() <= recovery_point);
        let enough = self.dup_acks as usize >= DUP_THRESH;
        if enough && !echo && self.phase == RecoveryPhase::Open {
            send.mark_head_lost();
            self.enter_fast_recovery(
                send,
                (self.flight_when_sent(send, send.flight()), 0),
                counters,
            );
        }
        self.dup_acked.saturating_sub(before)
    }
}
