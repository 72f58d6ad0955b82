//! Having memory fetched into the cache before it is looked at. Where many connections take turns, what is known of one
//! has left the cache when its turn comes, and to wait for each line of it takes longer than the work itself.

#![allow(unsafe_code)]

/// Octets that are fetched at once.
const LINE: usize = 64;

/// Has all of `record` fetched. Changes nothing, and waits for nothing.
#[inline]
pub fn prefetch<T: ?Sized>(record: &T) {
    prefetch_front(record, size_of_val(record));
}

/// Has the first `octets` of `record` fetched: those that are in use, where the fields stand in that order.
#[inline]
pub fn prefetch_front<T: ?Sized>(record: &T, octets: usize) {
    let first = std::ptr::from_ref(record).cast::<u8>();
    let offset = first.addr() % LINE;
    for at in (0..offset + octets).step_by(LINE) {
        line(first.wrapping_sub(offset).wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn line(of: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch is a hint: it reads nothing that the program sees, and an address that is none does no harm.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(of.cast()) };
}

/// Other processors do without.
#[cfg(not(target_arch = "x86_64"))]
fn line(_of: *const u8) {}
