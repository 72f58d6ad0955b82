//! The control thread of a device. It makes the calls of the kernel that may block: links, routes,
//! queues and rules are looked up and changed under a lock (RTNL) that any process on the host may
//! hold for seconds. A worker must not wait for that lock, since its frames would wait too. Workers
//! and this thread communicate by channels.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::engine::NextHopRequest;
use rnic_core::esp::Change;
use rnic_core::time::Instant;
use tracing::{debug, info, warn};

use super::handle::{Control, FollowedWorker, HostIpsec, Joining, Request, WorkerNotice};
use crate::device::clock::clock;
use crate::device::error::OpenError;
use crate::device::icmp::Icmp;
use crate::device::interface::device::OpenDevice;
use crate::device::netlink::{Groups, NetlinkError, PolicySocket, RouteSocket};
use crate::device::policies::KnownPolicies;
use crate::device::protection::{HostProtection, Own};
use crate::device::queue_choice::worker_of;
use crate::device::routes::Routes;
use rnic_manager::Bell;

/// How often to look for new queues of the device.
const QUEUES_EVERY: Duration = Duration::from_secs(1);
/// How soon to look again whether a worker has taken its notices.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Starts the control thread of a device, in the network namespace of this thread.
pub(crate) fn start(device: Arc<OpenDevice>) -> Result<Control, OpenError> {
    let known = HostIpsec::default();
    let mut thread = ControlThread {
        policies: PolicySocket::open(Groups::POLICIES)?,
        known: known.clone(),
        routes: RouteSocket::open()?,
        queues: device.report().queues,
        icmp: Icmp::open()?,
        protection: device.protection()?,
        device,
        workers: Vec::new(),
        queues_at: Instant::ZERO,
        reads_again: false,
    };
    thread.read_policies()?;
    Control::start(known, move |requests, bell| thread.run(&requests, &bell))
}

/// The state of the control thread.
struct ControlThread {
    device: Arc<OpenDevice>,
    icmp: Icmp,
    /// None if the kernel has no IPsec.
    policies: Option<PolicySocket>,
    known: HostIpsec,
    routes: RouteSocket,
    /// What protects frames, if the device has that.
    protection: Option<HostProtection<Own>>,
    workers: Vec<Followed>,
    /// The number of queues of the device at the last look.
    queues: u32,
    queues_at: Instant,
    /// Policies have changed and could not be read.
    reads_again: bool,
}

/// A worker and its destinations.
struct Followed {
    worker: FollowedWorker,
    routes: Routes,
    /// Changes of what protects frames that it had no room for yet: it keeps none from the others.
    changes: VecDeque<Change>,
}

impl ControlThread {
    fn run(mut self, requests: &Receiver<Request>, bell: &Bell) {
        while self.carry_out(requests) {
            let now = Instant::from_nanos(clock());
            for worker in &mut self.workers {
                worker.follow(now);
            }
            self.follow_policies();
            // Before what anybody can send, so that it finds room.
            self.follow_protection(now);
            self.follow_routers();
            self.follow_queues(now);
            self.sleep(bell);
        }
        if let Some(protection) = &mut self.protection {
            protection.report();
        }
    }

    /// Passes on to all workers what has changed of the host's associations, as far as each has
    /// room.
    fn follow_protection(&mut self, now: Instant) {
        let Some(protection) = &mut self.protection else {
            return;
        };
        protection.follow(&mut self.routes, now);
        while let Some(change) = protection.poll_change() {
            let known = &self.known.protection;
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.note(&change);
            drop(known);
            for followed in &mut self.workers {
                followed.changes.push_back(change.clone());
            }
        }
        self.workers.iter_mut().for_each(Followed::tell_protection);
    }

    /// Carries out all waiting requests. Returns false once the device closes.
    fn carry_out(&mut self, requests: &Receiver<Request>) -> bool {
        for request in requests.try_iter() {
            match request {
                Request::Join(joining) => self.join(joining),
                Request::NextHop(number, request) => {
                    let mut workers = self.workers.iter_mut();
                    if let Some(followed) =
                        workers.find(|followed| followed.worker.number == number)
                    {
                        match request {
                            NextHopRequest::Follow(path) => followed.routes.request(path),
                            NextHopRequest::Forget(path) => followed.routes.forget(path),
                        }
                    }
                }
                Request::Protection(request) => {
                    if let Some(protection) = &mut self.protection {
                        protection.request(request, Instant::from_nanos(clock()));
                    }
                }
                Request::Release(rule) => drop(rule),
                Request::End => return false,
            }
        }
        true
    }

