//! Single-producer single-consumer rings of fixed entries, in memory of this process or in memory
//! that two share.
//!
//! A ring of this process alone takes no file descriptor and no mapping, of which a process may
//! have few: thousands of queue pairs have two rings each.
//!
//! Each side keeps its own index privately and reads only the other's, which it does not trust: if
//! the distance between them exceeds the capacity, the ring is broken, which to a consumer looks
//! empty and to a producer full. Entries are copied in and out as atomic words, so that a side that
//! breaks the rules yields wrong entries and nothing worse.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};

pub use self::shared::{Entry, MAX_CAPACITY, RingError};
use self::shared::{Memory, Shared};
use super::mapping::{Mapping, Pages};
use super::prefetch::prefetch;
use crate::sync::atomic::Ordering;

/// Makes a ring of `capacity` entries, a power of two, whose ends both stay in this process.
pub fn ring<T: Entry>(capacity: u32) -> Result<(Producer<T>, Consumer<T>), RingError> {
    ring_of(capacity, usize::MAX)
}

/// Makes a [ring](ring()) whose entries are the first `words` words of `T`, but not fewer than
/// [`FEWEST_WORDS`](Entry::FEWEST_WORDS). The others are not kept: in what the consumer copies they
/// stay as they were.
pub fn ring_of<T: Entry>(
    capacity: u32,
    words: usize,
) -> Result<(Producer<T>, Consumer<T>), RingError> {
    Ok(ends(Shared::create(capacity, words, Memory::own)?))
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

/// The ring is full: the entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full")]
pub struct Full;

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

    /// Returns the ring as a file, for the process that attaches the other end: there is one if it
    /// is a [shared](shared_ring) one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file()
    }

    /// Adds an entry, visible to the consumer at once.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), Full> {
        self.push_front(&entry, T::WORDS)
    }

    /// Appends an entry of which only the first `words` words are defined: the others are undefined
    /// for the consumer.
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

    /// Returns how many entries can be pushed now. A broken ring has none.
    pub fn free(&self) -> u32 {
        // Acquire: the consumer's copies of the entries it released come before our writing over
        // them.
        self.head.set(self.shared.head().load(Ordering::Acquire));
        self.free_seen()
    }

    fn free_seen(&self) -> u32 {
        self.shared
            .capacity
            .saturating_sub(self.tail.wrapping_sub(self.head.get()))
    }

    /// Returns how many entries were pushed and not yet popped.
    pub fn len(&self) -> u32 {
        self.capacity() - self.free()
    }

    /// Returns whether everything pushed was popped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many entries fit.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// Returns whether the consumer has written an index that cannot be.
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

    /// Returns whether there is an entry `ahead` places behind the oldest.
    #[inline(always)]
    pub fn has(&self, ahead: u32) -> bool {
        ahead < self.len_seen() || ahead < self.len()
    }

    /// Returns the ring as a file, for the process that attaches the other end: there is one if it
    /// is a [shared](shared_ring) one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file()
    }

    /// Returns how many entries were pushed so far, modulo 2^32.
    pub fn pushed(&self) -> u32 {
        self.head.wrapping_add(self.len())
    }

    /// Returns a copy of the entry `ahead` places behind the oldest, which stays where it is.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<T> {
        let mut entry = T::new_zeroed();
        self.peek_into(ahead, &mut entry).then_some(entry)
    }

    /// Copies the entry `ahead` places behind the oldest, which stays where it is. Returns whether
    /// there is one.
    #[inline]
    pub fn peek_into(&self, ahead: u32, entry: &mut T) -> bool {
        self.peek_front(ahead, T::WORDS, entry)
    }

    /// Copies the first `words` words of the entry `ahead` places behind the oldest. The others of
    /// `entry` stay as they are.
    #[inline(always)]
    pub fn peek_front(&self, ahead: u32, words: usize, entry: &mut T) -> bool {
        let there = self.has(ahead);
        if there {
            // Copied once: what the producer does to it later has no effect on what is checked
            // here.
            let index = self.head.wrapping_add(ahead);
            self.shared.load(index, entry, 0, words);
        }
        there
    }

    /// Copies words `from..to` of the entry `ahead` places behind the oldest, of which there has to
    /// be one. The others of `entry` stay as they are.
    #[inline]
    pub fn peek_behind(&self, ahead: u32, from: usize, to: usize, entry: &mut T) {
        let index = self.head.wrapping_add(ahead);
        self.shared.load(index, entry, from, to);
    }

    /// Moves entries, oldest first, into as many of these places as there are entries for. Returns
    /// their number.
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

    /// Removes and returns the oldest entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.peek(0)?;
        self.release(1);
        Some(entry)
    }

    /// Returns the `count` oldest entries (or as many as there are) to the producer.
    #[inline(always)]
    pub fn release(&mut self, count: u32) {
        let count = if count <= self.len_seen() {
            count
        } else {
            count.min(self.len())
        };
        self.head = self.head.wrapping_add(count);
        // Release: the entries were read before the producer writes over them.
        self.shared.head().store(self.head, Ordering::Release);
    }

    /// Prefetches what [`len`](Self::len) reads, and, if asked to, what [`peek`](Self::peek) reads
    /// so many places `ahead`.
    pub fn prefetch(&self, ahead: Option<u32>) {
        prefetch(self.shared.tail());
        if let Some(ahead) = ahead {
            prefetch(self.shared.words(self.head.wrapping_add(ahead)));
        }
    }

    /// Returns how many entries can be popped now. A broken ring has none.
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

    /// Returns whether there is nothing to pop.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many entries fit.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// Returns whether the producer has written an index that cannot be.
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
#[cfg(test)]
mod models;
mod octets;
mod shared;
#[cfg(test)]
mod tests;
