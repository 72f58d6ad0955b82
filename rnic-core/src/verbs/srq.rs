//! The engine's side of shared receive queues, and where a queue pair's receives come from.
//!
//! A shared receive queue belongs to one engine, as its queue pairs do: its ring has the
//! application at one end and this engine's worker at the other. A queue pair takes a receive when
//! the first segment of a message arrives, in order or ahead of it, and the message has no receive
//! yet. So receives are used up in the order in which messages begin to arrive, on whatever stream,
//! and each stream keeps those that it has taken by the order of its own messages.

mod bell;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{QpNumber, SrqId};
use crate::memory::ring::Consumer;

pub use self::bell::SrqBell;

use super::wr::RecvWr;

/// Shared receive queues that a device has at most.
pub const MAX_SRQS: u32 = 1 << 16;

/// When the application is to be told that a queue runs low, and what a stream may have had by
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqLimit {
    /// Tell, once, when fewer receives than this are left. 0: never.
    pub left: u32,
    /// From then on until the limit is armed anew, what is left is for the streams that have taken
    /// fewer than this since the limit was armed; for any other the queue is empty. `None`: first
    /// come, first served.
    pub share: Option<u32>,
}

/// What the application should know of a shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqEvent {
    /// Fewer receives are left than the application armed for.
    LimitReached {
        /// The queue.
        srq: SrqId,
        /// Receives that are left.
        left: u32,
        /// Receives taken since the limit was armed.
        taken: u64,
        /// The queue pair that took most of them, and how many.
        greediest: Option<(QpNumber, u64)>,
    },
    /// A stream has taken its share of a queue that runs low, and asked for more. Told once of each
    /// stream.
    ShareExceeded {
        /// The queue.
        srq: SrqId,
        /// The queue pair.
        qp: QpNumber,
        /// Receives that it took since the limit was armed.
        taken: u64,
    },
    /// A message arrived ahead of its turn and got no receive yet, because the stream has as many
    /// in process as it may. Told once of each stream.
    HighWater {
        /// The queue.
        srq: SrqId,
        /// The queue pair.
        qp: QpNumber,
        /// Receives in process, that is, taken for messages that are not complete.
        in_process: u32,
    },
}

/// Why a shared receive queue was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrqError {
    /// The number is taken.
    #[error("{0} exists already; choose another number")]
    Exists(SrqId),
    /// The number is too large.
    #[error("{0} is not below {MAX_SRQS}; number shared receive queues from 0")]
    Number(SrqId),
}

struct Srq {
    ring: Consumer<RecvWr>,
    limit: SrqLimit,
    /// Whether the limit was reached since it was armed.
    low: bool,
    /// How often the limit was armed. `taken`, `greediest` and the count of each queue pair start
    /// anew with each arming.
    armings: u64,
    taken: u64,
    greediest: Option<(QpNumber, u64)>,
    /// The queue pairs whose streams wait for a receive, the first one first. Each stands here
    /// once.
    waiting: VecDeque<QpNumber>,
    bell: Arc<SrqBell>,
}

impl Srq {
    /// Returns whether a stream has had its share of what is left.
    fn is_denied(&self, count: u64) -> bool {
        let share = self.limit.share.map_or(u64::MAX, u64::from);
        // rfc: 5041-98 a peer that takes more than its share is detected
        self.low && count >= share
    }

    /// Tells once that the limit was reached.
    fn look(&mut self, srq: SrqId) -> Option<SrqEvent> {
        if self.low || self.limit.left == 0 {
            return None;
        }
        let left = self.ring.len();
        // rfc: 5040-122 a peer that takes more than its share is detected
        self.low = left < self.limit.left;
        self.low.then_some(SrqEvent::LimitReached {
            srq,
            left,
            taken: self.taken,
            greediest: self.greediest,
        })
    }
}

/// All shared receive queues of an engine.
#[derive(Default)]
pub struct SrqTable(Vec<Option<Srq>>);

