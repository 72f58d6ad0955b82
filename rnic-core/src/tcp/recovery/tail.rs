//! The tail loss probe (RFC 8985 section 7): where no ACK comes back, one more segment asks for it before the
//! retransmission timer has to.
//!
//! Unlike there it also does so in fast recovery (as RFC 9002 section 6.2 does for QUIC): the last retransmission may be
//! lost as well, or the ACK for it, and nothing else may be on its way. The first missing segment is the probe then.

use core::ops::Range;

use super::Ack;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::send::Sender;
use crate::time::{Instant, Span};

/// A probe waits at least this much longer than two round trips: hosts are not always prompt.
const LEAST_SLACK: Span = Span::from_millis(2);
/// How long a peer may wait with the ACK of a single segment (TLP.max_ack_delay).
pub(super) const MAX_ACK_DELAY: Span = Span::from_millis(200);
/// The wait where no round trip has been measured.
const WITHOUT_RTT: Span = Span::from_secs(1);

/// What the ACK of a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet, or that nothing was lost.
    Nothing,
    /// The probe has repaired the only loss.
    Repaired,
}

/// The tail loss probe of a connection.
#[derive(Debug, Default)]
pub(super) struct TailProbe {
    /// When the wait for an ACK began.
    since: Option<Instant>,
    /// The timer has expired: a probe is to be sent.
    pub(super) due: bool,
    /// Where what had been sent with the last probe ends, until that is settled (TLP.end_seq).
    end: Option<u64>,
    /// The probe sent old data.
    again: bool,
    /// It was sent in fast recovery: its answer says nothing more about the congestion window.
    in_recovery: bool,
}

impl TailProbe {
    /// New data was sent, or new data was acknowledged.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Whether the answer to a probe is awaited.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        self.end.is_some()
    }

    /// When to probe, unless the retransmission timer, due at `timeout_at`, is due earlier: then at that time.
    pub(super) fn fires_at(
        &self,
        send: &Sender,
        rtt: &RttEstimator,
        timeout_at: Instant,
        recovering: bool,
    ) -> Option<Instant> {
        let since = self.since?;
        if self.end.is_some() || !rtt.is_fresh() || send.window_closed() {
            return None;
        }
        let wait = match rtt.smoothed() {
            // In recovery every segment is acknowledged at once.
            Some(smoothed) if send.sent_segments() <= 1 && !recovering => {
                smoothed * 2 + MAX_ACK_DELAY
            }
            Some(smoothed) => smoothed * 2 + LEAST_SLACK,
            None => WITHOUT_RTT,
        };
        Some((since + wait).min(timeout_at))
    }

    /// A time before which there is surely no [probe](Self::fires_at), whatever the round trip takes.
    #[inline]
    pub(super) fn not_before(&self, send: &Sender, recovering: bool) -> Option<Instant> {
        let wait = if send.sent_segments() <= 1 && !recovering {
            MAX_ACK_DELAY
        } else {
            LEAST_SLACK
        };
        self.since.map(|since| since + wait)
    }

    /// The timer has expired.
    pub(super) fn expire(&mut self) {
        self.due = true;
        self.since = None;
    }

    /// A probe is on its way, the last of what was sent up to `end`. `again`: with old data.
    pub(super) fn on_sent(&mut self, end: u64, again: bool, in_recovery: bool) {
        self.due = false;
        self.since = None;
        self.end = Some(end);
        self.again = again;
        self.in_recovery = in_recovery;
    }

    /// Whether what the peer received twice is the last probe.
    pub(super) fn is_duplicated(&self, duplicated: &Range<u64>) -> bool {
        self.again && self.end.is_some_and(|end| duplicated.end == end)
    }

    /// RFC 8985 section 7.4.2.
    pub(super) fn settle(&mut self, send: &Sender, ack: &Ack<'_>) -> Verdict {
        let Some(end) = self.end.filter(|end| send.una() >= *end) else {
            return Verdict::Nothing;
        };
        let duplicated = ack.news.duplicated.as_ref();
        let harmless = !self.again
            || self.in_recovery
            || duplicated.is_some_and(|duplicated| self.is_duplicated(duplicated))
            || (ack.repeats && !ack.sacks);
        if harmless || send.una() > end {
            self.end = None;
            if !harmless {
                return Verdict::Repaired;
            }
        }
        Verdict::Nothing
    }

    /// Recovery has taken over.
    pub(super) fn cancel(&mut self) {
        *self = Self::default();
    }
}
