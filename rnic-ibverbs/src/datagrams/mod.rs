//! Datagrams: queue pairs of type UD.
//!
//! iWARP has none. They travel over connections between the processes that use them, which no
//! program sees: one to each process that datagrams go to, and one from each that they come from. A
//! datagram is a Send there. It is dropped where its destination cannot be reached, is not there or
//! has another Q_Key, and where no receive waits for it; on a link it is neither lost nor overtaken.
//!
//! Whoever polls a completion queue of such a queue pair looks at what has come. If nobody polls,
//! the dispatcher does, at once where a program waits for a notification, and else after a while:
//! then a program that polls has looked already, and finds its receives as it expects them.

mod destination;
mod endpoint;
mod links;
mod receives;
mod service;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rnic_core::wire::datagram::Header;
use rnic_core::wire::hello::{Hello, Kind};
use rnic_verbs::{AsyncEvent, ConnectRequest, ConnectionEvent, QpNumber, Sge};
use tracing::debug;

use crate::adapter::Adapter;
use crate::connections;
use crate::errno::{Errno, lock};
use crate::numbers::port_of;
use rnic_verbs::rdma::gid_of;

use endpoint::{Endpoint, Id};
use service::{Outgoing, Service};

pub(crate) use destination::Destination;
pub(crate) use endpoint::NewEndpoint;
pub(crate) use receives::{SharedReceives, Taker};
pub(crate) use rnic_core::wire::datagram::GRH_LEN;
pub(crate) use service::Payload;

/// How long what has come waits for a program that polls.
const LONGEST_UNSEEN: Duration = Duration::from_millis(5);

/// The datagrams of an adapter in this process.
pub(crate) struct Datagrams {
    adapter: usize,
    process: u32,
    service: Mutex<Service>,
    /// When the dispatcher is to look at what has come.
    due: Mutex<Option<Instant>>,
    arrival: Arc<Arrival>,
}

/// Wakes the dispatcher when something has come that nobody has polled.
struct Arrival {
    dispatcher: Waker,
    is_new: AtomicBool,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: the dispatcher, which acquires it, finds what has come.
        self.is_new.store(true, Ordering::Release);
        self.dispatcher.wake_by_ref();
    }
}

/// Those of this process, and of the processes that it was forked from.
static DATAGRAMS: Mutex<Vec<Arc<Datagrams>>> = Mutex::new(Vec::new());

/// Returns the lock of the list, which a child makes new.
pub(crate) fn renewed() -> &'static Mutex<impl Default> {
    &DATAGRAMS
}

fn find(all: &[Arc<Datagrams>], adapter: &Adapter) -> Option<Arc<Datagrams>> {
    let process = std::process::id();
    let is_this = |one: &&Arc<Datagrams>| one.adapter == adapter.index && one.process == process;
    all.iter().find(is_this).cloned()
}

/// Returns those of an adapter, if it has any.
fn known(adapter: &Adapter) -> Option<Arc<Datagrams>> {
    find(&lock(&DATAGRAMS), adapter)
}

/// Returns those of an adapter.
fn of(adapter: &'static Adapter) -> Result<Arc<Datagrams>, Errno> {
    connections::on_event(adapter, take)?;
    adapter.on_events(dispatch);
    let mut all = lock(&DATAGRAMS);
    if let Some(known) = find(&all, adapter) {
        return Ok(known);
    }
    let arrival = Arc::new(Arrival {
        dispatcher: adapter.dispatcher()?,
        is_new: AtomicBool::new(true),
    });
    let new = Arc::new(Datagrams {
        adapter: adapter.index,
        process: std::process::id(),
        service: Mutex::new(Service::new(adapter, Waker::from(arrival.clone()))?),
        due: Mutex::default(),
        arrival,
    });
    all.push(new.clone());
    Ok(new)
}

