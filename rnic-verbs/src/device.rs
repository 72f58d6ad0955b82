//! The device: a link to an engine, its driver, and the numbers of its objects.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rnic_core::connection::{AddressPair, PortReservation};
use rnic_core::engine::{Command, HostEnd, Net, Peers, Snapshot, Turn, WorkerGone};
use rnic_core::ids::{CqId, PdId, QpNumber, SrqId, StreamId};
use rnic_core::memory::process::Process;
use rnic_core::memory::table::StagTable;
use rnic_core::verbs::{cq::MAX_CQS, srq::MAX_SRQS};

use crate::driver::{Driver, settle};
use crate::error::Error;
use crate::events::{Boxes, Router};
use crate::inspector::Inspector;
use crate::interface::Interface;
use crate::objects::Objects;
use crate::ports::Ports;
use crate::standby::Standby;
use crate::via::KernelWay;

/// How long the application's thread sleeps at a time while it drives the engine inline.
const LONGEST_IDLE: Duration = Duration::from_millis(50);

/// How long a wait without end lasts at a time.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A handle of an RDMA device. Clones name the same device, which is closed with the last object
/// made from it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The mailboxes of the engines: one, or several that share the work of the device.
    hosts: Box<[HostEnd]>,
    pub(crate) net: Arc<dyn Net>,
    /// None in memory, and over sockets of the kernel.
    interface: Option<Interface>,
    /// None but over sockets of the kernel.
    kernel: Option<KernelWay>,
    pub(crate) router: Arc<Router>,
    pub(crate) objects: Arc<Objects>,
    inline: Option<Mutex<Box<dyn Turn>>>,
    standby: Option<Standby>,
    /// The ports that listeners and connections have.
    pub(crate) ports: Ports,
    numbers: Mutex<Numbers>,
    next_pd: AtomicU32,
    next_stream: AtomicU64,
    next_worker: AtomicUsize,
    /// The process that opened it.
    process: Process,
    /// Where the process is asked about it, if rnicd does not ask. Dropping it ends that.
    pub(crate) inspections: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Declared last: the thread ends after the objects above sent their last commands.
    thread: Option<Box<dyn Any + Send + Sync>>,
}

/// Numbers of objects. A number is used again only when all others were used, the longest unused
/// first.
struct Numbers {
    qps: Pool,
    cqs: Pool,
    srqs: Pool,
    next_listener: u32,
}

struct Pool {
    next: u32,
    limit: u32,
    returned: VecDeque<u32>,
}

impl Pool {
    fn new(limit: u32) -> Self {
        Self {
            next: 0,
            limit,
            returned: VecDeque::new(),
        }
    }

    fn take(&mut self) -> Option<u32> {
        if self.next < self.limit {
            self.next += 1;
            return Some(self.next - 1);
        }
        self.returned.pop_front()
    }
}

impl Device {
    /// Makes a device from a link to its engine, the network's address services, and a driver of
    /// the engine.
    pub fn new(host: HostEnd, net: Arc<dyn Net>, driver: Driver) -> Self {
        Self::with_workers(vec![host], net, driver)
    }

    /// Makes a device of several workers, with an engine each, from
    /// [mailboxes](rnic_core::engine::mailboxes) made together. Queue pairs are distributed over
    /// them in turn. A queue pair that accepts a connection moves to the worker that received the
    /// request. Each completion queue has a ring for each worker. Panics without any link.
    pub fn with_workers(hosts: Vec<HostEnd>, net: Arc<dyn Net>, driver: Driver) -> Self {
        Self::make(hosts, net, driver, (None, None))
    }

    /// Makes a device over sockets of the kernel.
    pub(crate) fn on_sockets(
        hosts: Vec<HostEnd>,
        net: Arc<dyn Net>,
        driver: Driver,
        kernel: KernelWay,
    ) -> Self {
        Self::make(hosts, net, driver, (None, Some(kernel)))
    }

    /// Makes a device of several workers on a network interface.
    pub(crate) fn on_interface(
        hosts: Vec<HostEnd>,
        net: Arc<dyn Net>,
        driver: Driver,
        interface: Interface,
    ) -> Self {
        Self::make(hosts, net, driver, (Some(interface), None))
    }

