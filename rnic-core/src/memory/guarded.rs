//! Access to memory of the program, which may be gone by then.
//!
//! The program may unmap, protect or truncate its own memory before it deregisters it, and then a
//! peer's message would be a SIGSEGV or SIGBUS in this process. So such memory is accessed by a few
//! [routines](code) alone, and a [handler](handler) of both signals ends an access that faults in
//! one of them with a [`Fault`]. Every other signal goes on to the handler that the program had
//! before.
//!
//! A program that installs a handler of its own after its first foreign region replaces this one,
//! and has to call it. A thread that blocks SIGSEGV or SIGBUS dies of a fault, whatever is
//! installed: the kernel wants it so. Many programs block all signals in their threads, so both are
//! unblocked in each thread when it first runs the engine. A thread that blocks them again later
//! dies.

#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
#[path = "guarded/aarch64.rs"]
mod code;
#[cfg(target_arch = "x86_64")]
#[path = "guarded/x86_64.rs"]
mod code;
mod handler;

use std::ops::Range;

pub(super) use self::handler::{admit, install};

/// What a routine returns: it has done its work.
const DONE: u32 = 0;
/// An exchange has found, and returned, another word than it was told.
const CHANGED: u32 = 2;

unsafe extern "C" {
    /// Loads a word.
    fn rnic_core_guarded_load(from: *const u64, word: *mut u64, first: usize, end: usize) -> u32;

    /// Replaces a word by `new` in one step if it is `expected`, which is replaced by what was found
    /// otherwise.
    fn rnic_core_guarded_exchange(
        at: *mut u64,
        expected: *mut u64,
        new: u64,
        first: usize,
        end: usize,
    ) -> u32;
}

/// The memory is not there, or must not be accessed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is unmapped, protected, or of a file that was truncated")]
pub struct Fault;

/// Copies `from` to memory that may be gone, as [`store`] does.
///
/// # Safety
///
/// The octets at `to` are memory that the program has registered, or are gone.
pub(super) unsafe fn write(to: *mut u8, from: &[u8]) -> Result<(), Fault> {
    let (guarded, head) = (guarded(to, from.len()), head(to));
    // SAFETY: the caller's promise. A fault is caught.
    result(unsafe { code::store(to, from.as_ptr(), from.len(), head, &guarded) })
}

/// Copies from memory that may be gone to the whole of `to`, as [`load`] does.
///
/// # Safety
///
/// The octets at `from` are memory that the program has registered, or are gone.
pub(super) unsafe fn read(from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
    let (guarded, head) = (guarded(from, to.len()), head(from));
    // SAFETY: the caller's promise. A fault is caught. `to` is a unique reference.
    result(unsafe { code::fetch(to.as_mut_ptr(), from, to.len(), head, &guarded) })
}

/// Copies `from` to memory that others watch, in whole words, and the last one last. It is there: a
/// fault is not caught.
///
/// # Safety
///
/// As many octets at `to` can be written. Others may access them meanwhile by copies and atomic
/// accesses of their own.
#[inline(always)]
pub(super) unsafe fn store(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise. No reference is ever formed over what others watch, so `from`
    // is elsewhere.
    unsafe { code::store(to, from.as_ptr(), from.len(), head(to), &(0..0)) };
}

/// Copies from memory that others change to the whole of `to`, in whole words. It is there: a fault
/// is not caught.
///
/// # Safety
///
/// As many octets at `from` can be read. Others may access them meanwhile by copies and atomic
/// accesses of their own.
#[inline(always)]
pub(super) unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's promise. No reference is ever formed over what others change, so `to` is
    // elsewhere.
    unsafe { code::fetch(to.as_mut_ptr(), from, to.len(), head(from), &(0..0)) };
}

/// Replaces the aligned word at `at`, which may be gone, by what `change` makes of it. Returns what
/// it was.
///
/// # Safety
///
/// The octets at `at` are memory that the program has registered, or are gone.
pub(super) unsafe fn update(at: *mut u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
    let Range { start, end } = guarded(at.cast(), size_of::<u64>());
    let mut original = 0;
    // SAFETY: the caller's promise. A fault is caught.
    result(unsafe { rnic_core_guarded_load(at, &raw mut original, start, end) })?;
    loop {
        let new = change(original);
        // SAFETY: as above.
        match unsafe { rnic_core_guarded_exchange(at, &raw mut original, new, start, end) } {
            CHANGED => continue,
            outcome => return result(outcome).map(|()| original),
        }
    }
}

/// Returns the octets from an address up to the next multiple of 8.
#[inline(always)]
fn head(at: *const u8) -> usize {
    at.addr().wrapping_neg() % size_of::<u64>()
}

/// Returns the addresses of octets where a fault is expected.
fn guarded(at: *const u8, len: usize) -> Range<usize> {
    at.addr()..at.addr().saturating_add(len)
}

fn result(outcome: u32) -> Result<(), Fault> {
    if outcome == DONE { Ok(()) } else { Err(Fault) }
}

#[cfg(test)]
mod tests;
