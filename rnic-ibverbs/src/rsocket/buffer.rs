//! Memory that is registered with the device. The peer may write to it at any time, so nothing refers to it: it is copied from and to.

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

// SAFETY: what it points to is its own. Who copies to which part is settled by the locks of the socket.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory of zeros, and registers it for these accesses.
    pub(super) fn new(pd: *mut ibv_pd, length: usize, access: u32) -> Result<Self, Errno> {
        let length = length.max(1);
        let (read_write, anonymous) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let start = unsafe { libc::mmap(null_mut(), length, read_write, anonymous, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
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
        unsafe { (*self.mr).rkey }
    }

    /// Returns a piece of it for a work request.
    pub(super) fn piece(&self, offset: u32, length: u32) -> ibv_sge {
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
        unsafe { ptr::copy_nonoverlapping(self.start.add(offset as usize), to, length as usize) };
    }

    /// Copies from memory of the application.
    ///
    /// # Safety
    ///
    /// `length` octets can be read from `from`.
    pub(super) unsafe fn copy_in(&self, offset: u32, from: *const u8, length: u32) {
        assert!(offset as usize + length as usize <= self.length);
        unsafe { ptr::copy_nonoverlapping(from, self.start.add(offset as usize), length as usize) };
    }

    /// Returns a few octets of it.
    pub(super) fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut octets = [0; N];
        unsafe { self.copy_out(offset, octets.as_mut_ptr(), N as u32) };
        octets
    }

    /// Replaces a few octets.
    pub(super) fn write(&self, offset: u32, octets: &[u8]) {
        unsafe { self.copy_in(offset, octets.as_ptr(), octets.len() as u32) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe {
            if !self.mr.is_null() {
                ibv_dereg_mr(self.mr);
            }
            libc::munmap(self.start.cast(), self.length);
        }
    }
}
