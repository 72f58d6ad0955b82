//! What has arrived ahead of the stream's front: FPDUs that were placed early, and octets kept aside.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::ddp::Placed;

/// Pieces kept aside that do not touch: more of them are left for the peer to send again, so that a peer that
/// sends many small ones costs little more memory than they have octets.
const MAX_PIECES: usize = 512;
/// Octets kept aside, however large the window is: what is placed needs no memory of ours.
const MAX_ASIDE: usize = 512 * 1024;
/// FPDUs placed early: their records need some.
const MAX_EARLY: usize = 16 * 1024;

/// An FPDU that was placed before the octets in front of it arrived. It is delivered when they have.
#[derive(Clone, Copy, Debug)]
// rfc: 5041-7, 5044-1
pub(super) struct EarlyFpdu {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) placed: Placed,
}

/// Octets from which on a piece grows no longer, because what is taken out of a piece moves the rest of it.
const FULL_PIECE: usize = 64 * 1024;

/// Out-of-order data of one connection, by stream offset.
///
/// Nothing here overlaps: TCP offers no octets at whose front it was told that they were taken, and the
/// caller cuts the rest at [`next_start`](Self::next_start).
#[derive(Default)]
pub(super) struct Reorder {
    early: VecDeque<EarlyFpdu>,
    aside: BTreeMap<u64, Vec<u8>>,
    aside_octets: usize,
}

impl Reorder {
    /// Octets kept in memory of our own: the receive window accounts for them.
    pub(super) fn held(&self) -> usize {
        self.aside_octets
    }

    /// Where the first octet behind `offset` lies that is here already.
    pub(super) fn next_start(&self, offset: u64) -> u64 {
        let at = self.early.partition_point(|fpdu| fpdu.start < offset);
        let early = self.early.get(at).map(|fpdu| fpdu.start);
        let aside = self.aside.range(offset..).next().map(|(start, _)| *start);
        early.unwrap_or(u64::MAX).min(aside.unwrap_or(u64::MAX))
    }

    /// Whether the record of one more early FPDU can be kept.
    pub(super) fn has_room(&self) -> bool {
        self.early.len() < MAX_EARLY
    }

    pub(super) fn insert_early(&mut self, fpdu: EarlyFpdu) {
        let at = self.early.partition_point(|other| other.start < fpdu.start);
        self.early.insert(at, fpdu);
    }

    /// Where the first early FPDU begins.
    pub(super) fn early_start(&self) -> Option<u64> {
        self.early.front().map(|fpdu| fpdu.start)
    }

    pub(super) fn pop_early(&mut self) -> Option<EarlyFpdu> {
        self.early.pop_front()
    }

    /// Keeps octets aside. Says no if there are too many of them, or too many pieces, already.
    pub(super) fn insert_aside(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        if self.aside_octets + bytes.len() > MAX_ASIDE {
            return false;
        }
        let full = self.aside.len() >= MAX_PIECES;
        match self.aside.range_mut(..=offset).next_back() {
            Some((start, piece))
                if start + piece.len() as u64 == offset && piece.len() < FULL_PIECE =>
            {
                piece.extend_from_slice(bytes);
            }
            _ if full => return false,
            _ => {
                self.aside.insert(offset, bytes.to_vec());
            }
        }
        self.aside_octets += bytes.len();
        true
    }

    /// Where the last early FPDU ends that begins before `offset`.
    pub(super) fn early_end(&self, offset: u64) -> Option<u64> {
        let behind = self.early.partition_point(|fpdu| fpdu.start < offset);
        self.early.get(behind.checked_sub(1)?).map(|fpdu| fpdu.end)
    }

