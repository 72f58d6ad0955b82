//! Single-producer single-consumer rings of fixed entries, in memory of this process or in memory that two share.
//!
//! A ring of this process alone takes no file descriptor and no mapping, of which a process may have few: thousands of
//! queue pairs have two rings each.
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
//!
//! Each side keeps its own index privately and reads only the other's, which it does not trust: if the distance
//! between them exceeds the capacity, the ring is broken, which to a consumer looks empty and to a producer full.
//! Entries are copied in and out as atomic words, so that a side that breaks the rules yields wrong entries and
//! nothing worse.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::mapping::{Mapping, Pages};
use super::prefetch::prefetch;

const MAGIC: [u8; 8] = *b"rnicring";
const VERSION: u32 = 1;
/// Entries that a ring has at most.
pub const MAX_CAPACITY: u32 = 1 << 20;

#[repr(C, align(128))]
struct Header {
    magic: [u8; 8],
    version: u32,
    entry_size: u32,
    capacity: u32,
    tail: Line,
    head: Line,
}

/// An index with its cache lines to itself (two, because they are fetched in pairs).
#[repr(C, align(128))]
struct Line(AtomicU32);

const _: () = assert!(offset_of!(Header, tail) == 128 && offset_of!(Header, head) == 256);
const _: () = assert!(size_of::<Header>() == 384);

