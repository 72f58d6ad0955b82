//! Memory that is registered with the device. The peer may write to it at any time, so nothing
//! refers to it: it is copied from and to.
#![allow(unsafe_code, reason = "memory that peers write to")]

use std::ffi::c_void;
use std::ptr::{self, null_mut};

use nix::libc;

use super::calls::*;
use super::pieces::{Place, ToFill, ToRead};
use crate::abi::*;
use crate::errno::Errno;

/// The memory. Deregistered before it is unmapped: see the order of the members.
#[derive(Debug)]
pub(super) struct Buffer {
    region: Region,
    memory: Memory,
}

// SAFETY: the memory and its region are its own, and bound to no thread.
unsafe impl Send for Buffer {}
// SAFETY: the pointers do not change. Which thread copies to or from which part is settled by the
// locks of the socket.
unsafe impl Sync for Buffer {}

/// Whole pages of memory.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    length: usize,
}

impl Memory {
    /// Allocates memory of zeros.
    fn new(length: usize) -> Result<Self, Errno> {
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
        Ok(Self {
            start: start.cast(),
            length,
        })
    }

    /// Returns where these octets begin, all of which lie in it.
    fn at(&self, offset: u32, length: usize) -> *mut u8 {
        assert!(offset as usize + length <= self.length);
        self.start.wrapping_add(offset as usize)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it so, and neither the device nor a reference has it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A memory region of the device.
#[derive(Debug)]
pub(super) struct Region(*mut ibv_mr);

// SAFETY: threads share memory regions.
unsafe impl Send for Region {}

impl Region {
    /// Registers memory for these accesses. Fails where there is no memory.
    ///
    /// # Safety
    ///
    /// The protection domain outlives the region. Whoever has the memory knows that the device, and
    /// peers as far as the accesses say, read and write it until the region is dropped.
    pub(super) unsafe fn new(
        pd: *mut ibv_pd,
        start: *mut c_void,
        length: usize,
        access: u32,
    ) -> Result<Self, Errno> {
        // SAFETY: says the caller.
        let mr = unsafe { ibv_reg_mr(pd, start, length, access as i32) };
        if mr.is_null() {
            Err(Errno::last())
        } else {
            Ok(Self(mr))
        }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: it is not NULL, or there would be no region, and exists until `drop`.
        unsafe { (*self.0).rkey }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: as in `rkey`.
        unsafe { (*self.0).lkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` registered it, and it is deregistered here alone.
        unsafe { ibv_dereg_mr(self.0) };
    }
}

impl Buffer {
    /// Allocates memory of zeros, and registers it for these accesses.
    ///
    /// # Safety
    ///
    /// The protection domain outlives the buffer.
    pub(super) unsafe fn new(pd: *mut ibv_pd, length: usize, access: u32) -> Result<Self, Errno> {
        let memory = Memory::new(length)?;
        // SAFETY: the domain stays, says the caller. The memory is there until the region is gone,
        // and nothing refers to it.
        let region = unsafe { Region::new(pd, memory.start.cast(), memory.length, access) }?;
        Ok(Self { region, memory })
    }

    pub(super) fn addr(&self) -> u64 {
        self.memory.start as u64
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Returns a piece of it for a work request.
    pub(super) fn piece(&self, offset: u32, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + u64::from(offset),
            length,
            lkey: self.region.lkey(),
        }
    }

    /// Copies to memory of the application.
    pub(super) fn copy_out(&self, offset: u32, to: Place<'_, ToFill>) {
        let from = self.memory.at(offset, to.length());
        // SAFETY: the octets lie in the buffer, and there is room for them, says the place. The
        // peer writes there no more once it has said what it has written; what it writes in spite
        // of that is copied as it happens to be.
        unsafe { ptr::copy_nonoverlapping(from, to.start(), to.length()) };
    }

    /// Copies from memory of the application.
    pub(super) fn copy_in(&self, offset: u32, from: Place<'_, ToRead>) {
        let to = self.memory.at(offset, from.length());
        // SAFETY: the octets fit into the buffer, and can be read, says the place. The device reads
        // them only after they are posted.
        unsafe { ptr::copy_nonoverlapping(from.start(), to, from.length()) };
    }

    /// Returns a few octets of it.
    pub(super) fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut octets = [0; N];
        let from = self.memory.at(offset, N);
        // SAFETY: the octets lie in the buffer, and there is room for them. The peer may write them
        // meanwhile: they are copied as they happen to be.
        unsafe { ptr::copy_nonoverlapping(from, octets.as_mut_ptr(), N) };
        octets
    }

    /// Replaces a few octets.
    pub(super) fn write(&self, offset: u32, octets: &[u8]) {
        let to = self.memory.at(offset, octets.len());
        // SAFETY: the octets fit into the buffer.
        unsafe { ptr::copy_nonoverlapping(octets.as_ptr(), to, octets.len()) };
    }
}