impl SrqTable {
    /// Creates a table without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue whose limit is not armed. Numbers are best counted from 0.
    /// `bell` is what the application rings when it has posted.
    pub fn add(
        &mut self,
        id: SrqId,
        ring: Consumer<RecvWr>,
        bell: Arc<SrqBell>,
    ) -> Result<(), SrqError> {
        if id.0 >= MAX_SRQS {
            return Err(SrqError::Number(id));
        }
        let index = id.0 as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        if self.0[index].is_some() {
            return Err(SrqError::Exists(id));
        }
        self.0[index] = Some(Srq {
            ring,
            limit: SrqLimit::default(),
            low: false,
            armings: 0,
            taken: 0,
            greediest: None,
            waiting: VecDeque::new(),
            bell,
        });
        Ok(())
    }

    /// Lets a queue pair wait for a receive, behind others. It must not wait already. The caller then tries
    /// once more to take one, because what was posted before this rings no bell.
    pub fn wait(&mut self, id: SrqId, qp: QpNumber) {
        if let Some(srq) = self.get(id) {
            srq.waiting.push_back(qp);
            srq.bell.wait();
        }
    }

    /// Returns how many queue pairs wait for a receive, if there is one.
    pub fn waiting(&mut self, id: SrqId) -> usize {
        let srq = self.get(id);
        let served = srq.filter(|srq| !srq.ring.is_empty());
        served.map_or(0, |srq| srq.waiting.len())
    }

    /// Removes and returns the queue pair that has waited longest for a receive.
    pub fn next_waiting(&mut self, id: SrqId) -> Option<QpNumber> {
        self.get(id)?.waiting.pop_front()
    }

    /// Lets a queue pair wait no longer.
    pub fn leave(&mut self, id: SrqId, qp: QpNumber) {
        if let Some(srq) = self.get(id) {
            srq.waiting.retain(|waiting| *waiting != qp);
        }
    }

    /// Removes a queue with what it still holds. Its queue pairs find no receives any more.
    pub fn remove(&mut self, id: SrqId) {
        if let Some(srq) = self.0.get_mut(id.0 as usize) {
            *srq = None;
        }
    }

    /// Arms the limit, and begins to count anew. Tells at once if it is reached already.
    pub fn arm(&mut self, id: SrqId, limit: SrqLimit) -> Option<SrqEvent> {
        let srq = self.get(id)?;
        srq.limit = limit;
        srq.low = false;
        srq.armings += 1;
        srq.taken = 0;
        srq.greediest = None;
        srq.look(id)
    }

    fn get(&mut self, id: SrqId) -> Option<&mut Srq> {
        self.0.get_mut(id.0 as usize)?.as_mut()
    }
}

/// What one queue pair has of a shared queue.
#[derive(Debug)]
pub struct SharedReceives {
    srq: SrqId,
    capacity: u32,
    /// Entry n is the receive of the message that comes n after the next one to be delivered, if
    /// that has begun to arrive.
    taken: VecDeque<Option<RecvWr>>,
    max_in_process: u32,
    /// Receives taken since the arming of the limit that is counted by `arming`.
    count: u64,
    arming: u64,
    told_share: bool,
    told_high_water: bool,
}

impl SharedReceives {
    /// Creates the receives of a queue with a ring of `capacity` entries, of which this queue pair
    /// may have `max_in_process` (at least 1) in process at once.
    pub fn new(srq: SrqId, capacity: u32, max_in_process: u32) -> Self {
        let max_in_process = max_in_process.clamp(1, capacity.max(1));
        Self {
            srq,
            capacity,
            // All that it ever needs.
            taken: VecDeque::with_capacity(max_in_process as usize),
            max_in_process,
            count: 0,
            arming: 0,
            told_share: false,
            told_high_water: false,
        }
    }