/// What an entry has to be: plain octets that are valid whatever the other side wrote, in whole words of 64 bits
/// (which the compiler checks where a ring is made).
pub trait Entry: FromBytes + IntoBytes + Immutable + Copy {
    /// Words of an entry.
    const WORDS: usize = size_of::<Self>() / 8;
    /// Words that every ring has for each entry: the fewest that [`ring_of`] gives. Copies of up to so many need no loop.
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

/// The ring is full: the entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full")]
pub struct Full;

/// A piece of a ring's memory, as much as one index takes; atomics, because both ends change them.
#[repr(C, align(128))]
struct Block([AtomicU64; 16]);

const _: () = assert!(size_of::<Block>() == 128 && align_of::<Block>() == align_of::<Header>());

/// Whose memory a ring lies in.
enum Memory {
    /// This process's alone.
    Own(Box<[Block]>),
    /// Any process's that has the file.
    File(Mapping),
}

impl Memory {
    /// Allocates zeroed memory, and writes to it, so that no page fault happens on the data path.
    fn own(len: usize) -> Self {
        let block = || Block([const { AtomicU64::new(0) }; 16]);
        Self::Own(
            (0..len.div_ceil(size_of::<Block>()))
                .map(|_| block())
                .collect(),
        )
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

/// The memory that both ends share, with what was checked of its header: each end has that by itself, or there would be a
/// line more to wait for where thousands of rings are used in turn.
struct Shared<T> {
    memory: Arc<Memory>,
    /// Where it starts.
    start: NonNull<u8>,
    capacity: u32,
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

// SAFETY: `start` points into `memory`, which may move between threads and be used by several, and does not move
// itself; what it points at is only ever accessed atomically.
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

    fn create(
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
        // SAFETY: the memory is aligned to a header, writable, at least as long as one, and not shared yet.
        unsafe { shared.start.cast::<Header>().write(header) };
        Ok(shared)
    }

    fn at(memory: Memory, capacity: u32, stride: usize) -> Result<Self, RingError> {
        let start = memory.start().ok_or_else(|| RingError::Map {
            len: memory.len(),
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self {
            memory: Arc::new(memory),
            start,
            capacity,
            stride,
            entry: PhantomData,
        })
    }

    fn open(file: OwnedFd) -> Result<Self, RingError> {
        const { Self::LAYOUT_FITS };
        let refused = RingError::NotARing {
            entry_size: size_of::<T>(),
        };
        let mapping = Mapping::open(file).map_err(|source| RingError::Map { len: 0, source })?;
        if mapping.len() < size_of::<Header>() {
            return Err(refused);
        }
        let header = mapping.as_mut_ptr().cast::<Header>();
        // SAFETY: the mapping is page-aligned and at least as long as a header. These fields are plain octets,
        // read once each: what the other side does to them later has no effect.
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

    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &*self.memory {
            Memory::Own(_) => None,
            Memory::File(mapping) => Some(mapping.as_fd()),
        }
    }

    fn tail(&self) -> &AtomicU32 {
        // SAFETY: the header lies in the memory, which lives as long as `self`; both sides access the index
        // atomically only.
        unsafe { &(*self.header()).tail.0 }
    }

    fn head(&self) -> &AtomicU32 {
        // SAFETY: as for `tail`.
        unsafe { &(*self.header()).head.0 }
    }

    /// Words that an entry has here.
    #[inline(always)]
    fn stride(&self) -> usize {
        if T::FEWEST_WORDS == T::WORDS {
            T::WORDS
        } else {
            self.stride
        }
    }

    /// Returns the words of entry number `index`.
    fn words(&self, index: u32) -> &[AtomicU64] {
        self.front(index, self.stride())
    }

    /// Returns the first `count` words of entry number `index`, or all if it has fewer.
    #[inline(always)]
    fn front(&self, index: u32, count: usize) -> &[AtomicU64] {
        let at = (index & (self.capacity - 1)) as usize * self.stride() * 8;
        let first = self.start.as_ptr().wrapping_add(size_of::<Header>() + at);
        let count = if count <= T::FEWEST_WORDS {
            count
        } else {
            count.min(self.stride())
        };
        // SAFETY: the entry lies in the memory, which lives as long as `self`, and has at least `FEWEST_WORDS` words. Its address
        // is a multiple of 8, as the entries start at one and each has a multiple of 8 octets. Both sides access it atomically
        // only.
        unsafe { slice::from_raw_parts(first.cast(), count) }
    }

    /// Writes the first `count` words of entry number `index`.
    #[inline]
    fn store(&self, index: u32, entry: &T, count: usize) {
        let from = (&raw const *entry).cast::<u64>();
        for (n, word) in self.front(index, count).iter().enumerate() {
            // SAFETY: an entry has as many words as `front` yields, is aligned like them, and has no padding.
            word.store(unsafe { from.add(n).read() }, Ordering::Relaxed);
        }
    }

    /// Copies words `from..to` of entry number `index`.
    #[inline]
    fn load(&self, index: u32, entry: &mut T, from: usize, to: usize) {
        let words = self.front(index, to).get(from..).unwrap_or_default();
        let to = (&raw mut *entry).cast::<u64>();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: an entry has as many words as `front` yields, is aligned like them, and is valid whatever they are.
            unsafe { to.add(from + n).write(word.load(Ordering::Relaxed)) };
        }
    }
}

/// Makes a ring of `capacity` entries, a power of two, whose ends both stay in this process.
pub fn ring<T: Entry>(capacity: u32) -> Result<(Producer<T>, Consumer<T>), RingError> {
    ring_of(capacity, usize::MAX)
}

/// Makes a [ring](ring()) whose entries are the first `words` words of `T`, but not fewer than
/// [`FEWEST_WORDS`](Entry::FEWEST_WORDS). The others are not kept: in what the consumer copies they stay as they were.
pub fn ring_of<T: Entry>(
    capacity: u32,
    words: usize,
) -> Result<(Producer<T>, Consumer<T>), RingError> {
    let own = |len| Ok(Memory::own(len));
    Ok(ends(Shared::create(capacity, words, own)?))
}

/// Makes a ring of `capacity` entries, a power of two, an end of which another process can
/// [attach](Producer::attach).
pub fn shared_ring<T: Entry>(capacity: u32) -> Result<(Producer<T>, Consumer<T>), RingError> {
    let mapped = |len| Mapping::create("rnic-ring", len, Pages::Ordinary).map(Memory::File);
    Ok(ends(Shared::create(capacity, usize::MAX, mapped)?))
}

fn ends<T: Entry>(shared: Shared<T>) -> (Producer<T>, Consumer<T>) {
    (
        Producer::new(shared.clone(), 0, 0),
        Consumer::new(shared, 0, 0),
    )
}

/// The end of a ring that entries are pushed into.
pub struct Producer<T> {
    shared: Shared<T>,
    tail: u32,
    /// The head as last read.
    head: Cell<u32>,
}

impl<T: Entry> Producer<T> {
    fn new(shared: Shared<T>, tail: u32, head: u32) -> Self {
        Self {
            shared,
            tail,
            head: Cell::new(head),
        }
    }

    /// Returns the producing end of a ring that another process made and consumes.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        let shared = Shared::open(file)?;
        let (tail, head) = (
            shared.tail().load(Ordering::Acquire),
            shared.head().load(Ordering::Acquire),
        );
        Ok(Self::new(shared, tail, head))
    }

    /// Returns the ring as a file, for the process that attaches the other end: there is one if it is a
    /// [shared](shared_ring) one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file()
    }

    /// Adds an entry, visible to the consumer at once.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), Full> {
        self.push_front(&entry, T::WORDS)
    }

    /// Appends an entry of which only the first `words` words are defined: the others are undefined for the consumer.
    #[inline]
    pub fn push_front(&mut self, entry: &T, words: usize) -> Result<(), Full> {
        if self.free_seen() == 0 && self.free() == 0 {
            return Err(Full);
        }
        self.shared.store(self.tail, entry, words);
        self.publish();
        Ok(())
    }

    /// Makes the entry behind the last one visible to the consumer.
    #[inline]
    fn publish(&mut self) {
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail().store(self.tail, Ordering::Release);
    }

    /// Entries that can be pushed now. A broken ring has none.
    pub fn free(&self) -> u32 {
        // Acquire: the consumer's copies of the entries it released come before our writing over them.
        self.head.set(self.shared.head().load(Ordering::Acquire));
        self.free_seen()
    }

    fn free_seen(&self) -> u32 {
        self.shared
            .capacity
            .saturating_sub(self.tail.wrapping_sub(self.head.get()))
    }

