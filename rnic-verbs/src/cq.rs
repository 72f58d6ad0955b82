//! Completion queues and their channels.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic_core::engine::{Command, WorkerGone};
use rnic_core::memory::ring::{Consumer, ring};
use rnic_core::verbs::cq::{Arming, CqError};
use rnic_core::verbs::qp::{CqId, QpNumber};
use rnic_core::verbs::wr::{self, WcOpcode, WcStatus, completion_flags};
use rnic_core::wire::ddp::Stag;

use crate::device::{Device, Inner, LONGEST_WAIT};
use crate::error::Error;
use crate::qp::entries;

/// The end of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion(wr::Completion);

impl Completion {
    /// The application's name for the request.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> WcStatus {
        self.0.status()
    }

    /// Whether it was done.
    pub fn is_success(&self) -> bool {
        self.status() == WcStatus::Success
    }

    /// What was asked for, or [`WcOpcode::Recv`], or [`WcOpcode::RecvImmediate`].
    pub fn opcode(&self) -> WcOpcode {
        // Only this release's engine writes completions.
        self.0.opcode().unwrap_or(WcOpcode::Recv)
    }

    /// The queue pair.
    pub fn qp(&self) -> QpNumber {
        QpNumber(self.0.qp)
    }

    /// Octets received, read or sent; none for Immediate Data received, which leave the receive's buffer as it is.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Whether the message came with Solicited Event.
    pub fn is_solicited(&self) -> bool {
        self.0.flags & completion_flags::SOLICITED != 0
    }

    /// The STag that the message made invalid (Send with Invalidate).
    pub fn invalidated(&self) -> Option<Stag> {
        (self.0.flags & completion_flags::WITH_INVALIDATE != 0)
            .then_some(Stag(self.0.invalidated_stag))
    }

    /// The peer's Immediate Data.
    pub fn immediate(&self) -> Option<[u8; 8]> {
        (self.0.flags & completion_flags::WITH_IMMEDIATE != 0).then_some(self.0.immediate)
    }
}

/// How the engine tells the application: an eventfd, and flags that cost nothing to look at.
#[derive(Debug)]
struct Channel {
    fd: EventFd,
    fired: AtomicBool,
    /// The engine is gone: nothing will come any more.
    closed: AtomicBool,
}

impl Channel {
    fn new() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| Error::Channel(errno.into()))?;
        Ok(Self {
            fd,
            fired: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Takes a notification. One that comes meanwhile may be seen twice, but never missed.
    fn take(&self) -> bool {
        // Without one, not even a system call.
        self.fired.load(Ordering::Relaxed) && self.acknowledge()
    }

    /// The same for who may know of the notification from the file descriptor, which announces it before the flag.
    fn acknowledge(&self) -> bool {
        let announced = self.fd.read().is_ok();
        self.fired.swap(false, Ordering::AcqRel) || announced
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// The engine's end of a channel.
struct Notifier(Arc<Channel>);

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails only if 2^64 - 2 notifications are pending.
        let _ = self.0.fd.write(1);
        self.0.fired.store(true, Ordering::Release);
    }
}

impl Drop for Notifier {
    /// While the application has its queue, only the engine's end, a panic for one, takes this away.
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        let _ = self.0.fd.write(1);
    }
}

/// What queue pairs keep of their completion queues: the engine's part goes when nobody uses it any more.
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
        self.device.inner.return_cq(self.id);
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub(crate) handle: Arc<CqHandle>,
    /// Of each worker what it writes.
    lanes: Box<[Lane]>,
    /// The lane that is looked at next.
    turn: usize,
    arming: Arc<Arming>,
    channel: Arc<Channel>,
}

/// Completions of one worker, in their order.
#[derive(Debug)]
struct Lane {
    /// What is polled.
    ring: Consumer<wr::Completion>,
    /// Rings that the queue went on in after [`resize`](Cq::resize), oldest first. The engine writes to the last.
    newer: VecDeque<Consumer<wr::Completion>>,
}

impl Lane {
    #[inline]
    fn take(&mut self, completions: &mut [Completion]) -> usize {
        let places = completions.iter_mut().map(|slot| &mut slot.0);
        let taken = self.ring.take_into(places);
        if taken == 0 && !self.newer.is_empty() && !completions.is_empty() {
            return self.take_newer(completions);
        }
        taken
    }

    /// The ring is empty, and the queue goes on in another.
    #[cold]
    fn take_newer(&mut self, completions: &mut [Completion]) -> usize {
        let Some(next) = self.newer.pop_front() else {
            return 0;
        };
        self.ring = next;
        self.take(completions)
    }

    /// Completions that wait to be polled.
    fn held(&self) -> usize {
        let rings = std::iter::once(&self.ring).chain(&self.newer);
        rings.map(|ring| ring.len() as usize).sum()
    }

    /// The ring that is written to.
    fn last(&self) -> &Consumer<wr::Completion> {
        self.newer.back().unwrap_or(&self.ring)
    }
}

