//! Shared receive queues.

use std::sync::Arc;

use rnic_core::engine::Command;
use rnic_core::memory::ring::{Producer, ring};
use rnic_core::verbs::qp::PdId;
use rnic_core::verbs::srq::{SharedReceives, SrqId, SrqLimit};
use rnic_core::verbs::wr::{MAX_SGE, RecvWr};

use crate::device::{Device, Inner};
use crate::error::{Error, PostError};
use crate::memory::Pd;
use crate::qp::entries;
use crate::request::{Sge, receive};

/// What a shared receive queue can hold, and what each of its queue pairs may have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqCaps {
    /// Receive requests (rounded up to a power of two).
    pub max_wr: u32,
    /// Pieces of memory in a request, 4 at most.
    pub max_sge: usize,
    /// Receives that one queue pair may have in process, that is, taken for messages that are not complete (1 at
    /// least). It takes several only if messages overtake each other. Those further ahead wait for their turn, in memory
    /// that the TCP window accounts for, and an [`AsyncEvent`](crate::AsyncEvent) tells.
    pub max_in_process: u32,
}

impl Default for SrqCaps {
    fn default() -> Self {
        Self {
            max_wr: 1024,
            max_sge: MAX_SGE,
            max_in_process: 64,
        }
    }
}

/// What queue pairs keep of their shared queue: the engine's part goes when nobody uses it any more.
#[derive(Debug)]
pub(crate) struct SrqHandle {
    id: SrqId,
    pub(crate) worker: usize,
    device: Device,
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        // Without a worker there is nothing to destroy.
        let destroy = Command::DestroySrq(self.id);
        let _ = self.device.inner.send(self.worker, destroy);
        self.device.inner.return_srq(self.id);
    }
}

/// A shared receive queue: queue pairs of one protection domain, and so of one device and worker, take their receives
/// from it, each when a message begins to arrive.
///
/// It may move between threads, but one thread at a time posts to it, whatever its queue pairs do meanwhile. A receive
/// completes to the queue of the queue pair that took it, which [`Completion::qp`](crate::Completion::qp) tells. When a
/// connection ends, the receives that it had taken complete flushed, even if its queue pair is dropped; all others stay.
///
/// Dropped while queue pairs use it, it goes with the last of them; [`destroy`](Self::destroy) refuses instead. What is
/// still posted then makes no completion.
#[derive(Debug)]
pub struct Srq {
    pub(crate) handle: Arc<SrqHandle>,
    pub(crate) pd: PdId,
    caps: SrqCaps,
    ring: Producer<RecvWr>,
}

impl Pd {
    /// A shared receive queue.
    pub fn srq(&self, caps: SrqCaps) -> Result<Srq, Error> {
        let device = &self.device.inner;
        let (producer, consumer) = ring(entries(caps.max_wr))?;
        let id = device.new_srq()?;
        // Owns the number from here on, whatever fails.
        let handle = Arc::new(SrqHandle {
            id,
            worker: device.next_worker(),
            device: self.device.clone(),
        });
        let ring = consumer;
        device.send(handle.worker, Command::CreateSrq { srq: id, ring })?;
        Ok(Srq {
            handle,
            pd: self.id,
            caps,
            ring: producer,
        })
    }
}

impl Srq {
    /// Its number, which [`AsyncEvent`](crate::AsyncEvent)s tell.
    pub fn id(&self) -> SrqId {
        self.handle.id
    }

    /// Posts a buffer for one message of whichever queue pair receives next.
    pub fn post_recv(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), PostError> {
        let wr = receive(wr_id, pieces, self.caps.max_sge)?;
        self.ring
            .push(wr)
            .map_err(|_| PostError::SharedQueueFull(self.ring.capacity()))
    }

    /// Receives posted that no queue pair has taken.
    pub fn posted(&self) -> u32 {
        self.ring.len()
    }

    /// Receives that fit.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Asks to be told, once, by [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached), when fewer than
    /// `limit.left` receives are left, at once if so. With `limit.share`, what is left then is kept for queue pairs that have
    /// taken fewer than that since: a peer that has had more finds no receive, which ends its connection. To be armed again
    /// after more were posted. As `ibv_modify_srq` with `IBV_SRQ_LIMIT`.
    // rfc: 5040-122, 5041-98, 5042-15
    pub fn arm_limit(&self, limit: SrqLimit) -> Result<(), Error> {
        let srq = self.handle.id;
        let arm = Command::ArmSrq { srq, limit };
        self.inner().send(self.handle.worker, arm)
    }

    /// Destroys it, unless queue pairs use it: then it comes back with the error.
    #[allow(clippy::result_large_err)] // what comes back is the queue itself
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        // Nobody else can make another: the queue is ours alone.
        match Arc::strong_count(&self.handle) - 1 {
            0 => Ok(()),
            users => Err((self, Error::SrqInUse(users))),
        }
    }

    pub(crate) fn belongs_to(&self, device: &Arc<Inner>) -> bool {
        Arc::ptr_eq(self.inner(), device)
    }

    /// What one more queue pair has of it.
    pub(crate) fn receives(&self) -> SharedReceives {
        let capacity = self.ring.capacity();
        SharedReceives::new(self.handle.id, capacity, self.caps.max_in_process)
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.device.inner
    }
}
