//! Datagrams: queue pairs of type UD.
//!
//! iWARP has none. They travel over connections between the processes that use them, which no
//! program sees: one to each process that datagrams go to or come from. A datagram is a Send there.
//! It is dropped where its destination cannot be reached, is not there or has another Q_Key, and
//! where no receive waits for it; between processes it is neither lost nor overtaken.
//!
//! Whoever polls a completion queue of such a queue pair looks at what has come. If nobody polls,
//! the dispatcher does, at once where a program waits for a notification, and else after a while:
//! then a program that polls has looked already, and finds its receives as it expects them.

mod endpoint;
mod header;
mod links;
mod service;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rnic_verbs::{ConnectRequest, ConnectionEvent, QpNumber, Sge};
use tracing::debug;

use crate::adapter::Adapter;
use crate::connections;
use crate::errno::{Errno, lock};
use crate::hello::{Hello, Kind};
use crate::interface::gid_of;
use crate::numbers::port_of;

use endpoint::Id;
use header::Header;
use service::{Outgoing, Service};

pub(crate) use endpoint::NewEndpoint;
pub(crate) use header::GRH_LEN;
pub(crate) use links::Destination;
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
            service.progress();
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
        let mut service = self.datagrams.lock();
        let endpoint = service.endpoint(self.id)?;
        endpoint.qkey = qkey;
        endpoint.move_to(state);
        Ok(())
    }

    /// Returns its state: a request that fails moves it as well.
    pub(crate) fn state(&self) -> Option<u32> {
        let mut service = self.datagrams.lock();
        Some(service.endpoint(self.id).ok()?.state)
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&self, wr_id: u64, pieces: &[Sge]) -> Result<(), Errno> {
        let mut service = self.datagrams.lock();
        service.endpoint(self.id)?.post_recv(wr_id, pieces)
    }

    /// Sends a datagram.
    pub(crate) fn send(&self, new: &ToSend<'_>) -> Result<(), Errno> {
        /// A Q_Key with this bit stands for that of the queue pair.
        const OWN_QKEY: u32 = 1 << 31;
        let mut service = self.datagrams.lock();
        let endpoint = service.endpoint(self.id)?;
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
        service.send(self.id, &outgoing)
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
    if !is_sender || !service.has(hello.peer) {
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
    let links = &mut service.links;
    let Some(peer) = links.get(queue_pair).map(|link| link.peer) else {
        return Some(event);
    };
    match event {
        ConnectionEvent::Established(with) if is_peer(&with.private_data, peer.1) => {
            links.open(queue_pair);
        }
        other => {
            debug!("{queue_pair} carries no datagrams to {peer:?} any more: {other:?}");
            links.end(queue_pair);
        }
    }
    // What was posted there completes.
    datagrams.arrival.wake_by_ref();
    None
}

/// Returns whether the answer of a peer is that of the process which was asked for. There is none
/// at the side that has accepted.
fn is_peer(answer: &[u8], port: u16) -> bool {
    let hello = Hello::parse(answer);
    let is_its = |hello: Hello| hello.kind == Kind::Datagrams && port_of(hello.own) == port;
    answer.is_empty() || hello.is_some_and(is_its)
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
        let any = service.progress();
        *due = (any || service.is_unsettled()).then(|| now + LONGEST_UNSEEN);
    }
    let links = service.tend_links(now);
    due.into_iter().chain(links).min()
}

/// Tells all peers that this process ends. Other threads may still run: one that has the service
/// keeps it.
pub(crate) fn leave(adapter: &Adapter) {
    let Ok(all) = DATAGRAMS.try_lock() else {
        return;
    };
    if let Some(datagrams) = find(&all, adapter)
        && let Some(mut service) = datagrams.try_lock()
    {
        service.links.fail_all();
    }
}
