//! Regions: locked memory, on hugepages where there are some, that applications use and peers reach
//! by STag. [`HugePages`] says which sizes of pages are tried.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::foreign::Foreign;
use super::guarded::{self, Fault};
use super::mapping::{Mapping, Pages};
use super::words;

/// Which pages a region asks for. If they are not to be had it takes smaller ones, and its
/// [`report`](Region::report) says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// 1 GiB for whole multiples of that, 2 MiB for other regions of at least that, ordinary pages
    /// below. On aarch64 with ordinary pages of 16 or 64 KiB, also 32 or 512 MiB for whole
    /// multiples of that.
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
    /// Returns the page sizes to try, in order, where ordinary pages have so many octets.
    fn candidates(self, len: usize, ordinary: usize) -> impl Iterator<Item = Pages> {
        let usual = Pages::usual_huge(ordinary);
        let is_wanted = move |pages: Pages| match (self, pages) {
            (_, Pages::Ordinary) => true,
            (Self::None, _) => false,
            (_, Pages::ThirtyTwoMiB | Pages::HalfGiB) if pages.size() != usual => false,
            (Self::OneGiB, _) => true,
            (Self::TwoMiB, _) => pages == Pages::TwoMiB,
            (Self::Prefer, Pages::TwoMiB) => len >= pages.size(),
            (Self::Prefer, _) => len.is_multiple_of(pages.size()),
        };
        Pages::ALL
            .into_iter()
            .filter(move |pages| is_wanted(*pages))
    }
}

/// Octets that are filled at once.
const FILL: usize = 256;

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
    /// Memory of the program cannot be registered.
    #[error(
        "{len} octets at {address:#x} cannot be registered: {source}; all of it must be mapped, and writable unless it is registered for reading"
    )]
    Foreign {
        /// The first octet.
        address: usize,
        /// Octets.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program has taken away memory of its own.
    #[error("octets {offset}..+{len} of a region: {fault}")]
    Fault {
        /// First octet.
        offset: usize,
        /// Octets.
        len: usize,
        /// What became of them.
        fault: Fault,
    },
    /// A region that is only to be read.
    #[error("the region is read-only")]
    ReadOnly,
    /// Memory of the program, which has the address of it.
    #[error("the region is the program's own memory; use its address for atomic operations")]
    NotOwned,
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
/// Peers write to it at any time between registration and revocation, so it is never seen as a
/// slice: the application copies in and out. A copy that races with a peer's write sees some
/// mixture of old and new words: of 8 octets where these are aligned, and of 2 and 4 likewise.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    len: usize,
}

/// Whose memory it is.
#[derive(Debug)]
enum Memory {
    Own {
        mapping: Mapping,
        asked: HugePages,
        pages: Pages,
        locked: bool,
    },
    Foreign(Foreign),
}

impl Region {
    /// Makes a zeroed region of `len` octets, populated, and locked in memory if this process may
    /// lock so much: [`is_locked`](Self::is_locked) and [`report`](Self::report) tell.
    pub fn allocate(len: usize, pages: HugePages) -> Result<Self, RegionError> {
        let mut region = Self::allocate_unlocked(len, pages)?;
        if let Memory::Own {
            mapping, locked, ..
        } = &mut region.memory
        {
            *locked = *locked || mapping.lock().is_ok();
        }
        Ok(region)
    }

    /// Makes a region of memory that the program has from elsewhere: its heap, its stack, a mapping
    /// of its own or shared memory. It may start at any octet, and stays the program's: dropping
    /// the region leaves it as it is.
    ///
    /// All of it must be mapped, and `writable` memory be so. It is populated, and not locked:
    /// `mlock` does not count, so that to unlock it would undo what the program itself has locked.
    ///
    /// Nothing keeps the program from unmapping, protecting or truncating it while it is
    /// registered. Then what accesses it ends as an access without the right to do so:
    /// [`read`](Self::read) and [`write`](Self::write) fail, and a connection ends with a
    /// Terminate. For that a handler of SIGSEGV and SIGBUS is installed with the first such region.
    /// It acts on faults of these accesses alone, and calls the handler that was there before for
    /// all others. A handler that the program installs later takes its place, and ought to call it.
    /// A thread that drives a device must not block these signals.
    ///
    /// # Errors
    ///
    /// [`RegionError::Foreign`] says that the memory has holes or is protected, or that Linux is
    /// older than 5.14.
    ///
    /// # Safety
    ///
    /// While the region exists, the program may reuse these addresses only for what peers may
    /// access by its registrations: whatever is mapped there is read and, if `writable`, written.
    /// It accesses what peers write as [`Region`] says.
    pub unsafe fn foreign(addr: *mut u8, len: usize, writable: bool) -> Result<Self, RegionError> {
        Self::of_program(addr, len, Foreign::populated(addr, len, writable))
    }

