//! What has arrived out of order: the out-of-order queue, and records of FPDUs that were placed
//! early.

mod out_of_order;

use std::collections::BTreeMap;
use std::ops::Range;

use self::out_of_order::OutOfOrderQueue;
use crate::ddp::Placed;

/// An FPDU that was placed before the octets in front of it arrived. It is delivered when they have
/// arrived.
#[derive(Clone, Copy, Debug)]
// rfc: 5041-7, 5044-1 what is handed up out of order comes with its place in the order
pub(super) struct EarlyFpdu {
    pub(super) end: u64,
    pub(super) placed: Placed,
}

/// The most memory that the record of an early FPDU takes: an entry of its own, and one for a range
/// of queued octets that it splits in two. Nodes of these trees are at least about half full.
pub(super) const RECORD: usize = 2 * size_of::<(u64, EarlyFpdu)>() + 2 * size_of::<(u64, u64)>();

/// Out-of-order data of one connection, by stream offset. Nothing here overlaps: TCP does not offer
/// octets again that were marked as received.
///
/// The octets take no more memory than the window (and two blocks). Nor do records: a record
/// replaces the octets of an FPDU only where it is smaller.
#[derive(Default)]
pub(super) struct Reorder {
    queue: OutOfOrderQueue,
    early: BTreeMap<u64, EarlyFpdu>,
    /// Octets of FPDUs that were verified before their turn and failed.
    refused: usize,
}

impl Reorder {
    /// Returns the memory that is used: queued octets, and records.
    pub(super) fn buffered(&self) -> usize {
        self.queue.len() + self.early.len() * RECORD
    }

    /// Adds octets to the out-of-order queue.
    pub(super) fn keep(&mut self, start: u64, bytes: &[u8]) {
        self.queue.insert(start, bytes);
    }

    /// Returns queued octets, all of the range or nothing. Those that do not lie in one piece are
    /// joined in `joined`.
    pub(super) fn octets<'a>(
        &'a self,
        range: Range<u64>,
        joined: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        self.queue.octets(range, joined)
    }

    /// Returns whether an FPDU of this length may be verified before its turn. It may not where its
    /// record would be longer than the FPDU. Nor may it once FPDUs of twice as many octets as are
    /// queued failed: a forged marker is cheap for the peer, and the FPDU that it shows may be
    /// long. So the work that a peer can cause is bounded by what it sends.
    pub(super) fn may_verify(&self, len: usize) -> bool {
        len >= RECORD && self.refused < 2 * self.queue.len()
    }

    /// Records that an FPDU failed verification. Its octets stay queued until their turn.
    pub(super) fn refuse(&mut self, len: usize) {
        self.refused += len;
    }

    /// Replaces the octets of an FPDU that was placed by a record.
    pub(super) fn insert_early(&mut self, start: u64, fpdu: EarlyFpdu) {
        self.queue.remove(start..fpdu.end);
        // rfc: 5041-7, 5044-1 what is handed up out of order comes with its place in the order
        self.early.insert(start, fpdu);
        self.limit_refused();
    }

    /// Returns where the last early FPDU ends that begins before `offset`.
    pub(super) fn early_end(&self, offset: u64) -> Option<u64> {
        let (_, fpdu) = self.early.range(..offset).next_back()?;
        Some(fpdu.end)
    }

    /// Removes and returns the record of the early FPDU that begins at `offset`.
    pub(super) fn take_early(&mut self, offset: u64) -> Option<EarlyFpdu> {
        self.early.remove(&offset)
    }

    /// Removes and returns queued octets from `offset` on, not necessarily all that are contiguous.
    pub(super) fn take_queued(&mut self, offset: u64) -> Option<Vec<u8>> {
        let octets = self.queue.take(offset)?;
        self.limit_refused();
        Some(octets)
    }

    /// Forgets failures of octets that are no longer queued.
    fn limit_refused(&mut self) {
        self.refused = self.refused.min(2 * self.queue.len());
    }

    /// Drops everything: the stream is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    use crate::wire::ddp::{Stag, TaggedHeader, TaggedOffset};

    fn placed() -> Placed {
        Placed::nothing(TaggedHeader {
            last: true,
            ulp: 0,
            stag: Stag(0),
            offset: TaggedOffset(0),
        })
    }

    /// Yields numbers from both ends to the middle: each stands between those before.
    fn converging(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |n| if n % 2 == 0 { n / 2 } else { count - 1 - n / 2 })
    }

    /// Records never take more memory than the octets that they replace, and a short FPDU has no
    /// record.
    #[test]
    fn records_lie_within_the_window() {
        for len in [20, 24, RECORD - 1, RECORD, 1460] {
            let mut reorder = Reorder::default();
            let octets = vec![7; len];
            let mut sent = 0;
            for number in converging(1000) {
                let start = 100 + number * len as u64;
                reorder.keep(start, &octets);
                sent += len;
                if reorder.may_verify(len) {
                    let end = start + len as u64;
                    reorder.insert_early(
                        start,
                        EarlyFpdu {
                            end,
                            placed: placed(),
                        },
                    );
                }
                assert!(
                    reorder.buffered() <= sent,
                    "{len}: {} of {sent}",
                    reorder.buffered()
                );
                assert!(reorder.early.len() * RECORD <= sent);
            }
            let records = if len < RECORD { 0 } else { 1000 };
            assert_eq!(reorder.early.len(), records, "{len}");
            let (mut at, end) = (100, 100 + sent as u64);
            while at < end {
                let fpdu = reorder.take_early(at).map(|fpdu| fpdu.end);
                let octets = || {
                    reorder
                        .take_queued(at)
                        .map(|octets| at + octets.len() as u64)
                };
                at = fpdu.or_else(octets).unwrap();
            }
            assert_eq!(reorder.buffered(), 0, "{len}");
        }
    }

    /// However long FPDUs claim to be, no more octets are verified in vain than twice what the peer
    /// has sent.
    #[test]
    fn work_in_vain_is_bounded_by_what_was_sent() {
        let mut rng = Rng::with_seed(1);
        let mut reorder = Reorder::default();
        let (mut sent, mut looked_at, mut front) = (0, 0, 0);
        for number in converging(4000) {
            let start = 1000 + number * 20;
            reorder.keep(start, &[7; 20]);
            sent += 20;
            // Markers claim FPDUs of any length.
            for _ in 0..5 {
                let len = rng.usize(1..65_000);
                if reorder.may_verify(len) {
                    reorder.refuse(len);
                    looked_at += len;
                }
            }
            assert!(looked_at <= 2 * sent + 65_000, "{looked_at} of {sent}");
        }
        // The hole is filled: the queue empties, and the count with it.
        while let Some(octets) = reorder.take_queued(1000 + front) {
            front += octets.len() as u64;
        }
        assert_eq!((front, reorder.buffered(), reorder.refused), (80_000, 0, 0));
    }
}
