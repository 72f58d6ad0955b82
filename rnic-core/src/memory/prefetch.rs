//! Prefetches memory into the cache. With many connections, the state of each has left the cache
//! when its turn comes, and to wait for each line of it takes longer than the work itself.

#![allow(unsafe_code)]

use std::collections::VecDeque;

/// Octets that are fetched at once.
const LINE: usize = 64;

/// Prefetches all of `record`. Changes nothing, and waits for nothing.
#[inline]
pub fn prefetch<T: ?Sized>(record: &T) {
    prefetch_front(record, size_of_val(record));
}

/// Prefetches the first `octets` of `record`, whose fields stand in the order of use.
#[inline]
pub fn prefetch_front<T: ?Sized>(record: &T, octets: usize) {
    prefetch_octets(std::ptr::from_ref(record).cast(), octets);
}

#[inline]
fn prefetch_octets(first: *const u8, octets: usize) {
    let offset = first.addr() % LINE;
    for at in (0..offset + octets).step_by(LINE) {
        line(first.wrapping_sub(offset).wrapping_add(at));
    }
}

/// Prefetches the front of a queue, and the place of its next entry.
#[inline]
pub fn prefetch_ends<T>(queue: &VecDeque<T>) {
    let (front, back) = queue.as_slices();
    if let Some(first) = front.first() {
        prefetch(first);
    }
    let last = if back.is_empty() { front } else { back };
    prefetch_octets(last.as_ptr_range().end.cast(), size_of::<T>());
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn line(of: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch is a hint: it reads nothing that the program sees, and an address that is
    // none does no harm.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(of.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn line(of: *const u8) {
    // SAFETY: a prefetch is a hint: it reads nothing that the program sees, and an address that is
    // none does no harm.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{of}]",
            of = in(reg) of,
            options(nostack, readonly, preserves_flags)
        );
    };
}
