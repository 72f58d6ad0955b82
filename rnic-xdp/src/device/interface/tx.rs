//! The transmit side: frames are built, queued and sent. They are free again when neither their
//! owner nor the device holds them.
#![allow(unsafe_code)]

use nix::libc::{XDP_PKT_CONTD, XDP_TX_METADATA, xdp_desc};
use rnic_core::memory::frames::{FrameId, TxFrames};

use super::metadata::{self, checksum_at};
use super::ring::{Consumer, Producer};
use super::socket::OpenSocket;
use super::umem::{FrameLayout, Umem};
use crate::device::drivers::XDP_HEADROOM;

/// Completions taken from the ring at once.
const BATCH: usize = 64;

/// The owner holds it, and may send it (again).
const OWNED: u8 = 0x80;
/// One of its descriptors is in the transmit ring, on its way, or in the completion ring. Each
/// counts.
const IN_DEVICE: u8 = 1;

/// The transmit side of a worker: one queue sends for all its connections, so that nothing is
/// reordered.
#[derive(Debug)]
pub struct TxSide {
    ring: Producer<xdp_desc>,
    completion: Consumer<u64>,
    /// Wakes the device.
    socket: OpenSocket,
    umem: Umem,
    zero_copy: bool,
    /// The device completes checksums.
    has_metadata: bool,
    layout: FrameLayout,
    /// What holds each frame: [`OWNED`], and its descriptors [`IN_DEVICE`].
    states: Box<[u8]>,
    /// Free frames; the last one freed is used first, while it is in cache.
    free: Vec<u32>,
    /// The first chunk of the UMEM that belongs to this side.
    first: usize,
    /// Free entries of the ring, as far as known.
    room: u32,
    /// Descriptors that have not come back.
    in_device: u32,
    /// The device is gone.
    closed: bool,
    completed: Box<[u64]>,
}

/// The parts of a transmit side.
pub(super) struct TxParts {
    pub(super) umem: Umem,
    pub(super) layout: FrameLayout,
    pub(super) socket: OpenSocket,
    pub(super) ring: Producer<xdp_desc>,
    pub(super) completion: Consumer<u64>,
    pub(super) zero_copy: bool,
    pub(super) has_metadata: bool,
    /// Its first chunk of the UMEM, and how many frames lie there.
    pub(super) first: usize,
    pub(super) frames: usize,
}

impl TxSide {
    pub(super) fn new(parts: TxParts) -> Self {
        let TxParts {
            umem,
            layout,
            socket,
            ring,
            completion,
            zero_copy,
            has_metadata,
            first,
            frames,
        } = parts;
        Self {
            room: ring.room(),
            ring,
            completion,
            socket,
            umem,
            zero_copy,
            has_metadata,
            layout,
            states: vec![0; frames].into_boxed_slice(),
            free: (0..frames as u32).rev().collect(),
            first,
            in_device: 0,
            closed: false,
            completed: vec![0; BATCH].into_boxed_slice(),
        }
    }

    /// Returns whether frames still wait in the transmit ring for the kernel to take them.
    pub fn is_pending(&self) -> bool {
        !self.closed && self.ring.used() > 0
    }

