//! The control thread of a device. It makes the calls of the kernel that may block: links, routes, queues and rules are looked
//! up and changed under a lock (RTNL) that any process on the host may hold for seconds. A worker must not wait for that lock,
//! since its frames would wait too. Workers and this thread communicate by channels.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::engine::NextHopRequest;
use rnic_core::time::Instant;
use rnic_core::wire::icmp::TooBig;
use tracing::{debug, info, warn};

use super::device::OpenDevice;
use super::rx::RxPort;
use crate::bell::{Bell, bell};
use crate::clock::clock;
use crate::error::OpenError;
use crate::icmp::Icmp;
use crate::netlink::{Groups, NetlinkError, PolicySocket, RouteSocket};
use crate::placement::{FlowRule, worker_of};
use crate::policies::KnownPolicies;
use crate::process::Maker;
use crate::routes::{LinkState, Routes, Update};

/// How often to look for new queues of the device.
const QUEUES_EVERY: Duration = Duration::from_secs(1);
/// Requests that may wait: a flood of SYNs asks for as many next hops, and the kernel may block meanwhile.
const MOST_REQUESTS: usize = 1024;
/// Notices that may wait for a worker. Beyond that, changes stay in the kernel's sockets.
const MOST_NOTICES: usize = 256;
/// How soon to look again whether a worker has taken its notices.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A request to the control thread.
enum Request {
    /// A worker has begun.
    Join(FollowedWorker),
    /// A worker wants to know the next hop of a destination, or no longer.
    NextHop(usize, NextHopRequest),
    /// Remove the rule of a flow.
    Release(FlowRule),
    /// The device closes.
    End,
}

/// What the control thread tells a worker.
pub(crate) enum WorkerNotice {
    /// The next hop of a destination that it asked for.
    NextHop(Update),
    /// Whether the device can send.
    Link(LinkState),
    /// An ICMP "packet too big".
    TooBig(TooBig),
    /// Queues that the administrator has added to the device.
    Queues(Vec<RxPort>),
}

/// The control thread's record of a worker.
struct FollowedWorker {
    number: usize,
    /// Its destinations.
    routes: Routes,
    notices: Sender<WorkerNotice>,
    waker: Waker,
}

/// The running thread. Dropping this ends it after its outstanding requests.
pub(crate) struct Control {
    handle: ControlHandle,
    thread: Option<JoinHandle<()>>,
    maker: Maker,
}

/// Sends requests to the thread.
#[derive(Clone)]
pub(crate) struct ControlHandle {
    requests: Sender<Request>,
    waker: Waker,
    policies: Arc<Mutex<KnownPolicies>>,
}

impl std::fmt::Debug for ControlHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ControlHandle")
    }
}

impl ControlHandle {
    /// Adds a worker, whose routes are followed from now on. Returns the channel of its notices.
    pub(crate) fn join(
        &self,
        worker: usize,
        routes: Routes,
        waker: Waker,
    ) -> Receiver<WorkerNotice> {
        let (notices, receiver) = bounded(MOST_NOTICES);
        self.send(Request::Join(FollowedWorker {
            number: worker,
            routes,
            notices,
            waker,
        }));
        receiver
    }

    /// Returns whether there is room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.len() < MOST_REQUESTS
    }

    /// Passes on what a worker's engine asks about next hops.
    pub(crate) fn ask(&self, worker: usize, request: NextHopRequest) {
        self.send(Request::NextHop(worker, request));
    }

    /// Returns the IPsec policies as last read, which may be a moment ago.
    pub(crate) fn policies(&self) -> MutexGuard<'_, KnownPolicies> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the removal of a flow's rule.
    pub(crate) fn release(&self, rule: FlowRule) {
        self.send(Request::Release(rule));
    }

    fn send(&self, request: Request) {
        // If the thread has ended, a rule to be released is dropped here.
        if self.requests.send(request).is_ok() {
            self.waker.wake_by_ref();
        }
    }
}

impl Control {
    /// Starts the thread of a device, in the network namespace of this thread.
    pub(crate) fn start(device: Arc<OpenDevice>) -> Result<Self, OpenError> {
        let failed = |doing| move |source| OpenError::System { doing, source };
        let (bell, waker) = bell().map_err(failed("make an eventfd"))?;
        let (sender, requests) = unbounded();
        let policies = Arc::<Mutex<KnownPolicies>>::default();
        let mut control = ControlThread {
            policies: PolicySocket::open(Groups::POLICIES)?,
            known: policies.clone(),
            routes: RouteSocket::open()?,
            queues: device.report().queues,
            icmp: Icmp::open()?,
            device,
            requests,
            bell,
            workers: Vec::new(),
            queues_at: Instant::ZERO,
            reads_again: false,
        };
        control.read_policies()?;
        let thread = std::thread::Builder::new()
            .name("rnic-control".into())
            .spawn(move || control.run())
            .map_err(failed("start the control thread"))?;
        Ok(Self {
            handle: ControlHandle {
                requests: sender,
                waker,
                policies,
            },
            thread: Some(thread),
            maker: Maker::this(),
        })
    }

    pub(crate) fn handle(&self) -> &ControlHandle {
        &self.handle
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        self.handle.send(Request::End);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, it has reported it on stderr already.
            let _ = thread.join();
        }
    }
}

