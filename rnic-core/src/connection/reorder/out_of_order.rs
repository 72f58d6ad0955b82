//! The out-of-order queue: octets that wait for those in front of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Octets of a block. Blocks begin at multiples of this, so the queue takes at most the memory of
/// the window and two blocks, however the peer cuts and orders its segments.
const BLOCK: u64 = 4096;

/// Octets received out of order, by their stream offsets. An operation costs a look-up and the copy
/// of its octets.
#[derive(Default)]
pub(super) struct OutOfOrderQueue {
    /// The start and end of each range of queued octets. Ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    /// The blocks, by their first offset divided by [`BLOCK`].
    blocks: BTreeMap<u64, OctetBlock>,
    len: usize,
}

/// A part of the stream, of which some octets are queued.
struct OctetBlock {
    octets: Box<[u8]>,
    queued: usize,
}

impl OctetBlock {
    fn new() -> Self {
        let octets = vec![0; BLOCK as usize].into_boxed_slice();
        Self { octets, queued: 0 }
    }
}

impl OutOfOrderQueue {
    /// Returns the number of queued octets.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Queues octets of which none is queued yet.
    pub(super) fn insert(&mut self, start: u64, mut bytes: &[u8]) {
        let mut range = start..start + bytes.len() as u64;
        if range.is_empty() {
            return;
        }
        self.len += bytes.len();
        for (number, part) in parts(range.clone()) {
            let (now, later) = bytes.split_at(part.len());
            let block = self.blocks.entry(number).or_insert_with(OctetBlock::new);
            block.queued += part.len();
            block.octets[part].copy_from_slice(now);
            bytes = later;
        }
        if let Some(before) = self.range_with(range.start.saturating_sub(1)) {
            range.start = before.start;
        }
        if let Some(end) = self.ranges.remove(&range.end) {
            range.end = end;
        }
        self.ranges.insert(range.start, range.end);
    }

    /// Returns the range of queued octets that contains `offset`.
    fn range_with(&self, offset: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=offset).next_back()?;
        (offset < end).then_some(start..end)
    }

    /// Returns octets, all of the range or nothing. Those of several blocks are joined in `joined`.
    pub(super) fn octets<'a>(
        &'a self,
        range: Range<u64>,
        joined: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let kept = self.range_with(range.start)?;
        if range.end > kept.end {
            return None;
        }
        let mut pieces = parts(range).filter_map(|(number, part)| {
            let block = self.blocks.get(&number)?;
            block.octets.get(part)
        });
        let first = pieces.next()?;
        let Some(second) = pieces.next() else {
            return Some(first);
        };
        joined.clear();
        joined.extend_from_slice(first);
        joined.extend_from_slice(second);
        pieces.for_each(|piece| joined.extend_from_slice(piece));
        Some(joined)
    }

    /// Removes and returns octets from `offset` on, as many as stand in one block. `None` if the
    /// first is not queued.
    pub(super) fn take(&mut self, offset: u64) -> Option<Vec<u8>> {
        let kept = self.range_with(offset)?;
        let (number, part) = parts(offset..kept.end).next()?;
        let octets = self.blocks.get(&number)?.octets[part.clone()].to_vec();
        self.remove(offset..offset + part.len() as u64);
        Some(octets)
    }

    /// Removes octets, all of which are queued.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        let Some(kept) = self.range_with(range.start) else {
            return;
        };
        for (number, part) in parts(range.clone()) {
            self.len -= part.len();
            if let Some(block) = self.blocks.get_mut(&number) {
                block.queued -= part.len();
                if block.queued == 0 {
                    self.blocks.remove(&number);
                }
            }
        }
        self.ranges.remove(&kept.start);
        for rest in [kept.start..range.start, range.end..kept.end] {
            if !rest.is_empty() {
                self.ranges.insert(rest.start, rest.end);
            }
        }
    }
}

/// Yields the blocks that a range of offsets falls into, and the part of each.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let number = at / BLOCK;
            let base = number * BLOCK;
            let end = range.end.min(base + BLOCK);
            let part = (at - base) as usize..(end - base) as usize;
            at = end;
            (number, part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Range<u64>),
        Remove(Range<u64>),
        Take(u64),
    }

    fn range() -> impl Strategy<Value = Range<u64>> {
        // Near the bounds of blocks, and across them.
        let start = prop_oneof![0..60_u64, BLOCK - 30..BLOCK + 30, 0..3 * BLOCK];
        let len = prop_oneof![1..20_u64, 1..2 * BLOCK];
        (start, len).prop_map(|(start, len)| start..start + len)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => range().prop_map(Step::Insert),
            1 => range().prop_map(Step::Remove),
            1 => range().prop_map(|range| Step::Take(range.start)),
        ]
    }

    fn octet(at: usize) -> u8 {
        (at * 7 + at / 251) as u8
    }

    fn octets(range: Range<u64>) -> Vec<u8> {
        (range.start as usize..range.end as usize)
            .map(octet)
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_octets(steps in prop::collection::vec(step(), 1..40)) {
            let mut queue = OutOfOrderQueue::default();
            let mut model = vec![false; 6 * BLOCK as usize];
            for step in steps {
                match step {
                    Step::Insert(range) => {
                        let whole = &mut model[range.start as usize..range.end as usize];
                        // As TCP offers them: up to the first octet that is queued already.
                        let free = whole.iter().take_while(|there| !**there).count();
                        whole[..free].fill(true);
                        let end = range.start + free as u64;
                        queue.insert(range.start, &octets(range.start..end));
                    }
                    Step::Remove(range) => {
                        let whole = &mut model[range.start as usize..range.end as usize];
                        let all = whole.iter().all(|there| *there);
                        let mut joined = Vec::new();
                        let found = queue.octets(range.clone(), &mut joined).map(<[u8]>::to_vec);
                        prop_assert_eq!(found, all.then(|| octets(range.clone())));
                        if all {
                            whole.fill(false);
                            queue.remove(range);
                        }
                    }
                    Step::Take(offset) => {
                        let there = model[offset as usize..].iter().take_while(|there| **there).count();
                        let taken = queue.take(offset);
                        let len = taken.as_ref().map_or(0, Vec::len);
                        prop_assert_eq!(len > 0, there > 0);
                        prop_assert!(len <= there);
                        let end = offset + len as u64;
                        prop_assert_eq!(taken.unwrap_or_default(), octets(offset..end));
                        model[offset as usize..end as usize].fill(false);
                    }
                }
                prop_assert_eq!(queue.len(), model.iter().filter(|there| **there).count());
                let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
                prop_assert_eq!(queue.ranges.len(), runs);
                let blocks = model.chunks(BLOCK as usize).filter(|block| block.contains(&true)).count();
                prop_assert_eq!(queue.blocks.len(), blocks);
            }
        }
    }

    /// However small the pieces and wherever they are, the memory is at most the window and two
    /// blocks.
    #[test]
    fn pieces_anywhere_in_a_window_take_no_more_than_the_window() {
        const WINDOW: u64 = 64 * 1024;
        let front = BLOCK - 1;
        let mut queue = OutOfOrderQueue::default();
        for offset in (front..front + WINDOW).step_by(2) {
            queue.insert(offset, b"x");
        }
        assert!(queue.blocks.len() as u64 * BLOCK <= WINDOW + 2 * BLOCK);
        for offset in (front..front + WINDOW).step_by(2) {
            assert_eq!(queue.take(offset), Some(b"x".to_vec()));
        }
        assert!(queue.blocks.is_empty() && queue.ranges.is_empty());
    }
}
