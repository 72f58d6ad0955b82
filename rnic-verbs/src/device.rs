//! The device: a link to an engine, whoever drives it, and the numbers of its objects.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rnic_core::engine::{Command, HostEnd, Net, Snapshot, Turn, WorkerGone};
use rnic_core::memory::table::StagTable;
use rnic_core::verbs::cq::MAX_CQS;
use rnic_core::verbs::qp::{CqId, PdId, QpNumber, StreamId};
use rnic_core::verbs::srq::{MAX_SRQS, SrqId};

use crate::error::Error;
use crate::events::Router;

/// Who runs the engine.
pub enum Driver {
    /// A thread that runs already. What is in the box is dropped with the device, and ends the thread.
    Thread(Box<dyn Any + Send + Sync>),
    /// Nobody else: [`Cq::poll`](crate::Cq::poll) and everything that waits run it. Best where cores are few.
    Inline(Box<dyn Turn>),
}

impl Driver {
    /// Starts a thread that busy-polls, and sleeps when there was nothing to do for `idle`.
    pub fn spawn(turn: Box<dyn Turn>, idle: Duration) -> Result<Self, Error> {
        Self::spawn_all(vec![turn], idle, &[])
    }

    /// Starts such a thread for each of several engines. Each runs on one of `cpus`, dealt out in turn; without any, wherever
    /// the kernel has room.
    pub fn spawn_all(
        turns: Vec<Box<dyn Turn>>,
        idle: Duration,
        cpus: &[usize],
    ) -> Result<Self, Error> {
        let end = Arc::new(End {
            stop: AtomicBool::new(false),
            unsettled: AtomicUsize::new(turns.len()),
        });
        let mut running = Running {
            end: end.clone(),
            threads: Vec::new(),
        };
        let mut cpus = cpus.iter().copied().cycle();
        for (number, mut turn) in turns.into_iter().enumerate() {
            let (end, cpu) = (end.clone(), cpus.next());
            let thread = std::thread::Builder::new()
                .name(format!("rnic-worker-{number}"))
                .spawn(move || {
                    pin(cpu);
                    run(&mut *turn, idle, &end);
                })
                .map_err(Error::Thread)?;
            running.threads.push(thread);
        }
        Ok(Self::Thread(Box::new(running)))
    }
}

/// Has this thread run on a CPU alone. Where it may not, it runs as well elsewhere.
fn pin(cpu: Option<usize>) {
    let mut set = CpuSet::new();
    if cpu.is_some_and(|cpu| set.set(cpu).is_ok()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// How threads end together.
struct End {
    stop: AtomicBool,
    /// Threads whose engines still owe their peers something.
    unsettled: AtomicUsize,
}

/// How long a spawned thread sleeps at most: the time that stopping it takes.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Turns without work after which a spinning thread offers its CPU: where there are more threads than CPUs, the one
/// that has the work may be waiting for it.
const TURNS_PER_YIELD: u32 = 64;

fn run(turn: &mut dyn Turn, idle: Duration, end: &End) {
    let mut busy_at = Instant::now();
    let mut idle_turns = 0u32;
    while !end.stop.load(Ordering::Relaxed) {
        if turn.turn() {
            busy_at = Instant::now();
            idle_turns = 0;
            continue;
        }
        idle_turns = idle_turns.wrapping_add(1);
        if busy_at.elapsed() >= idle {
            turn.wait(LONGEST_SLEEP);
        } else if idle_turns.is_multiple_of(TURNS_PER_YIELD) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    settle(turn, &end.unsettled);
}

/// How long the application's thread sleeps at a time while it drives the engine inline.
const LONGEST_IDLE: Duration = Duration::from_millis(50);

/// How long anything waits at a time that was to wait without end.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// How long the last words to peers may take: a rejection, a Terminate, the FIN and its acknowledgement.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Lets the engine act on the last commands, and end its connections: what a peer has not acknowledged when the
/// device goes, the kernel answers with a RST. Goes on until the others have settled too: frames for them may come here.
fn settle(turn: &mut dyn Turn, unsettled: &AtomicUsize) {
    let until = Instant::now() + LAST_WORDS;
    let mut counted = false;
    loop {
        let did = turn.turn();
        if !counted && !did && turn.is_settled() {
            unsettled.fetch_sub(1, Ordering::Relaxed);
            counted = true;
        }
        if unsettled.load(Ordering::Relaxed) == 0 || Instant::now() >= until {
            return;
        }
    }
}

/// Threads that end when this is dropped.
struct Running {
    end: Arc<End>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so on stderr already.
            let _ = thread.join();
        }
    }
}

/// An RDMA device. A handle: clones name the same device, which is closed with the last object made from it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The links to the engines: one, or several that share the work of the device.
    hosts: Box<[HostEnd]>,
    pub(crate) net: Arc<dyn Net>,
    pub(crate) router: Router,
    inline: Option<Mutex<Box<dyn Turn>>>,
    numbers: Mutex<Numbers>,
    next_pd: AtomicU32,
    next_stream: AtomicU64,
    next_worker: AtomicUsize,
    /// The process that opened it.
    process: u32,
    /// Declared last: the thread ends after the objects above sent their last commands.
    thread: Option<Box<dyn Any + Send + Sync>>,
}

