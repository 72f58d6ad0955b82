//! Memory of the program, which it may take away at any time.

#![allow(unsafe_code)]

use std::io;

use nix::libc;

use super::mapping::Pages;

/// The end of what a program can map without asking for more. (That of aarch64 is lower where the
/// kernel has fewer bits for addresses: what lies between is never mapped.)
const USER_SPACE: usize = if cfg!(target_arch = "aarch64") {
    1 << 48
} else {
    (1 << 47) - 4096
};

/// Memory of the program. It is accessed by [guarded](super::guarded) accesses alone.
#[derive(Debug)]
pub(super) struct Foreign {
    start: *mut u8,
    writable: bool,
}

// SAFETY: it is an address, which all threads of the process share; every access through it is one
// that threads may race with.
unsafe impl Send for Foreign {}
// SAFETY: as for `Send`.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Makes a region of memory that is there, or will be when it is accessed.
    ///
    /// Behind what programs can have, the processor does not say which address an access was to.
    pub(super) fn on_demand(start: *mut u8, len: usize, writable: bool) -> io::Result<Self> {
        match start.addr().checked_add(len) {
            Some(end) if end <= USER_SPACE => Ok(Self { start, writable }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Makes a region of memory that is mapped, and writable if it is to be. Populates it.
    pub(super) fn populated(start: *mut u8, len: usize, writable: bool) -> io::Result<Self> {
        let before = start.addr() % Pages::Ordinary.size();
        let len = len
            .checked_add(before)
            .filter(|len| start.addr().checked_add(len - before).is_some())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let advice = match writable {
            true => libc::MADV_POPULATE_WRITE,
            false => libc::MADV_POPULATE_READ,
        };
        let first = start.wrapping_sub(before);
        loop {
            // The kernel rounds the length up to whole pages.
            // SAFETY: populating changes nothing that the memory holds, and an address where
            // nothing is mapped is refused.
            if unsafe { libc::madvise(first.cast(), len, advice) } == 0 {
                return Ok(Self { start, writable });
            }
            let error = io::Error::last_os_error();
            // A large range takes long enough to be interrupted.
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }
}
