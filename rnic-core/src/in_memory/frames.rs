//! Transmit frames on the heap, for tests: what is transmitted is recorded.

use crate::memory::frames::{FrameId, TxFrames};
use crate::wire::checksum;
use crate::wire::tcp::CHECKSUM_AT;

/// Octets in a frame of [`VecFrames`]: enough for an MTU of 9000.
pub const FRAME_LEN: usize = 9216;

/// A fixed number of transmit frames over a `Vec`.
///
/// A transmitted frame is copied to [`transmitted`](Self::transmitted) and completes at once. After
/// [`hold`](Self::hold) frames stay busy until [`complete`](Self::complete), as with a device that
/// takes its time.
#[derive(Debug)]
pub struct VecFrames {
    /// Those that were used: most never are.
    frames: Vec<Frame>,
    count: usize,
    /// Frames that were used and are free.
    free: Vec<FrameId>,
    queue_len: usize,
    holding: bool,
    completes_checksums: bool,
    /// Frames whose checksums the device completed.
    pub completed: u64,
    in_device: Vec<FrameId>,
    /// The octets of each transmitted frame, oldest first. The test takes them from here.
    pub transmitted: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    /// How often the device holds it: a frame can be queued again before it has completed.
    in_device: u32,
    held_by_owner: bool,
}

impl VecFrames {
    /// Makes `count` free frames of [`FRAME_LEN`] octets, with an unlimited device queue.
    pub fn new(count: usize) -> Self {
        Self {
            frames: Vec::new(),
            count,
            free: Vec::new(),
            queue_len: usize::MAX,
            holding: false,
            completes_checksums: false,
            completed: 0,
            in_device: Vec::new(),
            transmitted: Vec::new(),
        }
    }

    /// Limits the device queue: [`TxFrames::can_transmit`] is false while `len` frames wait in
    /// [`transmitted`](Self::transmitted) or are held by the device.
    pub fn set_queue_len(&mut self, len: usize) {
        self.queue_len = len;
    }

    /// Makes the device keep each transmitted frame busy until [`complete`](Self::complete).
    pub fn hold(&mut self) {
        self.holding = true;
    }

    /// Makes the device complete checksums from now on.
    pub fn complete_checksums(&mut self) {
        self.completes_checksums = true;
    }

    /// Completes every frame that the device holds.
    pub fn complete(&mut self) {
        for id in core::mem::take(&mut self.in_device) {
            let frame = &mut self.frames[id.0 as usize];
            frame.in_device -= 1;
            if frame.in_device == 0 && !frame.held_by_owner {
                self.free.push(id);
            }
        }
    }

    /// Removes and returns the frames transmitted since the last call.
    pub fn take_transmitted(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.transmitted)
    }
}

impl TxFrames for VecFrames {
    fn available(&self) -> usize {
        self.count - self.frames.len() + self.free.len()
    }

    fn total(&self) -> usize {
        self.count
    }

    fn allocate(&mut self) -> Option<FrameId> {
        if let Some(id) = self.free.pop() {
            self.frames[id.0 as usize].held_by_owner = true;
            return Some(id);
        }
        let id = (self.frames.len() < self.count).then_some(FrameId(self.frames.len() as u32))?;
        self.frames.push(Frame {
            bytes: vec![0; FRAME_LEN],
            in_device: 0,
            held_by_owner: true,
        });
        Some(id)
    }

    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.frames[frame.0 as usize].bytes
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        let frame = &mut self.frames[frame.0 as usize];
        assert!(
            frame.in_device == 0,
            "a frame is changed while the device may still read it"
        );
        &mut frame.bytes
    }

    fn busy(&self, frame: FrameId) -> bool {
        self.frames[frame.0 as usize].in_device > 0
    }

    fn can_transmit(&self) -> bool {
        self.in_device.len().max(self.transmitted.len()) < self.queue_len
    }

    fn transmit(&mut self, frame: FrameId, len: usize) {
        assert!(
            self.can_transmit(),
            "a frame is queued although the device has no room"
        );
        let held = &mut self.frames[frame.0 as usize];
        assert!(
            held.held_by_owner,
            "a frame is transmitted that nobody owns"
        );
        self.transmitted.push(held.bytes[..len].to_vec());
        if self.holding {
            held.in_device += 1;
            self.in_device.push(frame);
        }
    }

    fn completes_checksums(&self) -> bool {
        self.completes_checksums
    }

    fn transmit_partial(&mut self, frame: FrameId, len: usize, tcp_at: usize) {
        assert!(
            self.completes_checksums,
            "the device completes no checksums"
        );
        self.completed += 1;
        self.transmit(frame, len);
        if let Some(sent) = self.transmitted.last_mut() {
            let checksum = !checksum::sum(&sent[tcp_at..]);
            sent[tcp_at + CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    fn release(&mut self, frame: FrameId) {
        let held = &mut self.frames[frame.0 as usize];
        assert!(held.held_by_owner, "a frame is released twice");
        held.held_by_owner = false;
        if held.in_device == 0 {
            self.free.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_free_when_neither_owner_nor_device_has_it() {
        let mut frames = VecFrames::new(2);
        frames.hold();
        let a = frames.allocate().unwrap();
        frames.bytes_mut(a)[..3].copy_from_slice(b"abc");
        frames.transmit(a, 3);
        assert!(frames.busy(a));
        frames.release(a);
        assert_eq!(frames.available(), 1);
        frames.complete();
        assert!(!frames.busy(a));
        assert_eq!(frames.available(), 2);
        assert_eq!(frames.take_transmitted(), [b"abc".to_vec()]);
    }

    #[test]
    fn running_out_and_a_full_queue_are_reported() {
        let mut frames = VecFrames::new(1);
        frames.set_queue_len(1);
        let a = frames.allocate().unwrap();
        assert!(frames.allocate().is_none());
        frames.transmit(a, 1);
        assert!(!frames.can_transmit());
        frames.take_transmitted();
        assert!(frames.can_transmit());
    }
}
