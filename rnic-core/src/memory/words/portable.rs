//! The copies for processors that have no routine of their own.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Copies `from` to memory that others watch, in whole words, and the last one last.
///
/// # Safety
///
/// As many octets at `to` can be written. Others may access them meanwhile by copies and atomic
/// accesses of their own.
pub(in crate::memory) unsafe fn store(mut to: *mut u8, mut from: &[u8]) {
    while !from.is_empty() {
        let (word, rest) = from.split_at(word_at(to, from.len()));
        if rest.is_empty() {
            // A thread that sees the last word sees all others.
            fence(Ordering::Release);
        }
        // SAFETY: the caller's promise; the address is a multiple of the word's length.
        unsafe { store_word(to, word) };
        to = to.wrapping_add(word.len());
        from = rest;
    }
}

/// Copies from memory that others change to the whole of `to`, in whole words.
///
/// # Safety
///
/// As many octets at `from` can be read. Others may access them meanwhile by copies and atomic
/// accesses of their own.
pub(in crate::memory) unsafe fn load(mut from: *const u8, mut to: &mut [u8]) {
    while !to.is_empty() {
        let len = word_at(from, to.len());
        let (word, rest) = to.split_at_mut(len);
        // SAFETY: the caller's promise; the address is a multiple of the word's length.
        unsafe { load_word(from.cast_mut(), word) };
        from = from.wrapping_add(len);
        to = rest;
    }
}

/// Returns the octets of the largest aligned word at an address that has `left` octets, which are
/// some.
fn word_at(at: *const u8, left: usize) -> usize {
    const MOST: u32 = size_of::<u64>().trailing_zeros();
    let aligned = at.addr().trailing_zeros();
    1 << aligned.min(left.ilog2()).min(MOST)
}

/// Stores a word of 1, 2, 4 or 8 octets.
///
/// # Safety
///
/// The octets can be written, and the address is a multiple of their number.
unsafe fn store_word(to: *mut u8, word: &[u8]) {
    let order = Ordering::Relaxed;
    // SAFETY: the caller's promise.
    unsafe {
        if let Ok(word) = word.try_into() {
            AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(word), order);
        } else if let Ok(word) = word.try_into() {
            AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(word), order);
        } else if let Ok(word) = word.try_into() {
            AtomicU16::from_ptr(to.cast()).store(u16::from_ne_bytes(word), order);
        } else {
            AtomicU8::from_ptr(to).store(word[0], order);
        }
    }
}

/// Loads a word of 1, 2, 4 or 8 octets.
///
/// # Safety
///
/// The octets can be read, and the address is a multiple of their number.
unsafe fn load_word(from: *mut u8, word: &mut [u8]) {
    let order = Ordering::Relaxed;
    // SAFETY: the caller's promise.
    unsafe {
        match word.len() {
            8 => word.copy_from_slice(&AtomicU64::from_ptr(from.cast()).load(order).to_ne_bytes()),
            4 => word.copy_from_slice(&AtomicU32::from_ptr(from.cast()).load(order).to_ne_bytes()),
            2 => word.copy_from_slice(&AtomicU16::from_ptr(from.cast()).load(order).to_ne_bytes()),
            _ => word[0] = AtomicU8::from_ptr(from).load(order),
        }
    }
}
