//! A transmit ring, seen through a mapping of our own.
//!
//! xsk-rs sets the ring up, and has the device woken. But it addresses whole chunks only, and a frame of several
//! chunks is one run of octets: all its descriptors but the first begin where a chunk begins.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::libc::{self, XDP_PKT_CONTD, xdp_desc, xdp_mmap_offsets, xdp_ring_offset};

/// The producer's side of the transmit ring of a socket.
pub(super) struct TxRing {
    map: MmapRaw,
    at: xdp_ring_offset,
    entries: u32,
    /// Descriptors written, and those of them that the kernel was told of.
    written: u32,
    submitted: u32,
}

impl TxRing {
    /// The ring of `socket`, which has so many entries: a power of two.
    pub(super) fn map(socket: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        let at = offsets(socket)?.tx;
        let len = at.desc as usize + entries as usize * size_of::<xdp_desc>();
        let map = MmapOptions::new()
            .offset(libc::XDP_PGOFF_TX_RING as u64)
            .len(len)
            .populate()
            .map_raw(socket.as_raw_fd())?;
        let mut ring = Self {
            map,
            at,
            entries,
            written: 0,
            submitted: 0,
        };
        ring.submitted = ring.index(ring.at.producer).load(Ordering::Relaxed);
        ring.written = ring.submitted;
        Ok(ring)
    }

    /// Descriptors that the kernel has not taken yet, whether it knows of them or not.
    pub(super) fn used(&self) -> u32 {
        let taken = self.index(self.at.consumer).load(Ordering::Acquire);
        self.written.wrapping_sub(taken)
    }

    /// Room for descriptors.
    pub(super) fn room(&self) -> u32 {
        self.entries.saturating_sub(self.used())
    }

    /// Writes a descriptor of `len` octets at `address` of the UMEM. `more`: the next one is of the same frame. Only while
    /// there is [`room`](Self::room).
    pub(super) fn push(&mut self, address: u64, len: u32, more: bool) {
        let slot = (self.written & (self.entries - 1)) as usize;
        let descriptor = xdp_desc {
            addr: address,
            len,
            options: if more { XDP_PKT_CONTD } else { 0 },
        };
        // SAFETY: the kernel placed an array of `entries` descriptors at this offset, all of which `map` covers, and
        // aligned it. It reads this one only after `submit`, and is done with its last contents: there was room.
        unsafe {
            let array = self.map.as_mut_ptr().add(self.at.desc as usize);
            array.cast::<xdp_desc>().add(slot).write(descriptor);
        }
        self.written = self.written.wrapping_add(1);
    }

    /// Shows the kernel what was written.
    pub(super) fn submit(&mut self) {
        if self.submitted != self.written {
            self.submitted = self.written;
            let producer = self.index(self.at.producer);
            producer.store(self.written, Ordering::Release);
        }
    }

    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel placed an aligned index here, within `map`; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset as usize).cast()) }
    }
}

impl fmt::Debug for TxRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxRing")
            .field("entries", &self.entries)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// Where the parts of a socket's rings lie in their mappings.
fn offsets(socket: BorrowedFd<'_>) -> io::Result<xdp_mmap_offsets> {
    let none = xdp_ring_offset {
        producer: 0,
        consumer: 0,
        desc: 0,
        flags: 0,
    };
    let mut offsets = xdp_mmap_offsets {
        rx: none,
        tx: none,
        fr: none,
        cr: none,
    };
    let mut len = size_of::<xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` octets, all of which `offsets` has, and which may have any value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &mut len,
        )
    };
    if result == 0 {
        Ok(offsets)
    } else {
        Err(io::Error::last_os_error())
    }
}
