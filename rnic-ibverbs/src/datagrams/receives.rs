//! Where datagrams are received: in the receives of a queue pair, or of a shared queue.
//!
//! The ring of a shared queue belongs to an engine, which carries no datagrams. So the receives of
//! a queue wait here until its first queue pair is made, and are given to the engine if that is a
//! connection. Of a queue that datagram queue pairs take from they stay here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rnic_verbs::{MAX_SGE, Sge};

use crate::errno::{Errno, lock};

/// A receive that waits for a datagram.
#[derive(Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pieces: [Sge; MAX_SGE],
    count: usize,
}

impl Receive {
    fn new(wr_id: u64, pieces: &[Sge]) -> Self {
        let mut kept = [Sge::default(); MAX_SGE];
        kept[..pieces.len()].copy_from_slice(pieces);
        Self {
            wr_id,
            pieces: kept,
            count: pieces.len(),
        }
    }

    pub(super) fn pieces(&self) -> &[Sge] {
        &self.pieces[..self.count]
    }

    /// Returns whether so many octets fit.
    fn has_room(&self, len: usize) -> bool {
        let pieces = self.pieces().iter();
        pieces.map(|piece| u64::from(piece.length())).sum::<u64>() >= len as u64
    }
}

/// Receives in the order in which they were posted.
struct Queue {
    waiting: VecDeque<Receive>,
    max_wr: usize,
    max_sge: usize,
}

impl Queue {
    fn new(max_wr: u32, max_sge: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            max_wr: max_wr as usize,
            max_sge: MAX_SGE.min(max_sge as usize),
        }
    }

    fn post(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        if pieces.len() > self.max_sge {
            return Err(Errno::EINVAL);
        }
        if self.waiting.len() >= self.max_wr {
            return Err(Errno::ENOMEM);
        }
        self.waiting.push_back(Receive::new(wr_id, pieces));
        Ok(())
    }

    /// Removes the first receive, if so many octets fit.
    fn take(&mut self, len: usize) -> Option<Receive> {
        let fits = self.waiting.front()?.has_room(len);
        fits.then(|| self.waiting.pop_front()).flatten()
    }
}

/// The receives of a datagram queue pair.
pub(super) struct Receives(Source);

enum Source {
    Own(Queue),
    Shared(Taker),
}

impl Receives {
    pub(super) fn new(max_wr: u32, max_sge: u32, shared: Option<Taker>) -> Self {
        Self(match shared {
            Some(taker) => Source::Shared(taker),
            None => Source::Own(Queue::new(max_wr, max_sge)),
        })
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, Source::Shared(_))
    }

    /// Posts a receive, where they are not shared.
    pub(super) fn post(&mut self, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        match &mut self.0 {
            Source::Own(queue) => queue.post(wr_id, pieces),
            Source::Shared(_) => Err(Errno::EINVAL),
        }
    }

    /// Removes the first receive, if so many octets fit.
    pub(super) fn take(&mut self, len: usize) -> Option<Taken> {
        match &mut self.0 {
            Source::Own(queue) => queue.take(len).map(|receive| Taken {
                receive,
                is_low: None,
            }),
            Source::Shared(Taker(shared)) => shared.take(len),
        }
    }

    /// Returns whether so many datagrams find receives.
    pub(super) fn has(&self, count: usize) -> bool {
        match &self.0 {
            Source::Own(queue) => queue.waiting.len() >= count,
            Source::Shared(Taker(shared)) => lock(&shared.inner).queue.waiting.len() >= count,
        }
    }

    /// Returns the first of the queue pair's own receives.
    pub(super) fn first_own(&self) -> Option<&Receive> {
        match &self.0 {
            Source::Own(queue) => queue.waiting.front(),
            Source::Shared(_) => None,
        }
    }

    /// Removes the first of the queue pair's own receives.
    pub(super) fn drop_first_own(&mut self) {
        if let Source::Own(queue) = &mut self.0 {
            queue.waiting.pop_front();
        }
    }

    /// Removes all of the queue pair's own receives.
    pub(super) fn clear_own(&mut self) {
        if let Source::Own(queue) = &mut self.0 {
            queue.waiting.clear();
        }
    }

    /// Takes no more receives from anywhere.
    pub(super) fn leave(&mut self) {
        self.0 = Source::Own(Queue::new(0, 0));
    }
}

