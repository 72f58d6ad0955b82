//! Protection from replays: which sequence numbers were received (RFC 4303 section 3.4.3), and the
//! upper half of a number of which the lower one was sent (appendix A2).
//!
//! Workers share a window without locks: a device may bring the packets of an association to any
//! of its queues. Each slot has the numbers of one block, and says which block that is. A number is
//! noted by one change of one slot, so it is new once, even if another worker moves the window at
//! the same time.

#[cfg(loom)]
mod models;

use std::sync::Arc;

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The fewest numbers that a window has.
pub const SMALLEST_WINDOW: u32 = 64;
/// The most.
pub const LARGEST_WINDOW: u32 = 4096;
/// Those of a window where nothing else is wanted.
pub const USUAL_WINDOW: u32 = 1024;

/// Numbers of a block: a bit for each in the lower part of a slot. The rest of it is the round in
/// which the block has this slot. No window has less than 2^54 numbers by the last round.
const BLOCK: u64 = 16;
const ALL: u64 = (1 << BLOCK) - 1;
const ROUNDS: u64 = 1 << (u64::BITS as u64 - BLOCK);

/// What was received of a block, as a slot has it.
#[derive(Clone, Copy)]
struct Slot {
    round: u64,
    received: u64,
}

impl From<u64> for Slot {
    fn from(word: u64) -> Self {
        Self {
            round: word >> BLOCK,
            received: word & ALL,
        }
    }
}

impl From<Slot> for u64 {
    fn from(slot: Slot) -> Self {
        slot.round << BLOCK | slot.received
    }
}

/// The highest number that was received, 0 at first. It can be kept for longer than its window.
#[derive(Clone, Debug)]
pub struct Top(Arc<AtomicU64>);

impl Top {
    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The highest number received, and which of those below it were.
#[derive(Debug)]
pub struct Window {
    top: Top,
    /// Numbers that it spans.
    size: u64,
    /// Those of block *n* are in slot *n* modulo all slots. One more than the window has blocks,
    /// so that each block that it touches has a slot.
    slots: Box<[AtomicU64]>,
    /// Numbers have 64 bits, of which the lower half is sent.
    extended: bool,
}

impl Window {
    /// Makes a window of about `size` numbers, behind `top`: that and all below it were received.
    pub fn new(size: u32, extended: bool, top: u64) -> Self {
        let size = size.clamp(SMALLEST_WINDOW, LARGEST_WINDOW);
        let size = u64::from(size).next_multiple_of(u64::from(SMALLEST_WINDOW));
        let count = size / BLOCK + 1;
        let mut slots: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let last = top / BLOCK;
        for block in (0..=last).rev().take(count as usize) {
            let slot = Slot {
                round: block / count,
                // Number 0 is never sent.
                received: match block == last {
                    true => mask_up_to(top),
                    false => ALL,
                },
            };
            slots[(block % count) as usize] = AtomicU64::new(slot.into());
        }
        Self {
            top: Top(Arc::new(AtomicU64::new(top))),
            size,
            slots: slots.into(),
            extended,
        }
    }

    /// Returns the highest number that was received.
    pub fn top(&self) -> u64 {
        self.top.get()
    }

    /// Returns what knows that number from now on.
    pub fn shared_top(&self) -> &Top {
        &self.top
    }

    /// Returns the numbers that it spans.
    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// Returns the whole of a number, of which the lower half was sent. `None` if there is none
    /// that could be new.
    pub fn whole(&self, low: u32) -> Option<u64> {
        if !self.extended {
            return Some(low.into());
        }
        let top = self.top();
        let (top_low, top_high) = (top as u32, top >> 32);
        let bottom = top_low.wrapping_sub(self.size as u32 - 1);
        let high = match u64::from(top_low) >= self.size - 1 {
            // The window is within one range of lower halves, or begins in the one before.
            true if low >= bottom => Some(top_high),
            true => top_high.checked_add(1),
            false if low >= bottom => top_high.checked_sub(1),
            false => Some(top_high),
        };
        high.filter(|high| *high <= u64::from(u32::MAX))
            .map(|high| high << 32 | u64::from(low))
    }

    /// Returns whether a number could be new. Nothing changes: the packet may be forged.
    pub fn is_new(&self, number: u64) -> bool {
        if number == 0 || self.is_old(number) {
            return false;
        }
        let (slot, round) = self.place(number);
        noted(slot.load(Relaxed).into(), round, number).is_some()
    }

    /// Notes a number whose packet is genuine. Returns whether it was new, once for each number:
    /// another worker may have received it since [`is_new`](Self::is_new) was asked. `alone`: there
    /// is no other.
    #[must_use]
    pub fn receive(&self, number: u64, alone: bool) -> bool {
        if number == 0 || self.is_old(number) {
            return false;
        }
        let (slot, round) = self.place(number);
        // Relaxed: the slot says all by itself, and nothing else is published by it.
        if alone {
            let Some(now) = noted(slot.load(Relaxed).into(), round, number) else {
                return false;
            };
            slot.store(now.into(), Relaxed);
            self.top.0.store(self.top().max(number), Relaxed);
            return true;
        }
        let was_new = slot.fetch_update(Relaxed, Relaxed, |word| {
            noted(word.into(), round, number).map(u64::from)
        });
        if number > self.top() {
            self.top.0.fetch_max(number, Relaxed);
        }
        was_new.is_ok()
    }

    /// Returns whether a number is below the window.
    fn is_old(&self, number: u64) -> bool {
        self.top().saturating_sub(number) >= self.size
    }

    /// Returns the slot of a number, and the round in which it has it.
    fn place(&self, number: u64) -> (&AtomicU64, u64) {
        let count = self.slots.len() as u64;
        let block = number / BLOCK;
        (&self.slots[(block % count) as usize], block / count)
    }
}

/// Returns a slot with a number in it that has the slot in this round. `None` if the number was
/// received, or a later block has the slot.
fn noted(slot: Slot, round: u64, number: u64) -> Option<Slot> {
    let bit = 1 << (number % BLOCK);
    // Beyond the last round nobody could tell a block from one of the first.
    if round < slot.round || round >= ROUNDS {
        return None;
    }
    let received = match round == slot.round {
        true => slot.received,
        false => 0,
    };
    // rfc: 5040-124, 5041-100
    (received & bit == 0).then_some(Slot {
        round,
        received: received | bit,
    })
}

/// Returns the bits of a number and of those below it in its block.
fn mask_up_to(number: u64) -> u64 {
    let bit = 1 << (number % BLOCK);
    bit | (bit - 1)
}
