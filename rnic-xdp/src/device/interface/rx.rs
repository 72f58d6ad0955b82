//! The receive side: frames come from the receive ring and go back to the fill ring.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::libc::{XDP_PKT_CONTD, xdp_desc};
use nix::sys::socket::{MsgFlags, recv};
use rnic_core::wire::checksum::{self, Checksums};

use super::circulation::Circulation;
use super::ring::{Consumer, Producer};
use super::socket::OpenSocket;
use super::statistics::Counted;
use super::umem::{FrameLayout, Umem};

/// Frames taken from a ring at once.
const BATCH: usize = 64;

/// The receive side of all queues of a device.
#[derive(Debug)]
pub struct RxSide {
    queues: Vec<RxRing>,
}

impl RxSide {
    pub(super) fn new(queues: Vec<RxRing>) -> Self {
        Self { queues }
    }

    pub(crate) fn add(&mut self, queues: Vec<RxRing>) {
        self.queues.extend(queues);
    }

    /// Closes all queues: the device is gone.
    pub(crate) fn close(&mut self) {
        self.queues.clear();
    }

    /// Returns each receive queue.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut RxRing> {
        self.queues.iter_mut()
    }

    /// Returns the sockets, readable when frames wait. Each stays open as long as somebody has it.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Arc<OpenSocket>> {
        self.queues.iter().map(|queue| &queue.socket)
    }
}

/// One receive queue.
#[derive(Debug)]
pub struct RxRing {
    rx: Consumer<xdp_desc>,
    fill: Producer<u64>,
    circulation: Circulation,
    socket: Arc<OpenSocket>,
    umem: Umem,
    /// Frames may take several chunks.
    multi_buffer: bool,
    /// The device is polled by system calls.
    busy_poll: bool,
    batch: Box<[xdp_desc]>,
    /// Descriptors of `batch` whose frames have not gone back yet.
    held: usize,
    /// Descriptors after them, of a frame whose last one was not in the batch.
    begun: usize,
    /// Frames to be handled: none once they are to go back.
    ready: usize,
    /// The batch was full.
    more: bool,
    /// If frames take one chunk: the last descriptor was a piece of a longer frame that goes on.
    in_pieces: bool,
    /// If frames may take several chunks: where the frames of the batch begin, and where the last
    /// one ends.
    starts: Vec<usize>,
    /// Used again for each frame that is put together.
    join_buffer: RefCell<Vec<u8>>,
    /// Counters that other threads read.
    counted: Arc<Counted>,
}

/// A received frame.
#[derive(Debug)]
pub enum Frame<'a> {
    /// In its chunk.
    Chunk(&'a [u8]),
    /// Put together of several chunks.
    Joined(Joined<'a>),
}

impl AsRef<[u8]> for Frame<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Chunk(octets) => octets,
            Self::Joined(joined) => &joined.octets,
        }
    }
}

/// The octets of a frame of several chunks, in a buffer that is used again after dropping this.
#[derive(Debug)]
pub struct Joined<'a> {
    octets: Vec<u8>,
    home: &'a RefCell<Vec<u8>>,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.home.replace(mem::take(&mut self.octets));
    }
}

impl RxRing {
    /// Takes over the first `chunks` of a UMEM, which are in no ring yet. The fill ring has
    /// [twice](super::shape::FILL_ENTRIES_PER_FRAME) the room. `circulating` of them go to the fill
    /// ring at once.
    pub(super) fn new(
        umem: Umem,
        layout: FrameLayout,
        (circulating, chunks): (u32, u32),
        socket: OpenSocket,
        rx: Consumer<xdp_desc>,
        mut fill: Producer<u64>,
        counted: Arc<Counted>,
    ) -> Self {
        let address = |chunk| u64::from(chunk) * u64::from(layout.chunk);
        (0..circulating).for_each(|chunk| fill.push(address(chunk)));
        fill.submit();
        // The lowest one is used first.
        let reserve = (circulating..chunks).rev().map(address).collect();
        let none = xdp_desc {
            addr: 0,
            len: 0,
            options: 0,
        };
        let batch = vec![none; BATCH].into_boxed_slice();
        let interface = Self {
            rx,
            fill,
            circulation: Circulation::new(circulating, reserve),
            socket: Arc::new(socket),
            umem,
            multi_buffer: layout.chunks > 1,
            busy_poll: false,
            batch,
            held: 0,
            begun: 0,
            ready: 0,
            more: false,
            in_pieces: false,
            starts: Vec::new(),
            join_buffer: RefCell::default(),
            counted,
        };
        // Always: some drivers (nfp, fsl_dpaa2_eth) never ask for it, and receive nothing until
        // then.
        interface.poll_device();
        interface
    }