    /// Entries pushed and not yet popped.
    pub fn len(&self) -> u32 {
        self.capacity() - self.free()
    }

    /// Whether everything pushed was popped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that fit.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// Whether the consumer has written an index that cannot be.
    pub fn is_broken(&self) -> bool {
        self.tail
            .wrapping_sub(self.shared.head().load(Ordering::Relaxed))
            > self.shared.capacity
    }
}

/// The end of a ring that entries are popped from.
pub struct Consumer<T> {
    shared: Shared<T>,
    head: u32,
    /// The tail as last read.
    tail: Cell<u32>,
}

impl<T: Entry> Consumer<T> {
    fn new(shared: Shared<T>, head: u32, tail: u32) -> Self {
        Self {
            shared,
            head,
            tail: Cell::new(tail),
        }
    }

    /// Returns the consuming end of a ring that another process made and produces into.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        let shared = Shared::open(file)?;
        let (head, tail) = (
            shared.head().load(Ordering::Acquire),
            shared.tail().load(Ordering::Acquire),
        );
        Ok(Self::new(shared, head, tail))
    }

    /// Whether there is an entry `ahead` places behind the oldest.
    #[inline(always)]
    pub fn has(&self, ahead: u32) -> bool {
        ahead < self.len_seen() || ahead < self.len()
    }

    /// Returns the ring as a file, for the process that attaches the other end: there is one if it is a
    /// [shared](shared_ring) one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file()
    }

    /// Returns a copy of the entry `ahead` places behind the oldest, which stays where it is.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<T> {
        let mut entry = T::new_zeroed();
        self.peek_into(ahead, &mut entry).then_some(entry)
    }

    /// Copies the entry `ahead` places behind the oldest, which stays where it is. Says whether there is one.
    #[inline]
    pub fn peek_into(&self, ahead: u32, entry: &mut T) -> bool {
        self.peek_front(ahead, T::WORDS, entry)
    }

    /// Copies the first `words` words of the entry `ahead` places behind the oldest. The others of `entry` stay as they are.
    #[inline(always)]
    pub fn peek_front(&self, ahead: u32, words: usize, entry: &mut T) -> bool {
        let there = self.has(ahead);
        if there {
            // Copied once: what the producer does to it later has no effect on what is checked here.
            let index = self.head.wrapping_add(ahead);
            self.shared.load(index, entry, 0, words);
        }
        there
    }

    /// Copies words `from..to` of the entry `ahead` places behind the oldest, of which there has to be one. The others of `entry`
    /// stay as they are.
    #[inline]
    pub fn peek_behind(&self, ahead: u32, from: usize, to: usize, entry: &mut T) {
        let index = self.head.wrapping_add(ahead);
        self.shared.load(index, entry, from, to);
    }

    /// Takes entries, oldest first, into as many of these places as there are entries for. Returns their number.
    #[inline]
    pub fn take_into<'a>(&mut self, places: impl ExactSizeIterator<Item = &'a mut T>) -> usize
    where
        T: 'a,
    {
        let count = (self.len() as usize).min(places.len());
        if count == 0 {
            return 0;
        }
        for (place, ahead) in places.zip(0..count as u32) {
            let index = self.head.wrapping_add(ahead);
            self.shared.load(index, place, 0, T::WORDS);
        }
        self.release(count as u32);
        count
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.peek(0)?;
        self.release(1);
        Some(entry)
    }

    /// Gives the `count` oldest entries (or as many as there are) back to the producer.
    #[inline(always)]
    pub fn release(&mut self, count: u32) {
        let count = if count <= self.len_seen() {
            count
        } else {
            count.min(self.len())
        };
        self.head = self.head.wrapping_add(count);
        self.shared.head().store(self.head, Ordering::Release);
    }

    /// Prefetches what [`len`](Self::len) reads, and, if asked to, what [`peek`](Self::peek) reads so many places
    /// `ahead`.
    pub fn prefetch(&self, ahead: Option<u32>) {
        prefetch(self.shared.tail());
        if let Some(ahead) = ahead {
            prefetch(self.shared.words(self.head.wrapping_add(ahead)));
        }
    }

    /// Entries that can be popped now. A broken ring has none.
    #[inline]
    pub fn len(&self) -> u32 {
        // Acquire: the entries were written before the tail that covers them.
        self.tail.set(self.shared.tail().load(Ordering::Acquire));
        self.len_seen()
    }

    #[inline]
    fn len_seen(&self) -> u32 {
        let len = self.tail.get().wrapping_sub(self.head);
        if len > self.shared.capacity { 0 } else { len }
    }

    /// Whether there is nothing to pop.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that fit.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// Whether the producer has written an index that cannot be.
    pub fn is_broken(&self) -> bool {
        self.shared
            .tail()
            .load(Ordering::Relaxed)
            .wrapping_sub(self.head)
            > self.shared.capacity
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("tail", &self.tail)
            .field("head", &self.head.get())
            .finish()
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("head", &self.head)
            .field("tail", &self.tail.get())
            .finish()
    }
}

pub mod level;
mod octets;
#[cfg(test)]
mod tests;
