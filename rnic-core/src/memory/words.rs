//! Copies to and from memory that somebody watches.
//!
//! Programs wait for what peers write by looking at words of it: a flag or an index, alone or at
//! the end of a longer message. So each aligned word of 2, 4 or 8 octets that lies in a piece as a
//! whole is stored in one piece, words are stored in the order of their addresses, each once, and
//! the last one after all others are visible. An RDMA Read sees no torn word either: what is read
//! is loaded in such words.
//!
//! A word that does not lie in one piece is stored in as many parts as there are pieces: the
//! payload of an FPDU is one, or the part of it that an element of a scatter/gather list takes.

#![allow(unsafe_code)]

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::{load, store};

#[cfg(target_arch = "x86_64")]
use super::guarded::{copy_own, head};

/// Copies `from` to memory that others watch, in whole words, and the last one last.
///
/// # Safety
///
/// As many octets at `to` can be written. Others may access them meanwhile by copies and atomic
/// accesses of their own.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn store(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise. No reference is ever formed over what others watch, so `from`
    // is elsewhere.
    unsafe { copy_own(to, from.as_ptr(), from.len(), head(to)) };
}

/// Copies from memory that others change to the whole of `to`, in whole words.
///
/// # Safety
///
/// As many octets at `from` can be read. Others may access them meanwhile by copies and atomic
/// accesses of their own.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's promise. No reference is ever formed over what others change, so `to` is
    // elsewhere.
    unsafe { copy_own(to.as_mut_ptr(), from, to.len(), head(from)) };
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