    /// Receives frames, up to a batch, and returns their number. First gives the frames of the last
    /// batch back, and receives none while the fill ring has no room for those.
    pub fn receive(&mut self) -> usize {
        self.refill();
        if self.held > 0 {
            return 0;
        }
        let new = self.rx.take(&mut self.batch[self.begun..]);
        if new > 0 {
            self.adapt(new as u32);
        } else if self.busy_poll {
            self.run_device();
        }
        let count = self.begun + new;
        self.more = count == BATCH;
        if self.multi_buffer {
            self.find_frames(count);
        } else {
            self.held = count;
            self.ready = count - self.set_pieces_aside(count);
        }
        if self.ready > 0 {
            let received = &self.counted.received;
            let so_far = received.load(Ordering::Relaxed) + self.ready as u64;
            received.store(so_far, Ordering::Relaxed);
        }
        self.ready
    }

    /// Lets more frames circulate if many were waiting, or fewer if few waited for long.
    fn adapt(&mut self, taken: u32) {
        let more = self.circulation.on_batch(self.rx.available(), taken);
        // The ring has twice as many entries as there are frames.
        more.for_each(|chunk| self.fill.push(chunk));
        self.fill.submit();
    }

    /// Drops frames of several chunks, which some drivers (ice) hand to a socket that takes frames
    /// of one chunk. Returns the number of their descriptors.
    fn set_pieces_aside(&mut self, count: usize) -> usize {
        let batch = &mut self.batch[..count];
        let goes_on = batch.iter().fold(0, |all, each| all | each.options) & XDP_PKT_CONTD != 0;
        if !goes_on && !self.in_pieces {
            return 0;
        }
        let (whole, frames) = whole_frames_first(batch, &mut self.in_pieces);
        self.counted.dropped.fetch_add(frames, Ordering::Relaxed);
        count - whole
    }

    /// Finds the frames among these descriptors.
    fn find_frames(&mut self, count: usize) {
        self.starts.clear();
        self.starts.push(0);
        let ends = self.batch[..count]
            .iter()
            .enumerate()
            .filter(|(_, descriptor)| descriptor.options & XDP_PKT_CONTD == 0)
            .map(|(at, _)| at + 1);
        self.starts.extend(ends);
        self.held = self.starts.last().copied().unwrap_or(0);
        self.begun = count - self.held;
        self.ready = self.starts.len() - 1;
    }

    /// Returns whether the last batch was full: then more frames may wait already.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Returns the frames of the batch from their Ethernet headers on, and how to check their
    /// checksums.
    pub fn frames(&self) -> impl Iterator<Item = (Frame<'_>, Checksums)> {
        self.frames_later().map(|frame| frame())
    }

