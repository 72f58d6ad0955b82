//! Segments are cut where they are held: in two, where they turn out too large for the path, or
//! behind what of them is acknowledged.

use crate::memory::frames::TxFrames;
use crate::tcp::scoreboard::AckOutcome;
use crate::tcp::sent_segment::{Fate, FramePart, SentSegment};
use crate::wire::checksum;

use super::Sender;

impl Sender {
    pub(in crate::tcp) fn get(&self, index: usize) -> Option<&SentSegment> {
        self.segments.get(index)
    }

    /// Returns the index of the first segment that is not wholly sent.
    pub(in crate::tcp) fn first_unsent(&self) -> usize {
        self.unsent
    }

    /// Cuts the segment at `index` in two in its frame: its first `at` octets, and the rest. `sums`
    /// are their ones-complement sums.
    pub(in crate::tcp) fn split(&mut self, index: usize, at: u16, sums: [u16; 2]) {
        let Some(head) = self.segments.get_mut(index) else {
            return;
        };
        let mut tail = head.clone();
        [head.part, tail.part] = head.part.cut();
        tail.payload_at += at;
        tail.start += u64::from(at);
        tail.len -= at;
        tail.payload_sum = sums[1];
        tail.sent = head.sent.saturating_sub(at);
        head.len = at;
        head.payload_sum = sums[0];
        head.push = false;
        head.sent = head.sent.min(at);
        if tail.sent == 0 && head.fate == Fate::Lost {
            // Nothing of it was ever sent, so nothing was lost.
            tail.fate = Fate::InFlight;
        }
        tail.retransmitted &= tail.sent > 0;
        self.board.on_cut(&tail);
        if tail.retransmitted {
            self.board.on_resent(tail.start, tail.sent_at);
        }
        // One more of the two, or the first of them, is wholly sent.
        if index < self.unsent || (index == self.unsent && head.sent == at) {
            self.unsent += 1;
        }
        self.segments.insert(index + 1, tail);
    }

    /// Removes from the first segment what is acknowledged of it: all before `ack`. So nothing
    /// counts as in flight that the peer need not acknowledge again.
    ///
    /// It says nothing of round trips or of the order of arrival: what was sent of a segment may
    /// have been sent at several times, and the last of them is known.
    #[cold]
    #[inline(never)]
    pub(super) fn trim<F: TxFrames>(&mut self, ack: u64, frames: &F, outcome: &mut AckOutcome) {
        let Some(head) = self.segments.front() else {
            return;
        };
        let (start, octets) = (head.start, (ack - head.start) as u16);
        let rest = self.octets(head, frames).get(usize::from(octets)..);
        let payload_sum = checksum::sum(rest.unwrap_or_default());
        let Some(head) = self.segments.front_mut() else {
            return;
        };
        head.start = ack;
        head.payload_at += octets;
        head.len -= octets;
        head.payload_sum = payload_sum;
        head.part = head.part.cut()[1];
        // No more is acknowledged than was sent.
        head.sent -= octets;
        self.board.on_trimmed(start, head);
        if head.fate == Fate::Sacked {
            outcome.delivered = outcome.delivered.saturating_sub(octets.into());
        }
        if head.sent == 0 {
            // What is left was never sent.
            head.fate = Fate::InFlight;
            head.retransmitted = false;
        }
    }

    /// Returns the octets of a held segment.
    pub(in crate::tcp) fn octets<'a, F: TxFrames>(
        &'a self,
        segment: &SentSegment,
        frames: &'a F,
    ) -> &'a [u8] {
        if segment.part == FramePart::Spilled {
            return self.spilled(segment.start..segment.end());
        }
        let at = usize::from(segment.payload_at);
        &frames.bytes(segment.frame)[at..at + usize::from(segment.len)]
    }

    /// Marks every segment in flight of more than `octets` as lost: a link on the path cannot carry
    /// it.
    pub(in crate::tcp) fn mark_larger_lost(&mut self, octets: u16) {
        for index in 0..self.segments.len() {
            if self.segments[index].len > octets {
                self.mark_lost(index);
            }
        }
    }
}
