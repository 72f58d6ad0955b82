//! Completion queues.

mod channel;
mod completion;
mod forgetting;
mod writer;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::engine::{Command, WorkerGone};
use rnic_core::ids::{CqId, QpNumber};
use rnic_core::memory::ring::{Consumer, level::Level};
use rnic_core::verbs::{
    cq::{Arming, CqError},
    wr,
};

use crate::device::{Device, Inner, LONGEST_WAIT};
use crate::error::Error;
use crate::ring::ring;

use self::channel::{Channel, Notifier, Wakeup};

pub use self::completion::{Completion, Datagram, Source};
pub use self::writer::CqWriter;

/// The part of a completion queue that its queue pairs keep too. The engine's part is destroyed
/// when the last of them drops it.
#[derive(Debug)]
pub(crate) struct CqHandle {
    pub(crate) id: CqId,
    device: Device,
}

impl CqHandle {
    pub(crate) fn belongs_to(&self, device: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.device.inner, device)
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        let id = self.id;
        // Without a worker there is nothing to destroy.
        let _ = self.device.inner.send_all(|| Command::DestroyCq(id));
        self.device.inner.objects.lock().cqs.remove(&self.id);
        self.device.inner.return_cq(self.id);
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub(crate) handle: Arc<CqHandle>,
    /// The completions that each worker writes, and behind them those of the writer.
    lanes: Box<[Lane]>,
    /// What writes beside the workers, if anything does.
    writer: Option<CqWriter>,
    /// The lane that is polled next.
    turn: usize,
    arming: Arc<Arming>,
    channel: Arc<Channel>,
}

/// Completions of one worker, in their order.
#[derive(Debug)]
struct Lane {
    /// The ring that is polled.
    ring: Consumer<wr::Completion>,
    /// The rings that followed it by [`resize`](Cq::resize), oldest first. The engine writes to the
    /// last.
    newer: VecDeque<Consumer<wr::Completion>>,
    /// Completions that were written to the rings before this one, modulo 2^32.
    before: u32,
}

impl Lane {
    fn new(ring: Consumer<wr::Completion>) -> Self {
        Self {
            ring,
            newer: VecDeque::new(),
            before: 0,
        }
    }

    #[inline]
    fn take(&mut self, completions: &mut [Completion]) -> usize {
        let places = completions.iter_mut().map(|slot| &mut slot.0);
        let taken = self.ring.take_into(places);
        if taken == 0 && !self.newer.is_empty() && !completions.is_empty() {
            return self.take_newer(completions);
        }
        taken
    }

    /// Continues with the next ring once this one is empty.
    #[cold]
    fn take_newer(&mut self, completions: &mut [Completion]) -> usize {
        let Some(next) = self.newer.pop_front() else {
            return 0;
        };
        self.before = self.before.wrapping_add(self.ring.pushed());
        self.ring = next;
        self.take(completions)
    }

    /// Returns the number of completions that wait to be polled.
    fn held(&self) -> usize {
        let rings = std::iter::once(&self.ring).chain(&self.newer);
        rings.map(|ring| ring.len() as usize).sum()
    }

    /// Returns whether a solicited or failed completion waits to be polled.
    fn holds_solicited(&self) -> bool {
        let is_solicited = |completion: wr::Completion| {
            let completion = Completion(completion);
            completion.is_solicited() || !completion.is_success()
        };
        let mut rings = std::iter::once(&self.ring).chain(&self.newer);
        rings.any(|ring| (0..).map_while(|ahead| ring.peek(ahead)).any(is_solicited))
    }

    /// Returns whether a completion of this queue pair that succeeded waits to be polled.
    fn holds_success_of(&self, qp: QpNumber) -> bool {
        let is_success = |completion: wr::Completion| {
            let completion = Completion(completion);
            completion.qp() == qp && completion.is_success()
        };
        let mut rings = std::iter::once(&self.ring).chain(&self.newer);
        rings.any(|ring| (0..).map_while(|ahead| ring.peek(ahead)).any(is_success))
    }