    /// Returns what [puts each frame of the batch together](Self::frames), which takes time for
    /// those of several chunks.
    pub(crate) fn frames_later<'a>(
        &'a self,
    ) -> impl Iterator<Item = impl FnOnce() -> (Frame<'a>, Checksums)> {
        (0..self.ready).map(move |frame| {
            move || match self.multi_buffer {
                true => self.frame(self.starts[frame]..self.starts[frame + 1]),
                false => (Frame::Chunk(self.chunk(frame)), Checksums::None),
            }
        })
    }

    /// Returns the frames of the batch in the form that is handled fastest, if each is in one
    /// chunk.
    #[inline(always)]
    pub fn whole_frames(&self) -> Option<impl Iterator<Item = (&[u8], Checksums)>> {
        let frame = |at| (self.chunk(at), Checksums::None);
        (!self.multi_buffer).then(|| (0..self.ready).map(frame))
    }

    /// Returns the front of each frame of the batch, in their order.
    pub fn heads(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ready).map(|frame| match self.multi_buffer {
            true => self.chunk(self.starts[frame]),
            false => self.chunk(frame),
        })
    }

    /// Returns the frame in these chunks of the batch. A frame of several chunks is put together:
    /// the protocols are faster on contiguous octets in the nearest cache, and the copy computes
    /// their sum.
    fn frame(&self, chunks: Range<usize>) -> (Frame<'_>, Checksums) {
        if chunks.len() == 1 {
            return (Frame::Chunk(self.chunk(chunks.start)), Checksums::None);
        }
        let len = chunks.clone().map(|at| self.chunk(at).len()).sum();
        let mut octets = self.join_buffer.take();
        octets.resize(len, 0);
        let total = checksum::join_and_sum(chunks.map(|at| self.chunk(at)), &mut octets);
        let home = &self.join_buffer;
        let frame = Frame::Joined(Joined { octets, home });
        (frame, Checksums::Complete(total))
    }

    /// Returns a chunk of the batch.
    fn chunk(&self, at: usize) -> &[u8] {
        let xdp_desc { addr, len, .. } = self.batch[at];
        // SAFETY: the kernel put this chunk of our UMEM into the receive ring, and does not touch
        // it until `refill` hands it back, which needs `self` mutably and so ends this borrow.
        unsafe { self.umem.run(addr as usize, len as usize) }
    }

    /// Returns the frames of the batch to the device. All or none: if the ring has no room, they
    /// are kept for the next time.
    pub fn refill(&mut self) {
        self.ready = 0;
        if self.held > 0 && self.fill.room() as usize >= self.held {
            // The kernel finds the chunk by any address in it.
            let (surplus, others) =
                self.batch[..self.held].split_at(self.circulation.surplus(self.held));
            for descriptor in surplus {
                self.circulation.withdraw(descriptor.addr);
            }
            for descriptor in others {
                self.fill.push(descriptor.addr);
            }
            self.fill.submit();
            self.batch.copy_within(self.held..self.held + self.begun, 0);
            self.held = 0;
        }
        self.wake_device();
    }

    /// Returns the socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Polls the device by system calls from now on.
    pub(super) fn poll_busily(&mut self) {
        self.busy_poll = true;
    }

    /// Polls the device. The next call takes the frames.
    fn run_device(&self) {
        // It receives nothing: AF_XDP sockets have their rings.
        let _ = recv(self.socket().as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT);
    }

    /// Wakes a driver that stopped because the fill ring was empty.
    fn wake_device(&mut self) {
        if self.fill.needs_wakeup() {
            self.poll_device();
        }
    }

    /// Makes the driver look at the fill ring.
    fn poll_device(&self) {
        // An error shows when the worker polls the socket.
        let _ = self.socket.poll();
    }
}

/// Puts the descriptors of frames of one chunk in front, in their order. Returns their number, and
/// that of frames of several chunks that ended. `goes_on` says whether the frame of the last
/// descriptor goes on, before and afterwards.
fn whole_frames_first(batch: &mut [xdp_desc], goes_on: &mut bool) -> (usize, u64) {
    let (mut whole, mut dropped) = (0, 0);
    for at in 0..batch.len() {
        let went_on = *goes_on;
        *goes_on = batch[at].options & XDP_PKT_CONTD != 0;
        match (went_on, *goes_on) {
            (false, false) => {
                batch.swap(whole, at);
                whole += 1;
            }
            (true, false) => dropped += 1,
            (_, true) => {}
        }
    }
    (whole, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_longer_frames_are_not_taken_for_frames() {
        let piece = |(addr, options)| xdp_desc {
            addr,
            len: 100,
            options,
        };
        let mut goes_on = false;
        // Frames of one chunk, of three, of one, and of two of which the second is in the next
        // batch.
        let first = [0, XDP_PKT_CONTD, XDP_PKT_CONTD, 0, 0, XDP_PKT_CONTD];
        let mut batch: Vec<_> = (0..).zip(first).map(piece).collect();
        assert_eq!(whole_frames_first(&mut batch, &mut goes_on), (2, 1));
        assert!(goes_on);
        assert_eq!([batch[0].addr, batch[1].addr], [0, 4]);
        // All chunks go back to the device.
        let mut all: Vec<_> = batch.iter().map(|each| each.addr).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);

        let mut batch: Vec<_> = (6..).zip([0, 0]).map(piece).collect();
        assert_eq!(whole_frames_first(&mut batch, &mut goes_on), (1, 1));
        assert!(!goes_on);
        assert_eq!(batch[0].addr, 7);
    }
}
