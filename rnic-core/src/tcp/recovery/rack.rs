//! RACK (RFC 8985 section 6): a segment is lost if one sent later has been delivered and it had
//! time enough to arrive itself.

use super::Ack;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::scoreboard::Transmission;
use crate::tcp::send::Sender;
use crate::time::{Instant, Span};

/// Segments selectively acknowledged that are taken for a loss while no reordering has been seen
/// (RFC 6675's DupThresh).
pub(super) const DUP_THRESH: usize = 3;
/// Recoveries after which a widened reordering window shrinks to its default (RFC 8985's constant
/// of 16).
const REO_WND_PERSIST: u8 = 16;

/// The state of RACK, in the names of RFC 8985 section 5.3.
#[derive(Debug)]
pub(super) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: the latest transmission of a segment that has been delivered.
    latest: Option<Transmission>,
    /// RACK.rtt: how long it took.
    rtt: Span,
    /// It was a retransmission: segments behind it in the stream may have been sent before it.
    latest_retransmitted: bool,
    /// RACK.reordering_seen
    reordering_seen: bool,
    /// RACK.reo_wnd_mult: the reordering window in quarters of `min_rtt`.
    reo_wnd_mult: u32,
    /// RACK.reo_wnd_persist: recoveries for which it keeps its size.
    reo_wnd_persist: u8,
    /// RACK.dsack_round: the window has grown for a DSACK in the round trip that ends here.
    dsack_round: Option<u64>,
    /// When RACK's timer expires: the time at which all that was sent before `latest` is overdue.
    pub(super) timer_at: Option<Instant>,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self {
            latest: None,
            rtt: Span::ZERO,
            latest_retransmitted: false,
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
            dsack_round: None,
            timer_at: None,
        }
    }

    /// Records what an ACK delivers (RFC 8985 section 6.2, steps 2 and 3). Returns whether it shows
    /// reordering.
    pub(super) fn update(&mut self, send: &Sender, ack: &Ack<'_>, rtt: &RttEstimator) -> bool {
        let outcome = ack.outcome;
        if let Some(original) = outcome.latest_original {
            self.on_delivered(ack.now, original, false);
        }
        if let Some((sent_at, end)) = outcome.latest_retransmission {
            // The ACK may be for the transmission before. It echoes the timestamp of what came in
            // order last (RFC 7323 section 4.3): the echo says nothing of a segment that was only
            // acknowledged selectively.
            let echoes_earlier = end <= send.una() && ack.echoes_before(sent_at);
            let too_soon = rtt
                .min_rtt()
                .is_some_and(|min_rtt| ack.now.span_since(sent_at) < min_rtt);
            if !echoes_earlier && !too_soon {
                self.on_delivered(ack.now, (sent_at, end), true);
            }
        }
        self.reordering_seen |= outcome.reordered;
        outcome.reordered
    }

    /// Returns whether `latest` was sent only once: then what was sent before it also has lower
    /// sequence numbers.
    #[inline]
    pub(super) fn latest_is_original(&self) -> bool {
        !self.latest_retransmitted
    }

    /// Records the delivery of the only segment in flight, which was sent once: nothing can be
    /// missing. Requires that [`latest_is_original`](Self::latest_is_original), so that no other
    /// was sent later.
    #[inline]
    pub(super) fn learn_sole_ack(&mut self, round_trip: Span, original: Transmission) {
        self.rtt = round_trip;
        self.latest = Some(original);
        self.timer_at = None;
    }

    #[inline]
    fn on_delivered(&mut self, now: Instant, transmission: Transmission, retransmitted: bool) {
        self.rtt = now.span_since(transmission.0);
        if self.latest.is_none_or(|latest| transmission > latest) {
            self.latest = Some(transmission);
            self.latest_retransmitted = retransmitted;
        }
    }

    /// Notes that a retransmission has overtaken its original.
    pub(super) fn note_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// Handles a DSACK: widens the reordering window, once in a round trip (step 4).
    pub(super) fn on_dsack(&mut self, send: &Sender) {
        if self.dsack_round.is_some_and(|end| send.una() < end) {
            return;
        }
        self.dsack_round = Some(send.nxt());
        self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
        self.reo_wnd_persist = REO_WND_PERSIST;
    }

    /// Records the end of a recovery: after some of them a widened window shrinks again.
    pub(super) fn on_recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Returns RACK.reo_wnd: how much later than its successors a segment may arrive before it is
    /// lost (step 4).
    pub(super) fn reo_wnd(&self, send: &Sender, recovering: bool, rtt: &RttEstimator) -> Span {
        let certain = recovering || send.sacked_segments() >= DUP_THRESH;
        if !self.reordering_seen && certain {
            return Span::ZERO;
        }
        let srtt = rtt.srtt().unwrap_or_default();
        let min_rtt = rtt.min_rtt().unwrap_or(srtt);
        (min_rtt * self.reo_wnd_mult / 4).min(srtt)
    }

    /// Returns the time after its transmission at which a segment is lost, if one sent later has
    /// been delivered.
    pub(super) fn loss_delay(&self, reo_wnd: Span) -> Span {
        self.rtt + reo_wnd
    }

    /// Marks the segments that are lost by now, and returns how many; sets the timer for those that
    /// may be lost later (step 5). All of these were sent before `latest`: one expiry finds them
    /// all.
    pub(super) fn detect_loss(
        &mut self,
        now: Instant,
        send: &mut Sender,
        recovering: bool,
        rtt: &RttEstimator,
    ) -> usize {
        self.timer_at = None;
        let Some(latest) = self.latest else { return 0 };
        if send.sacked_segments() == 0 && !self.latest_retransmitted {
            // Without a SACK or a retransmission, the cumulative ACK covers all that was sent
            // before it.
            return 0;
        }
        let loss_delay = self.loss_delay(self.reo_wnd(send, recovering, rtt));
        let (lost, more) = send.mark_overdue_lost(now, latest, loss_delay);
        self.timer_at = more.then(|| latest.0 + loss_delay);
        lost
    }
}
