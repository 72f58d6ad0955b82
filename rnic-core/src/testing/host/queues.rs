//! The application's ends of what a host has: queues and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use crate::ids::{PdId, QpNumber, SrqId, StreamId};
use crate::memory::region::Region;
use crate::memory::ring::{Consumer, Producer};
use crate::verbs::cq::Arming;
use crate::verbs::srq::SrqBell;
use crate::verbs::wr::{Completion, RecvWr, SendWr};
use crate::wire::ddp::Stag;

/// The protection domain of queue pairs and memory, unless a test asks for another.
pub const PD: PdId = PdId(1);

/// The protection domain of a queue pair, and the sizes of its queues.
#[derive(Clone, Copy, Debug)]
pub struct QpSettings {
    /// The protection domain.
    pub pd: PdId,
    /// Entries of the send queue and of the receive queue.
    pub ring: u32,
    /// Entries of the completion queue.
    pub cq: u32,
    /// Whether every request makes a completion.
    pub signal_all: bool,
}

impl Default for QpSettings {
    fn default() -> Self {
        Self {
            pd: PD,
            ring: 256,
            cq: 512,
            signal_all: true,
        }
    }
}

/// A region that the peer may access. Its offsets begin at zero.
pub struct SharedRegion {
    /// Its memory.
    pub region: Arc<Region>,
    /// Its STag.
    pub stag: Stag,
}

impl SharedRegion {
    /// Returns a copy of its content.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region
            .read(0, &mut bytes)
            .expect("the whole region is in the region");
        bytes
    }
}

/// Counts the wake-ups of an application.
#[derive(Default)]
pub(super) struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The application's end of a queue pair, with one completion queue.
pub struct TestQp {
    /// Its number.
    pub number: QpNumber,
    /// Its stream.
    pub stream: StreamId,
    /// Arms the completion queue.
    pub arming: Arc<Arming>,
    pub(super) wakes: Arc<WakeCounter>,
    pub(super) sq: Producer<SendWr>,
    pub(super) rq: Producer<RecvWr>,
    pub(super) cq: Consumer<Completion>,
}

impl TestQp {
    /// Returns the completions since the last call.
    pub fn poll(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.pop()).collect()
    }

    /// Removes and returns the next completion.
    pub fn poll_one(&mut self) -> Option<Completion> {
        self.cq.pop()
    }

    /// Requests that the send queue and the receive queue have room for.
    pub fn room(&self) -> (u32, u32) {
        (self.sq.free(), self.rq.free())
    }

    /// Returns how often the application was woken for completions.
    pub fn notified(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

/// The number of an endpoint, and its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestEndpoint {
    /// Its number.
    pub number: QpNumber,
    /// Its stream.
    pub stream: StreamId,
}

/// The application's end of a shared receive queue.
pub struct TestSrq {
    /// Its number.
    pub id: SrqId,
    pub(super) max_in_process: u32,
    pub(super) ring: Producer<RecvWr>,
    pub(super) bell: Arc<SrqBell>,
}

impl TestSrq {
    /// Returns how many receives are posted and not taken.
    pub fn posted(&self) -> u32 {
        self.ring.len()
    }
}