    /// Octets that are kept aside, all of them or nothing; `joined` is for those of several pieces.
    pub(super) fn octets<'a>(
        &'a self,
        range: Range<u64>,
        joined: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let len = (range.end - range.start) as usize;
        let (start, piece) = self.aside.range(..=range.start).next_back()?;
        let front = piece.get((range.start - start) as usize..)?;
        if let Some(octets) = front.get(..len) {
            return Some(octets);
        }
        joined.clear();
        joined.extend_from_slice(front);
        for (start, piece) in self.aside.range(range.start + 1..range.end) {
            if *start != range.start + joined.len() as u64 {
                return None;
            }
            joined.extend_from_slice(&piece[..piece.len().min(len - joined.len())]);
        }
        (joined.len() == len).then_some(joined)
    }

    /// Keeps these octets no longer: they have been placed.
    pub(super) fn take_out(&mut self, range: Range<u64>) {
        while let Some((&start, piece)) = self.aside.range_mut(..range.end).next_back() {
            let end = start + piece.len() as u64;
            if end <= range.start {
                return;
            }
            let before = range.start.saturating_sub(start) as usize;
            let behind = range.end.min(end);
            let rest = piece.split_off((behind - start) as usize);
            self.aside_octets -= piece.len() - before;
            piece.truncate(before);
            if before == 0 {
                self.aside.remove(&start);
            }
            if !rest.is_empty() {
                self.aside.insert(range.end, rest);
            }
        }
    }

    /// Forgets everything: the stream is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the first chunk that reaches beyond `offset`, if it begins at or before it. Chunks that lie
    /// wholly before are dropped.
    pub(super) fn take_aside(&mut self, offset: u64) -> Option<(u64, Vec<u8>)> {
        while let Some(entry) = self.aside.first_entry() {
            if *entry.key() > offset {
                return None;
            }
            let (start, bytes) = entry.remove_entry();
            self.aside_octets -= bytes.len();
            if start + bytes.len() as u64 > offset {
                return Some((start, bytes));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Pieces of a stream that come in any order make up the stream again, and only what is kept is counted.
        #[test]
        fn a_shuffled_stream_comes_out_as_it_was(
            (order, lengths) in prop::collection::vec(1_usize..9, 1..60).prop_flat_map(|lengths| {
                let order: Vec<usize> = (0..lengths.len()).collect();
                (Just(order).prop_shuffle(), Just(lengths))
            }),
        ) {
            let ends: Vec<usize> = lengths.iter().scan(0, |end, len| { *end += len; Some(*end) }).collect();
            let stream: Vec<u8> = (0..ends[ends.len() - 1]).map(|at| (at * 7) as u8).collect();
            let (mut reorder, mut out, mut kept) = (Reorder::default(), Vec::new(), Vec::new());
            for piece in order {
                let start = ends[piece] - lengths[piece];
                let bytes = &stream[start..ends[piece]];
                if start == out.len() {
                    out.extend_from_slice(bytes);
                } else {
                    prop_assert!(reorder.insert_aside(start as u64, bytes));
                    kept.extend(start..ends[piece]);
                }
                while let Some((start, bytes)) = reorder.take_aside(out.len() as u64) {
                    prop_assert_eq!(start, out.len() as u64);
                    out.extend(bytes);
                }
                kept.retain(|at| *at >= out.len());
                prop_assert_eq!(reorder.held(), kept.len());
                let next = kept.iter().min().map_or(u64::MAX, |at| *at as u64);
                prop_assert_eq!(reorder.next_start(out.len() as u64), next);
            }
            prop_assert_eq!(out, stream);
        }
    }

    proptest! {
        /// Octets that were taken out are gone, all others are where they were.
        #[test]
        fn what_is_taken_out_is_gone_and_the_rest_stays(
            pieces in prop::collection::vec((0..300_u64, 1..40_usize), 1..20),
            range in (0..340_u64, 1..60_u64),
        ) {
            let (mut reorder, mut model) = (Reorder::default(), [None; 400]);
            for (start, len) in pieces {
                let end = (start + len as u64).min(reorder.next_start(start));
                let bytes: Vec<u8> = (start..end).map(|at| at as u8).collect();
                if model[start as usize].is_none() {
                    prop_assert!(reorder.insert_aside(start, &bytes));
                    model[start as usize..end as usize].fill(Some(()));
                }
            }
            let (from, len) = range;
            let there = |model: &[Option<()>]| model.iter().flatten().count();
            let mut joined = Vec::new();
            let octets = reorder.octets(from..from + len, &mut joined);
            let all = there(&model[from as usize..][..len as usize]) == len as usize;
            let wanted: Vec<u8> = (from..from + len).map(|at| at as u8).collect();
            prop_assert_eq!(octets, all.then_some(&wanted[..]));
            reorder.take_out(from..from + len);
            model[from as usize..][..len as usize].fill(None);
            prop_assert_eq!(reorder.held(), there(&model));
            for at in 0..400 {
                let octet = [at as u8];
                let wanted = model[at as usize].map(|()| &octet[..]);
                prop_assert_eq!(reorder.octets(at..at + 1, &mut joined), wanted, "octet {}", at);
            }
        }
    }

    #[test]
    fn aside_chunks_come_back_in_order_and_are_counted() {
        let mut reorder = Reorder::default();
        assert!(reorder.insert_aside(20, b"cd"));
        assert!(reorder.insert_aside(10, b"0123456789ab"));
        assert_eq!(reorder.next_start(0), 10);
        assert_eq!(reorder.next_start(11), 20);
        assert_eq!(reorder.next_start(21), u64::MAX);
        assert_eq!(reorder.held(), 14);
        assert_eq!(reorder.take_aside(9), None);
        assert_eq!(reorder.take_aside(12), Some((10, b"0123456789ab".to_vec())));
        assert_eq!(
            reorder.take_aside(22),
            None,
            "a chunk wholly before the offset is dropped"
        );
        assert_eq!(reorder.held(), 0);
        assert_eq!(reorder.next_start(0), u64::MAX);
    }

    #[test]
    fn many_small_pieces_become_one_or_are_refused() {
        let mut reorder = Reorder::default();
        for offset in 100..200 {
            assert!(reorder.insert_aside(offset, b"x"));
        }
        assert_eq!((reorder.aside.len(), reorder.held()), (1, 100));
        for offset in (1000..1000 + 2 * MAX_PIECES as u64 - 2).step_by(2) {
            assert!(reorder.insert_aside(offset, b"x"));
        }
        assert!(!reorder.insert_aside(10, b"x"));
        assert!(reorder.insert_aside(200, b"x"), "it adds to a piece");
        assert_eq!(reorder.aside.len(), MAX_PIECES);
        assert_eq!(reorder.held(), 101 + MAX_PIECES - 1);
    }

    #[test]
    fn what_is_kept_aside_has_a_limit_whatever_the_window() {
        let mut reorder = Reorder::default();
        let piece = [0; 1024];
        for at in 0..MAX_ASIDE / piece.len() {
            assert!(reorder.insert_aside(10 + (at * piece.len()) as u64, &piece));
        }
        assert!(!reorder.insert_aside(10 + MAX_ASIDE as u64, b"x"));
        assert_eq!(reorder.held(), MAX_ASIDE);
    }
}