    fn make(
        hosts: Vec<HostEnd>,
        net: Arc<dyn Net>,
        driver: Driver,
        (interface, kernel): (Option<Interface>, Option<KernelWay>),
    ) -> Self {
        let host = hosts.first().expect("a device has a worker");
        let (mut inline, mut standby, mut thread) = (None, None, None);
        match driver {
            Driver::Inline(turn) => inline = Some(Mutex::new(turn)),
            Driver::Standby(worker) => standby = Some(worker),
            Driver::Thread(keeper) => thread = Some(keeper),
        }
        let numbers = Numbers {
            qps: Pool::new(host.doorbells.count()),
            cqs: Pool::new(MAX_CQS),
            srqs: Pool::new(MAX_SRQS),
            next_listener: 0,
        };
        Self {
            inner: Arc::new(Inner {
                router: Arc::new(Router::new(host.events.clone())),
                objects: Arc::default(),
                hosts: hosts.into(),
                net,
                interface,
                kernel,
                inline,
                standby,
                ports: Ports::default(),
                numbers: Mutex::new(numbers),
                next_pd: AtomicU32::new(1),
                next_stream: AtomicU64::new(0),
                next_worker: AtomicUsize::new(0),
                process: Process::this(),
                inspections: OnceLock::new(),
                thread,
            }),
        }
    }

    /// Returns how the device is over TCP sockets of the kernel, if it is.
    pub fn kernel(&self) -> Option<&KernelWay> {
        self.inner.kernel.as_ref()
    }

    /// Returns the network interface that was opened. A device in memory has none, nor has one over
    /// sockets of the kernel.
    pub fn interface(&self) -> Option<&Interface> {
        self.inner.interface.as_ref()
    }

    /// Returns whether the application drives the engine by polling.
    pub fn is_inline(&self) -> bool {
        self.inner.inline.is_some() || self.inner.standby.is_some()
    }

    /// Runs the engine once if it is driven inline. Returns whether there was anything to do. For
    /// an application that watches its memory rather than a completion queue.
    pub fn drive(&self) -> bool {
        // A worker that has panicked does nothing; calls that wait report it.
        self.inner.drive().unwrap_or(false)
    }

    /// Sets the waker that is woken for each event that arrives from the engines, whoever drives
    /// them and whoever reads it: those of queue pairs ([`Qp::next_event`](crate::Qp::next_event)),
    /// connection requests and ends of listeners
    /// ([`Listener::next_request`](crate::Listener::next_request)), asynchronous events, and the
    /// end of a worker. It is woken once at first, because events may have come before. It is
    /// called in the middle of the engine's work: it must wake a thread and do nothing else. It
    /// must not keep the device. Fails with [`Error::EventsWatched`] if there is one already.
    ///
    /// A thread that is woken reads with a timeout of zero, until nothing is left. Unless the
    /// device is driven inline, that does not run the engine.
    pub fn on_events(&self, waker: Waker) -> Result<(), Error> {
        let is_first = self.inner.hosts[0].events.set_waker(waker);
        is_first.then_some(()).ok_or(Error::EventsWatched)
    }

    /// Returns the number of workers that share its work.
    pub fn workers(&self) -> usize {
        self.inner.workers()
    }