impl Datagrams {
    fn lock(&self) -> MutexGuard<'_, Service> {
        lock(&self.service)
    }

    /// Locks the service unless somebody else has.
    fn try_lock(&self) -> Option<MutexGuard<'_, Service>> {
        match self.service.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks at what has come, for a program that polls, unless another thread does.
    pub(crate) fn progress(&self) {
        if let Some(mut service) = self.try_lock() {
            service.poll();
        }
    }

    /// Has the dispatcher told of what comes from now on: the program is about to wait for a
    /// notification.
    pub(crate) fn arm(&self) {
        self.lock().arm();
    }
}

/// A datagram queue pair.
pub(crate) struct DatagramQp {
    datagrams: Arc<Datagrams>,
    id: Id,
}

/// A datagram that the program sends.
pub(crate) struct ToSend<'a> {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) qkey: u32,
    pub(crate) to: Destination,
    pub(crate) payload: Payload<'a>,
}

impl DatagramQp {
    /// Makes a queue pair.
    pub(crate) fn new(adapter: &'static Adapter, new: NewEndpoint) -> Result<Self, Errno> {
        let datagrams = of(adapter)?;
        let id = datagrams.lock().add(new)?;
        Ok(Self { datagrams, id })
    }

    /// Ends it. No completion of it is written any more.
    pub(crate) fn end(&self) {
        self.datagrams.lock().remove(self.id);
    }

    /// Returns what carries its datagrams.
    pub(crate) fn datagrams(&self) -> &Arc<Datagrams> {
        &self.datagrams
    }

    /// Moves it to another state, with its Q_Key.
    pub(crate) fn move_to(&self, state: u32, qkey: u32) -> Result<(), Errno> {
        self.datagrams.lock().move_to(self.id, state, qkey)
    }

    /// Returns its state: a request that fails moves it as well.
    pub(crate) fn state(&self) -> Option<u32> {
        let service = self.datagrams.lock();
        Some(service.endpoint(self.id).ok()?.state)
    }

    /// Returns whether it is in SQD, and requests that had begun before are not finished.
    pub(crate) fn is_draining(&self) -> bool {
        let service = self.datagrams.lock();
        service.endpoint(self.id).is_ok_and(Endpoint::is_draining)
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&self, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        self.datagrams.lock().post_recv(self.id, wr_id, pieces)
    }

    /// Begins to post requests. No other thread posts meanwhile.
    pub(crate) fn begin(&self) -> Posting<'_> {
        Posting {
            service: self.datagrams.lock(),
            id: self.id,
        }
    }
}

/// Requests that are being posted.
pub(crate) struct Posting<'a> {
    service: MutexGuard<'a, Service>,
    id: Id,
}

impl Posting<'_> {
    /// Fails unless so many requests can be posted.
    pub(crate) fn check(&self, count: usize) -> Result<(), Errno> {
        self.service.endpoint(self.id)?.check_sends(count)
    }

    /// Fails if a datagram is longer than the MTU of the port.
    pub(crate) fn check_length(&self, payload: &Payload<'_>) -> Result<(), Errno> {
        let mtu = self.service.endpoint(self.id)?.made_of.mtu as u64;
        (payload.len() <= mtu).then_some(()).ok_or(Errno::EINVAL)
    }

    /// Sends a datagram.
    pub(crate) fn send(&mut self, new: &ToSend<'_>) -> Result<(), Errno> {
        /// A Q_Key with this bit stands for that of the queue pair.
        const OWN_QKEY: u32 = 1 << 31;
        self.check_length(&new.payload)?;
        let endpoint = self.service.endpoint(self.id)?;
        let header = Header {
            traffic_class: new.to.traffic_class,
            to: new.to.number,
            from: endpoint.made_of.number,
            qkey: match new.qkey & OWN_QKEY {
                0 => new.qkey,
                _ => endpoint.qkey,
            },
            immediate: new.immediate,
            solicited: new.solicited,
        };
        let outgoing = Outgoing {
            wr_id: new.wr_id,
            signaled: new.signaled,
            destination: new.to,
            header,
            payload: new.payload,
        };
        self.service.send(self.id, &outgoing)
    }
}

