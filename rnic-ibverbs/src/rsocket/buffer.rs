//! Memory that is registered with the device. The peer may write to it at any time, so nothing
//! refers to it: it is copied from and to.

use std::ptr::{self, null_mut};

use nix::libc;

use super::calls::*;
use crate::abi::*;
use crate::errno::Errno;

/// The memory, whole pages of it.
#[derive(Debug)]
pub(super) struct Buffer {
    start: *mut u8,
    length: usize,
    mr: *mut ibv_mr,
}

// SAFETY: the memory and its region are its own, and bound to no thread.
unsafe impl Send for Buffer {}
// SAFETY: the pointers do not change. Which thread copies to or from which part is settled by the
// locks of the socket.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory of zeros, and registers it for these accesses in a protection domain that
    /// outlives it.
    pub(super) fn new(pd: *mut ibv_pd, length: usize, access: u32) -> Result<Self, Errno> {
        let length = length.max(1);
        let (read_write, anonymous) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { libc::mmap(null_mut(), length, read_write, anonymous, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: the memory is there until `drop`, which deregisters it first, and nobody else has
        // it.
        let mr = unsafe { ibv_reg_mr(pd, start, length, access as i32) };
        let buffer = Self {
            start: start.cast(),
            length,
            mr,
        };
        if mr.is_null() {
            Err(Errno::last())
        } else {
            Ok(buffer)
        }
    }

    pub(super) fn addr(&self) -> u64 {
        self.start as u64
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: it is not NULL, or there would be no buffer, and exists until `drop`.
        unsafe { (*self.mr).rkey }
    }

    /// Returns a piece of it for a work request.
    pub(super) fn piece(&self, offset: u32, length: u32) -> ibv_sge {
        // SAFETY: as in `rkey`.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge {
            addr: self.addr() + u64::from(offset),
            length,
            lkey,
        }
    }

    /// Copies to memory of the application.
    ///
    /// # Safety
    ///
    /// `length` octets can be written to `to`.
    pub(super) unsafe fn copy_out(&self, offset: u32, to: *mut u8, length: u32) {
        assert!(offset as usize + length as usize <= self.length);
        // SAFETY: the octets lie in the buffer, as was checked, and there is room for them, says
        // the caller. The peer writes there no more once it has said what it has written; what it
        // writes in spite of that is copied as it happens to be.
        unsafe { ptr::copy_nonoverlapping(self.start.add(offset as usize), to, length as usize) };
    }

    /// Copies from memory of the application.
    ///
    /// # Safety
    ///
    /// `length` octets can be read from `from`.
    pub(super) unsafe fn copy_in(&self, offset: u32, from: *const u8, length: u32) {
        assert!(offset as usize + length as usize <= self.length);
        // SAFETY: the octets fit into the buffer, as was checked, and can be read, says the caller.
        // The device reads them only after they are posted.
        unsafe { ptr::copy_nonoverlapping(from, self.start.add(offset as usize), length as usize) };
    }

    /// Returns a few octets of it.
    pub(super) fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut octets = [0; N];
        // SAFETY: there is room for N octets.
        unsafe { self.copy_out(offset, octets.as_mut_ptr(), N as u32) };
        octets
    }

    /// Replaces a few octets.
    pub(super) fn write(&self, offset: u32, octets: &[u8]) {
        // SAFETY: the slice has so many octets, 24 at most.
        unsafe { self.copy_in(offset, octets.as_ptr(), octets.len() as u32) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.mr.is_null() {
            // SAFETY: `new` registered it, and it is deregistered here alone.
            unsafe { ibv_dereg_mr(self.mr) };
        }
        // SAFETY: `new` mapped it so, and neither the device nor a reference has it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}
