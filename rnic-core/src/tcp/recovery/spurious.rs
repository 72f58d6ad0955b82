//! Finding out that nothing was lost: by the timestamps (Eifel, RFC 3522), by the peer's reports of duplicates (RFC
//! 2883, RFC 3708), or after a timeout by what is acknowledged without having been sent again (F-RTO, RFC 5682).

use core::ops::Range;

use super::Ack;
use crate::tcp::ranges::RangeSet;
use crate::tcp::send::Sender;
use crate::time::Instant;

/// The retransmissions since congestion control last reduced its window.
#[derive(Debug, Default)]
pub(super) struct Retransmissions {
    /// What they were: a report about another says nothing about these.
    ranges: RangeSet,
    first_at: Option<Instant>,
    /// Octets sent again that the peer has not reported as duplicates.
    needed: u64,
}

impl Retransmissions {
    /// A segment is sent again, or the beginning of one.
    pub(super) fn add(&mut self, now: Instant, range: Range<u64>) {
        self.first_at.get_or_insert(now);
        self.needed += range.end - range.start;
        self.ranges.insert(range);
    }

    /// Whether an acknowledgment shows that they were all in vain. `recovering`: what had been sent before the first
    /// of them is not all acknowledged yet.
    pub(super) fn in_vain(&mut self, ack: &Ack<'_>, recovering: bool, send: &Sender) -> bool {
        let Some(first_at) = self.first_at else {
            return false;
        };
        let news = ack.news;
        if recovering && news.acked > 0 && news.retransmission.is_some() {
            // Acknowledged, but by an ACK from before it can have arrived again. Others that are still on their way may
            // have been lost all the same.
            if ack.echoes_before(first_at) && !send.has_resent() {
                return true;
            }
        }
        let Some(duplicated) = &news.duplicated else {
            return false;
        };
        if self.ranges.first_gap(duplicated.clone()).start < duplicated.end {
            return false;
        }
        self.needed = self
            .needed
            .saturating_sub(duplicated.end - duplicated.start);
        self.needed == 0
    }
}

/// F-RTO's steps after a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
    /// Not done, or done with.
    Off,
    /// The first segment has been sent again; its answer is awaited.
    First,
    /// It has moved the peer on. Instead of what is thought lost, up to this many new segments are sent; the answer
    /// to what is still on its way decides.
    Second(u8),
}