/// Numbers of objects. The oldest that was given back is given out first, and only when all others were used.
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
    /// A device over a link, the network's address services, and whoever drives the engine.
    pub fn new(host: HostEnd, net: Arc<dyn Net>, driver: Driver) -> Self {
        Self::with_workers(vec![host], net, driver)
    }

    /// A device of several workers, an engine each, over [links](rnic_core::engine::links) made together. Queue pairs are
    /// dealt out to them; one that accepts a connection goes to the worker to which that came. The completion queues have
    /// a ring for each. Panics without any link.
    pub fn with_workers(hosts: Vec<HostEnd>, net: Arc<dyn Net>, driver: Driver) -> Self {
        let host = hosts.first().expect("a device has a worker");
        let (inline, thread) = match driver {
            Driver::Inline(turn) => (Some(Mutex::new(turn)), None),
            Driver::Thread(keeper) => (None, Some(keeper)),
        };
        let numbers = Numbers {
            qps: Pool::new(host.doorbells.count()),
            cqs: Pool::new(MAX_CQS),
            srqs: Pool::new(MAX_SRQS),
            next_listener: 0,
        };
        Self {
            inner: Arc::new(Inner {
                router: Router::new(host.events.clone()),
                hosts: hosts.into(),
                net,
                inline,
                numbers: Mutex::new(numbers),
                next_pd: AtomicU32::new(1),
                next_stream: AtomicU64::new(0),
                next_worker: AtomicUsize::new(0),
                process: std::process::id(),
                thread,
            }),
        }
    }

    /// Whether the application drives the engine by polling.
    pub fn is_inline(&self) -> bool {
        self.inner.inline.is_some()
    }

    /// Runs the engine once if it is driven inline. Says whether there was anything to do. For an application
    /// that watches its memory rather than a completion queue.
    pub fn drive(&self) -> bool {
        // A worker that has panicked has nothing to do; everything that waits says so.
        self.inner.drive().unwrap_or(false)
    }

    /// Workers that share its work.
    pub fn workers(&self) -> usize {
        self.inner.workers()
    }

    /// The state of the engines, summed. `None` if one does not answer within `timeout`.
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

    /// The state of the engine of one worker. Panics if there is no such worker.
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

    /// The link to a worker.
    pub(crate) fn host(&self, worker: usize) -> &HostEnd {
        &self.hosts[worker]
    }

    /// The STags, which all workers share.
    pub(crate) fn table(&self) -> &Arc<StagTable> {
        &self.hosts[0].table
    }

    /// The worker whose turn it is to get more work.
    pub(crate) fn next_worker(&self) -> usize {
        self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers()
    }

    pub(crate) fn send(&self, worker: usize, command: Command) -> Result<(), Error> {
        Ok(self.hosts[worker].send(command)?)
    }

    /// Sends every worker a command of its own.
    pub(crate) fn send_all(&self, mut command: impl FnMut() -> Command) -> Result<(), Error> {
        (0..self.workers()).try_for_each(|worker| self.send(worker, command()))
    }

    /// Sends a worker a command that is answered, and waits for the answer: `None` after `timeout`.
    pub(crate) fn ask<T>(
        &self,
        worker: usize,
        timeout: Duration,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<Option<T>, Error> {
        let (answer, answers) = bounded(1);
        self.send(worker, command(answer))?;
        // A wait of centuries is one without end.
        let until = Instant::now().checked_add(timeout);
        loop {
            let did = self.drive()?;
            let left = until.map_or(LONGEST_WAIT, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let pause = if self.is_inline() {
                Duration::ZERO
            } else {
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

    /// One turn, if this device is driven inline and nobody else is at it.
    pub(crate) fn drive(&self) -> Result<bool, WorkerGone> {
        Ok(self.try_inline()?.is_some_and(|mut turn| turn.turn()))
    }

    /// Waits for something to do, in the way that fits the driver. Nothing is lost if another thread drives.
    pub(crate) fn idle(&self, at_most: Duration) {
        match self.try_inline() {
            Ok(Some(mut turn)) => turn.wait(at_most.min(LONGEST_IDLE)),
            Ok(None) => std::thread::sleep(at_most.min(Duration::from_micros(200))),
            // The next turn says so.
            Err(WorkerGone) => {}
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    fn try_inline(&self) -> Result<Option<MutexGuard<'_, Box<dyn Turn>>>, WorkerGone> {
        match self.inline.as_ref().map(Mutex::try_lock) {
            Some(Ok(turn)) => Ok(Some(turn)),
            Some(Err(TryLockError::WouldBlock)) | None => Ok(None),
            // It panicked: the engine is left alone.
            Some(Err(TryLockError::Poisoned(_))) => Err(WorkerGone),
        }
    }

    pub(crate) fn new_pd(&self) -> PdId {
        PdId(self.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    /// Never given out again: whatever is still under way for a queue pair that is gone finds no other.
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
        // Whole after every statement.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether this process has got the device by a fork. Its rings are those of the process that opened it, which goes on
    /// using them; its threads are not here; and a lock that one of them held will never be free. So nothing of the device may
    /// be touched, and what is dropped is forgotten.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Has the device outlive, in a process that was forked, the object that is being dropped.
    pub(crate) fn forget(self: &Arc<Self>) {
        std::mem::forget(self.clone());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(std::mem::take(&mut self.hosts));
            std::mem::forget(self.net.clone());
            std::mem::forget((self.inline.take(), self.thread.take()));
            return;
        }
        if let Some(Ok(turn)) = self.inline.as_mut().map(Mutex::get_mut) {
            settle(&mut **turn, &AtomicUsize::new(1));
        }
    }
}
