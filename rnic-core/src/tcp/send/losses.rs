//! Which of the segments sent were lost, and which is sent again: SACK blocks and losses are
//! entered into the scoreboard (`tcp::scoreboard`).

use core::cmp::Reverse;
use core::ops::Range;

use crate::tcp::ranges::RangeSet;
use crate::tcp::scoreboard::{AckOutcome, Transmission};
use crate::tcp::sent_segment::{Fate, Fin, SentSegment};
use crate::tcp::seq::Seq;
use crate::time::{Instant, Span};
use crate::wire::tcp::SackBlocks;

use super::Sender;

/// What is known.
impl Sender {
    /// Returns the number of octets thought to be in the network: neither selectively acknowledged
    /// nor lost (RFC 6675's pipe).
    pub(in crate::tcp) fn pipe(&self) -> u64 {
        self.flight()
            .saturating_sub(self.board.sacked + self.board.lost)
    }

    /// Returns the number of octets selectively acknowledged beyond `una`.
    pub(in crate::tcp) fn sacked(&self) -> u64 {
        self.board.sacked
    }

    /// Returns the number of segments selectively acknowledged beyond `una`.
    pub(in crate::tcp) fn sacked_segments(&self) -> usize {
        self.board.sacked_segments
    }

    /// Returns whether something thought lost waits to be sent again.
    pub(in crate::tcp) fn has_lost(&self) -> bool {
        self.board.lost > 0 || self.fin == Fin::Lost
    }

    /// Returns whether the first octets not acknowledged are thought lost and wait to be sent
    /// again.
    pub(in crate::tcp) fn head_is_lost(&self) -> bool {
        match self.segments.front() {
            Some(head) => head.fate == Fate::Lost,
            None => self.fin == Fin::Lost,
        }
    }

    /// Returns the number of segments of which at least a part was sent.
    pub(in crate::tcp) fn sent_segments(&self) -> usize {
        self.unsent + usize::from(self.next_unsent().is_some_and(|next| next.sent > 0))
    }

    fn find(&self, start: u64) -> Option<usize> {
        self.segments
            .binary_search_by_key(&start, |segment| segment.start)
            .ok()
    }
}

/// Selective acknowledgment.
impl Sender {
    /// Applies the SACK blocks of an acknowledgment whose cumulative part has been handled. Blocks
    /// that reach outside of what is in flight are ignored; but the first may name what the peer
    /// received twice (RFC 2883).
    pub(in crate::tcp) fn apply_sack(&mut self, blocks: &SackBlocks, outcome: &mut AckOutcome) {
        let fack = self.board.fack;
        let mut others = blocks.iter().skip(1);
        let Some(first) = blocks.iter().next() else {
            return;
        };
        let first = self.block(first);
        let second = others.next().and_then(|second| self.block(second));
        if let Some(first) = first {
            let inside = |outer: &Range<u64>| outer.start <= first.start && first.end <= outer.end;
            if first.end <= self.una || second.as_ref().is_some_and(inside) {
                outcome.dsack = Some(first);
            } else {
                self.take_block(first, fack, outcome);
            }
        }
        if let Some(second) = second {
            self.take_block(second, fack, outcome);
        }
        for other in others {
            if let Some(other) = self.block(other) {
                self.take_block(other, fack, outcome);
            }
        }
    }

    /// Returns the offsets that a block stands for.
    fn block(&self, (left, right): (Seq, Seq)) -> Option<Range<u64>> {
        let left = u64::try_from(self.offset_of(left)).ok()?;
        let right = u64::try_from(self.offset_of(right)).ok()?;
        (left < right).then_some(left..right)
    }

