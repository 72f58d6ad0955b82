//! What is moved in a run.

use std::ops::Range;

/// Slots of the memory that Writes go to, and of that which they come from.
pub(crate) const SLOTS: usize = 8;
/// Octets of a slot, about.
const SLOT: u64 = 1 << 20;

/// Octets one way, in slots, each in segments of the same payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) octets: u64,
    /// Octets of payload in a segment of the peer's.
    pub(crate) payload: usize,
    /// Octets of a slot: whole segments.
    pub(crate) slot: u64,
}

impl Transfer {
    pub(crate) fn new(octets: u64, payload: usize) -> Self {
        Self {
            octets,
            payload,
            slot: SLOT / payload as u64 * payload as u64,
        }
    }

    /// Positions of each slot's octets.
    pub(crate) fn slots(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.octets)
            .step_by(self.slot as usize)
            .map(move |start| start..self.octets.min(start + self.slot))
    }

    /// Returns the length of the Send that announces a slot. Its FPDU is as long as the others, so
    /// that these keep to the boundaries of the kernel's segments: an untagged header is longer by
    /// four octets.
    pub(crate) fn announcement(self) -> usize {
        self.payload - 4
    }
}