    /// Returns the number of completions that were written to its rings, modulo 2^32.
    fn written(&self) -> u32 {
        let rings = std::iter::once(&self.ring).chain(&self.newer);
        let pushed = rings.map(Consumer::pushed);
        pushed.fold(self.before, u32::wrapping_add)
    }

    /// Returns the ring that is written to.
    fn last(&self) -> &Consumer<wr::Completion> {
        self.newer.back().unwrap_or(&self.ring)
    }
}

impl Device {
    /// Makes a completion queue of `capacity` entries for each worker (rounded up to a power of
    /// two). If it is full, completions wait in the engine, which takes up no new requests that
    /// complete here. A connection ends when more receives wait than its receive queue has entries.
    /// Fails if all completion queues of the device are in use, if `capacity` is too large or there
    /// is no memory for it, or if the worker has ended.
    pub fn cq(&self, capacity: u32) -> Result<Cq, Error> {
        self.make_cq(capacity, Wakeup::descriptor()?)
    }

    /// Makes a completion queue that has no channel of its own: a notification that was
    /// [armed](Cq::arm) wakes `notify`, and so does the end of a worker of the device. So many
    /// queues can have one channel. The waker is called in the middle of the engine's work: it must
    /// wake a thread and do nothing else, and must not keep the device. One that is being called
    /// when the queue is dropped may go on for a moment.
    pub fn cq_notifying(&self, capacity: u32, notify: Waker) -> Result<Cq, Error> {
        self.make_cq(capacity, Wakeup::Waker(notify))
    }

    fn make_cq(&self, capacity: u32, way: Wakeup) -> Result<Cq, Error> {
        let workers = self.inner.workers();
        let rings = (0..workers).map(|_| ring(capacity));
        let (producers, lanes) = rings
            .map(|made| {
                let (producer, ring) = made?;
                Ok((producer, Lane::new(ring)))
            })
            .collect::<Result<(Vec<_>, Vec<_>), Error>>()?;
        let channel = Arc::new(Channel::new(way));
        let arming = Arc::new(Arming::new());
        let id = self.inner.new_cq()?;
        let handle = Arc::new(CqHandle {
            id,
            device: self.clone(),
        });
        let levels = lanes.iter().map(|lane| Level::from(&lane.ring)).collect();
        self.inner.objects.lock().cqs.insert(id, levels);
        for (worker, producer) in producers.into_iter().enumerate() {
            let create = Command::CreateCq {
                cq: id,
                producer,
                arming: arming.clone(),
                // One for each worker: the end of any closes the channel.
                notify: Waker::from(Arc::new(Notifier(channel.clone()))),
            };
            self.inner.send(worker, create)?;
        }
        Ok(Cq {
            handle,
            lanes: lanes.into(),
            writer: None,
            turn: 0,
            arming,
            channel,
        })
    }
}

