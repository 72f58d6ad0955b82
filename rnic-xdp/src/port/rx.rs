//! The receive side: frames come from the receive ring and go back to the fill ring.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{FillQueue, RxQueue};

use super::socket::borrow;
use super::umem::Umem;

/// Frames taken from a ring at once.
pub(crate) const BATCH: usize = 64;
/// The kernel lets us see a batch of received frames before it gives up their entries of the fill ring. With one
/// entry for each frame, there would be no room to give a frame back until it has.
pub(super) const FILL_ENTRIES_PER_FRAME: u32 = 2;

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
    /// Takes over the frames of `descriptors`; the fill ring has [twice](FILL_ENTRIES_PER_FRAME) the room.
    pub(super) fn new(
        umem: Umem,
        rx: RxQueue,
        mut fill: FillQueue,
        descriptors: &[FrameDesc],
    ) -> Self {
        // SAFETY: the frames are this UMEM's, fresh, and in no other ring.
        let taken = unsafe { fill.produce(descriptors) };
        debug_assert_eq!(taken, descriptors.len(), "an empty ring of twice the size");
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
    /// back first, and takes none while the fill ring has no room for those.
    pub fn receive(&mut self) -> usize {
        self.refill();
        if self.held > 0 {
            return 0;
        }
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

    /// Gives the frames of the batch back to the device. All or none: if the ring has no room, they are kept for
    /// the next time.
    pub fn refill(&mut self) {
        if self.held > 0 {
            // SAFETY: these frames came from the receive ring and are in no other; no slice of them is left.
            let taken = unsafe { self.fill.produce(&self.batch[..self.held]) };
            if taken == self.held {
                self.held = 0;
            }
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
