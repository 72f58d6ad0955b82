//! The transmit side: frames are built, queued, sent, and free again when neither their owner nor the device
//! holds them.
#![allow(unsafe_code)]

use rnic_core::memory::frames::{FrameId, TxFrames};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, TxQueue};

use super::umem::{FrameLayout, Umem};

/// Completions taken from the ring at once.
const BATCH: usize = 64;

/// The owner may send it (again).
const OWNED: u8 = 1;
/// It is in the transmit ring, on its way, or in the completion ring.
const IN_DEVICE: u8 = 2;

/// The transmit side of a device: queue 0 sends for all connections, so that nothing is reordered.
#[derive(Debug)]
pub struct TxSide {
    umem: Umem,
    tx: TxQueue,
    completion: CompQueue,
    zero_copy: bool,
    layout: FrameLayout,
    /// Each frame in full length, by its number.
    frames: Box<[FrameDesc]>,
    states: Box<[u8]>,
    /// Free frames; the last one freed is used first, while it is in cache.
    free: Vec<u32>,
    /// The frames of this side begin with this frame of the UMEM.
    first: usize,
    /// Frames to be put into the ring with the next kick.
    queued: Vec<FrameDesc>,
    ring_size: u32,
    /// Free entries of the ring, as far as known.
    room: u32,
    completed: Box<[FrameDesc]>,
}

/// What a transmit side is made of.
pub(super) struct TxParts {
    pub(super) umem: Umem,
    pub(super) layout: FrameLayout,
    pub(super) tx: TxQueue,
    pub(super) completion: CompQueue,
    pub(super) zero_copy: bool,
    pub(super) frames: Vec<FrameDesc>,
    pub(super) ring_size: u32,
}

impl TxSide {
    pub(super) fn new(parts: TxParts) -> Self {
        let TxParts {
            umem,
            layout,
            tx,
            completion,
            zero_copy,
            frames,
            ring_size,
        } = parts;
        let count = frames.len();
        Self {
            first: frames.first().map_or(0, |first| umem.index(first)),
            umem,
            tx,
            completion,
            zero_copy,
            layout,
            states: vec![0; count].into_boxed_slice(),
            free: (0..count as u32).rev().collect(),
            frames: frames.into_boxed_slice(),
            queued: Vec::with_capacity(ring_size as usize),
            ring_size,
            room: ring_size,
            completed: vec![FrameDesc::default(); BATCH].into_boxed_slice(),
        }
    }

    /// Whether frames still wait in the transmit ring for the kernel to take them.
    pub fn is_pending(&mut self) -> bool {
        !self.queued.is_empty() || self.tx.nb_free_exact() < self.ring_size
    }

    /// Sends what is queued, and frees what the device has finished with. Once per turn.
    pub fn kick(&mut self) {
        self.submit();
        self.drive();
        self.reap();
        self.room = self.tx.nb_free_exact();
    }

    fn submit(&mut self) {
        if !self.queued.is_empty() {
            // `room` counted a ring entry for each.
            // SAFETY: the frames are this UMEM's; they are marked as the device's, and nobody writes to them
            // until they come back through the completion ring.
            unsafe { self.tx.produce(&self.queued) };
            self.queued.clear();
        }
    }

    /// Has the kernel take what is in the ring. A copying socket sends within the call, some 32 frames each.
    fn drive(&mut self) {
        let mut left = self.ring_size - self.tx.nb_free_exact();
        while left > 0 && self.tx.needs_wakeup() {
            // The device is down or gone: what is in the ring waits until it is up again.
            if self.tx.wakeup().is_err() {
                return;
            }
            let before = left;
            left = self.ring_size - self.tx.nb_free_exact();
            // No progress: the device or the completion ring is full. The next turn tries again.
            if self.zero_copy || (left == before && self.reap() == 0) {
                return;
            }
        }
    }

    /// Takes back what the device has finished with; returns the number of frames.
    fn reap(&mut self) -> usize {
        let mut total = 0;
        loop {
            // SAFETY: the ring is this UMEM's.
            let count = unsafe { self.completion.consume(&mut self.completed) };
            for at in 0..count {
                let index = self
                    .umem
                    .index(&self.completed[at])
                    .wrapping_sub(self.first);
                self.clear(index, IN_DEVICE);
            }
            total += count;
            if count < BATCH {
                return total;
            }
        }
    }

    /// Ends a share in a frame; without any, it is free.
    fn clear(&mut self, index: usize, share: u8) {
        let Some(state) = self.states.get_mut(index) else {
            return; // not a frame of this side
        };
        let held = *state;
        *state &= !share;
        if held != 0 && *state == 0 {
            self.free.push(index as u32);
        }
    }
}

impl TxFrames for TxSide {
    fn allocate(&mut self) -> Option<FrameId> {
        if self.free.is_empty() {
            self.reap();
        }
        let index = self.free.pop()?;
        self.states[index as usize] = OWNED;
        Some(FrameId(index))
    }

    fn available(&self) -> usize {
        self.free.len()
    }

    fn bytes(&self, frame: FrameId) -> &[u8] {
        // SAFETY: the frame is this UMEM's and not in the fill ring, so the kernel does not write to it; this
        // side hands out slices for writing only through `&mut self`.
        unsafe { self.umem.bytes(&self.frames[frame.0 as usize]) }
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` keeps other slices away. While the frame is busy the device may
        // read it, which the trait forbids to rely on; it does not make this access unsound.
        unsafe { self.umem.bytes_mut(&mut self.frames[frame.0 as usize]) }
    }

    fn busy(&self, frame: FrameId) -> bool {
        self.states[frame.0 as usize] & IN_DEVICE != 0
    }

    fn can_transmit(&self) -> bool {
        self.room > 0
    }

    fn transmit(&mut self, frame: FrameId, len: usize) {
        debug_assert!(self.room > 0 && !self.busy(frame));
        let index = frame.0 as usize;
        let mut descriptor = self.frames[index];
        self.umem
            .set_len(&mut descriptor, len.min(self.layout.capacity()));
        self.states[index] |= IN_DEVICE;
        self.queued.push(descriptor);
        self.room = self.room.saturating_sub(1);
    }

    fn release(&mut self, frame: FrameId) {
        self.clear(frame.0 as usize, OWNED);
    }
}
