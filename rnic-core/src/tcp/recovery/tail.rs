//! The tail loss probe (RFC 8985 section 7): where no ACK comes back, one more segment elicits it
//! before the retransmission timer expires.
//!
//! Unlike there, it also does so in fast recovery (as RFC 9002 section 6.2 does for QUIC): the last
//! retransmission may be lost as well, or its ACK, and nothing else may be on its way. The first
//! missing segment is the probe then.

use core::ops::Range;

use super::Ack;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::send::Sender;
use crate::time::{Instant, Span};

/// A probe waits at least this much longer than two round trips: hosts are not always prompt.
const MIN_SLACK: Span = Span::from_millis(2);
/// How long a peer may delay the ACK of a single segment (TLP.max_ack_delay).
pub(super) const MAX_ACK_DELAY: Span = Span::from_millis(200);
/// The probe timeout where no round trip has been measured.
const PTO_WITHOUT_RTT: Span = Span::from_secs(1);

/// What the ACK of a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    /// Nothing yet, or that nothing was lost.
    Nothing,
    /// The probe has repaired the only loss.
    RepairedLoss,
}

/// The tail loss probe of a connection.
#[derive(Debug, Default)]
pub(super) struct TailProbe {
    /// When the wait for an ACK began.
    since: Option<Instant>,
    /// The probe timeout (PTO) has expired: a probe is to be sent.
    pub(super) due: bool,
    /// TLP.end_seq: SND.NXT after the last probe, until its ACK has come.
    end_seq: Option<u64>,
    /// TLP.is_retrans: the probe was a retransmission.
    is_retrans: bool,
    /// It was sent in fast recovery: its ACK says nothing more about the congestion window.
    in_recovery: bool,
}

impl TailProbe {
    /// Restarts the wait: new data was sent or acknowledged.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Returns whether the ACK of a probe has not come yet.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.end_seq.is_some()
    }

    /// Returns when the probe timeout expires, at the latest when the retransmission timer does, at
    /// `rto_at`.
    pub(super) fn pto_at(
        &self,
        send: &Sender,
        rtt: &RttEstimator,
        rto_at: Instant,
        recovering: bool,
    ) -> Option<Instant> {
        let since = self.since?;
        if self.end_seq.is_some() || !rtt.sampled_since_probe() || send.window_closed() {
            return None;
        }
        let pto = match rtt.srtt() {
            // In recovery every segment is acknowledged at once.
            Some(srtt) if send.sent_segments() <= 1 && !recovering => srtt * 2 + MAX_ACK_DELAY,
            Some(srtt) => srtt * 2 + MIN_SLACK,
            None => PTO_WITHOUT_RTT,
        };
        Some((since + pto).min(rto_at))
    }

    /// Returns a lower bound of [`pto_at`](Self::pto_at), whatever the round-trip time is.
    #[inline]
    pub(super) fn earliest_pto(&self, send: &Sender, recovering: bool) -> Option<Instant> {
        let pto = if send.sent_segments() <= 1 && !recovering {
            MAX_ACK_DELAY
        } else {
            MIN_SLACK
        };
        self.since.map(|since| since + pto)
    }

    /// Handles the expiry of the probe timeout.
    pub(super) fn expire(&mut self) {
        self.due = true;
        self.since = None;
    }

    /// Records that a probe was sent; `end_seq` is SND.NXT behind it.
    pub(super) fn on_sent(&mut self, end_seq: u64, is_retrans: bool, in_recovery: bool) {
        self.due = false;
        self.since = None;
        self.end_seq = Some(end_seq);
        self.is_retrans = is_retrans;
        self.in_recovery = in_recovery;
    }

    /// Returns whether a DSACK reports the last probe.
    pub(super) fn is_probe_dsack(&self, dsack: &Range<u64>) -> bool {
        self.is_retrans && self.end_seq.is_some_and(|end_seq| dsack.end == end_seq)
    }

    /// Handles an ACK (RFC 8985 section 7.4.2).
    pub(super) fn process_ack(&mut self, send: &Sender, ack: &Ack<'_>) -> ProbeOutcome {
        let Some(end_seq) = self.end_seq.filter(|end_seq| send.una() >= *end_seq) else {
            return ProbeOutcome::Nothing;
        };
        let dsack = ack.outcome.dsack.as_ref();
        let nothing_lost = !self.is_retrans
            || self.in_recovery
            || dsack.is_some_and(|dsack| self.is_probe_dsack(dsack))
            || (ack.repeats && !ack.sacks);
        if nothing_lost || send.una() > end_seq {
            self.end_seq = None;
            if !nothing_lost {
                return ProbeOutcome::RepairedLoss;
            }
        }
        ProbeOutcome::Nothing
    }

    /// Forgets the probe: recovery has taken over.
    pub(super) fn cancel(&mut self) {
        *self = Self::default();
    }
}