    /// Applies what is new in a SACK block. Looks only at segments that are not known to have
    /// arrived.
    fn take_block(&mut self, block: Range<u64>, fack: u64, outcome: &mut AckOutcome) {
        if block.start < self.una || block.end > self.nxt {
            return;
        }
        let mut from = block.start;
        while from < block.end {
            let gap = self.board.ranges.first_gap(from..block.end);
            if gap.is_empty() {
                return;
            }
            let first = self
                .segments
                .partition_point(|segment| segment.start < gap.start);
            let mut taken: Option<Range<u64>> = None;
            for segment in self.segments.range_mut(first..) {
                if segment.end() > gap.end {
                    break;
                }
                let start = taken.map_or(segment.start, |taken| taken.start);
                taken = Some(start..segment.end());
                match segment.fate {
                    Fate::Sacked => continue,
                    Fate::InFlight => {}
                    Fate::Lost => self.board.lost -= u64::from(segment.sent),
                }
                outcome.arrived(segment, fack);
                outcome.delivered += u64::from(segment.len);
                outcome.sacked = true;
                segment.fate = Fate::Sacked;
                self.board.sacked += u64::from(segment.len);
                self.board.sacked_segments += 1;
            }
            if let Some(taken) = taken {
                self.board.fack = self.board.fack.max(taken.end);
                self.board.ranges.insert(taken);
            }
            from = gap.end;
        }
    }
}

/// Loss and retransmission.
impl Sender {
    /// Marks a segment as lost. Returns false if it was delivered, is marked already, or was never
    /// sent.
    pub(in crate::tcp) fn mark_lost(&mut self, index: usize) -> bool {
        let Some(segment) = self.segments.get_mut(index) else {
            return false;
        };
        if segment.fate != Fate::InFlight || segment.sent == 0 {
            return false;
        }
        segment.fate = Fate::Lost;
        self.board.lost += u64::from(segment.sent);
        self.board.lost_queue.push(Reverse(segment.start));
        true
    }

    /// Marks the first unacknowledged segment as lost, unless it was retransmitted already.
    pub(in crate::tcp) fn mark_head_lost(&mut self) {
        match self.segments.front() {
            Some(head) if head.retransmitted => {}
            Some(_) => {
                self.mark_lost(0);
            }
            None if self.fin == Fin::InFlight => self.fin = Fin::Lost,
            None => {}
        }
    }

    /// Marks the zero-window probe as lost: it was most likely dropped, and is sent again, whole.
    pub(in crate::tcp) fn mark_probe_lost(&mut self) {
        self.mark_lost(0);
        if self.segments.is_empty() && self.fin == Fin::InFlight {
            self.fin = Fin::Lost;
        }
    }

    /// Marks the segments in flight as lost that were sent before `latest` and at least
    /// `loss_delay` ago. Returns how many, and whether others may be lost so later.
    pub(in crate::tcp) fn mark_overdue_lost(
        &mut self,
        now: Instant,
        latest: Transmission,
        loss_delay: Span,
    ) -> (usize, bool) {
        let overdue = |sent_at: Instant| sent_at + loss_delay <= now;
        let (mut lost, mut more) = (0, false);
        // What was sent once stands in the order of its sending.
        let from = self.board.originals_from;
        let mut index = self.segments.partition_point(|s| s.start < from);
        let past = self.sent_segments();
        while let Some(segment) = self.segments.get(index)
            && index < past
        {
            if segment.fate == Fate::InFlight && !segment.retransmitted {
                let before = (segment.sent_at, segment.end()) < latest;
                if !before || !overdue(segment.sent_at) {
                    more |= before;
                    break;
                }
                lost += usize::from(self.mark_lost(index));
            }
            index += 1;
        }
        self.board.originals_from = self.segments.get(index).map_or(self.nxt, |s| s.start);
        while let Some(&(start, at)) = self.board.resent.front() {
            if let Some(index) = self.resent_at(start, at) {
                let before = (at, self.segments[index].end()) < latest;
                if !before || !overdue(at) {
                    more |= before;
                    break;
                }
                lost += usize::from(self.mark_lost(index));
            }
            self.board.resent.pop_front();
        }
        (lost, more)
    }

    /// Returns the index of the segment at `start`, if it is on its way since it was sent again at
    /// `at`.
    fn resent_at(&self, start: u64, at: Instant) -> Option<usize> {
        let index = self.find(start)?;
        let segment = &self.segments[index];
        (segment.fate == Fate::InFlight && segment.sent_at == at).then_some(index)
    }

    /// Returns whether something that was sent again is on its way.
    pub(in crate::tcp) fn has_resent(&self) -> bool {
        let mut resent = self.board.resent.iter();
        resent.any(|&(start, at)| self.resent_at(start, at).is_some())
    }