    /// Assigns a receive to the message that comes `ahead` messages after the next one to be
    /// delivered, if it may have one and there is one. Returns the event for the application, if
    /// any.
    // rfc: 5040-122, 5041-98, 5042-15 a peer that takes more than its share is detected
    pub fn provide(&mut self, qp: QpNumber, ahead: u32, srqs: &mut SrqTable) -> Option<SrqEvent> {
        let index = ahead as usize;
        if matches!(self.taken.get(index), Some(Some(_))) {
            return None;
        }
        // For a message that was delivered before, `ahead` has wrapped and exceeds every limit.
        if ahead >= self.max_in_process {
            let near = ahead < self.capacity && !std::mem::replace(&mut self.told_high_water, true);
            return near.then(|| SrqEvent::HighWater {
                srq: self.srq,
                qp,
                in_process: self.len(),
            });
        }
        let srq = srqs.get(self.srq)?;
        if self.arming != srq.armings {
            self.arming = srq.armings;
            self.count = 0;
        }
        if srq.is_denied(self.count) {
            let first = !std::mem::replace(&mut self.told_share, true);
            return first.then_some(SrqEvent::ShareExceeded {
                srq: self.srq,
                qp,
                taken: self.count,
            });
        }
        let receive = pop(&mut srq.ring)?;
        if self.taken.len() <= index {
            self.taken.resize(index + 1, None);
        }
        self.taken[index] = Some(receive);
        self.count += 1;
        srq.taken += 1;
        if srq.greediest.is_none_or(|(_, most)| self.count > most) {
            srq.greediest = Some((qp, self.count));
        }
        srq.look(self.srq)
    }

    /// Returns the queue.
    pub fn srq(&self) -> SrqId {
        self.srq
    }

    fn len(&self) -> u32 {
        self.taken.iter().flatten().count() as u32
    }
}

/// Where a queue pair's receives come from.
#[derive(Debug)]
pub enum ReceiveQueue {
    /// A ring of its own. The receive of the message that comes `n` after the next one to be
    /// delivered is entry `n`.
    Own(Consumer<RecvWr>),
    /// A queue that it shares with others.
    Shared(SharedReceives),
}

impl From<Consumer<RecvWr>> for ReceiveQueue {
    fn from(ring: Consumer<RecvWr>) -> Self {
        Self::Own(ring)
    }
}

impl ReceiveQueue {
    /// Returns the receive of the message that comes `ahead` after the next one to be delivered.
    pub fn peek(&self, ahead: u32) -> Option<RecvWr> {
        match self {
            Self::Own(ring) => RecvWr::peek(ring, ahead),
            Self::Shared(shared) => *shared.taken.get(ahead as usize)?,
        }
    }

    /// Removes and returns the receive of the message that is delivered.
    pub fn pop(&mut self) -> Option<RecvWr> {
        match self {
            Self::Own(ring) => pop(ring),
            Self::Shared(shared) => shared.taken.pop_front()?,
        }
    }

    /// Removes and returns the next receive of those that will see no message. What is left in a
    /// shared queue is not among them.
    pub fn pop_unused(&mut self) -> Option<RecvWr> {
        match self {
            Self::Own(ring) => pop(ring),
            Self::Shared(shared) => {
                while let Some(receive) = shared.taken.pop_front() {
                    if receive.is_some() {
                        return receive;
                    }
                }
                None
            }
        }
    }

    /// Receives that are this queue pair's: posted to its own queue, or taken from a shared one.
    pub fn len(&self) -> u32 {
        match self {
            Self::Own(ring) => ring.len(),
            Self::Shared(shared) => shared.len(),
        }
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Receives that fit the queue, shared or not.
    pub fn capacity(&self) -> u32 {
        match self {
            Self::Own(ring) => ring.capacity(),
            Self::Shared(shared) => shared.capacity,
        }
    }

    /// Returns the shared queue that receives are taken from, if they are.
    pub fn shared(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => Some(shared.srq()),
        }
    }

    /// Returns whether it is shared.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

/// Removes and returns the oldest receive of a ring.
fn pop(ring: &mut Consumer<RecvWr>) -> Option<RecvWr> {
    let receive = RecvWr::peek(ring, 0)?;
    ring.release(1);
    Some(receive)
}

#[cfg(test)]
mod tests;