impl Device {
    /// A completion queue of `capacity` entries for each worker (rounded up to a power of two). If it is full, completions wait in
    /// the engine, which takes up no new requests that complete here. A connection ends when more receives wait than
    /// its receive queue has entries.
    pub fn cq(&self, capacity: u32) -> Result<Cq, Error> {
        let workers = self.inner.workers();
        let rings = (0..workers).map(|_| ring(entries(capacity)));
        let (producers, lanes) = rings
            .map(|made| {
                let (producer, ring) = made?;
                let newer = VecDeque::new();
                Ok((producer, Lane { ring, newer }))
            })
            .collect::<Result<(Vec<_>, Vec<_>), Error>>()?;
        let channel = Arc::new(Channel::new()?);
        let arming = Arc::new(Arming::new());
        let id = self.inner.new_cq()?;
        let handle = Arc::new(CqHandle {
            id,
            device: self.clone(),
        });
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
            turn: 0,
            arming,
            channel,
        })
    }
}

impl Cq {
    /// Takes completions, of each worker oldest first, and says how many. Without any it runs the device, if that is driven
    /// inline, and looks again.
    pub fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let taken = self.take(completions);
        if taken == 0 && self.handle.device.drive() {
            return self.take(completions);
        }
        taken
    }

    /// Takes the oldest completion.
    pub fn poll_one(&mut self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then_some(one[0])
    }

    /// The same without running the device: for an application that does so by [`Device::drive`] or by another queue.
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
            // Not the same one first again, whatever it has.
            self.turn += 1;
            if self.turn == self.lanes.len() {
                self.turn = 0;
            }
        }
        taken
    }

    /// Asks to be notified of the next completion, or of the next solicited or failed one only. As with
    /// `ibv_req_notify_cq`: poll once more afterwards, because what had come before does not notify.
    pub fn arm(&self, solicited_only: bool) {
        self.arming.arm(solicited_only);
    }

    /// Waits until there is a completion. Says whether there is; false after `timeout`. What [`arm`](Self::arm) asked
    /// for before is forgotten.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.arm(false);
        let waited = self.block(timeout, || {
            while self.held() == 0 {
                if !self.channel.take() {
                    return false;
                }
                // It was for completions that were polled already.
                self.arm(false);
            }
            true
        });
        self.arming.disarm();
        waited
    }

    /// Waits for the notification that [`arm`](Self::arm) asked for. False after `timeout`.
    pub fn wait_notified(&self, timeout: Duration) -> Result<bool, Error> {
        self.block(timeout, || self.channel.take())
    }

    /// Takes a notification that the [file descriptor](AsFd) announced, so that it can announce the next. If the
    /// device's worker has ended, the descriptor stays readable.
    pub fn acknowledge(&self) -> bool {
        self.channel.acknowledge()
    }

    /// Waits until `done`, or `timeout`. Says whether it is.
    fn block(&self, timeout: Duration, done: impl Fn() -> bool) -> Result<bool, Error> {
        let device = &self.handle.device.inner;
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Looked at first: what the engine did before it went still counts.
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
                self.sleep(left)?;
            }
        }
    }

    /// Sleeps until the channel's file descriptor is readable.
    fn sleep(&self, at_most: Duration) -> Result<(), Error> {
        // Rounded up: a wait of less than a millisecond must not spin.
        let millis = u16::try_from(at_most.as_millis() + 1).unwrap_or(u16::MAX);
        let mut fds = [PollFd::new(self.channel.fd.as_fd(), PollFlags::POLLIN)];
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

    /// Gives it another capacity (rounded up to a power of two). What it holds stays, in its order. Refused if that would not
    /// fit. Of use before queue pairs are added: so that it does not overflow, it needs an entry for each request that can be
    /// posted to their send, receive and shared receive queues at once (RFC 5042 section 6.4.3.2).
    pub fn resize(&mut self, capacity: u32) -> Result<(), Error> {
        for worker in 0..self.lanes.len() {
            self.resize_lane(worker, entries(capacity))?;
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
            // It is there as long as this is.
            Some(Err(_)) | None => Err(WorkerGone.into()),
            Some(Ok(())) => {
                lane.newer.push_back(consumer);
                Ok(())
            }
        }
    }

    /// Completions that wait to be polled.
    fn held(&self) -> usize {
        self.lanes.iter().map(Lane::held).sum()
    }

    /// Its number, which [`AsyncEvent`](crate::AsyncEvent)s tell.
    pub fn id(&self) -> CqId {
        self.handle.id
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// Entries that fit, of each worker.
    pub fn capacity(&self) -> u32 {
        let capacities = self.lanes.iter().map(|lane| lane.last().capacity());
        capacities.min().unwrap_or(0)
    }
}

impl AsFd for Cq {
    /// The completion channel: readable after a notification that [`Cq::arm`] asked for, until
    /// [`Cq::acknowledge`]. Of use to `poll` or `epoll` if a thread drives the device; driven inline, nothing
    /// happens while the application sleeps in them.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the engine's write to the file descriptor and its setting of the flag.
    #[test]
    fn what_the_file_descriptor_announced_can_be_acknowledged() {
        let channel = Channel::new().unwrap();
        channel.fd.write(1).unwrap();
        assert!(channel.acknowledge());
        assert!(!channel.acknowledge() && !channel.take());
    }
}
