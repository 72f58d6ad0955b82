//! The engine's side of completion queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use crate::ids::{CqId, QpNumber};
use crate::memory::ring::Producer;
use crate::sync::atomic::{AtomicU8, Ordering, fence};
use crate::verbs::status::WcStatus;

use super::wr::{Completion, WcOpcode};

/// Completion queues that a device has at most.
pub const MAX_CQS: u32 = 1 << 16;

/// Whether the application wants a notification of the next completion; shared by it and the
/// engine.
///
/// As with `ibv_req_notify_cq`: the application arms and then polls once more, because only a
/// completion that comes after arming notifies, and it notifies once.
#[derive(Debug, Default)]
pub struct Arming(AtomicU8);

const NONE: u8 = 0;
const SOLICITED: u8 = 1;
const NEXT: u8 = 2;

impl Arming {
    /// Creates it, not armed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a notification of the next completion, or of the next solicited or failed one only.
    /// An earlier request stays valid: the wider of the two counts. Called by the application.
    pub fn arm(&self, solicited_only: bool) {
        self.0.fetch_max(
            if solicited_only { SOLICITED } else { NEXT },
            Ordering::SeqCst,
        );
        // Arming comes before the application's last look at the ring, as the engine's push comes
        // before its look at the arming: one of them sees the other.
        fence(Ordering::SeqCst);
    }

    /// Cancels the request. Called by the application.
    pub fn disarm(&self) {
        self.0.store(NONE, Ordering::SeqCst);
    }

    /// Returns whether a completion would notify now.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::SeqCst) != NONE
    }

    /// Returns whether to notify; disarms if so. The engine calls it after the pushes of a batch. A
    /// library that writes completions of its own calls it after each.
    pub fn fire(&self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |armed| {
                (armed == NEXT || armed == SOLICITED && solicited).then_some(NONE)
            })
            .is_ok()
    }
}

/// What was written to a queue in this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Nothing,
    Unsolicited,
    /// At least one that is solicited or failed.
    Solicited,
}

struct Cq {
    producer: Producer<Completion>,
    arming: Arc<Arming>,
    notify: Waker,
    /// Completions that found the ring full, in order, and whether each is solicited.
    backlog: VecDeque<(Completion, bool)>,
    written: Written,
}

impl Cq {
    /// Pushes one completion. Returns whether it fitted.
    #[inline]
    fn push(&mut self, completion: &Completion, solicited: bool) -> bool {
        let fits = self.producer.push_front(completion, usize::MAX).is_ok();
        if fits && solicited {
            self.written = Written::Solicited;
        } else if fits && self.written == Written::Nothing {
            self.written = Written::Unsolicited;
        }
        fits
    }
}

/// Why a completion queue was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CqError {
    /// The number is taken.
    #[error("{0} exists already; choose another number")]
    Exists(CqId),
    /// The number is too large.
    #[error("{0} is not below {MAX_CQS}; number completion queues from 0")]
    Number(CqId),
    /// There is no such queue.
    #[error("there is no {0}")]
    Unknown(CqId),
    /// What the queue holds would not fit.
    #[error("{cq} holds {held} completions, more than the {capacity} entries that it is to have")]
    Holds {
        /// The queue.
        cq: CqId,
        /// Completions that were not polled yet.
        held: usize,
        /// Entries.
        capacity: u32,
    },
}

/// All completion queues of an engine.
#[derive(Default)]
pub struct CqTable {
    cqs: Vec<Option<Cq>>,
    /// Queues with new completions, for the end of the batch; never more than there are queues.
    to_notify: Vec<CqId>,
    /// Queues with a backlog.
    with_backlog: Vec<CqId>,
}

impl CqTable {
    /// Creates a table without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue. Numbers are best counted from 0.
    pub fn add(
        &mut self,
        id: CqId,
        producer: Producer<Completion>,
        notify: Waker,
        arming: Arc<Arming>,
    ) -> Result<(), CqError> {
        if id.0 >= MAX_CQS {
            return Err(CqError::Number(id));
        }
        let index = id.0 as usize;
        if self.cqs.len() <= index {
            self.cqs.resize_with(index + 1, || None);
            self.to_notify.reserve(self.cqs.len());
        }
        if self.cqs[index].is_some() {
            return Err(CqError::Exists(id));
        }
        let backlog = VecDeque::new();
        self.cqs[index] = Some(Cq {
            producer,
            arming,
            notify,
            backlog,
            written: Written::Nothing,
        });
        Ok(())
    }

    /// Continues in another ring, after what stands in the present one. `older` completions stand
    /// in rings before that. Fails if more completions wait to be polled than the new ring has
    /// entries.
    pub fn resize(
        &mut self,
        id: CqId,
        producer: Producer<Completion>,
        older: usize,
    ) -> Result<(), CqError> {
        let Some(Some(cq)) = self.cqs.get_mut(id.0 as usize) else {
            return Err(CqError::Unknown(id));
        };
        let held = older + cq.producer.len() as usize + cq.backlog.len();
        let capacity = producer.capacity();
        if held > capacity as usize {
            return Err(CqError::Holds {
                cq: id,
                held,
                capacity,
            });
        }
        cq.producer = producer;
        Ok(())
    }

