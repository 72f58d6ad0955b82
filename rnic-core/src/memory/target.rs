//! Where an STag leads.

use super::region::Region;

/// An address in a region, marked if the memory is the program's own ([`Region::foreign`]) and may
/// be gone. The mark is a bit that no address of a program has: so it costs the check of an STag
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target(*mut u8);

impl Target {
    const FOREIGN: usize = 1 << (usize::BITS - 1);

    /// Returns octet `start` of a region.
    pub(super) fn of(region: &Region, start: usize) -> Self {
        let at = region.as_ptr().wrapping_add(start);
        debug_assert!(at.addr() & Self::FOREIGN == 0);
        if region.is_foreign() {
            Self(at.map_addr(|at| at | Self::FOREIGN))
        } else {
            Self(at)
        }
    }

    /// Makes a target of an address as a slot of the table holds it.
    #[inline(always)]
    pub(super) fn from_marked(marked: *mut u8) -> Self {
        Self(marked)
    }

    /// Returns the address as a slot of the table holds it.
    pub(super) fn marked(self) -> *mut u8 {
        self.0
    }

    /// Returns the target so many octets further on.
    #[inline(always)]
    pub(super) fn add(self, octets: usize) -> Self {
        Self(self.0.wrapping_add(octets))
    }

    /// Returns whether the address is a multiple of `octets`.
    #[inline(always)]
    pub(super) fn is_aligned_to(self, octets: usize) -> bool {
        self.0.addr().is_multiple_of(octets)
    }

    /// Returns the address if the memory is rnic's own, and therefore there; else the address of
    /// what may be gone.
    #[inline(always)]
    pub(super) fn address(self) -> Result<*mut u8, *mut u8> {
        if self.0.addr() & Self::FOREIGN == 0 {
            Ok(self.0)
        } else {
            Err(self.0.map_addr(|at| at & !Self::FOREIGN))
        }
    }
}
