//! Detects spurious retransmissions: by timestamps (Eifel, RFC 3522), by DSACKs (RFC 2883, RFC
//! 3708), or after a timeout by what is acknowledged without having been retransmitted (F-RTO, RFC
//! 5682).

use core::ops::Range;

use super::Ack;
use crate::tcp::ranges::RangeSet;
use crate::tcp::send::Sender;
use crate::time::Instant;

/// The retransmissions since congestion control last reduced its window.
#[derive(Debug, Default)]
pub(super) struct Retransmissions {
    /// What was retransmitted: a DSACK for anything else says nothing about these.
    ranges: RangeSet,
    first_at: Option<Instant>,
    /// Octets retransmitted that no DSACK has reported.
    without_dsack: u64,
}

impl Retransmissions {
    /// Adds the retransmission of a segment, or of its beginning.
    pub(super) fn add(&mut self, now: Instant, range: Range<u64>) {
        self.first_at.get_or_insert(now);
        self.without_dsack += range.end - range.start;
        self.ranges.insert(range);
    }

    /// Returns whether an ACK shows that all of them were spurious. `recovering`: not all that had
    /// been sent before the first of them is acknowledged yet.
    pub(super) fn all_spurious(&mut self, ack: &Ack<'_>, recovering: bool, send: &Sender) -> bool {
        let Some(first_at) = self.first_at else {
            return false;
        };
        let outcome = ack.outcome;
        if recovering && outcome.acked > 0 && outcome.latest_retransmission.is_some() {
            // The ACK was sent before the retransmission can have arrived (Eifel). Other
            // retransmissions that are still in flight may have been needed all the same.
            if ack.echoes_before(first_at) && !send.has_resent() {
                return true;
            }
        }
        let Some(dsack) = &outcome.dsack else {
            return false;
        };
        if self.ranges.first_gap(dsack.clone()).start < dsack.end {
            return false;
        }
        self.without_dsack = self.without_dsack.saturating_sub(dsack.end - dsack.start);
        self.without_dsack == 0
    }
}

/// F-RTO's steps after a timeout (RFC 5682 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
    /// Not in use, or finished.
    Off,
    /// Step 1: the first segment has been retransmitted, and its ACK has not come.
    First,
    /// Step 2: that ACK advanced SND.UNA. Up to this many new segments are sent in place of
    /// retransmissions; the next ACK decides.
    Second(u8),
}
