//! Regions: locked memory, on hugepages where there are some, that applications use and peers reach by STag.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::mapping::{Mapping, Pages};

/// Which pages a region asks for. If they are not to be had it takes smaller ones, and its
/// [`report`](Region::report) says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// 1 GiB for whole multiples of that, 2 MiB for other regions of at least that, ordinary pages below.
    #[default]
    Prefer,
    /// 2 MiB.
    TwoMiB,
    /// 1 GiB.
    OneGiB,
    /// Ordinary pages only.
    None,
}

impl HugePages {
    /// Returns the page sizes to try, in order.
    fn candidates(self, len: usize) -> &'static [Pages] {
        use Pages::{OneGiB, Ordinary, TwoMiB};
        match self {
            Self::OneGiB => &[OneGiB, TwoMiB, Ordinary],
            Self::TwoMiB => &[TwoMiB, Ordinary],
            Self::None => &[Ordinary],
            Self::Prefer if len.is_multiple_of(OneGiB.size()) => &[OneGiB, TwoMiB, Ordinary],
            Self::Prefer if len >= TwoMiB.size() => &[TwoMiB, Ordinary],
            Self::Prefer => &[Ordinary],
        }
    }
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A region needs at least one octet.
    #[error("a memory region of 0 octets was asked for; ask for at least 1")]
    Empty,
    /// The kernel gave no memory.
    #[error(
        "cannot map {len} octets: {source}; free some memory, raise the memory cgroup's limit or ask for less"
    )]
    Map {
        /// Octets asked for.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// An access that does not lie in the region.
    #[error("octets {offset}..+{len} were accessed in a region of {region} octets")]
    OutOfRange {
        /// First octet.
        offset: usize,
        /// Octets.
        len: usize,
        /// Octets in the region.
        region: usize,
    },
    /// A number for atomic operations that does not start at a multiple of 8.
    #[error("octet {offset} of a region is no multiple of 8, as an atomic operation needs it")]
    Misaligned {
        /// First octet.
        offset: usize,
    },
}

/// Memory that an application shares with its peers.
///
/// Peers write to it at any time between registration and revocation, so it is never seen as a slice: the
/// application copies in and out. A copy that races with a peer's write sees some mixture of old and new octets.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    len: usize,
    asked: HugePages,
    pages: Pages,
    locked: bool,
}

impl Region {
    /// Makes a zeroed region of `len` octets, populated, and locked in memory if this process may lock so much:
    /// [`is_locked`](Self::is_locked) and [`report`](Self::report) tell.
    pub fn allocate(len: usize, pages: HugePages) -> Result<Self, RegionError> {
        let mut region = Self::allocate_unlocked(len, pages)?;
        if !region.locked {
            region.locked = region.mapping.lock().is_ok();
        }
        Ok(region)
    }