    /// Follows the destinations of a worker that begins. The first one keeps the steering program's
    /// table of links up to date.
    fn join(&mut self, Joining { worker, joined }: Joining) {
        let (device, mtu) = (&self.device, self.device.report().mtu);
        let workers = device.report().workers as usize;
        let links = (worker.number == 0).then(|| device.steering().links());
        let routes = Routes::open(device.link(), mtu, links);
        // What is told to all from here on is new to it.
        self.follow_protection(Instant::from_nanos(clock()));
        let protection = self.protection.as_ref();
        let answer = routes.map(|routes| {
            let mut followed = Followed {
                worker,
                routes,
                changes: VecDeque::new(),
            };
            // Before it has any frame.
            followed.tell_untagged();
            self.workers.push(followed);
            // What one worker has of an association, no other may use.
            assert!(self.workers.len() <= workers);
            protection.map_or_else(Vec::new, HostProtection::state)
        });
        // A worker that has ended needs no answer.
        let _ = joined.send(answer.map_err(OpenError::from));
    }

    /// Passes on ICMP messages of routers. A worker without room for notices misses them, as if the
    /// network had lost them.
    fn follow_routers(&mut self) {
        let workers = || self.workers.iter().map(|followed| &followed.worker);
        self.icmp.poll(|report| {
            debug!("a router has no room for a packet: {report:?}");
            for worker in workers().filter(|worker| worker.has_room()) {
                worker.tell(WorkerNotice::TooBig(report));
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
        let if_id = self.device.config().ipsec_if_id;
        let read = KnownPolicies::read(socket, &mut self.routes, device, if_id)?;
        let known = &self.known.policies;
        *known.lock().unwrap_or_else(PoisonError::into_inner) = read;
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
            let mut workers = self.workers.iter().map(|followed| &followed.worker);
            let worker = workers.find(|worker| worker.number == number);
            let Some(worker) = worker.filter(|worker| worker.has_room()) else {
                return;
            };
            // A queue that cannot be opened is tried again; `rnic-ctl steering` counts the frames
            // on it.
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
    fn sleep(&self, bell: &Bell) {
        let now = Instant::from_nanos(clock());
        let until = |at: Instant| at.since(now);
        let (ready, stalled): (Vec<_>, Vec<_>) = self
            .workers
            .iter()
            .partition(|followed| followed.worker.has_room());
        let timers = ready
            .iter()
            .filter_map(|followed| followed.routes.next_timeout());
        let queues = (!self.workers.is_empty()).then(|| until(self.queues_at));
        let look_again = (!stalled.is_empty()).then_some(LOOK_AGAIN);
        let timeout = timers.map(until).chain(queues).chain(look_again).min();

        let routes = ready.iter().map(|followed| followed.routes.as_fd());
        let policies = self.policies.as_ref().map(AsFd::as_fd);
        let protection = self.protection.as_ref().map(AsFd::as_fd);
        let fds = [bell.as_fd()].into_iter().chain(self.icmp.fds());
        let fds = fds.chain(policies).chain(protection).chain(routes);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // A signal wakes it too.
        let _ = ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None);
        bell.silence();
    }
}

impl Followed {
    /// Passes on changes, as far as there is room. The rest waits in the kernel.
    fn follow(&mut self, now: Instant) {
        let Self { worker, routes, .. } = self;
        if !worker.has_room() {
            return;
        }
        routes.poll(now);
        if let Some(state) = routes.poll_device() {
            worker.tell(WorkerNotice::Link(state));
        }
        self.tell_untagged();
        let Self { worker, routes, .. } = self;
        while worker.has_room()
            && let Some(update) = routes.poll_update()
        {
            worker.tell(WorkerNotice::NextHop(update));
        }
    }

    fn tell_protection(&mut self) {
        while self.worker.has_room()
            && let Some(change) = self.changes.pop_front()
        {
            self.worker.tell(WorkerNotice::Protection(change));
        }
    }

    fn tell_untagged(&mut self) {
        if self.worker.has_room()
            && let Some(untagged) = self.routes.poll_untagged()
        {
            self.worker.tell(WorkerNotice::Untagged(untagged));
        }
    }
}