    /// Reclaims all frames from a device that is gone, and queues no more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.in_device = 0;
        self.room = 0;
        for frame in 0..self.states.len() {
            self.end_hold(frame, |held| held & OWNED);
        }
    }

    /// Sends what is queued, and frees what the device has sent. Called once per turn.
    pub fn kick(&mut self) {
        if self.closed {
            return;
        }
        self.ring.submit();
        self.drive();
        self.reap();
        self.room = self.ring.room();
    }

    /// Frees what the device has sent, as [`kick`](Self::kick) does. Does nothing if the device has
    /// none of our frames.
    pub fn reclaim(&mut self) {
        if self.in_device > 0 {
            self.kick();
        }
    }

    /// Makes the kernel take frames of the ring. A copying socket sends within the call, up to 32
    /// descriptors a call.
    fn drive(&mut self) {
        let mut left = self.ring.used();
        while left > 0 && self.ring.needs_wakeup() {
            // The device is down or gone: the frames wait until it is up again.
            if self.socket.send().is_err() {
                return;
            }
            let before = left;
            left = self.ring.used();
            // No progress: the device or the completion ring is full. The next turn tries again.
            if self.zero_copy || (left == before && self.reap() == 0) {
                return;
            }
        }
    }

    /// Reclaims the frames that the device has sent. Returns the number of descriptors.
    fn reap(&mut self) -> usize {
        let mut total = 0;
        while self.in_device > 0 {
            let count = self.completion.take(&mut self.completed);
            for at in 0..count {
                let chunk = (self.completed[at] >> self.layout.chunk.ilog2()) as u32;
                let frame = chunk.wrapping_sub(self.first as u32) / self.layout.chunks;
                self.end_hold(frame as usize, |held| match held & !OWNED {
                    0 => held,
                    _ => held - IN_DEVICE,
                });
            }
            total += count;
            self.in_device = self.in_device.saturating_sub(count as u32);
            if count < BATCH {
                break;
            }
        }
        total
    }

    /// Drops one hold of a frame. After the last one it is free.
    fn end_hold(&mut self, frame: usize, end: impl FnOnce(u8) -> u8) {
        let Some(state) = self.states.get_mut(frame) else {
            return; // not a frame of this side
        };
        let held = *state;
        *state = end(held);
        if held != 0 && *state == 0 {
            self.free.push(frame as u32);
        }
    }

    /// Returns where a frame begins.
    fn address(&self, frame: FrameId) -> usize {
        let chunk = self.first + frame.0 as usize * self.layout.chunks as usize;
        chunk * self.layout.chunk as usize + XDP_HEADROOM as usize
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

    fn total(&self) -> usize {
        self.states.len()
    }

    fn bytes(&self, frame: FrameId) -> &[u8] {
        // SAFETY: the frame is this UMEM's and not in the fill ring, so the kernel does not write
        // to it; this side hands out slices for writing only through `&mut self`.
        unsafe { self.umem.run(self.address(frame), self.layout.capacity()) }
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` keeps other slices away. While the frame is busy the
        // device may read it, which the trait forbids to rely on; it does not make this access
        // unsound.
        unsafe {
            self.umem
                .run_mut(self.address(frame), self.layout.capacity())
        }
    }

    fn busy(&self, frame: FrameId) -> bool {
        self.states[frame.0 as usize] & !OWNED != 0
    }

    fn can_transmit(&self) -> bool {
        self.room >= self.layout.chunks
    }

    fn transmit(&mut self, frame: FrameId, len: usize) {
        debug_assert!(self.can_transmit() && !self.busy(frame));
        let mut address = self.address(frame) as u64;
        let mut left = len.min(self.layout.capacity()) as u32;
        let mut room = self.layout.chunk - XDP_HEADROOM;
        while left > 0 {
            let len = left.min(room);
            left -= len;
            self.ring.push(xdp_desc {
                addr: address,
                len,
                options: if left > 0 { XDP_PKT_CONTD } else { 0 },
            });
            self.in_device += 1;
            self.states[frame.0 as usize] += IN_DEVICE;
            self.room = self.room.saturating_sub(1);
            address += u64::from(len);
            room = self.layout.chunk;
        }
    }

    fn completes_checksums(&self) -> bool {
        self.has_metadata
    }

    fn transmit_partial(&mut self, frame: FrameId, len: usize, tcp_at: usize) {
        debug_assert!(self.has_metadata && self.layout.chunks == 1);
        debug_assert!(self.can_transmit() && !self.busy(frame));
        let address = self.address(frame);
        let metadata = address - metadata::LEN;
        // SAFETY: as for `bytes_mut`; in front of a frame there is room.
        let room = unsafe { self.umem.run_mut(metadata, metadata::LEN) };
        room.copy_from_slice(&checksum_at(tcp_at));
        self.ring.push(xdp_desc {
            addr: address as u64,
            len: len.min(self.layout.capacity()) as u32,
            options: XDP_TX_METADATA,
        });
        self.in_device += 1;
        self.states[frame.0 as usize] += IN_DEVICE;
        self.room = self.room.saturating_sub(1);
    }

    fn release(&mut self, frame: FrameId) {
        self.end_hold(frame.0 as usize, |held| held & !OWNED);
    }
}
