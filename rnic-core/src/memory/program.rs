//! Memory as programs have it, for tests: pages that can be taken away while they are registered.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use nix::unistd::ftruncate;

use super::region::{Region, RegionError};

/// Octets of the largest ordinary page that a kernel may have: on aarch64, 4, 16 or 64 KiB.
pub const PAGE: usize = if cfg!(target_arch = "aarch64") {
    64 << 10
} else {
    4096
};

/// Where the next memory is mapped: far from where the kernel maps, so that nothing else takes the
/// place of what is unmapped.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);

/// How memory is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeAway {
    /// It is unmapped.
    Unmap,
    /// It may not be accessed any more.
    Protect,
    /// It may only be read.
    MakeReadOnly,
    /// The file that it is of is truncated to nothing.
    Truncate,
}

/// Pages that a program has mapped.
#[derive(Debug)]
pub struct ProgramMemory {
    start: NonNull<c_void>,
    len: usize,
    file: OwnedFd,
}

impl ProgramMemory {
    /// Maps memory of its own, or of a file that can be truncated.
    ///
    /// # Panics
    ///
    /// If there is no memory.
    pub fn map(len: usize, of_file: bool) -> Self {
        let len = len.next_multiple_of(PAGE);
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let place = NonZeroUsize::new(NEXT.fetch_add(len + PAGE, Ordering::Relaxed));
        let size = NonZeroUsize::new(len).expect("some octets");
        let file = memfd_create("rnic-test", MFdFlags::MFD_CLOEXEC).expect("a file");
        ftruncate(&file, len as i64).expect("memory");
        // SAFETY: without MAP_FIXED, nothing that is mapped changes.
        let start = unsafe {
            match of_file {
                false => mmap_anonymous(place, size, rights, MapFlags::MAP_PRIVATE),
                true => mmap(place, size, rights, MapFlags::MAP_SHARED, &file, 0),
            }
        };
        let start = start.expect("memory");
        Self { start, len, file }
    }

    /// Returns its address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Makes a region of `len` of its octets.
    pub fn region(&self, offset: usize, len: usize, writable: bool) -> Result<Region, RegionError> {
        let start = self.as_ptr().wrapping_add(offset);
        // SAFETY: nothing but regions refers to what is mapped there, now and when it is taken
        // away.
        unsafe { Region::foreign(start, len, writable) }
    }

    /// Unmaps or protects all octets from a page on.
    ///
    /// # Panics
    ///
    /// If the kernel does not want to.
    pub fn take_away(&self, from: usize, how: TakeAway) {
        let (at, len) = (self.as_ptr().wrapping_add(from), self.len - from);
        let at = NonNull::new(at).expect("an address").cast();
        // SAFETY: no reference exists to these pages, and nothing else is mapped there.
        let done = unsafe {
            match how {
                TakeAway::Unmap => munmap(at, len),
                TakeAway::Protect => mprotect(at, len, ProtFlags::PROT_NONE),
                TakeAway::MakeReadOnly => mprotect(at, len, ProtFlags::PROT_READ),
                TakeAway::Truncate => ftruncate(&self.file, from as i64),
            }
        };
        done.expect("the kernel does it");
    }
}

impl Drop for ProgramMemory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to these pages any more. What was unmapped may be unmapped again.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}
