//! The memory of a ring, which both ends have.
//!
//! The memory, in the byte order of the machine:
//!
//! | octets | what |
//! |---|---|
//! | 0..8 | magic, `b"rnicring"` |
//! | 8..12 | layout version, 1 |
//! | 12..16 | octets in an entry |
//! | 16..20 | entries, a power of two |
//! | 128..132 | tail: entries ever pushed, modulo 2^32; written by the producer |
//! | 256..260 | head: entries ever popped, modulo 2^32; written by the consumer |
//! | 384.. | the entries |

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::mapping::Mapping;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: [u8; 8] = *b"rnicring";
const VERSION: u32 = 1;
/// Entries that a ring has at most.
pub const MAX_CAPACITY: u32 = 1 << 20;

#[repr(C, align(128))]
pub(super) struct Header {
    magic: [u8; 8],
    version: u32,
    entry_size: u32,
    pub(super) capacity: u32,
    tail: Line,
    head: Line,
}

/// An index with its cache lines to itself (two, because they are fetched in pairs).
#[repr(C, align(128))]
struct Line(AtomicU32);

const _: () = assert!(offset_of!(Header, tail) == 128 && offset_of!(Header, head) == 256);
const _: () = assert!(size_of::<Header>() == 384);

/// What an entry has to be: plain octets that are valid whatever the other side wrote, in whole
/// words of 64 bits (which the compiler checks where a ring is made).
pub trait Entry: FromBytes + IntoBytes + Immutable + Copy {
    /// Words of an entry.
    const WORDS: usize = size_of::<Self>() / 8;
    /// Words that every ring has for each entry: the fewest that [`ring_of`](super::ring_of) gives.
    /// Copies of up to so many need no loop.
    const FEWEST_WORDS: usize = Self::WORDS;
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Not a power of two, or too many.
    #[error("a ring cannot have {0} entries; choose a power of two up to {MAX_CAPACITY}")]
    Capacity(u32),
    /// The kernel gave no memory.
    #[error(
        "cannot map a ring of {len} octets: {source}; free some memory or ask for fewer entries"
    )]
    Map {
        /// Octets asked for.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The memory that was handed over is not such a ring.
    #[error(
        "the shared memory is no ring of {entry_size}-octet entries of layout version {VERSION}; use the same release on both sides"
    )]
    NotARing {
        /// Octets expected in an entry.
        entry_size: usize,
    },
}

/// A piece of a ring's memory, as much as one index takes; atomics, because both ends change them.
#[derive(Default)]
#[repr(C, align(128))]
pub(super) struct Block([AtomicU64; 16]);

const _: () = assert!(size_of::<Block>() == 128 && align_of::<Block>() == align_of::<Header>());

/// Whose memory a ring lies in.
pub(super) enum Memory {
    /// This process's alone.
    Own(Box<[Block]>),
    /// Any process's that has the file.
    File(Mapping),
}

impl Memory {
    /// Allocates zeroed memory, and writes to it, so that no page fault happens on the data path.
    pub(super) fn own(len: usize) -> io::Result<Self> {
        let count = len.div_ceil(size_of::<Block>());
        let mut blocks = Vec::new();
        // A process with a limit must get an error: without memory for a `Vec`, it would be ended.
        blocks
            .try_reserve_exact(count)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        blocks.resize_with(count, Block::default);
        Ok(Self::Own(blocks.into_boxed_slice()))
    }

    fn start(&self) -> Option<NonNull<u8>> {
        match self {
            // What is behind atomics may be written through a shared reference.
            Self::Own(blocks) => NonNull::new(blocks.as_ptr().cast_mut().cast()),
            Self::File(mapping) => NonNull::new(mapping.as_mut_ptr()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Own(blocks) => size_of_val::<[Block]>(blocks),
            Self::File(mapping) => mapping.len(),
        }
    }
}

/// The memory that both ends share, with what was checked of its header: each end has that by
/// itself, or there would be a line more to wait for where thousands of rings are used in turn.
pub(super) struct Shared<T> {
    memory: Arc<Memory>,
    /// Where it starts.
    pub(super) start: NonNull<u8>,
    pub(super) capacity: u32,
    /// Words of an entry: all of `T`, or the first of them.
    stride: usize,
    entry: PhantomData<fn(T) -> T>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            memory: self.memory.clone(),
            ..*self
        }
    }
}