/// A receive that was taken.
pub(super) struct Taken {
    pub(super) receive: Receive,
    /// The limit of a shared queue was reached by that, with so many receives left.
    pub(super) is_low: Option<(rnic_verbs::SrqId, u32)>,
}

/// The receives of a shared queue, as long as no engine has them.
pub(crate) struct SharedReceives {
    srq: rnic_verbs::SrqId,
    /// An engine has them, for good.
    is_of_engine: AtomicBool,
    inner: Mutex<Shared>,
}

struct Shared {
    queue: Queue,
    /// Datagram queue pairs that take from it.
    takers: usize,
    /// Fewer receives than so many are told; 0 where nothing is.
    limit: u32,
}

/// A datagram queue pair that takes from a shared queue.
pub(crate) struct Taker(Arc<SharedReceives>);

impl Drop for Taker {
    fn drop(&mut self) {
        lock(&self.0.inner).takers -= 1;
    }
}

impl SharedReceives {
    pub(crate) fn new(srq: rnic_verbs::SrqId, max_wr: u32, max_sge: u32) -> Self {
        Self {
            srq,
            is_of_engine: AtomicBool::new(false),
            inner: Mutex::new(Shared {
                queue: Queue::new(max_wr, max_sge),
                takers: 0,
                limit: 0,
            }),
        }
    }

    /// Returns whether an engine has them, to which the program's are posted.
    #[inline]
    pub(crate) fn is_of_engine(&self) -> bool {
        self.is_of_engine.load(Ordering::Acquire)
    }

    /// Posts a receive. Returns false if an engine has them by now.
    pub(crate) fn post(&self, wr_id: u64, pieces: &[Sge]) -> Result<bool, Errno> {
        let mut inner = lock(&self.inner);
        if self.is_of_engine() {
            return Ok(false);
        }
        inner.queue.post(wr_id, pieces).map(|()| true)
    }

    /// Gives them to the engine, for a connection: `post` is called for each, and `arm` with the
    /// limit if there is one. Fails where datagram queue pairs take them.
    pub(crate) fn give_to_engine(
        &self,
        mut post: impl FnMut(u64, &[Sge]) -> Result<(), Errno>,
        arm: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut inner = lock(&self.inner);
        if self.is_of_engine() {
            return Ok(());
        }
        if inner.takers > 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        while let Some(first) = inner.queue.waiting.pop_front() {
            post(first.wr_id, first.pieces())?;
        }
        // Release: who sees it without the lock posts to the engine behind those moved above.
        self.is_of_engine.store(true, Ordering::Release);
        match inner.limit {
            0 => Ok(()),
            limit => arm(limit),
        }
    }

    /// Has a datagram queue pair take from them. Fails where an engine has them.
    pub(crate) fn taker(self: &Arc<Self>) -> Result<Taker, Errno> {
        let mut inner = lock(&self.inner);
        if self.is_of_engine() {
            return Err(Errno::EOPNOTSUPP);
        }
        inner.takers += 1;
        Ok(Taker(Arc::clone(self)))
    }

    /// Arms the limit. Returns whether it was reached already, or `None` if an engine is to arm it.
    pub(crate) fn arm(&self, limit: u32) -> Option<bool> {
        let mut inner = lock(&self.inner);
        if self.is_of_engine() {
            return None;
        }
        inner.limit = limit;
        // Until there is a queue pair the program is told nothing.
        Some(inner.takers > 0 && inner.is_low().is_some())
    }

    fn take(&self, len: usize) -> Option<Taken> {
        let mut inner = lock(&self.inner);
        let receive = inner.queue.take(len)?;
        let is_low = inner.is_low().map(|left| (self.srq, left));
        Some(Taken { receive, is_low })
    }
}

impl Shared {
    /// Returns once, with how many receives are left, that the limit is reached.
    fn is_low(&mut self) -> Option<u32> {
        let left = self.queue.waiting.len() as u32;
        let is_low = left < self.limit;
        is_low.then(|| {
            self.limit = 0;
            left
        })
    }
}
