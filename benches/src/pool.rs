//! Transmit frames in ordinary memory, reused last in, first out like those of a port.

use rnic_core::memory::frames::{FrameId, TxFrames};

/// Octets of a frame: what a port uses for an MTU of 1500.
const FRAME_LEN: usize = 2048;

const OWNED: u8 = 1;
const ON_THE_WIRE: u8 = 2;

/// Frames, and those sent since the peer last took them.
pub(crate) struct Pool {
    octets: Vec<u8>,
    states: Vec<u8>,
    free: Vec<u32>,
    sent: Vec<(FrameId, usize)>,
    /// Frames that may be on the wire at once.
    wire: usize,
}

impl Pool {
    /// Makes `count` frames, of which `wire` may be in flight.
    pub(crate) fn new(count: u32, wire: usize) -> Self {
        Self {
            octets: vec![0; count as usize * FRAME_LEN],
            states: vec![0; count as usize],
            free: (0..count).rev().collect(),
            sent: Vec::with_capacity(wire),
            wire,
        }
    }

    /// Returns the frames on the wire, in order.
    pub(crate) fn sent(&self) -> impl Iterator<Item = &[u8]> {
        self.sent.iter().map(|(id, len)| &self.bytes(*id)[..*len])
    }

    /// Marks all frames in flight as delivered.
    pub(crate) fn delivered(&mut self) {
        while let Some((id, _)) = self.sent.pop() {
            self.clear(id, ON_THE_WIRE);
        }
    }

    fn clear(&mut self, id: FrameId, share: u8) {
        let state = &mut self.states[id.0 as usize];
        *state &= !share;
        if *state == 0 {
            self.free.push(id.0);
        }
    }
}

impl TxFrames for Pool {
    fn allocate(&mut self) -> Option<FrameId> {
        let id = self.free.pop()?;
        self.states[id as usize] = OWNED;
        Some(FrameId(id))
    }

    fn available(&self) -> usize {
        self.free.len()
    }

    fn total(&self) -> usize {
        self.states.len()
    }

    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.octets[frame.0 as usize * FRAME_LEN..][..FRAME_LEN]
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        &mut self.octets[frame.0 as usize * FRAME_LEN..][..FRAME_LEN]
    }

    fn busy(&self, frame: FrameId) -> bool {
        self.states[frame.0 as usize] & ON_THE_WIRE != 0
    }

    fn can_transmit(&self) -> bool {
        self.sent.len() < self.wire
    }

    fn transmit(&mut self, frame: FrameId, len: usize) {
        self.states[frame.0 as usize] |= ON_THE_WIRE;
        self.sent.push((frame, len));
    }

    fn release(&mut self, frame: FrameId) {
        self.clear(frame, OWNED);
    }
}