    /// Makes a zeroed region without locking it: ordinary pages may be swapped out then, and an access to them may wait for the
    /// disk.
    pub fn allocate_unlocked(len: usize, pages: HugePages) -> Result<Self, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let mut failure = io::Error::from(io::ErrorKind::OutOfMemory);
        for &candidate in pages.candidates(len) {
            match Mapping::create("rnic-region", len, candidate) {
                // Hugetlb pages are never swapped out: they are locked by nature, whatever the limit on mlock.
                Ok(mapping) => {
                    let locked = candidate != Pages::Ordinary;
                    return Ok(Self {
                        mapping,
                        len,
                        asked: pages,
                        pages: candidate,
                        locked,
                    });
                }
                Err(error) => failure = error,
            }
        }
        Err(RegionError::Map {
            len,
            source: failure,
        })
    }

    /// Returns the number of octets in the region.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the virtual address of the first octet.
    pub fn base_address(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    /// Returns the first octet. Do not form a reference to what it points at: peers write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_mut_ptr()
    }

    /// Returns the number of octets in each of its pages.
    pub fn page_size(&self) -> usize {
        self.pages.size()
    }

    /// Whether its pages stay in memory.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Returns what the region consists of, for people: pages, whether hugepages were missed, whether it is locked.
    pub fn report(&self) -> String {
        let pages = match self.pages {
            Pages::Ordinary => format!("ordinary pages of {} KiB", self.page_size() >> 10),
            Pages::TwoMiB => "hugepages of 2 MiB".to_owned(),
            Pages::OneGiB => "hugepages of 1 GiB".to_owned(),
        };
        let missed = if Some(&self.pages) == self.asked.candidates(self.len).first() {
            ""
        } else {
            ", because no larger hugepages were free (`sysctl vm.nr_hugepages` reserves 2 MiB ones)"
        };
        let locked = if self.locked {
            "locked"
        } else {
            "not locked, so they may be swapped out (`ulimit -l` or CAP_IPC_LOCK allows locking)"
        };
        format!("{} octets on {pages}{missed}; {locked}", self.len)
    }

    /// Copies octets out, starting at `offset`.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let from = self.at(offset, to.len())?;
        // SAFETY: `at` checked that the octets lie in the mapping, which lives as long as `self`. `to` is a
        // unique reference, so it is not part of the mapping, over which no reference exists.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies octets in, starting at `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), RegionError> {
        let to = self.at(offset, from.len())?;
        // SAFETY: `at` checked that the octets lie in the mapping, which lives as long as `self`. `from` is a
        // reference, so it is not part of the mapping, over which no reference exists.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Sets `len` octets to `value`, starting at `offset`.
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), RegionError> {
        let to = self.at(offset, len)?;
        // SAFETY: `at` checked that the octets lie in the mapping, which lives as long as `self`.
        unsafe { ptr::write_bytes(to, value, len) };
        Ok(())
    }

    /// Reads one octet afresh: for a loop that waits for a peer's write.
    pub fn load(&self, offset: usize) -> Result<u8, RegionError> {
        let at = self.at(offset, 1)?;
        // SAFETY: the octet lies in the mapping, which lives as long as `self`, and one octet is always aligned.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Returns the 8 octets at `offset`, a multiple of 8, as a number in this machine's byte order that this process and its
    /// peers' atomic operations (RFC 7306) change without losing each other's changes.
    pub fn atomic(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        let at = self.at(offset, size_of::<u64>())?.cast::<u64>();
        if !at.is_aligned() {
            return Err(RegionError::Misaligned { offset });
        }
        // SAFETY: the octets lie in the mapping, which lives as long as `self`, and are aligned.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Returns the address of `len` octets at `offset`, if they lie in the region.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, RegionError> {
        if offset > self.len || len > self.len - offset {
            return Err(RegionError::OutOfRange {
                offset,
                len,
                region: self.len,
            });
        }
        Ok(self.as_ptr().wrapping_add(offset))
    }
}

impl AsFd for Region {
    /// Returns the memory as a file, to share with another process. Its size is sealed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_within_the_region() {
        let region = Region::allocate_unlocked(10_000, HugePages::None).unwrap();
        region.write(9_990, b"0123456789").unwrap();
        let mut back = [0; 10];
        region.read(9_990, &mut back).unwrap();
        assert_eq!(&back, b"0123456789");
        assert!(region.write(9_991, b"0123456789").is_err());
        assert!(region.read(10_001, &mut []).is_err());
        assert!(region.read(10_000, &mut []).is_ok());
        assert!(region.fill(1, usize::MAX, 0).is_err());
        assert!(region.load(10_000).is_err());
        region.fill(9_995, 5, b'x').unwrap();
        assert_eq!(region.load(9_999).unwrap(), b'x');
        assert_eq!(region.load(9_994).unwrap(), b'4');
    }

    #[test]
    fn falls_back_and_says_so() {
        let region = Region::allocate_unlocked(3 << 20, HugePages::OneGiB).unwrap();
        let report = region.report();
        match region.page_size() {
            0x4000_0000 => assert!(report.contains("1 GiB;"), "{report}"),
            0x20_0000 => assert!(report.contains("2 MiB, because"), "{report}"),
            _ => assert!(
                report.contains("ordinary") && report.contains("because"),
                "{report}"
            ),
        }
        assert_eq!(region.base_address() % region.page_size() as u64, 0);
    }

    #[test]
    fn empty_and_absurd_sizes_are_refused() {
        assert!(matches!(
            Region::allocate(0, HugePages::Prefer),
            Err(RegionError::Empty)
        ));
        assert!(matches!(
            Region::allocate(usize::MAX, HugePages::None),
            Err(RegionError::Map { .. })
        ));
    }

    #[test]
    fn a_sharer_cannot_resize_the_memory() {
        let region = Region::allocate_unlocked(4096, HugePages::None).unwrap();
        let file = region.as_fd().try_clone_to_owned().unwrap();
        assert!(nix::unistd::ftruncate(&file, 0).is_err());
    }
}
