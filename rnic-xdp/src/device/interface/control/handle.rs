//! The channels between workers and the thread that serves them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rnic_core::engine::NextHopRequest;
use rnic_core::esp::{self, Change, KnownProtection};
use rnic_core::wire::icmp::Report;

use crate::device::error::OpenError;
use crate::device::interface::rx::RxRing;
use crate::device::policies::KnownPolicies;
use crate::device::queue_choice::FlowRule;
use crate::device::routes::{LinkState, Update};
use crate::device::vlans::Untagged;
use rnic_manager::Maker;
use rnic_manager::{Bell, bell};

/// Requests that may wait: a flood of SYNs asks for as many next hops, and the kernel may block
/// meanwhile.
const MAX_REQUESTS: usize = 1024;
/// Notices that may wait for a worker. Beyond that, changes wait where they come from.
const MAX_NOTICES: usize = 256;

/// A request to the thread.
pub(crate) enum Request {
    /// A worker begins.
    Join(Joining),
    /// A worker wants to know the next hop of a destination, or no longer.
    NextHop(usize, NextHopRequest),
    /// A worker needs numbers of an association, or an association.
    Protection(esp::Request),
    /// Remove the rule of a flow.
    Release(FlowRule),
    /// The device closes.
    End,
}

/// What the thread tells a worker.
pub(crate) enum WorkerNotice {
    /// The next hop of a destination that it asked for.
    NextHop(Update),
    /// Whether the device can send.
    Link(LinkState),
    /// The local addresses whose frames arrive without a tag.
    Untagged(Untagged),
    /// A change of the host's associations or policies.
    Protection(Change),
    /// An ICMP "packet too big".
    TooBig(Report),
    /// An administrator has taken a local address and port away.
    Revoked(SocketAddr),
    /// Queues that the administrator has added to the device.
    Queues(Vec<RxRing>),
}

/// A worker that begins, and where to say whether it can, and what protects its frames from the first
/// one on.
pub(crate) struct Joining {
    pub(crate) worker: FollowedWorker,
    pub(crate) joined: Sender<Result<Vec<Change>, OpenError>>,
}

/// The thread's record of a worker.
pub(crate) struct FollowedWorker {
    pub(crate) number: usize,
    notices: Sender<WorkerNotice>,
    waker: Waker,
}

impl FollowedWorker {
    /// Returns whether there is room for another notice.
    pub(crate) fn has_room(&self) -> bool {
        !self.notices.is_full()
    }

    /// Tells it something, if there is room.
    pub(crate) fn tell(&self, notice: WorkerNotice) {
        // A worker that has ended needs no notice.
        if self.notices.try_send(notice).is_ok() {
            self.waker.wake_by_ref();
        }
    }
}

/// What the thread knows of the host's IPsec, as last read, which may be a moment ago.
#[derive(Clone, Default)]
pub(crate) struct HostIpsec {
    pub(super) policies: Arc<Mutex<KnownPolicies>>,
    pub(crate) protection: Arc<Mutex<KnownProtection>>,
}

/// The running thread. Dropping this ends it after its outstanding requests.
pub(crate) struct Control {
    handle: ControlHandle,
    thread: Option<JoinHandle<()>>,
    maker: Maker,
}

impl Control {
    /// Starts a thread that serves requests. It looks for them when the bell rings, and ends at
    /// [`Request::End`].
    pub(crate) fn start(
        known: HostIpsec,
        run: impl FnOnce(Receiver<Request>, Bell) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let failed = |doing| move |source| OpenError::System { doing, source };
        let (bell, waker) = bell().map_err(failed("make an eventfd"))?;
        let (sender, requests) = unbounded();
        let thread = std::thread::Builder::new()
            .name("rnic-control".into())
            .spawn(move || run(requests, bell))
            .map_err(failed("start the control thread"))?;
        Ok(Self {
            handle: ControlHandle {
                requests: sender,
                waker,
                known,
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

/// Sends requests to the thread.
#[derive(Clone)]
pub(crate) struct ControlHandle {
    requests: Sender<Request>,
    waker: Waker,
    known: HostIpsec,
}

impl std::fmt::Debug for ControlHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ControlHandle")
    }
}

impl ControlHandle {
    /// Adds a worker, whose next hops and link are followed from now on. Returns the channel of its
    /// notices, and what protects its frames now.
    pub(crate) fn join(
        &self,
        worker: usize,
        waker: Waker,
    ) -> Result<(Receiver<WorkerNotice>, Vec<Change>), OpenError> {
        let (notices, receiver) = bounded(MAX_NOTICES);
        let (joined, answer) = bounded(1);
        let worker = FollowedWorker {
            number: worker,
            notices,
            waker,
        };
        self.send(Request::Join(Joining { worker, joined }));
        let ended = |_| OpenError::System {
            doing: "reach the control thread",
            source: std::io::Error::other("it has ended"),
        };
        let known = answer.recv().map_err(ended)??;
        Ok((receiver, known))
    }

    /// Wakes the thread, for what it gets otherwise than by requests.
    pub(crate) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Returns whether there is room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.len() < MAX_REQUESTS
    }

    /// Passes on what a worker's engine asks about next hops.
    pub(crate) fn ask(&self, worker: usize, request: NextHopRequest) {
        self.send(Request::NextHop(worker, request));
    }

    /// Passes on what a worker's frames need.
    pub(crate) fn ask_for_protection(&self, request: esp::Request) {
        self.send(Request::Protection(request));
    }

    /// Returns the IPsec policies as last read.
    pub(crate) fn policies(&self) -> MutexGuard<'_, KnownPolicies> {
        let policies = &self.known.policies;
        policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the associations and policies of ESP that the worker is told of.
    pub(crate) fn protection(&self) -> MutexGuard<'_, KnownProtection> {
        let protection = &self.known.protection;
        protection.lock().unwrap_or_else(PoisonError::into_inner)
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
