//! Stands where there are no guarded accesses for this processor: there are no foreign regions
//! then.

use std::io;
use std::ops::Range;

pub(super) const DONE: u32 = 0;
pub(super) const CHANGED: u32 = 2;
const FAULTED: u32 = 1;

pub(in crate::memory) fn install() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(in crate::memory) fn admit() -> bool {
    true
}

pub(super) unsafe fn copy(_: *mut u8, _: *const u8, _: usize, _: usize, _: &Range<usize>) -> u32 {
    FAULTED
}

pub(super) unsafe fn load_word(_: *const u64, _: &mut u64, _: &Range<usize>) -> u32 {
    FAULTED
}

pub(super) unsafe fn exchange_word(_: *mut u64, _: &mut u64, _: u64, _: &Range<usize>) -> u32 {
    FAULTED
}