// SAFETY: `start` points into `memory`, which may move between threads and be used by several, and
// does not move itself; what it points at is only ever accessed atomically.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Entry> Shared<T> {
    const LAYOUT_FITS: () = {
        assert!(align_of::<T>() == 8 && size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8));
        assert!(
            T::WORDS == size_of::<T>() / 8 && T::FEWEST_WORDS > 0 && T::FEWEST_WORDS <= T::WORDS
        );
    };

    fn octets(capacity: u32, stride: usize) -> usize {
        size_of::<Header>() + capacity as usize * stride * 8
    }

    pub(super) fn create(
        capacity: u32,
        stride: usize,
        memory: fn(usize) -> io::Result<Memory>,
    ) -> Result<Self, RingError> {
        const { Self::LAYOUT_FITS };
        let stride = stride.clamp(T::FEWEST_WORDS, T::WORDS);
        if !capacity.is_power_of_two() || capacity > MAX_CAPACITY {
            return Err(RingError::Capacity(capacity));
        }
        let len = Self::octets(capacity, stride);
        let memory = memory(len).map_err(|source| RingError::Map { len, source })?;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            entry_size: stride as u32 * 8,
            capacity,
            tail: Line(AtomicU32::new(0)),
            head: Line(AtomicU32::new(0)),
        };
        let shared = Self::at(memory, capacity, stride)?;
        // SAFETY: the memory is aligned to a header, writable, at least as long as one, and not
        // shared yet.
        unsafe { shared.start.cast::<Header>().write(header) };
        Ok(shared)
    }

    fn at(memory: Memory, capacity: u32, stride: usize) -> Result<Self, RingError> {
        // Where it stays: an address taken before a `Box` is moved must not be used behind that.
        let memory = Arc::new(memory);
        let start = memory.start().ok_or_else(|| RingError::Map {
            len: memory.len(),
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self {
            memory,
            start,
            capacity,
            stride,
            entry: PhantomData,
        })
    }

    pub(super) fn open(file: OwnedFd) -> Result<Self, RingError> {
        const { Self::LAYOUT_FITS };
        let refused = RingError::NotARing {
            entry_size: size_of::<T>(),
        };
        let mapping = Mapping::open(file).map_err(|source| RingError::Map { len: 0, source })?;
        if mapping.len() < size_of::<Header>() {
            return Err(refused);
        }
        let header = mapping.as_mut_ptr().cast::<Header>();
        // SAFETY: the mapping is page-aligned and at least as long as a header. These fields are
        // plain octets, read once each: what the other side does to them later has no effect.
        let (magic, version, entry_size, capacity) = unsafe {
            (
                (&raw const (*header).magic).read_volatile(),
                (&raw const (*header).version).read_volatile(),
                (&raw const (*header).entry_size).read_volatile(),
                (&raw const (*header).capacity).read_volatile(),
            )
        };
        let ours = magic == MAGIC && version == VERSION && entry_size as usize == size_of::<T>();
        let sane = capacity.is_power_of_two() && capacity <= MAX_CAPACITY;
        if !ours || !sane || mapping.len() < Self::octets(capacity, T::WORDS) {
            return Err(refused);
        }
        Self::at(Memory::File(mapping), capacity, T::WORDS)
    }

    fn header(&self) -> *const Header {
        self.start.as_ptr().cast()
    }

    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &*self.memory {
            Memory::Own(_) => None,
            Memory::File(mapping) => Some(mapping.as_fd()),
        }
    }

    pub(super) fn tail(&self) -> &AtomicU32 {
        // SAFETY: the header lies in the memory, which lives as long as `self`; both sides access
        // the index atomically only.
        unsafe { &(*self.header()).tail.0 }
    }

    pub(super) fn head(&self) -> &AtomicU32 {
        // SAFETY: as for `tail`.
        unsafe { &(*self.header()).head.0 }
    }

    /// Returns how many words an entry has here.
    #[inline(always)]
    fn stride(&self) -> usize {
        if T::FEWEST_WORDS == T::WORDS {
            T::WORDS
        } else {
            self.stride
        }
    }

    /// Returns the words of entry number `index`.
    pub(super) fn words(&self, index: u32) -> &[AtomicU64] {
        self.front(index, self.stride())
    }

    /// Returns the first `count` words of entry number `index`, or all if it has fewer.
    #[inline(always)]
    pub(super) fn front(&self, index: u32, count: usize) -> &[AtomicU64] {
        let at = (index & (self.capacity - 1)) as usize * self.stride() * 8;
        let first = self.start.as_ptr().wrapping_add(size_of::<Header>() + at);
        let count = if count <= T::FEWEST_WORDS {
            count
        } else {
            count.min(self.stride())
        };
        // SAFETY: the entry lies in the memory, which lives as long as `self`, and has at least
        // `FEWEST_WORDS` words. Its address is a multiple of 8, as the entries start at one and
        // each has a multiple of 8 octets. Both sides access it atomically only.
        unsafe { slice::from_raw_parts(first.cast(), count) }
    }

    /// Writes the first `count` words of entry number `index`.
    #[inline]
    pub(super) fn store(&self, index: u32, entry: &T, count: usize) {
        let from = (&raw const *entry).cast::<u64>();
        for (n, word) in self.front(index, count).iter().enumerate() {
            // SAFETY: an entry has as many words as `front` yields, is aligned like them, and has
            // no padding.
            word.store(unsafe { from.add(n).read() }, Ordering::Relaxed);
        }
    }

    /// Copies words `from..to` of entry number `index`.
    #[inline]
    pub(super) fn load(&self, index: u32, entry: &mut T, from: usize, to: usize) {
        let words = self.front(index, to).get(from..).unwrap_or_default();
        let to = (&raw mut *entry).cast::<u64>();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: an entry has as many words as `front` yields, is aligned like them, and is
            // valid whatever they are.
            unsafe { to.add(from + n).write(word.load(Ordering::Relaxed)) };
        }
    }
}