    /// Waits until all workers have carried out what they were told before. Returns false if one
    /// has not within `timeout`. Fails if a worker has ended.
    ///
    /// Workers carry out commands in their order, so that what was dropped, destroyed or ended
    /// before is so when this returns. It takes no longer where there are many connections.
    pub fn barrier(&self, timeout: Duration) -> Result<bool, Error> {
        for worker in 0..self.workers() {
            if self.inner.ask(worker, timeout, Command::Barrier)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether connections with the semantics of RC, which the application has left, wait for
    /// their peers to acknowledge that. Nobody sends a FIN again once the process is gone. Returns
    /// false, too, for workers that do not answer within `timeout`. Fails if a worker has ended.
    pub fn is_leaving(&self, timeout: Duration) -> Result<bool, Error> {
        for worker in 0..self.workers() {
            if self.inner.ask(worker, timeout, Command::IsLeaving)? == Some(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Asks the kernel for the next hop on the way to a peer, as connecting does, and returns
    /// whether it is known. Until the peer or the router has answered, it is not; a later call
    /// finds it. Returns false, too, if the worker does not answer within `timeout`. Fails if the
    /// worker has ended.
    pub fn resolves(
        &self,
        local: IpAddr,
        remote: IpAddr,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let path = AddressPair { local, remote };
        let resolve = |reply| Command::Resolve { path, reply };
        Ok(self.inner.ask(0, timeout, resolve)?.unwrap_or(false))
    }

    /// Returns the reservation of a local port that listeners or connections of this device have.
    /// The port stays reserved at least as long as it is held, and who listens on it or
    /// [connects](crate::Qp::connect) from it here shares it.
    pub fn port_in_use(&self, local: SocketAddr) -> Option<PortReservation> {
        self.inner.ports.shared(local, &Peers::all())
    }

    /// Returns the state of the engines, summed. Returns `None` if one does not answer within
    /// `timeout`. Fails if a worker has ended.
    pub fn snapshot(&self, timeout: Duration) -> Result<Option<Snapshot>, Error> {
        let mut all = Snapshot::default();
        for worker in 0..self.workers() {
            let Some(one) = self.snapshot_of(worker, timeout)? else {
                return Ok(None);
            };
            all.add(one);
        }
        Ok(Some(all))
    }

    /// Returns the state of the engine of one worker, or `None` if it does not answer within
    /// `timeout`. Fails if the worker has ended. Panics if there is no such worker.
    pub fn snapshot_of(&self, worker: usize, timeout: Duration) -> Result<Option<Snapshot>, Error> {
        self.inner.ask(worker, timeout, Command::Snapshot)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("inline", &self.is_inline())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn workers(&self) -> usize {
        self.hosts.len()
    }

    /// Returns whether a connection moves to the worker of the queue pair that accepts it, and not
    /// the other way round: what arrives for it can be received anywhere.
    pub(crate) fn moves_connections(&self) -> bool {
        self.kernel.is_some()
    }

    /// Returns the STag table, which all workers share.
    pub(crate) fn table(&self) -> &Arc<StagTable> {
        &self.hosts[0].table
    }

    /// Returns what can answer for the device without keeping it open.
    pub(crate) fn inspector(&self) -> Inspector {
        let hosts = self.hosts.iter().cloned();
        let (router, objects) = (self.router.clone(), self.objects.clone());
        Inspector::new(hosts.collect(), router, objects, Arc::downgrade(&self.net))
    }

    /// Returns the worker whose turn it is to get more work.
    pub(crate) fn next_worker(&self) -> usize {
        self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers()
    }

    pub(crate) fn send(&self, worker: usize, command: Command) -> Result<(), Error> {
        if self.is_forked() {
            return Err(WorkerGone.into());
        }
        self.hosts[worker].send(command)?;
        // A thread that polls would see it, but this one may never poll.
        self.hand_over();
        Ok(())
    }

    /// Tells a worker that requests were posted to a queue pair.
    #[inline]
    pub(crate) fn ring(&self, worker: usize, qp: QpNumber) {
        let host = &self.hosts[worker];
        if !self.is_forked() && host.ring_only(qp) {
            self.answer(host);
        }
    }

    /// Makes a worker that sleeps look at its doorbells.
    #[cold]
    fn answer(&self, host: &HostEnd) {
        let answered = self.standby.as_ref().is_some_and(Standby::answer);
        if !answered {
            host.wake();
        }
    }

    /// Leaves the engine to the thread that stands by, if there is one: the caller does not go on
    /// to poll.
    #[inline]
    pub(crate) fn hand_over(&self) {
        if let Some(standby) = &self.standby
            && !self.is_forked()
        {
            standby.hand_over();
        }
    }

    /// Sends a command to each worker.
    pub(crate) fn send_all(&self, mut command: impl FnMut() -> Command) -> Result<(), Error> {
        (0..self.workers()).try_for_each(|worker| self.send(worker, command()))
    }

    /// Sends a worker a command and waits for its reply: `None` after `timeout`.
    pub(crate) fn ask<T>(
        &self,
        worker: usize,
        timeout: Duration,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<Option<T>, Error> {
        let (answer, answers) = bounded(1);
        self.send(worker, command(answer))?;
        // A deadline that overflows is none.
        let until = Instant::now().checked_add(timeout);
        loop {
            let did = self.drive()?;
            let left = until.map_or(LONGEST_WAIT, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let pause = if self.is_inline() {
                Duration::ZERO
            } else {
                self.hand_over();
                left
            };
            match answers.recv_timeout(pause) {
                Ok(answer) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Disconnected) => return Err(WorkerGone.into()),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if did || !self.is_inline() => {}
                Err(RecvTimeoutError::Timeout) => self.idle(left),
            }
        }
    }

    /// Waits until `take` finds something in the mailboxes. Returns `None` after `timeout`.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut take: impl FnMut(&mut Boxes) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        // A deadline that overflows is none.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let mut boxes = self.router.boxes();
            if let Some(found) = take(&mut boxes) {
                return Ok(Some(found));
            }
            boxes.check_alive(self.workers())?;
            let now = Instant::now();
            let left = deadline.map_or(LONGEST_WAIT, |at| at.saturating_duration_since(now));
            if self.is_inline() {
                drop(boxes);
                let did = self.drive()?;
                if !self.router.has_events() {
                    if left.is_zero() {
                        return Ok(None);
                    }
                    if !did {
                        self.idle(left);
                    }
                }
            } else if left.is_zero() {
                return Ok(None);
            } else {
                self.hand_over();
                self.router.block(boxes, left);
            }
        }
    }

    /// Runs one turn if this device is driven by polling and no other thread is running it. In a
    /// forked process it fails: the rings are those of its parent.
    pub(crate) fn drive(&self) -> Result<bool, WorkerGone> {
        if self.is_forked() {
            return Err(WorkerGone);
        }
        if let Some(standby) = &self.standby {
            return standby.poll();
        }
        Ok(self.try_inline()?.is_some_and(|mut turn| turn.turn()))
    }

    /// Waits for work: in the engine if this thread can run it, else by sleeping.
    pub(crate) fn idle(&self, at_most: Duration) {
        match self.try_inline() {
            Ok(Some(mut turn)) => turn.wait(at_most.min(LONGEST_IDLE)),
            Ok(None) => std::thread::sleep(at_most.min(Duration::from_micros(200))),
            // The next turn reports it.
            Err(WorkerGone) => {}
        }
    }

    /// Returns whether nothing but the application runs the engine.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    fn try_inline(&self) -> Result<Option<MutexGuard<'_, Box<dyn Turn>>>, WorkerGone> {
        match self.inline.as_ref().map(Mutex::try_lock) {
            Some(Ok(turn)) => Ok(Some(turn)),
            Some(Err(TryLockError::WouldBlock)) | None => Ok(None),
            // The engine panicked and is not run again.
            Some(Err(TryLockError::Poisoned(_))) => Err(WorkerGone),
        }
    }

    pub(crate) fn new_pd(&self) -> PdId {
        PdId(self.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a new stream number. It is never used again, so that what is still under way for a
    /// dropped queue pair reaches no other.
    pub(crate) fn new_stream(&self) -> StreamId {
        StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn new_qp(&self) -> Result<QpNumber, Error> {
        let mut numbers = self.numbers();
        let limit = numbers.qps.limit;
        numbers
            .qps
            .take()
            .map(QpNumber)
            .ok_or(Error::NoQueuePair(limit))
    }

    pub(crate) fn return_qp(&self, number: QpNumber) {
        self.numbers().qps.returned.push_back(number.0);
    }

    pub(crate) fn new_cq(&self) -> Result<CqId, Error> {
        self.numbers()
            .cqs
            .take()
            .map(CqId)
            .ok_or(Error::NoCompletionQueue(MAX_CQS))
    }

    pub(crate) fn return_cq(&self, id: CqId) {
        self.numbers().cqs.returned.push_back(id.0);
    }

    pub(crate) fn new_srq(&self) -> Result<SrqId, Error> {
        self.numbers()
            .srqs
            .take()
            .map(SrqId)
            .ok_or(Error::NoSharedReceiveQueue(MAX_SRQS))
    }

    pub(crate) fn return_srq(&self, id: SrqId) {
        self.numbers().srqs.returned.push_back(id.0);
    }

    pub(crate) fn new_listener(&self) -> u32 {
        let mut numbers = self.numbers();
        numbers.next_listener = numbers.next_listener.wrapping_add(1);
        numbers.next_listener
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // Consistent after every statement.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns whether this process inherited the device by a fork. The rings belong to the process
    /// that opened it, which goes on using them. Its threads are not here, and a lock that one of
    /// them held stays locked. So nothing of the device may be touched, and what is dropped is
    /// forgotten.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Leaks the device in a forked process when one of its objects is dropped.
    pub(crate) fn forget(self: &Arc<Self>) {
        std::mem::forget(self.clone());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(std::mem::take(&mut self.hosts));
            std::mem::forget(self.net.clone());
            std::mem::forget((self.inline.take(), self.standby.take(), self.thread.take()));
            std::mem::forget(self.inspections.take());
            return;
        }
        if let Some(Ok(turn)) = self.inline.as_mut().map(Mutex::get_mut) {
            settle(&mut **turn, &AtomicUsize::new(1));
        }
        if let Some(mut turn) = self.standby.as_mut().and_then(Standby::stop) {
            settle(&mut *turn, &AtomicUsize::new(1));
        }
    }
}
