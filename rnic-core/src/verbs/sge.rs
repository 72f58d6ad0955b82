//! Scatter/gather elements: pieces of registered local memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire::ddp::{Stag, TaggedOffset};

/// One piece of registered local memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Sge {
    /// Its tagged offset within `lkey`.
    pub offset: u64,
    /// Octets.
    pub length: u32,
    /// The STag of the registration.
    pub lkey: u32,
}

impl Sge {
    /// Returns the STag of the registration.
    pub fn stag(&self) -> Stag {
        Stag(self.lkey)
    }

    /// Returns its tagged offset.
    pub fn tagged_offset(&self) -> TaggedOffset {
        TaggedOffset(self.offset)
    }
}

/// Returns the number of octets in a list.
pub fn total_length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
