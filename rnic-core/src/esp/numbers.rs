//! The sequence numbers of an association. They are the nonces of most ciphers: one that comes
//! twice gives the key away. So they are taken from blocks that nobody else has, and each once.

use core::ops::Range;

/// Numbers of a block.
pub const BLOCK: u64 = 1 << 20;

/// Packets that may be on their way at a time.
const LATELY: u64 = 1 << 16;

/// The numbers that an association may use.
#[derive(Debug, Default)]
pub struct Numbers {
    current: Range<u64>,
    /// The block behind it.
    next: Range<u64>,
    /// Another block was asked for.
    asked: bool,
    /// The first number that was used, and the last one.
    first: u64,
    last: u64,
}

impl Numbers {
    /// Takes over a block. It must be behind all that were taken over before: others are refused.
    pub fn add(&mut self, block: Range<u64>) -> bool {
        let taken = self.next.end.max(self.current.end).max(self.last + 1);
        if block.start < taken || block.is_empty() || !self.next.is_empty() {
            return false;
        }
        self.next = block;
        self.asked = false;
        true
    }

    /// Takes the next number. Returns `None` while there is none: nothing may be sealed then.
    pub fn take(&mut self) -> Option<u64> {
        if self.current.is_empty() {
            self.current = core::mem::take(&mut self.next);
        }
        let number = self.current.next()?;
        assert!(number > self.last, "a sequence number would come twice");
        if self.last == 0 {
            self.first = number;
        }
        self.last = number;
        Some(number)
    }

    /// Returns whether the lower half of a number is that of one that was used of late: it may
    /// still be on its way.
    pub fn used_lately(&self, number: u32) -> bool {
        let ago = u64::from((self.last as u32).wrapping_sub(number));
        self.last > 0 && ago <= LATELY && ago <= self.last - self.first
    }

    /// Returns the last number that was used, 0 if none was.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns whether a block is to be asked for: once, when half of one is left.
    pub fn is_low(&mut self) -> bool {
        let left = self.current.end - self.current.start.min(self.current.end);
        let is_low = !self.asked && self.next.is_empty() && left <= BLOCK / 2;
        self.asked |= is_low;
        is_low
    }

    /// Lets a block be asked for again: the last request came to nothing.
    pub fn ask_again(&mut self) {
        self.asked = false;
    }
}
