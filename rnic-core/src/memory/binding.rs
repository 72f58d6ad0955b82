//! What a memory window is bound to, or what a fast registration covers, as it stands in a work
//! request.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire::ddp::{Stag, TaggedOffset};

use super::access::Access;

/// The meaning that a request gives an STag: some octets, tagged offsets for them, and rights.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Binding {
    /// The STag from now on: that of the window or region with any key.
    pub stag: u32,
    /// A window: the STag of the region that it opens. A fast registration has its region from its
    /// allocation.
    pub region: u32,
    /// The first octet: a window's is a tagged offset of the region, a fast registration's is
    /// counted in its region.
    pub start: u64,
    /// Octets.
    pub length: u64,
    /// The tagged offset that the first octet gets.
    pub base: u64,
    /// An [`Access`].
    pub access: u8,
    /// Zero.
    pub _reserved: [u8; 7],
}

const _: () = assert!(size_of::<Binding>() == 40);

impl Binding {
    /// Returns the STag from now on.
    pub fn stag(&self) -> Stag {
        Stag(self.stag)
    }

    /// Returns the STag of a window's region.
    pub fn region(&self) -> Stag {
        Stag(self.region)
    }

    /// Returns the tagged offset that the first octet gets.
    pub fn base(&self) -> TaggedOffset {
        TaggedOffset(self.base)
    }

    /// Returns the rights.
    pub fn access(&self) -> Access {
        Access(self.access)
    }
}
