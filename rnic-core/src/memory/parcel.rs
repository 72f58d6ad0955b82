//! Copies of frames that go from one place of a device to another without the network: to another
//! engine, or back to the engine that sent them.

use crate::wire::packet::Checksums;

/// A parcel never keeps more memory than this, unless its frames need more.
pub(crate) const OCTETS: usize = 32 << 10;

/// Frames, one behind the other, and what is known of their checksums.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    octets: Vec<u8>,
    /// Where each frame ends.
    frames: Vec<(usize, Checksums)>,
}

impl Parcel {
    /// Copies a frame.
    pub(crate) fn add(&mut self, frame: &[u8], checksums: Checksums) {
        let len = self.octets.len() + frame.len();
        if len > self.octets.capacity() {
            // Twice as many as before, but never more than will be used.
            let capacity = len.max(OCTETS.min(2 * self.octets.capacity()));
            self.octets.reserve_exact(capacity - self.octets.len());
        }
        self.octets.extend_from_slice(frame);
        self.frames.push((self.octets.len(), checksums));
    }

    /// Returns the frames in their order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (&[u8], Checksums)> {
        let mut begin = 0;
        self.frames.iter().map(move |(end, checksums)| {
            let frame = &self.octets[begin..*end];
            begin = *end;
            (frame, *checksums)
        })
    }

    /// Returns the number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the octets of all frames.
    pub(crate) fn octets(&self) -> usize {
        self.octets.len()
    }

    /// Returns how many octets it keeps memory for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.octets.capacity()
    }

    /// Removes all frames, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.octets.clear();
        self.frames.clear();
    }
}