    /// Marks segments as lost upon a timeout: the first unacknowledged one, and those that were
    /// sent early enough. If the peer has selectively acknowledged the head and yet not moved on,
    /// it has dropped what it had (RFC 2018 section 8): then that has not arrived.
    pub(in crate::tcp) fn mark_lost_on_timeout(&mut self, early: impl Fn(Instant) -> bool) {
        if self
            .segments
            .front()
            .is_some_and(|head| head.fate == Fate::Sacked)
        {
            self.forget_sacks();
        }
        for index in 0..self.sent_segments() {
            if index == 0 || early(self.segments[index].sent_at) {
                self.mark_lost(index);
            }
        }
        if self.fin == Fin::InFlight {
            self.fin = Fin::Lost;
        }
    }

    fn forget_sacks(&mut self) {
        for segment in &mut self.segments {
            if segment.fate == Fate::Sacked {
                segment.fate = Fate::InFlight;
            }
        }
        self.board.ranges = RangeSet::default();
        (self.board.sacked, self.board.sacked_segments) = (0, 0);
        self.rebuild_order();
    }

    /// Unmarks all lost segments: they are in flight after all.
    pub(in crate::tcp) fn unmark_lost(&mut self) {
        for segment in &mut self.segments {
            if segment.fate == Fate::Lost {
                segment.fate = Fate::InFlight;
            }
        }
        if self.fin == Fin::Lost {
            self.fin = Fin::InFlight;
        }
        self.board.lost = 0;
        self.board.lost_queue.clear();
        self.rebuild_order();
    }

    /// Rebuilds the order of transmission.
    fn rebuild_order(&mut self) {
        let again = |s: &&SentSegment| s.retransmitted && s.fate == Fate::InFlight;
        let mut resent: Vec<_> = self
            .segments
            .iter()
            .filter(again)
            .map(|segment| (segment.sent_at, segment.start))
            .collect();
        resent.sort_unstable();
        let resent = resent.into_iter().map(|(at, start)| (start, at));
        self.board.resent = resent.collect();
        self.board.originals_from = 0;
    }

    /// Returns the first segment thought lost that waits to be sent again, with its index.
    pub(in crate::tcp) fn next_lost(&mut self) -> Option<(usize, &SentSegment)> {
        while let Some(&Reverse(start)) = self.board.lost_queue.peek() {
            if let Some(index) = self.find(start)
                && self.segments[index].fate == Fate::Lost
            {
                return Some((index, &self.segments[index]));
            }
            self.board.lost_queue.pop();
        }
        None
    }

    /// Marks the first `sent` octets of a segment as retransmitted now.
    pub(in crate::tcp) fn mark_retransmitted(&mut self, now: Instant, index: usize, sent: u16) {
        let first_unsent = self.unsent;
        let Some(segment) = self.segments.get_mut(index) else {
            return;
        };
        if segment.fate == Fate::Lost {
            self.board.lost -= u64::from(segment.sent);
            segment.fate = Fate::InFlight;
        }
        segment.retransmitted = true;
        segment.sent_at = now;
        self.board.on_resent(segment.start, now);
        if index == first_unsent {
            // A part of it was all that had been sent: this may have been more.
            segment.sent = segment.sent.max(sent);
            self.nxt = segment.start + u64::from(segment.sent);
            if segment.sent == segment.len {
                self.unsent += 1;
            }
        }
    }

    /// Marks an octet of the first segment as retransmitted now, and returns a copy of the segment.
    pub(in crate::tcp) fn head_sent_again(&mut self, now: Instant) -> Option<SentSegment> {
        self.segments.front()?;
        self.mark_retransmitted(now, 0, 0);
        self.segments.front().cloned()
    }

    /// Returns the first segment that is not acknowledged, if anything of it was sent, with its
    /// index.
    pub(in crate::tcp) fn head(&self) -> Option<(usize, &SentSegment)> {
        (self.sent_segments() > 0).then(|| (0, &self.segments[0]))
    }

    /// Returns the last segment of which anything was sent, with its index.
    pub(in crate::tcp) fn tail(&self) -> Option<(usize, &SentSegment)> {
        let index = self.sent_segments().checked_sub(1)?;
        Some((index, &self.segments[index]))
    }
}