/// Handles the request of a process to carry datagrams, or returns it if no queue pair here is
/// meant.
pub(crate) fn accept(
    adapter: &Adapter,
    request: ConnectRequest,
    hello: &Hello,
) -> Result<(), ConnectRequest> {
    let Some(datagrams) = known(adapter) else {
        return Err(request);
    };
    let mut service = datagrams.lock();
    let is_sender = hello.gid == gid_of(request.peer().ip());
    // The queue pair may be gone that it asks for: others are behind the port.
    if !is_sender || !service.listens_at(port_of(hello.peer)) {
        return Err(request);
    }
    let (links, make) = service.linking();
    links.accept(request, hello, make)
}

/// Takes the events of links.
fn take(
    adapter: &'static Adapter,
    queue_pair: QpNumber,
    event: ConnectionEvent,
) -> Option<ConnectionEvent> {
    let Some(datagrams) = known(adapter) else {
        return Some(event);
    };
    let mut service = datagrams.lock();
    let links = &service.links;
    let (Some(is_opened), Some(ends)) = (links.has_opened(queue_pair), links.ends_of(queue_pair))
    else {
        return Some(event);
    };
    // The side that accepts has no answer to look at.
    let is_peer = |answer: &[u8]| !is_opened || is_answer(answer, ends.port);
    match event {
        ConnectionEvent::Established(with) if is_peer(&with.private_data) => {
            service.links.open(queue_pair);
        }
        other => {
            debug!("{queue_pair} carries no datagrams any more, {ends:?}: {other:?}");
            service.end_link(queue_pair);
        }
    }
    // What was posted there completes.
    datagrams.arrival.wake_by_ref();
    None
}

/// Returns whether the answer of a peer is that of the process which was asked for.
fn is_answer(answer: &[u8], port: u16) -> bool {
    let hello = Hello::parse(answer);
    hello.is_some_and(|hello| hello.kind == Kind::Datagrams && port_of(hello.own) == port)
}

/// Looks at what has come where no program does: a handler of the dispatcher.
fn dispatch(adapter: &'static Adapter) -> Option<Instant> {
    let datagrams = known(adapter)?;
    let now = Instant::now();
    let is_new = datagrams.arrival.is_new.swap(false, Ordering::AcqRel);
    let mut service = datagrams.lock();
    let mut due = lock(&datagrams.due);
    if is_new && due.is_none() {
        let wait = match service.is_waited_for() {
            true => Duration::ZERO,
            false => LONGEST_UNSEEN,
        };
        *due = Some(now + wait);
    }
    if due.is_some_and(|at| now >= at || service.is_waited_for()) {
        // What comes behind the last look wakes.
        service.arm();
        let is_more = service.catch_up(now);
        *due = is_more.then(|| now + LONGEST_UNSEEN);
    }
    let links = service.tend_links(now);
    due.into_iter().chain(links).min()
}

/// Removes and returns what the programs of an adapter's datagram queue pairs are to be told beside
/// completions.
pub(crate) fn take_events(adapter: &Adapter) -> Vec<AsyncEvent> {
    known(adapter).map_or_else(Vec::new, |datagrams| datagrams.lock().take_events())
}

/// Calls `what` with the service of an adapter as the process ends. Other threads may still run:
/// one that has the service may keep it, and then this fails.
fn at_exit<R>(
    adapter: &Adapter,
    what: impl FnOnce(&mut Service) -> R,
) -> Result<Option<R>, WouldBlock> {
    let all = DATAGRAMS.try_lock().map_err(|_| WouldBlock)?;
    let Some(datagrams) = find(&all, adapter) else {
        return Ok(None);
    };
    let mut service = datagrams.try_lock().ok_or(WouldBlock)?;
    Ok(Some(what(&mut service)))
}

/// Another thread has the service.
struct WouldBlock;

/// Returns whether datagrams are on their way, as the process ends, or may be.
pub(crate) fn are_busy(adapter: &Adapter) -> bool {
    let is_busy = |service: &mut Service| {
        service.progress();
        service.links.are_busy()
    };
    at_exit(adapter, is_busy).map_or(true, |is_busy| is_busy.unwrap_or(false))
}

/// Tells all peers that this process ends.
pub(crate) fn leave(adapter: &Adapter) {
    let _ = at_exit(adapter, |service| service.links.fail_all());
}
