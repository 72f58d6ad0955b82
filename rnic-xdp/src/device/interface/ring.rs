//! The four rings of an AF_XDP socket, in mappings of our own.
//!
//! xsk-rs opens sockets and sets their rings up. But it addresses whole chunks only, and a frame of
//! several chunks is one run of octets: all its descriptors but the first begin where a chunk
//! begins. Nor does it support metadata of frames to be sent, so that a socket with these is not
//! its at all (`metadata`). Both kinds have these rings.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::libc::{self, xdp_desc, xdp_mmap_offsets, xdp_ring_offset};

/// An entry in the kernel's layout: integers, for which any octets are valid.
pub(super) trait RingEntry: Copy {}

/// An address in the UMEM: the fill and the completion ring.
impl RingEntry for u64 {}

/// A piece of a frame: the receive and the transmit ring.
impl RingEntry for xdp_desc {}

/// Which ring of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Rx,
    Tx,
    Fill,
    Completion,
}

/// A mapped ring, shared with the kernel.
struct RingMapping<T> {
    map: MmapRaw,
    at: xdp_ring_offset,
    entries: u32,
    entry: PhantomData<T>,
}

impl<T: RingEntry> RingMapping<T> {
    /// Maps a ring of `socket` that has this number of entries, a power of two.
    fn map(socket: BorrowedFd<'_>, which: Which, entries: u32) -> io::Result<Self> {
        let all = offsets(socket)?;
        let (at, page) = match which {
            Which::Rx => (all.rx, libc::XDP_PGOFF_RX_RING as u64),
            Which::Tx => (all.tx, libc::XDP_PGOFF_TX_RING as u64),
            Which::Fill => (all.fr, libc::XDP_UMEM_PGOFF_FILL_RING),
            Which::Completion => (all.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING),
        };
        let map = MmapOptions::new()
            .offset(page)
            .len(at.desc as usize + entries as usize * size_of::<T>())
            .populate()
            .map_raw(socket.as_raw_fd())?;
        // A child would share it, and keep the socket open. Fails only for what is not mapped.
        let _ = map.advise(Advice::DontFork);
        Ok(Self {
            map,
            at,
            entries,
            entry: PhantomData,
        })
    }

    /// Returns the entry with this number. Numbers do not wrap with the ring.
    fn entry(&self, number: u32) -> *mut T {
        let slot = (number & (self.entries - 1)) as usize;
        // SAFETY: the kernel placed an aligned array of `entries` entries at this offset, all of
        // which `map` covers.
        unsafe {
            let array = self.map.as_mut_ptr().add(self.at.desc as usize);
            array.cast::<T>().add(slot)
        }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.at.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.at.consumer)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel placed an aligned word here, within `map`; both sides access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset as usize).cast()) }
    }
}

/// Our side of a ring that the kernel consumes: transmit, fill.
pub(super) struct Producer<T> {
    ring: RingMapping<T>,
    /// Entries written, and entries published to the kernel.
    written: u32,
    submitted: u32,
}

impl<T: RingEntry> Producer<T> {
    /// Maps a ring of `socket` that has this number of entries, a power of two.
    pub(super) fn map(socket: BorrowedFd<'_>, which: Which, entries: u32) -> io::Result<Self> {
        let ring = RingMapping::map(socket, which, entries)?;
        let submitted = ring.producer().load(Ordering::Relaxed);
        Ok(Self {
            ring,
            written: submitted,
            submitted,
        })
    }

    /// Returns the number of entries that the kernel has not taken yet, published or not.
    pub(super) fn used(&self) -> u32 {
        // Acquire: the kernel has read the entries that are written over now.
        let taken = self.ring.consumer().load(Ordering::Acquire);
        self.written.wrapping_sub(taken)
    }

    /// Returns the number of free entries.
    pub(super) fn room(&self) -> u32 {
        self.ring.entries.saturating_sub(self.used())
    }

    /// Writes an entry. Only while there is [`room`](Self::room).
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: `entry` gives a valid place. The kernel reads it only after `submit`, and is done
        // with its last contents: there was room.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    /// Publishes the written entries to the kernel.
    pub(super) fn submit(&mut self) {
        if self.submitted != self.written {
            self.submitted = self.written;
            let producer = self.ring.producer();
            // Release: the kernel sees the entries, and what is in their frames, with it.
            producer.store(self.written, Ordering::Release);
        }
    }

    /// Returns whether the kernel must be woken to look at the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: a driver that sets it while entries are published may be seen too late. Then the
        // next turn sees it, and where none comes, the poll of the socket wakes the driver.
        let flags = self.ring.word(self.ring.at.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Our side of a ring that the kernel fills: receive, completion.
pub(super) struct Consumer<T> {
    ring: RingMapping<T>,
    /// Entries taken, and entries that were there at the last look.
    taken: u32,
    available: u32,
}

impl<T: RingEntry> Consumer<T> {
    /// Maps a ring of `socket` that has this number of entries, a power of two.
    pub(super) fn map(socket: BorrowedFd<'_>, which: Which, entries: u32) -> io::Result<Self> {
        let ring = RingMapping::map(socket, which, entries)?;
        let taken = ring.consumer().load(Ordering::Relaxed);
        Ok(Self {
            ring,
            taken,
            available: 0,
        })
    }

    /// Moves as many entries as are available and fit into `into`. Returns the number.
    pub(super) fn take(&mut self, into: &mut [T]) -> usize {
        // Acquire: the entries, and the frames of received ones, were written before.
        let available = self.ring.producer().load(Ordering::Acquire);
        self.available = available.wrapping_sub(self.taken);
        let count = (self.available as usize).min(into.len());
        if count == 0 {
            return 0;
        }
        for place in &mut into[..count] {
            // SAFETY: `entry` gives a valid place, which the kernel has filled and does not write
            // to again until it sees below that it was taken.
            *place = unsafe { self.ring.entry(self.taken).read() };
            self.taken = self.taken.wrapping_add(1);
        }
        let consumer = self.ring.consumer();
        // Release: the entries were read before the kernel writes over them.
        consumer.store(self.taken, Ordering::Release);
        count
    }

    /// Returns the number of entries that were there at the last look, taken or not.
    pub(super) fn available(&self) -> u32 {
        self.available
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("entries", &self.ring.entries)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("entries", &self.ring.entries)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

/// Returns the offsets of the parts of a socket's rings in their mappings.
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
    // SAFETY: the kernel writes at most `len` octets, all of which `offsets` has, and which may
    // have any value.
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
