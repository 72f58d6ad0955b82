//! Sequence numbers against stream offsets.

pub use crate::wire::tcp::Seq;

/// Where one direction of a connection begins: the sequence number of its SYN.
///
/// Inside the connection every position is a stream offset of 64 bits that never wraps: offset 0 is the first
/// octet of data, the SYN stands at -1, and the FIN just past the last octet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(Seq);

impl Origin {
    pub(super) const fn new(syn: Seq) -> Self {
        Self(syn)
    }

    /// The sequence number of the SYN.
    pub(super) const fn syn(self) -> Seq {
        self.0
    }

    /// The sequence number of the octet at `offset`.
    pub(super) fn seq(self, offset: u64) -> Seq {
        // The sequence number is the offset modulo 2^32.
        self.0 + 1 + offset as u32
    }

    /// The offset of `seq`: of all that it can stand for, the one nearest to `near`.
    pub(super) fn offset(self, seq: Seq, near: u64) -> i64 {
        let distance = seq.signed_distance_from(self.seq(near));
        near.cast_signed().wrapping_add(i64::from(distance))
    }
}
