//! Access to memory of the program, which may be gone by then.
//!
//! The program may unmap, protect or truncate its own memory before it deregisters it, and then a peer's message would be a
//! SIGSEGV or SIGBUS in this process. So such memory is accessed by a few [routines](code) alone, and a [handler](handler)
//! of both signals ends an access that faults in one of them with a [`Fault`]. Every other signal goes on to the handler that
//! the program had before.
//!
//! A program that installs a handler of its own after its first foreign region replaces this one, and has to call it. A thread
//! that blocks SIGSEGV or SIGBUS dies of a fault, whatever is installed: the kernel wants it so.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
#[path = "guarded/x86_64.rs"]
mod code;
#[cfg(target_arch = "x86_64")]
mod handler;

#[cfg(not(target_arch = "x86_64"))]
#[path = "guarded/absent.rs"]
mod code;
#[cfg(not(target_arch = "x86_64"))]
#[path = "guarded/absent.rs"]
mod handler;

use std::ops::Range;

pub(super) use self::handler::install;

/// The memory is not there, or must not be accessed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is unmapped, protected, or of a file that was truncated")]
pub struct Fault;

/// Copies `from` to memory that may be gone, and the last octet last. Eight octets come in one piece where their address is a
/// multiple of 8.
///
/// # Safety
///
/// The octets at `to` are memory that the program has registered, or are gone.
pub(super) unsafe fn write(to: *mut u8, from: &[u8]) -> Result<(), Fault> {
    let guarded = guarded(to, from.len());
    let word = to.cast::<u64>();
    if let Ok(octets) = from.try_into()
        && word.is_aligned()
    {
        // SAFETY: the caller's promise. A fault is caught.
        return result(unsafe { code::store_word(word, u64::from_ne_bytes(octets), &guarded) });
    }
    let Some((last, others)) = from.split_last() else {
        return Ok(());
    };
    // Stores become visible in order.
    // SAFETY: the caller's promise. A fault is caught.
    unsafe {
        result(code::copy(to, others.as_ptr(), others.len(), &guarded))?;
        result(code::copy(to.add(others.len()), last, 1, &guarded))
    }
}

/// Copies from memory that may be gone to the whole of `to`.
///
/// # Safety
///
/// The octets at `from` are memory that the program has registered, or are gone.
pub(super) unsafe fn read(from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
    let guarded = guarded(from, to.len());
    // SAFETY: the caller's promise. A fault is caught. `to` is a unique reference.
    result(unsafe { code::copy(to.as_mut_ptr(), from, to.len(), &guarded) })
}

/// Replaces the aligned word at `at`, which may be gone, by what `change` makes of it. Returns what it was.
///
/// # Safety
///
/// The octets at `at` are memory that the program has registered, or are gone.
pub(super) unsafe fn update(at: *mut u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
    let guarded = guarded(at.cast(), size_of::<u64>());
    let mut original = 0;
    // SAFETY: the caller's promise. A fault is caught.
    result(unsafe { code::load_word(at, &mut original, &guarded) })?;
    loop {
        let new = change(original);
        // SAFETY: as above.
        match unsafe { code::exchange_word(at, &mut original, new, &guarded) } {
            code::CHANGED => continue,
            outcome => return result(outcome).map(|()| original),
        }
    }
}

/// Returns the addresses of octets where a fault is expected.
fn guarded(at: *const u8, len: usize) -> Range<usize> {
    at.addr()..at.addr().saturating_add(len)
}

fn result(outcome: u32) -> Result<(), Fault> {
    if outcome == code::DONE {
        Ok(())
    } else {
        Err(Fault)
    }
}

#[cfg(test)]
mod tests;
