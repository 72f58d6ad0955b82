//! How long a measurement takes, and what is common to measuring one.

use std::hint::spin_loop;
use std::time::Duration;

/// Octets of a message of the bandwidth measurements.
pub(crate) const MESSAGE: usize = 64 * 1024;
/// Octets of memory that messages come from and go to.
pub(crate) const REGION: usize = 1024 * 1024;
/// Pauses between two looks at an empty ring: looking all the time slows the other end down.
const PAUSES: usize = 200;

/// Rests for a moment.
pub(crate) fn idle() {
    for _ in 0..PAUSES {
        spin_loop();
    }
}

/// How much to do in one repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Of a bandwidth measurement.
    pub(crate) duration: Duration,
    /// Of a latency measurement.
    pub(crate) round_trips: usize,
    /// Batches of segments through the engine alone.
    pub(crate) batches: usize,
}
