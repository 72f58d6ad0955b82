//! Octets of heap in use, as this program has asked for them.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the number of octets in use.
pub(crate) fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Returns the heap that the result of a function keeps in use.
pub(crate) fn kept_by<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<(T, usize), E> {
    let before = in_use();
    let made = make()?;
    Ok((made, in_use().saturating_sub(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_kept_and_not_what_is_given_back() {
        // Other tests use the heap meanwhile: far more than they do. Nothing is written to it.
        const MUCH: usize = 512 << 20;
        let make = || -> Result<_, ()> {
            drop(Vec::<u8>::with_capacity(4 * MUCH));
            let mut kept = Vec::<u8>::with_capacity(2 * MUCH);
            kept.shrink_to(MUCH);
            Ok(kept)
        };
        let (kept, octets) = kept_by(make).unwrap();
        assert!((MUCH / 4 * 3..MUCH / 4 * 5).contains(&octets), "{octets}");
        let before = in_use();
        drop(kept);
        assert!(before - in_use() > MUCH / 2);
    }
}
