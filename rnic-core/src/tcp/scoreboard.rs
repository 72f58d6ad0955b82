//! The scoreboard: which segments were delivered, lost and retransmitted (RFC 2018, RFC 6675, RFC
//! 8985).
//!
//! The cost of an ACK depends on what is new in it, not on how much is in flight: known SACK blocks
//! are skipped, and segments are visited in the order of transmission, from the oldest on.

use core::cmp::Reverse;
use core::ops::Range;
use std::collections::{BinaryHeap, VecDeque};

use crate::time::Instant;

use super::ranges::RangeSet;
use super::sent_segment::{Fate, SentSegment};

/// When a segment was sent (last), and the offset where it ends: of two sent at the same time, the
/// one that ends later was sent later.
pub(super) type Transmission = (Instant, u64);

/// What one ACK does to the scoreboard.
#[derive(Clone, Debug, Default)]
pub(super) struct AckOutcome {
    /// Octets newly acknowledged, the FIN included.
    pub(super) acked: u64,
    /// Octets newly delivered: acknowledged or selectively acknowledged.
    pub(super) delivered: u64,
    /// Something is selectively acknowledged that was not before.
    pub(super) sacked: bool,
    /// Octets of the largest segment that was delivered.
    pub(super) largest_segment: u16,
    /// When the latest of the segments acknowledged was sent that had not been selectively
    /// acknowledged, if all of them were sent only once (Karn's rule).
    pub(super) sent_at: Option<Instant>,
    /// Of the delivered segments that were sent only once: where the lowest begins, and the latest
    /// transmission.
    pub(super) lowest_original: Option<u64>,
    pub(super) latest_original: Option<Transmission>,
    /// The latest transmission of a delivered segment that was sent more than once.
    pub(super) latest_retransmission: Option<Transmission>,
    /// A segment sent only once was delivered after one that was sent later.
    pub(super) reordered: bool,
    /// What the peer has received twice (DSACK, RFC 2883).
    pub(super) dsack: Option<Range<u64>>,
}

impl AckOutcome {
    /// Adds a segment that is delivered; `fack` is the end of the highest one delivered before.
    pub(super) fn arrived(&mut self, segment: &SentSegment, fack: u64) {
        self.largest_segment = self.largest_segment.max(segment.len);
        let sending = (segment.sent_at, segment.end());
        if segment.retransmitted {
            self.latest_retransmission = self.latest_retransmission.max(Some(sending));
        } else {
            // They were sent in the order of the stream.
            if self.latest_original.is_none_or(|(_, end)| end < sending.1) {
                self.latest_original = Some(sending);
            }
            let lowest = self.lowest_original.unwrap_or(u64::MAX);
            self.lowest_original = Some(lowest.min(segment.start));
            self.reordered |= segment.end() < fack;
        }
    }
}

/// What is known of segments beyond `una`.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// What is selectively acknowledged, in whole segments.
    pub(super) ranges: RangeSet,
    /// Octets in segments selectively acknowledged, and how many those are.
    pub(super) sacked: u64,
    pub(super) sacked_segments: usize,
    /// Octets in segments marked as lost.
    pub(super) lost: u64,
    /// Where segments marked as lost begin, the lowest first. An entry is stale if its segment is
    /// not marked (any more).
    pub(super) lost_queue: BinaryHeap<Reverse<u64>>,
    /// Before this offset no segment is in flight that was sent only once.
    pub(super) originals_from: u64,
    /// Where retransmitted segments begin, in the order of their retransmission. An entry is stale
    /// unless its segment is in flight since then.
    pub(super) resent: VecDeque<(u64, Instant)>,
    /// RACK.fack: the end of the highest segment that was delivered.
    pub(super) fack: u64,
}

impl Scoreboard {
    /// Records that a segment was acknowledged cumulatively.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, segment: &SentSegment, outcome: &mut AckOutcome) {
        match segment.fate {
            Fate::InFlight => {}
            Fate::Lost => self.lost -= u64::from(segment.sent),
            Fate::Sacked => {
                let octets = u64::from(segment.len);
                self.sacked -= octets;
                self.sacked_segments -= 1;
                outcome.delivered = outcome.delivered.saturating_sub(octets);
                return;
            }
        }
        outcome.arrived(segment, self.fack);
    }

    /// Records the new SND.UNA, where the first segment held begins.
    #[inline]
    pub(super) fn advance(&mut self, una: u64) {
        self.fack = self.fack.max(una);
        if !self.ranges.is_empty() {
            self.ranges.advance(una);
        }
        while let Some(&(start, _)) = self.resent.front()
            && start < una
        {
            self.resent.pop_front();
        }
    }

    /// Records the second piece of a segment that was cut.
    pub(super) fn on_cut(&mut self, tail: &SentSegment) {
        if tail.fate == Fate::Lost {
            self.lost_queue.push(Reverse(tail.start));
        }
        self.originals_from = self.originals_from.min(tail.start);
    }

    /// Records that the front of a segment was acknowledged. The segment began at `start`; what is
    /// left begins at `head.start`.
    pub(super) fn on_trimmed(&mut self, start: u64, head: &SentSegment) {
        let octets = head.start - start;
        match head.fate {
            Fate::InFlight => {}
            Fate::Sacked => self.sacked -= octets,
            Fate::Lost => {
                self.lost -= octets;
                self.lost_queue.push(Reverse(head.start));
            }
        }
        for (resent, _) in &mut self.resent {
            if *resent == start {
                *resent = head.start;
            }
        }
    }

    /// Records that the segment at `start`, or a part of it, was retransmitted.
    pub(super) fn on_resent(&mut self, start: u64, now: Instant) {
        match self.resent.back_mut() {
            Some(last) if last.0 == start => last.1 = now,
            _ => self.resent.push_back((start, now)),
        }
    }
}
