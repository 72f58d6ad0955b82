//! Shared receive queues.

use std::sync::Arc;

use rnic_core::engine::Command;
use rnic_core::ids::{PdId, SrqId};
use rnic_core::memory::ring::{Producer, level::Level};
use rnic_core::verbs::{
    srq::{SharedReceives, SrqBell, SrqLimit},
    wr::{RecvWr, SHORT_SGE},
};

use crate::address::Sge;
use crate::device::{Device, Inner};
use crate::error::{Error, PostError};
use crate::objects::SrqFacts;
use crate::pd::Pd;
use crate::request::receive;
use crate::ring::ring_of;

/// The capacities of a shared receive queue, and the share of each queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqCaps {
    /// Receive requests (rounded up to a power of two).
    pub max_wr: u32,
    /// Scatter/gather elements of a request, [`MAX_SGE`](crate::MAX_SGE) at most. The queue takes
    /// memory for so many.
    pub max_sge: usize,
    /// Receives that one queue pair may have in process, that is, taken for messages that are not
    /// complete (1 at least). It takes several only if messages overtake each other. Messages
    /// further ahead wait in memory that the TCP window accounts for, and an
    /// [`AsyncEvent`](crate::AsyncEvent) reports it.
    pub max_in_process: u32,
}

impl Default for SrqCaps {
    fn default() -> Self {
        Self {
            max_wr: 1024,
            max_sge: SHORT_SGE,
            max_in_process: 64,
        }
    }
}

/// The part of a shared receive queue that its queue pairs keep too. The engine's part is destroyed
/// when the last of them drops it.
#[derive(Debug)]
pub(crate) struct SrqHandle {
    pub(crate) id: SrqId,
    pub(crate) worker: usize,
    device: Device,
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        // A worker that has ended has nothing to destroy.
        let destroy = Command::DestroySrq(self.id);
        let _ = self.device.inner.send(self.worker, destroy);
        self.device.inner.objects.lock().srqs.remove(&self.id);
        self.device.inner.return_srq(self.id);
    }
}

/// A shared receive queue: queue pairs of one protection domain, and so of one device and worker,
/// take their receives from it, each when a message begins to arrive.
///
/// It may move between threads, but one thread at a time posts to it. A receive completes to the
/// queue of the queue pair that took it, which [`Completion::qp`](crate::Completion::qp) names.
/// When a connection ends, the receives that it had taken complete flushed, even if its queue pair
/// is dropped. All others stay.
///
/// Dropped while queue pairs use it, it is destroyed with the last of them;
/// [`destroy`](Self::destroy) fails instead. Receives that are still posted then do not complete.
#[derive(Debug)]
pub struct Srq {
    pub(crate) handle: Arc<SrqHandle>,
    pub(crate) pd: PdId,
    caps: SrqCaps,
    ring: Producer<RecvWr>,
    bell: Arc<SrqBell>,
}

impl Pd {
    /// Makes a shared receive queue. Fails if all shared receive queues of the device are in use,
    /// if there is no memory for the queue, or if the worker has ended.
    pub fn srq(&self, caps: SrqCaps) -> Result<Srq, Error> {
        let device = &self.device.inner;
        let (producer, consumer) = ring_of(caps.max_wr, RecvWr::words_for(caps.max_sge))?;
        let id = device.new_srq()?;
        // Dropping this returns the number if a later step fails.
        let handle = Arc::new(SrqHandle {
            id,
            worker: device.next_worker(),
            device: self.device.clone(),
        });
        let facts = SrqFacts {
            pd: self.id,
            receives: Level::from(&producer),
        };
        device.objects.lock().srqs.insert(id, facts);
        let ring = consumer;
        let bell = Arc::<SrqBell>::default();
        let create = Command::CreateSrq {
            srq: id,
            ring,
            bell: bell.clone(),
        };
        device.send(handle.worker, create)?;
        Ok(Srq {
            handle,
            pd: self.id,
            caps,
            ring: producer,
            bell,
        })
    }
}

impl Srq {
    /// Returns its number, by which [`AsyncEvent`](crate::AsyncEvent)s name it.
    pub fn id(&self) -> SrqId {
        self.handle.id
    }

    /// Posts a buffer for one message of the queue pair that receives next. Fails if the queue is
    /// full, or if there are more pieces than `max_sge`.
    pub fn post_recv(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), PostError> {
        let wr = receive(wr_id, pieces, self.caps.max_sge)?;
        self.ring
            .push_front(&wr, wr.words())
            .map_err(|_| PostError::SharedQueueFull(self.ring.capacity()))?;
        if self.bell.is_waited_for() {
            // A worker that has ended has no streams that wait.
            let _ = self
                .inner()
                .send(self.handle.worker, Command::ReceivesPosted(self.handle.id));
        }
        Ok(())
    }

    /// Returns the number of posted receives that no queue pair has taken.
    pub fn posted(&self) -> u32 {
        self.ring.len()
    }

    /// Returns its capacity in receives.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Arms one [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached), as
    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`. It comes when fewer than `limit.left` receives are
    /// left, at once if that is so now. With `limit.share`, the receives left then are for queue
    /// pairs that have taken fewer than that since: a peer that took more finds no receive, which
    /// ends its connection, or lets its messages wait ([`rc`](crate::ConnectionOptions::rc)). Arm it
    /// again after posting more receives. Fails only if the worker has ended.
    // rfc: 5040-122, 5041-98, 5042-15 a peer that takes more than its share is detected
    pub fn arm_limit(&self, limit: SrqLimit) -> Result<(), Error> {
        let srq = self.handle.id;
        let arm = Command::ArmSrq { srq, limit };
        self.inner().send(self.handle.worker, arm)
    }

    /// Destroys it. If queue pairs use it, it is returned with the error.
    #[allow(clippy::result_large_err)] // what comes back is the queue itself
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        // If this is the only handle, no other can be made meanwhile.
        match Arc::strong_count(&self.handle) - 1 {
            0 => Ok(()),
            users => Err((self, Error::SrqInUse(users))),
        }
    }

    /// Returns whether queue pairs use it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    pub(crate) fn belongs_to(&self, device: &Arc<Inner>) -> bool {
        Arc::ptr_eq(self.inner(), device)
    }

    /// Returns the receive queue of one more queue pair.
    pub(crate) fn receives(&self) -> SharedReceives {
        let capacity = self.ring.capacity();
        SharedReceives::new(self.handle.id, capacity, self.caps.max_in_process)
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.device.inner
    }
}
