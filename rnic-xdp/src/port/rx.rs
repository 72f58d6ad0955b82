//! The receive side: frames come from the receive ring and go back to the fill ring.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{FillQueue, RxQueue};

use super::socket::borrow;
use super::umem::Umem;

/// Frames taken from a ring at once.
pub(crate) const BATCH: usize = 64;

/// The receive side of all queues of a device.
#[derive(Debug)]
pub struct RxSide {
    queues: Vec<RxPort>,
}

impl RxSide {
    pub(super) fn new(queues: Vec<RxPort>) -> Self {
        Self { queues }
    }

    /// Each receive queue.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut RxPort> {
        self.queues.iter_mut()
    }

    /// The sockets, readable when frames wait.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| borrow(&queue.rx))
    }

    /// Whether a frame waits on any queue.
    pub fn is_waiting(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.rx.nb_avail(1) > 0)
    }
}

/// One receive queue.
#[derive(Debug)]
pub struct RxPort {
    umem: Umem,
    rx: RxQueue,
    fill: FillQueue,
    batch: Box<[FrameDesc]>,
    /// Frames of `batch` that were received and have not gone back yet.
    held: usize,
}

impl RxPort {
    /// Takes over the frames of `descriptors`, all of which fit into the fill ring.
    pub(super) fn new(
        umem: Umem,
        rx: RxQueue,
        mut fill: FillQueue,
        descriptors: &[FrameDesc],
    ) -> Self {
        // SAFETY: the frames are this UMEM's, fresh, and in no other ring.
        unsafe { fill.produce(descriptors) };
        let batch = vec![FrameDesc::default(); BATCH].into_boxed_slice();
        let mut port = Self {
            umem,
            rx,
            fill,
            batch,
            held: 0,
        };
        port.wake_device();
        port
    }

    /// Takes what has arrived, up to a batch; returns the number of frames. Gives the frames of the last batch
    /// back first.
    pub fn receive(&mut self) -> usize {
        self.refill();
        // SAFETY: the ring is this UMEM's.
        self.held = unsafe { self.rx.consume(&mut self.batch) };
        self.held
    }

    /// A frame of the batch, Ethernet header first. Panics if `index` is not below what
    /// [`receive`](Self::receive) returned.
    pub fn frame(&self, index: usize) -> &[u8] {
        let descriptor = &self.batch[..self.held][index];
        // SAFETY: the kernel put this frame of our UMEM into the receive ring, and does not touch it until
        // `refill` hands it back, which needs `self` mutably and so ends this borrow.
        unsafe { self.umem.bytes(descriptor) }
    }

    /// Gives the frames of the batch back to the device.
    pub fn refill(&mut self) {
        if self.held > 0 {
            // The ring has room for every frame of this side: all are accepted.
            // SAFETY: these frames came from the receive ring and are in no other; no slice of them is left.
            unsafe { self.fill.produce(&self.batch[..self.held]) };
            self.held = 0;
        }
        self.wake_device();
    }

    /// Some drivers stop when they find the fill ring empty, and say so.
    fn wake_device(&mut self) {
        if self.fill.needs_wakeup() {
            // An error here is one of the socket's, and shows when it is polled.
            let _ = self.fill.wakeup(self.rx.fd_mut(), 0);
        }
    }
}
