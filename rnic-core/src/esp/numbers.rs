//! The sequence numbers of an association. They are the nonces of most ciphers: one that comes
//! twice gives the key away. So they are taken from blocks that nobody else has, and each once.
//!
//! All workers of a device take them from one counter. With a block for each worker, the peer's
//! replay window would drop the packets of the worker whose numbers are lower.

use core::ops::Range;

#[cfg(loom)]
mod models;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Numbers of a block.
pub const BLOCK: u64 = 1 << 20;

/// Packets that may be on their way at a time.
const LATELY: u64 = 1 << 16;

/// The numbers that an association may use.
#[derive(Debug, Default)]
pub struct Numbers {
    /// The next number, and the end of its block. `next` is written before `end`, and read before
    /// it: a thread that reads the end of a new block cannot take a number of the old one.
    next: AtomicU64,
    end: AtomicU64,
    /// The first number that may be used.
    first: AtomicU64,
    /// A block was asked for, or waits.
    provided: AtomicBool,
    /// The block behind this one. Whoever needs another block takes the lock.
    waiting: Mutex<Range<u64>>,
}

impl Numbers {
    /// Takes over a block. It must be behind all that were taken over before: others are refused,
    /// and another one may be asked for.
    pub fn add(&self, block: Range<u64>) -> bool {
        let mut waiting = self.waiting();
        let taken = self.end.load(Ordering::Relaxed).max(1);
        if !waiting.is_empty() {
            return false;
        }
        if block.start < taken || block.is_empty() {
            self.provided.store(false, Ordering::Relaxed);
            return false;
        }
        *waiting = block;
        self.provided.store(true, Ordering::Relaxed);
        true
    }

    /// Takes the next number. Returns `None` while there is none: nothing may be sealed then.
    /// `alone`: no other thread takes any.
    pub fn take(&self, alone: bool) -> Option<u64> {
        loop {
            let next = self.next.load(Ordering::Acquire);
            if next >= self.end.load(Ordering::Acquire) {
                self.begin_block()?;
                continue;
            }
            if alone {
                self.next.store(next + 1, Ordering::Relaxed);
                return Some(next);
            }
            let taken = self.next.compare_exchange_weak(
                next,
                next + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Some(next);
            }
        }
    }

    /// Goes on to the block that waits, unless another thread has just done so. Returns `None` if
    /// there is none.
    fn begin_block(&self) -> Option<()> {
        let mut waiting = self.waiting();
        let end = self.end.load(Ordering::Relaxed);
        if self.next.load(Ordering::Relaxed) < end {
            return Some(());
        }
        if waiting.is_empty() {
            return None;
        }
        let block = core::mem::take(&mut *waiting);
        assert!(block.start >= end, "a sequence number would come twice");
        if end == 0 {
            self.first.store(block.start, Ordering::Relaxed);
        }
        // Release: who sees the new end sees the new number.
        self.next.store(block.start, Ordering::Release);
        self.end.store(block.end, Ordering::Release);
        self.provided.store(false, Ordering::Relaxed);
        Some(())
    }

    fn waiting(&self) -> MutexGuard<'_, Range<u64>> {
        // It is whole after every statement.
        self.waiting
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns whether the lower half of a number is that of one that was used of late: it may
    /// still be on its way.
    pub fn used_lately(&self, number: u32) -> bool {
        let (first, last) = (self.first.load(Ordering::Relaxed), self.last());
        let ago = u64::from((last as u32).wrapping_sub(number));
        last > 0 && last >= first && ago <= LATELY && ago <= last - first
    }

    /// Returns the last number that was used, 0 if none was.
    pub fn last(&self) -> u64 {
        self.next.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Returns whether a block is to be asked for: once, when half of one is left.
    pub fn is_low(&self) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        let left = end.saturating_sub(self.next.load(Ordering::Relaxed));
        left <= BLOCK / 2
            && !self.provided.load(Ordering::Relaxed)
            && !self.provided.swap(true, Ordering::Relaxed)
    }
}
