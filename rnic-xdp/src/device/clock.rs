//! The clock of workers and of the control thread.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of the monotonic clock. Each turn reads it, also one without work: the
/// arithmetic of the standard library's clock would take half as long as the clock itself.
#[inline]
pub(crate) fn clock() -> u64 {
    // Every kernel has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}