    /// Makes a region of the program's memory that need not be mapped yet (on-demand paging). Pages
    /// are made when somebody accesses them, peers included. An access to what is not mapped, or
    /// protected, ends as one without the right.
    ///
    /// # Errors
    ///
    /// As of [`foreign`](Self::foreign), but for memory that has holes or is protected.
    ///
    /// # Safety
    ///
    /// As of [`foreign`](Self::foreign).
    pub unsafe fn on_demand(
        addr: *mut u8,
        len: usize,
        writable: bool,
    ) -> Result<Self, RegionError> {
        Self::of_program(addr, len, Foreign::on_demand(addr, len, writable))
    }

    fn of_program(
        addr: *mut u8,
        len: usize,
        foreign: io::Result<Foreign>,
    ) -> Result<Self, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let foreign = foreign.and_then(|foreign| {
            guarded::install()?;
            Ok(foreign)
        });
        let memory = Memory::Foreign(foreign.map_err(|source| RegionError::Foreign {
            address: addr.addr(),
            len,
            source,
        })?);
        Ok(Self { memory, len })
    }

    /// Returns whether it is memory that the program has [from elsewhere](Self::foreign).
    pub fn is_foreign(&self) -> bool {
        matches!(self.memory, Memory::Foreign(_))
    }

    /// Returns whether it may be registered with rights to write.
    pub fn is_writable(&self) -> bool {
        match &self.memory {
            Memory::Own { .. } => true,
            Memory::Foreign(foreign) => foreign.is_writable(),
        }
    }

    /// Makes a zeroed region without locking it: ordinary pages may be swapped out then, and an
    /// access to them may wait for the disk.
    pub fn allocate_unlocked(len: usize, pages: HugePages) -> Result<Self, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let mut failure = io::Error::from(io::ErrorKind::OutOfMemory);
        for candidate in pages.candidates(len, Pages::Ordinary.size()) {
            match Mapping::create("rnic-region", len, candidate) {
                // Hugetlb pages are never swapped out: they are locked by nature, whatever the
                // limit on mlock.
                Ok(mapping) => {
                    let locked = candidate != Pages::Ordinary;
                    let memory = Memory::Own {
                        mapping,
                        asked: pages,
                        pages: candidate,
                        locked,
                    };
                    return Ok(Self { memory, len });
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
        match &self.memory {
            Memory::Own { mapping, .. } => mapping.as_mut_ptr(),
            Memory::Foreign(foreign) => foreign.as_mut_ptr(),
        }
    }

    /// Returns the number of octets in each of its pages, if it was allocated, and in an ordinary
    /// page otherwise.
    pub fn page_size(&self) -> usize {
        match &self.memory {
            Memory::Own { pages, .. } => pages.size(),
            Memory::Foreign(_) => Pages::Ordinary.size(),
        }
    }

    /// Returns whether its pages stay in memory.
    pub fn is_locked(&self) -> bool {
        matches!(self.memory, Memory::Own { locked: true, .. })
    }

    /// Returns what the region consists of, for people: pages, whether hugepages were missed,
    /// whether it is locked.
    pub fn report(&self) -> String {
        let Memory::Own {
            asked,
            pages: size,
            locked,
            ..
        } = &self.memory
        else {
            return format!(
                "{} octets of the program's own memory; not locked",
                self.len
            );
        };
        let pages = match size {
            Pages::Ordinary => format!("ordinary pages of {} KiB", self.page_size() >> 10),
            Pages::OneGiB => "hugepages of 1 GiB".to_owned(),
            huge => format!("hugepages of {} MiB", huge.size() >> 20),
        };
        let ordinary = Pages::Ordinary.size();
        let missed = match asked.candidates(self.len, ordinary).next() {
            Some(wanted) if wanted != *size => format!(
                ", because no larger hugepages were free (`{}` reserves {} MiB ones)",
                wanted.reserved_by(ordinary),
                wanted.size() >> 20
            ),
            _ => String::new(),
        };
        let locked = if *locked {
            "locked"
        } else {
            "not locked, so they may be swapped out (`ulimit -l` or CAP_IPC_LOCK allows locking)"
        };
        format!("{} octets on {pages}{missed}; {locked}", self.len)
    }

    /// Copies octets out, starting at `offset`. An aligned word of 2, 4 or 8 octets is loaded in
    /// one piece.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let from = self.at(offset, to.len())?;
        if self.is_foreign() {
            let len = to.len();
            // SAFETY: `at` checked that the octets lie in the region. They may be gone.
            let read = unsafe { guarded::read(from, to) };
            return read.map_err(|fault| RegionError::Fault { offset, len, fault });
        }
        // SAFETY: `at` checked that the octets lie in the mapping, which lives as long as `self`.
        unsafe { words::load(from, to) };
        Ok(())
    }

    /// Copies octets in, starting at `offset`. An aligned word of 2, 4 or 8 octets is stored in one
    /// piece, and the last such word last.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), RegionError> {
        let to = self.at(offset, from.len())?;
        if self.is_foreign() {
            return self.write_foreign(offset, to, from);
        }
        // SAFETY: `at` checked that the octets lie in the mapping, which lives as long as `self`.
        unsafe { words::store(to, from) };
        Ok(())
    }

    /// Sets `len` octets to `value`, starting at `offset`, in such words as [`write`](Self::write)
    /// does.
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), RegionError> {
        let mut at = self.at(offset, len)?.addr();
        let (end, start) = (at + len, at);
        let octets = [value; FILL];
        while at < end {
            // Pieces end where words do.
            let piece = (FILL - at % FILL).min(end - at);
            self.write(offset + (at - start), &octets[..piece])?;
            at += piece;
        }
        Ok(())
    }

    /// Reads one octet afresh: for a loop that waits for a peer's write.
    pub fn load(&self, offset: usize) -> Result<u8, RegionError> {
        let at = self.at(offset, 1)?;
        if self.is_foreign() {
            let mut octet = [0];
            return self.read(offset, &mut octet).map(|()| octet[0]);
        }
        // SAFETY: the octet lies in the mapping, which lives as long as `self`, and one octet is
        // always aligned.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Returns the 8 octets at `offset`, a multiple of 8, as a number in this machine's byte order
    /// that this process and its peers' atomic operations (RFC 7306) change without losing each
    /// other's changes. Memory of the program's own is refused: it may be gone while the number is
    /// in use.
    pub fn atomic(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        if self.is_foreign() {
            return Err(RegionError::NotOwned);
        }
        let at = self.at(offset, size_of::<u64>())?.cast::<u64>();
        if !at.is_aligned() {
            return Err(RegionError::Misaligned { offset });
        }
        // SAFETY: the octets lie in the mapping, which lives as long as `self`, and are aligned.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Copies octets to memory of the program.
    fn write_foreign(&self, offset: usize, to: *mut u8, from: &[u8]) -> Result<(), RegionError> {
        if !self.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        let len = from.len();
        // SAFETY: the caller has the address from `at`, so the octets lie in the region. They may
        // be gone.
        let written = unsafe { guarded::write(to, from) };
        written.map_err(|fault| RegionError::Fault { offset, len, fault })
    }

    /// Returns the memory as a file, to share with another process, if it was allocated. Its size
    /// is sealed.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Own { mapping, .. } => Some(mapping.as_fd()),
            Memory::Foreign(_) => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::program::{PAGE, ProgramMemory, TakeAway};

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
    fn hugepages_are_tried_that_a_host_with_such_pages_has() {
        use Pages::{HalfGiB, OneGiB, Ordinary, ThirtyTwoMiB, TwoMiB};
        let tried = |asked: HugePages, len: usize, ordinary: usize| -> Vec<_> {
            asked.candidates(len, ordinary << 10).collect()
        };
        let (prefer, mib) = (HugePages::Prefer, 1 << 20);
        assert_eq!(tried(prefer, mib, 4), [Ordinary]);
        assert_eq!(tried(prefer, 544 * mib, 4), [TwoMiB, Ordinary]);
        assert_eq!(tried(prefer, 1024 * mib, 4), [OneGiB, TwoMiB, Ordinary]);
        assert_eq!(
            tried(prefer, 32 * mib, 16),
            [ThirtyTwoMiB, TwoMiB, Ordinary]
        );
        assert_eq!(tried(prefer, 512 * mib, 64), [HalfGiB, TwoMiB, Ordinary]);
        assert_eq!(tried(prefer, 544 * mib, 64), [TwoMiB, Ordinary]);
        assert_eq!(tried(HugePages::TwoMiB, 512 * mib, 64), [TwoMiB, Ordinary]);
        assert_eq!(
            tried(HugePages::OneGiB, mib, 64),
            [OneGiB, HalfGiB, TwoMiB, Ordinary]
        );
        assert_eq!(tried(HugePages::None, 1024 * mib, 64), [Ordinary]);
    }

    #[test]
    fn what_reserves_hugepages_depends_on_their_size() {
        let sysfs = |kib| format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
        for (pages, ordinary, expected) in [
            (Pages::TwoMiB, 4, "sysctl vm.nr_hugepages".to_owned()),
            (Pages::TwoMiB, 16, sysfs(2048)),
            (Pages::ThirtyTwoMiB, 16, "sysctl vm.nr_hugepages".to_owned()),
            (Pages::TwoMiB, 64, sysfs(2048)),
            (Pages::HalfGiB, 64, "sysctl vm.nr_hugepages".to_owned()),
            (Pages::OneGiB, 4, sysfs(1 << 20)),
        ] {
            assert_eq!(pages.reserved_by(ordinary << 10), expected);
        }
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
        let file = region.file().unwrap().try_clone_to_owned().unwrap();
        assert!(nix::unistd::ftruncate(&file, 0).is_err());
    }

    #[test]
    fn memory_of_the_program_may_start_anywhere_and_is_taken_as_it_is() {
        let mut octets = vec![7_u8; 10_000];
        let start = octets.as_mut_ptr().wrapping_add(13);
        // SAFETY: the octets outlive the region, and are not used while it exists.
        let region = unsafe { Region::foreign(start, 5001, true) }.unwrap();
        assert!(region.is_foreign() && region.file().is_none() && !region.is_locked());
        assert_eq!(region.base_address(), start.addr() as u64);
        assert!(matches!(region.atomic(3), Err(RegionError::NotOwned)));
        region.write(5000, b"x").unwrap();
        region.fill(0, 600, 9).unwrap();
        assert!(region.write(5001, b"x").is_err());
        assert_eq!(region.load(599).unwrap(), 9);
        drop(region);
        assert_eq!((octets[12], octets[13], octets[612]), (7, 9, 9));
        assert_eq!((octets[613], octets[5013]), (7, b'x'));
    }

    #[test]
    fn memory_with_holes_or_without_the_rights_is_refused() {
        let refused = |region| matches!(region, Err(RegionError::Foreign { .. }));
        let pages = ProgramMemory::map(3 * PAGE, false);
        pages.take_away(2 * PAGE, TakeAway::Unmap);
        assert!(refused(pages.region(PAGE, PAGE + 1, true)));
        assert!(refused(pages.region(PAGE, PAGE + 1, false)));
        let pages = ProgramMemory::map(2 * PAGE, false);
        pages.take_away(PAGE, TakeAway::MakeReadOnly);
        assert!(refused(pages.region(0, PAGE + 1, true)));
        let region = pages.region(PAGE, PAGE, false).unwrap();
        assert!(matches!(region.write(0, b"x"), Err(RegionError::ReadOnly)));
        assert_eq!(region.load(0).unwrap(), 0);
        assert!(refused(pages.region(0, usize::MAX, true)));
        assert!(matches!(pages.region(0, 0, true), Err(RegionError::Empty)));
    }

    #[test]
    fn memory_that_was_taken_away_is_an_error() {
        let pages = ProgramMemory::map(2 * PAGE, true);
        let region = pages.region(0, 2 * PAGE, true).unwrap();
        pages.take_away(PAGE, TakeAway::Truncate);
        let gone = |done| matches!(done, Err(RegionError::Fault { .. }));
        assert!(gone(region.write(PAGE - 5, b"0123456789")));
        assert!(gone(region.read(PAGE - 5, &mut [0; 10])));
        assert!(gone(region.fill(0, 2 * PAGE, 1)));
        assert!(gone(region.load(PAGE).map(|_| ())));
        assert_eq!(region.load(PAGE - 1).unwrap(), 1);
    }
}
