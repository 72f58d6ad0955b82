//! Segments that turn out too large for the path are cut in two where they are held.

use crate::tcp::sent_segment::{Fate, SentSegment};

use super::Sender;

impl Sender {
    pub(in crate::tcp) fn get(&self, index: usize) -> Option<&SentSegment> {
        self.segments.get(index)
    }

    /// Returns the index of the first segment that is not wholly sent.
    pub(in crate::tcp) fn first_unsent(&self) -> usize {
        self.unsent
    }

    /// Cuts the segment at `index` in two in its frame: its first `at` octets, and the rest. `sums` are their ones-complement
    /// sums.
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

    /// Marks every segment in flight of more than `octets` as lost: a link on the path cannot carry it.
    pub(in crate::tcp) fn mark_larger_lost(&mut self, octets: u16) {
        for index in 0..self.segments.len() {
            if self.segments[index].len > octets {
                self.mark_lost(index);
            }
        }
    }
}