impl Cq {
    /// Moves completions into `completions`, oldest first for each worker, and returns how many. If
    /// there are none and the device is driven inline, runs the device and looks again.
    pub fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let taken = self.take(completions);
        if taken == 0 && self.handle.device.drive() {
            return self.take(completions);
        }
        taken
    }

    /// Removes and returns the oldest completion, if there is one, as [`poll`](Self::poll) does.
    pub fn poll_one(&mut self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then_some(one[0])
    }

    /// Removes and returns the oldest completion. Waits for it, `timeout` at most, and returns
    /// `None` after that. Fails as [`wait`](Self::wait) does. A thread that has a CPU for itself
    /// gets the completion sooner by [polling](Self::poll_one) without a pause.
    pub fn next_completion(&mut self, timeout: Duration) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.poll_one() {
            return Ok(Some(completion));
        }
        Ok(self.wait(timeout)?.then(|| self.poll_one()).flatten())
    }

    /// Moves completions into `completions` as [`poll`](Self::poll) does, but does not run the
    /// device. This is for an application that runs it with [`Device::drive`] or by polling another
    /// queue.
    #[inline]
    pub fn take(&mut self, completions: &mut [Completion]) -> usize {
        match &mut *self.lanes {
            [only] => only.take(completions),
            _ => self.take_of_each(completions),
        }
    }

    fn take_of_each(&mut self, completions: &mut [Completion]) -> usize {
        let mut taken = 0;
        for _ in 0..self.lanes.len() {
            taken += self.lanes[self.turn].take(&mut completions[taken..]);
            // The next poll begins with another worker, so that none is starved.
            self.turn += 1;
            if self.turn == self.lanes.len() {
                self.turn = 0;
            }
        }
        taken
    }

    /// Asks to be notified of the next completion, or of the next solicited or failed one only. As
    /// after `ibv_req_notify_cq`, poll once more: completions that came before do not notify.
    pub fn arm(&self, solicited_only: bool) {
        self.arming.arm(solicited_only);
        // The application is about to sleep.
        self.handle.device.inner.hand_over();
    }

    /// Returns a number that changes with each completion that is written, for who notes up to which
    /// the application was told.
    pub fn written(&self) -> u32 {
        let lanes = self.lanes.iter().map(Lane::written);
        lanes.fold(0, u32::wrapping_add)
    }

    /// Returns whether a completion of this queue pair that succeeded waits to be polled.
    pub fn holds_success_of(&self, qp: QpNumber) -> bool {
        self.lanes.iter().any(|lane| lane.holds_success_of(qp))
    }

    /// Takes back what [`arm`](Self::arm) asked for, if completions wait to be polled, or solicited or
    /// failed ones only. Returns whether that was so: then the application need not wait.
    pub fn fires_now(&self, solicited_only: bool) -> bool {
        let waits = match solicited_only {
            false => self.held() > 0,
            true => self.lanes.iter().any(Lane::holds_solicited),
        };
        waits && self.arming.fire(true)
    }

    /// Waits until there is a completion. Returns false after `timeout`. It replaces what an
    /// earlier [`arm`](Self::arm) asked for. Fails if the worker of the device has ended and no
    /// completion is left, and with [`Error::NoChannel`] if the queue [notifies a
    /// waker](Device::cq_notifying) and this would have to sleep.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.arm(false);
        let waited = self.block(timeout, || {
            while self.held() == 0 {
                if !self.channel.take() {
                    return false;
                }
                // The notification was for completions that were polled already.
                self.arm(false);
            }
            true
        });
        self.arming.disarm();
        waited
    }

    /// Waits for the notification that [`arm`](Self::arm) asked for. Returns false after `timeout`.
    /// Fails as [`wait`](Self::wait) does.
    pub fn wait_notified(&self, timeout: Duration) -> Result<bool, Error> {
        self.block(timeout, || self.channel.take())
    }

    /// Consumes a notification that the [file descriptor](AsFd) announced, so that it can announce
    /// the next. Returns whether there was one. If the device's worker has ended, the descriptor
    /// stays readable.
    pub fn acknowledge(&self) -> bool {
        self.channel.acknowledge()
    }

    /// Waits until `done` or `timeout`. Returns whether it is done.
    fn block(&self, timeout: Duration, done: impl Fn() -> bool) -> Result<bool, Error> {
        let device = &self.handle.device.inner;
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Read before `done`: what the engine did before it ended still counts.
            let closed = self.channel.is_closed();
            if done() {
                return Ok(true);
            }
            if closed {
                return Err(WorkerGone.into());
            }
            let did = device.drive()?;
            let left = deadline.map_or(LONGEST_WAIT, |at| {
                at.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Ok(done());
            }
            if did {
                continue;
            }
            if device.is_inline() {
                device.idle(left);
            } else {
                device.hand_over();
                self.sleep(left)?;
            }
        }
    }

    /// Sleeps until the channel's file descriptor is readable.
    fn sleep(&self, at_most: Duration) -> Result<(), Error> {
        // Rounded up: a wait of less than a millisecond must not spin.
        let millis = u16::try_from(at_most.as_millis() + 1).unwrap_or(u16::MAX);
        let fd = self.channel.fd().ok_or(Error::NoChannel)?;
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Ok(_) => {
                // Readable, although the flag may come a moment later.
                self.channel.fired.store(true, Ordering::Release);
                Ok(())
            }
            Err(errno) => Err(Error::Channel(errno.into())),
        }
    }

    /// Changes its capacity (rounded up to a power of two). Completions in it stay, in their order.
    /// Fails if they would not fit. Use it before queue pairs are added: so as not to overflow, the
    /// queue needs an entry for each request that can be posted to their send, receive and shared
    /// receive queues at once (RFC 5042 section 6.4.3.2).
    pub fn resize(&mut self, capacity: u32) -> Result<(), Error> {
        // First, as it changes nothing if it fails.
        self.resize_written(capacity)?;
        for worker in 0..self.handle.device.workers() {
            self.resize_lane(worker, capacity)?;
        }
        Ok(())
    }

    fn resize_lane(&mut self, worker: usize, capacity: u32) -> Result<(), Error> {
        let (producer, consumer) = ring(capacity)?;
        let lane = &mut self.lanes[worker];
        let older = lane.held() - lane.last().len() as usize;
        let cq = self.handle.id;
        let resize = |reply| Command::ResizeCq {
            cq,
            producer,
            older,
            reply,
        };
        let device = &self.handle.device.inner;
        match device.ask(worker, Duration::MAX, resize)? {
            Some(Err(CqError::Holds { held, .. })) => Err(Error::CqHolds {
                held,
                capacity: consumer.capacity(),
            }),
            // The engine has the queue as long as this exists.
            Some(Err(_)) | None => Err(WorkerGone.into()),
            Some(Ok(())) => {
                device
                    .objects
                    .lock()
                    .resize_cq(cq, worker, (&consumer).into());
                lane.newer.push_back(consumer);
                Ok(())
            }
        }
    }

    /// Returns what writes completions to this queue beside the workers. It has as much room as
    /// each of them. Fails if there is no memory for that.
    pub fn writer(&mut self) -> Result<CqWriter, Error> {
        if let Some(writer) = &self.writer {
            return Ok(writer.clone());
        }
        let (producer, ring) = ring(self.capacity())?;
        let mut lanes = std::mem::take(&mut self.lanes).into_vec();
        lanes.push(Lane::new(ring));
        self.lanes = lanes.into();
        let writer = CqWriter::new(producer, self.arming.clone(), self.channel.clone());
        self.writer = Some(writer.clone());
        Ok(writer)
    }

    /// Changes the capacity of the writer's ring.
    fn resize_written(&mut self, capacity: u32) -> Result<(), Error> {
        let (Some(writer), Some(lane)) = (&self.writer, self.lanes.last_mut()) else {
            return Ok(());
        };
        let (new, consumer) = ring(capacity)?;
        let mut producer = writer.lock();
        let (held, capacity) = (lane.held(), consumer.capacity());
        if held > capacity as usize {
            return Err(Error::CqHolds { held, capacity });
        }
        *producer = new;
        lane.newer.push_back(consumer);
        Ok(())
    }

    /// Returns whether a worker of the device has ended, so that notifications may never come.
    pub fn has_ended(&self) -> bool {
        self.channel.is_closed()
    }

    /// Returns whether queue pairs complete there, or will when they are connected.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Returns the number of completions that wait to be polled.
    fn held(&self) -> usize {
        self.lanes.iter().map(Lane::held).sum()
    }

    /// Returns its number, by which [`AsyncEvent`](crate::AsyncEvent)s name it.
    pub fn id(&self) -> CqId {
        self.handle.id
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// Returns the number of entries for each worker.
    pub fn capacity(&self) -> u32 {
        let capacities = self.lanes.iter().map(|lane| lane.last().capacity());
        capacities.min().unwrap_or(0)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Release, for the engine that acquires it: nothing of the queue is used behind it.
        self.channel.dropped.store(true, Ordering::Release);
    }
}

impl AsFd for Cq {
    /// Returns the completion channel: readable after a notification that [`Cq::arm`] asked for,
    /// until [`Cq::acknowledge`]. For `poll` or `epoll`, if a thread drives the device. If it is
    /// driven inline, nothing happens while the application sleeps in them. Panics if it [notifies
    /// a waker](Device::cq_notifying).
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.channel.fd();
        fd.expect("a completion queue that notifies a waker has no descriptor")
            .as_fd()
    }
}