    /// Removes a queue with what it still holds.
    pub fn remove(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id.0 as usize) {
            *cq = None;
            self.with_backlog.retain(|&other| other != id);
            self.to_notify.retain(|&other| other != id);
        }
    }

    /// Returns whether there is such a queue.
    pub fn contains(&self, id: CqId) -> bool {
        self.cqs.get(id.0 as usize).is_some_and(Option::is_some)
    }

    /// Writes a completion to a queue; a failed one counts as solicited. One for a queue that is
    /// gone is dropped: it could not be polled.
    ///
    /// If the ring is full the completion waits in a backlog, at the cost of an allocation. Its
    /// users bound it: while there is one they begin no request that completes there, and flush
    /// nothing more than they held when their connection ended; a peer's messages end the
    /// connection when as many wait as its receive queue has entries.
    #[inline]
    pub fn complete(&mut self, id: CqId, completion: Completion, solicited: bool) {
        let Some(Some(cq)) = self.cqs.get_mut(id.0 as usize) else {
            return;
        };
        let solicited = solicited || completion.status != WcStatus::Success as u8;
        let was_written = cq.written != Written::Nothing;
        // rfc: 5042-20 an overflow affects only streams of this completion queue
        if cq.backlog.is_empty() && cq.push(&completion, solicited) {
            if !was_written {
                self.to_notify.push(id);
            }
            return;
        }
        // rfc: 5040-114, 5042-20 an overflow affects only streams of this completion queue
        if cq.backlog.is_empty() {
            self.with_backlog.push(id);
        }
        cq.backlog.push_back((completion, solicited));
    }

    /// Completes a request with success, as [`complete`](Self::complete) does, with few words: they
    /// go from register to ring.
    #[inline(never)]
    pub fn complete_done(
        &mut self,
        id: CqId,
        wr_id: u64,
        qp: QpNumber,
        opcode: WcOpcode,
        len: u32,
    ) {
        // Made again where it is handed on: it would have to be in memory.
        let completion = || Completion::new(wr_id, qp, opcode, WcStatus::Success, len);
        if let Some(Some(cq)) = self.cqs.get_mut(id.0 as usize)
            && cq.backlog.is_empty()
            && cq.producer.push(completion()).is_ok()
        {
            if cq.written == Written::Nothing {
                cq.written = Written::Unsolicited;
                self.to_notify.push(id);
            }
            return;
        }
        self.complete(id, completion(), false);
    }

    /// Moves as many completions as fit from the backlogs to their rings. Returns whether there
    /// were any.
    pub fn flush(&mut self) -> bool {
        let Self {
            cqs,
            to_notify,
            with_backlog,
        } = self;
        let mut moved = false;
        with_backlog.retain(|&id| {
            let Some(Some(cq)) = cqs.get_mut(id.0 as usize) else {
                return false;
            };
            let was_written = cq.written != Written::Nothing;
            while let Some(&(completion, solicited)) = cq.backlog.front() {
                if !cq.push(&completion, solicited) {
                    break;
                }
                cq.backlog.pop_front();
                moved = true;
            }
            if !was_written && cq.written != Written::Nothing {
                to_notify.push(id);
            }
            !cq.backlog.is_empty()
        });
        moved
    }

    /// Drops the completions of a queue pair that is gone which wait for room.
    pub fn forget_backlog(&mut self, qp: QpNumber) {
        let cqs = &mut self.cqs;
        self.with_backlog.retain(|id| {
            let Some(Some(cq)) = cqs.get_mut(id.0 as usize) else {
                return false;
            };
            cq.backlog.retain(|(completion, _)| completion.qp != qp.0);
            !cq.backlog.is_empty()
        });
    }

    /// Returns how many completions of this queue wait for room.
    pub fn backlog(&self, id: CqId) -> usize {
        match self.cqs.get(id.0 as usize) {
            Some(Some(cq)) => cq.backlog.len(),
            _ => 0,
        }
    }

    /// Returns whether completions of this queue wait for room.
    pub fn has_backlog(&self, id: CqId) -> bool {
        self.backlog(id) > 0
    }

    /// Returns whether any completions wait for room. The application gives no sign when it makes
    /// some: a worker that sleeps meanwhile has to look again after a while.
    #[inline]
    pub fn has_backlogs(&self) -> bool {
        !self.with_backlog.is_empty()
    }

    /// Notifies the applications that armed for what was completed since the last call: once per
    /// batch, which also looks at each queue's arming once only.
    #[inline]
    pub fn notify_all(&mut self) {
        if !self.to_notify.is_empty() {
            self.notify_each();
        }
    }

    fn notify_each(&mut self) {
        while let Some(id) = self.to_notify.pop() {
            if let Some(Some(cq)) = self.cqs.get_mut(id.0 as usize) {
                let written = std::mem::replace(&mut cq.written, Written::Nothing);
                if cq.arming.fire(written == Written::Solicited) {
                    cq.notify.wake_by_ref();
                }
            }
        }
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
