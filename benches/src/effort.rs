//! How long a measurement takes, and what is common to measuring one.

use std::hint::spin_loop;
use std::time::Duration;

use crate::bed::Cores;

/// Octets of a message of the bandwidth measurements.
pub(crate) const MESSAGE: usize = 64 * 1024;
/// Octets of a message of the latency measurements.
pub(crate) const PING: usize = 64;
/// Octets of memory for messages, which is used cyclically.
pub(crate) const REGION: usize = 1024 * 1024;
/// Pauses between two polls of an empty ring: polling without pause slows the other end down.
const PAUSES: usize = 200;

/// Pauses for a moment.
pub(crate) fn idle() {
    for _ in 0..PAUSES {
        spin_loop();
    }
}

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How many cores drive the two ends.
    pub(crate) cores: Cores,
    /// The MTU of both devices, in octets.
    pub(crate) mtu: u16,
    /// Octets of a message.
    pub(crate) size: usize,
}

/// How much to do in one repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// The time of a bandwidth measurement.
    pub(crate) duration: Duration,
    /// The time of a latency measurement.
    pub(crate) round_trips: usize,
    /// Batches of segments through the engine alone.
    pub(crate) batches: usize,
    /// The number of connections of measurements with many.
    pub(crate) connections: usize,
}

impl Effort {
    /// Returns the effort for a point of a curve, of which there are many.
    pub(crate) fn shorter(&self) -> Self {
        Self {
            duration: self.duration / 5,
            round_trips: self.round_trips / 5,
            ..*self
        }
    }
}
