//! RACK (RFC 8985 section 6): a segment is lost if one sent later has arrived, and it itself had time enough.

use super::Ack;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::scoreboard::Sending;
use crate::tcp::send::Sender;
use crate::time::{Instant, Span};

/// Segments selectively acknowledged that show a loss while no reordering has been seen (RFC 6675's DupThresh).
pub(super) const DUPLICATE_THRESHOLD: usize = 3;
/// Recoveries after which a reordering window that had grown shrinks back.
const PERSISTENCE: u8 = 16;

/// What is known of the order in which segments arrive.
#[derive(Debug)]
pub(super) struct Rack {
    /// The latest sending of a segment that has arrived (RACK.xmit_ts and RACK.end_seq), and how long it took.
    latest: Option<Sending>,
    rtt: Span,
    /// That was a retransmission: segments behind it in the stream may have been sent before it.
    again: bool,
    /// Segments have arrived in another order than they were sent.
    reordering_seen: bool,
    /// The reordering window in quarters of the least round-trip time.
    quarters: u32,
    /// Recoveries for which it keeps its size.
    persist: u8,
    /// The window has grown for duplicates in this round, which ends here.
    grown_until: Option<u64>,
    /// When what was sent before `latest` has had time enough.
    pub(super) fires_at: Option<Instant>,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self {
            latest: None,
            rtt: Span::ZERO,
            again: false,
            reordering_seen: false,
            quarters: 1,
            persist: 0,
            grown_until: None,
            fires_at: None,
        }
    }

    /// Learns from what has arrived (RFC 8985 section 6.2, steps 2 and 3). Returns whether reordering is seen.
    pub(super) fn learn(&mut self, send: &Sender, ack: &Ack<'_>, rtt: &RttEstimator) -> bool {
        let news = ack.news;
        if let Some(original) = news.original {
            self.arrived(ack.now, original, false);
        }
        if let Some((sent_at, end)) = news.retransmission {
            // The answer may be to the sending before. An ACK echoes what came in order last (RFC 7323 section 4.3): of a
            // segment behind a hole the echo says nothing.
            let echoes_other = end <= send.una() && ack.echoes_before(sent_at);
            let too_soon = rtt
                .least()
                .is_some_and(|least| ack.now.span_since(sent_at) < least);
            if !echoes_other && !too_soon {
                self.arrived(ack.now, (sent_at, end), true);
            }
        }
        self.reordering_seen |= news.reordered;
        news.reordered
    }

    /// Whether all that was sent before the latest sending that has arrived was sent before it in the stream, too.
    #[inline]
    pub(super) fn in_order(&self) -> bool {
        !self.again
    }

    /// The only segment in flight has arrived, and was sent once: nothing can be missing. While [in order](Self::in_order) no
    /// other was sent later.
    #[inline]
    pub(super) fn learn_sole_ack(&mut self, round_trip: Span, original: Sending) {
        self.rtt = round_trip;
        self.latest = Some(original);
        self.fires_at = None;
    }

    #[inline]
    fn arrived(&mut self, now: Instant, sending: Sending, again: bool) {
        self.rtt = now.span_since(sending.0);
        if self.latest.is_none_or(|latest| sending > latest) {
            self.latest = Some(sending);
            self.again = again;
        }
    }

    /// A retransmission was found to have overtaken what it stood in for.
    pub(super) fn see_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// The peer has received something twice: the window grows, once in a round (step 4).
    pub(super) fn on_duplicated(&mut self, send: &Sender) {
        if self.grown_until.is_some_and(|until| send.una() < until) {
            return;
        }
        self.grown_until = Some(send.nxt());
        self.quarters = self.quarters.saturating_add(1);
        self.persist = PERSISTENCE;
    }

    /// A recovery is over.
    pub(super) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// How long a segment may arrive later than one that was sent after it.
    pub(super) fn window(&self, send: &Sender, recovering: bool, rtt: &RttEstimator) -> Span {
        let certain = recovering || send.sacked_segments() >= DUPLICATE_THRESHOLD;
        if !self.reordering_seen && certain {
            return Span::ZERO;
        }
        let smoothed = rtt.smoothed().unwrap_or_default();
        let least = rtt.least().unwrap_or(smoothed);
        (least * self.quarters / 4).min(smoothed)
    }

    /// How long a segment has from its sending on before it is lost, if one sent later has arrived.
    pub(super) fn patience(&self, window: Span) -> Span {
        self.rtt + window
    }

    /// Finds the segments that are lost by now, and says how many; sets the timer for those that may be found
    /// later (step 5). All of these were sent before `latest`: one expiry finds them all.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        send: &mut Sender,
        recovering: bool,
        rtt: &RttEstimator,
    ) -> usize {
        self.fires_at = None;
        let Some(latest) = self.latest else { return 0 };
        if send.sacked_segments() == 0 && !self.again {
            // All that was sent before it has arrived.
            return 0;
        }
        let patience = self.patience(self.window(send, recovering, rtt));
        let (lost, more) = send.lose_overdue(now, latest, patience);
        self.fires_at = more.then(|| latest.0 + patience);
        lost
    }
}
