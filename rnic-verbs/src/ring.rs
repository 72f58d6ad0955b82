//! Rings of the sizes that applications ask for.

use rnic_core::memory::ring::{self, Consumer, Entry, Producer};

use crate::error::Error;

/// Makes a ring with room for `count` entries, rounded up to a power of two.
pub(crate) fn ring<T: Entry>(count: u32) -> Result<(Producer<T>, Consumer<T>), Error> {
    ring_of(count, usize::MAX)
}

/// Makes a [`ring`] whose entries are the first `words` words of `T`.
pub(crate) fn ring_of<T: Entry>(
    count: u32,
    words: usize,
) -> Result<(Producer<T>, Consumer<T>), Error> {
    let capacity = count.max(1).checked_next_power_of_two().unwrap_or(u32::MAX);
    Ok(ring::ring_of(capacity, words)?)
}
