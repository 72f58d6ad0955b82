//! Memory that can be shared by file descriptor: a sealed memfd and its mapping.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::{SysconfVar, ftruncate, sysconf};

/// The pages that a mapping consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    Ordinary,
    TwoMiB,
    ThirtyTwoMiB,
    HalfGiB,
    OneGiB,
}

impl Pages {
    /// All of them, the largest first.
    pub(super) const ALL: [Self; 5] = [
        Self::OneGiB,
        Self::HalfGiB,
        Self::ThirtyTwoMiB,
        Self::TwoMiB,
        Self::Ordinary,
    ];

    /// Returns the octets of the hugepages that `vm.nr_hugepages` reserves, where ordinary pages
    /// have so many octets: a whole table of these, whose entries have 8 octets.
    pub(super) fn usual_huge(ordinary: usize) -> usize {
        ordinary * (ordinary / 8)
    }

    /// Returns the number of octets in a page.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Ordinary => match sysconf(SysconfVar::PAGE_SIZE) {
                Ok(Some(size)) => usize::try_from(size).unwrap_or(4096),
                _ => 4096,
            },
            Self::TwoMiB => 2 << 20,
            Self::ThirtyTwoMiB => 32 << 20,
            Self::HalfGiB => 512 << 20,
            Self::OneGiB => 1 << 30,
        }
    }

    /// Returns the name of what reserves such hugepages, where ordinary pages have so many octets.
    pub(super) fn reserved_by(self, ordinary: usize) -> String {
        match self.size() {
            size if size == Self::usual_huge(ordinary) => "sysctl vm.nr_hugepages".to_owned(),
            size => format!(
                "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
                size >> 10
            ),
        }
    }

    fn memfd_flags(self) -> MFdFlags {
        match self {
            Self::Ordinary => MFdFlags::empty(),
            Self::TwoMiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
            Self::ThirtyTwoMiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_32MB,
            Self::HalfGiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_512MB,
            Self::OneGiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
        }
    }
}

/// Shared memory whose size can no longer change, so that no access to it can fault.
#[derive(Debug)]
pub(super) struct Mapping {
    map: MmapRaw,
    file: OwnedFd,
}

impl Mapping {
    /// Makes zeroed memory of at least `len` octets (rounded up to whole pages), already populated.
    pub(super) fn create(name: &str, len: usize, pages: Pages) -> io::Result<Self> {
        let page = pages.size();
        let rounded = len
            .checked_next_multiple_of(page)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let file_len = i64::try_from(rounded).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | pages.memfd_flags();
        let file = memfd_create(name, flags)?;
        ftruncate(&file, file_len)?;
        // A process that shares the file cannot truncate it: that would make an access SIGBUS.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Self::map(file, rounded)
    }

    /// Maps memory that another process made. Refuses a file that could still shrink.
    pub(super) fn open(file: OwnedFd) -> io::Result<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(io::Error::other(
                "the shared memory can be cut short; its maker must seal it with F_SEAL_SHRINK",
            ));
        }
        let len = usize::try_from(fstat(&file)?.st_size).map_err(|_| io::ErrorKind::InvalidData)?;
        Self::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        // Populated at once, so that no page fault happens on the data path. The kernel says if it
        // has not the pages after all (a hugetlb cgroup's limit), where a later access would be
        // SIGBUS.
        match map.advise(Advice::PopulateWrite) {
            // Linux before 5.14.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {
                let map = MmapOptions::new().len(len).populate().map_raw(&file)?;
                Ok(Self { map, file })
            }
            done => done.map(|()| Self { map, file }),
        }
    }

    /// Keeps the pages in memory (mlock).
    pub(super) fn lock(&self) -> io::Result<()> {
        self.map.lock()
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns the number of octets mapped: whole pages.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