/// The state of the control thread.
struct ControlThread {
    device: Arc<OpenDevice>,
    requests: Receiver<Request>,
    bell: Bell,
    icmp: Icmp,
    /// None if the kernel has no IPsec.
    policies: Option<PolicySocket>,
    known: Arc<Mutex<KnownPolicies>>,
    routes: RouteSocket,
    workers: Vec<FollowedWorker>,
    /// The number of queues of the device at the last look.
    queues: u32,
    queues_at: Instant,
    /// Policies have changed and could not be read.
    reads_again: bool,
}

impl ControlThread {
    fn run(mut self) {
        while self.carry_out_requests() {
            let now = Instant::from_nanos(clock());
            for worker in &mut self.workers {
                worker.follow(now);
            }
            self.follow_routers();
            self.follow_policies();
            self.follow_queues(now);
            self.sleep();
        }
    }

    /// Carries out all waiting requests. Returns false once the device closes.
    fn carry_out_requests(&mut self) -> bool {
        for request in self.requests.try_iter() {
            match request {
                Request::Join(worker) => self.workers.push(worker),
                Request::NextHop(number, request) => {
                    let mut workers = self.workers.iter_mut();
                    if let Some(worker) = workers.find(|worker| worker.number == number) {
                        match request {
                            NextHopRequest::Follow(destination) => {
                                worker.routes.request(destination);
                            }
                            NextHopRequest::Forget(destination) => {
                                worker.routes.forget(destination);
                            }
                        }
                    }
                }
                Request::Release(rule) => drop(rule),
                Request::End => return false,
            }
        }
        true
    }

    /// Passes on ICMP messages of routers. A worker without room for notices misses them, as if the network had lost them.
    fn follow_routers(&mut self) {
        let workers = &self.workers;
        self.icmp.poll(|too_big| {
            debug!(
                "a router has no room for packets to {}: MTU {}",
                too_big.remote, too_big.mtu
            );
            for worker in workers.iter().filter(|worker| worker.has_room()) {
                worker.tell(WorkerNotice::TooBig(too_big));
            }
        });
    }

    fn follow_policies(&mut self) {
        let changed = self
            .policies
            .as_mut()
            .is_some_and(PolicySocket::has_changed);
        if changed || self.reads_again {
            // After a failure they are read again in the next round.
            let read = self.read_policies();
            match &read {
                Ok(()) => debug!("the IPsec policies of the host have changed"),
                Err(why) => warn!("cannot read the IPsec policies of the host: {why}"),
            }
            self.reads_again = read.is_err();
        }
    }

    fn read_policies(&mut self) -> Result<(), NetlinkError> {
        let Some(socket) = &mut self.policies else {
            return Ok(());
        };
        let device = self.device.link().index;
        let read = KnownPolicies::read(socket, &mut self.routes, device)?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Looks for queues that the administrator has added to the device.
    fn follow_queues(&mut self, now: Instant) {
        if now < self.queues_at || self.workers.is_empty() {
            return;
        }
        self.queues_at = now + QUEUES_EVERY;
        let queues = self.device.queues_now();
        while self.queues < queues {
            let number = worker_of(self.queues, self.device.report().workers);
            let worker = self.workers.iter().find(|worker| worker.number == number);
            let Some(worker) = worker.filter(|worker| worker.has_room()) else {
                return;
            };
            // A queue that cannot be opened is tried again; `rnic-ctl steering` counts the frames on it.
            let opened = match self.device.open_queue(self.queues) {
                Ok(opened) => opened,
                Err(why) => return debug!("cannot open receive queue {}: {why}", self.queues),
            };
            info!(
                "opened receive queue {}, which the device has got since",
                self.queues
            );
            worker.tell(WorkerNotice::Queues(opened));
            self.queues += 1;
        }
        let _ = self.device.cover(queues);
    }

    /// Sleeps until there is something to do.
    fn sleep(&self) {
        let now = Instant::from_nanos(clock());
        let until = |at: Instant| at.since(now);
        let (ready, stalled): (Vec<_>, Vec<_>) =
            self.workers.iter().partition(|worker| worker.has_room());
        let timers = ready
            .iter()
            .filter_map(|worker| worker.routes.next_timeout());
        let queues = (!self.workers.is_empty()).then(|| until(self.queues_at));
        let look_again = (!stalled.is_empty()).then_some(LOOK_AGAIN);
        let timeout = timers.map(until).chain(queues).chain(look_again).min();

        let routes = ready.iter().map(|worker| worker.routes.as_fd());
        let policies = self.policies.as_ref().map(AsFd::as_fd);
        let fds = [self.bell.as_fd()].into_iter().chain(self.icmp.fds());
        let fds = fds.chain(policies).chain(routes);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // A signal wakes it too.
        let _ = ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None);
        self.bell.silence();
    }
}

impl FollowedWorker {
    fn has_room(&self) -> bool {
        !self.notices.is_full()
    }

    fn tell(&self, notice: WorkerNotice) {
        // A worker that has ended needs no notice.
        if self.notices.try_send(notice).is_ok() {
            self.waker.wake_by_ref();
        }
    }

    /// Passes on changes, as far as there is room. The rest waits in the kernel.
    fn follow(&mut self, now: Instant) {
        if !self.has_room() {
            return;
        }
        self.routes.poll(now);
        if let Some(state) = self.routes.poll_device() {
            self.tell(WorkerNotice::Link(state));
        }
        while self.has_room()
            && let Some(update) = self.routes.poll_update()
        {
            self.tell(WorkerNotice::NextHop(update));
        }
    }
}
