//! Connections of queue pairs whose programs tell each other addresses and numbers in their own
//! way, and then call `ibv_modify_qp`, as over InfiniBand.
//!
//! Each side listens at the [port in its numbers](crate::numbers). Of two queue pairs, the one with
//! the smaller GID and number connects. The other one accepts whom its program has named: the
//! address and both numbers must be right, and the PSNs as far as they are known: a side says what it
//! will send once it is in RTS, and waits for that a little before it connects. A wrong PSN is
//! noticed at the latest when the sending side is in RTS. A request that comes before the program
//! has named anybody waits. What fails is tried again as
//! long as the program leaves the queue pair as it is: over InfiniBand, moving it to RTR does not
//! tell whether anybody is there.

mod listeners;
mod meeting;
mod reject;
mod waiting;

use std::time::Instant;

use rnic_core::wire::hello::{Hello, Kind, Receipts, Refusal};
use rnic_verbs::{ConnectRequest, ConnectionEvent, QpNumber};
use tracing::debug;

use crate::adapter::Adapter;
use crate::connections;
use crate::datagrams;
use crate::errno::{Errno, ToErrno, lock};
use crate::numbers::port_of;
use crate::objects::Qp;
use crate::registry::QPS;
use crate::settings::Settings;

use listeners::Listeners;
use reject::reject;

pub(crate) use listeners::renewed;
pub(crate) use meeting::{FIRST_PAUSE, connects, end};

/// Gives a new queue pair the number by which others find it.
pub(crate) fn give_number(adapter: &'static Adapter, queue_pair: QpNumber) -> Result<u32, Errno> {
    let listeners = Listeners::of(adapter)?;
    connections::on_event(adapter, take)?;
    adapter.on_events(dispatch);
    adapter
        .numbers
        .give(queue_pair, || listeners.listen(adapter))
}

/// Takes back the number of a queue pair that is gone. Over sockets of the kernel its port is closed
/// if no other queue pair is behind it: programs count descriptors. Elsewhere it stays open, because
/// connections keep a port that was leased until their TIME-WAIT has ended, and leases are few.
pub(crate) fn take_number_back(adapter: &'static Adapter, queue_pair: QpNumber) {
    let device = adapter.device();
    let stays_open = device.is_ok_and(|device| device.kernel().is_none());
    if let Some(port) = adapter.numbers.take_back(queue_pair, stays_open)
        && let Some(listeners) = Listeners::known(adapter)
    {
        listeners.close(adapter, port);
    }
}

/// Connects a queue pair that its program has moved to RTR.
pub(crate) fn begin(qp: &Qp, settings: &mut Settings) {
    if let Some(listeners) = Listeners::known(qp.adapter) {
        meeting::begin(qp, settings, &listeners.waiting);
    }
}

/// Tells that the program has moved it to RTS.
pub(crate) fn may_send(qp: &Qp, settings: &mut Settings) {
    if let Some(listeners) = Listeners::known(qp.adapter) {
        meeting::may_send(qp, settings, &listeners.waiting);
    }
}

/// Tells that the program has set what the peer may do.
pub(crate) fn set_access(qp: &Qp, settings: &mut Settings) -> Result<(), Errno> {
    let access = meeting::remote_access(settings.attr.qp_access_flags);
    let meeting = settings.meeting.as_mut();
    let set = match meeting.and_then(|meeting| meeting.mirror.as_mut()) {
        Some(mirror) => mirror.set_remote_access(access),
        None => qp.lock().set_remote_access(access),
    };
    set.map_err(|why| why.errno())
}

/// Rejects those who wait for a queue pair that is no more what they ask for.
pub(crate) fn forget(adapter: &Adapter, number: u32) {
    if let Some(listeners) = Listeners::known(adapter) {
        for (request, hello) in listeners.waiting.requests_for(number) {
            reject(request, &hello, Refusal::NoQueuePair);
        }
    }
}

/// Requests that are handled before what is due: a flood of them keeps nobody away.
const REQUESTS_AT_ONCE: usize = 64;

/// Handles requests, and what is due: a handler of the dispatcher.
fn dispatch(adapter: &'static Adapter) -> Option<Instant> {
    let listeners = Listeners::known(adapter)?;
    let mut taken = 0;
    while taken < REQUESTS_AT_ONCE
        && let Some(request) = listeners.next_request(adapter)
    {
        ask(adapter, &listeners, request);
        taken += 1;
    }
    let now = Instant::now();
    for number in listeners.waiting.due(now) {
        with_number(adapter, number, |qp, settings| {
            meeting::go_on(qp, settings, &listeners.waiting, now);
        });
    }
    match taken {
        REQUESTS_AT_ONCE => Some(now),
        _ => listeners.waiting.next_due(),
    }
}

/// Calls `what` with the queue pair that has a number, and its settings.
fn with_number(
    adapter: &Adapter,
    number: u32,
    what: impl FnOnce(&Qp, &mut Settings),
) -> Option<()> {
    let found = adapter.numbers.find(number)?;
    QPS.with(adapter, found.0, |qp| what(qp, &mut lock(&qp.settings)))
}

/// Handles the request of a peer.
fn ask(adapter: &'static Adapter, listeners: &Listeners, request: ConnectRequest) {
    let Some(hello) = Hello::parse(request.private_data()) else {
        debug!(
            "{}: asks for no queue pair; rdma_cm listens at other ports",
            request.peer()
        );
        let nobody = Hello {
            kind: Kind::QueuePairs,
            own: 0,
            peer: 0,
            rq_psn: 0,
            sq_psn: None,
            gid: [0; 16],
            receipts: Receipts::Unknown,
        };
        return reject(request, &nobody, Refusal::Unknown);
    };
    if hello.kind == Kind::Datagrams {
        let at_port = port_of(hello.peer) == request.local().port();
        let left = match at_port {
            true => datagrams::accept(adapter, request, &hello),
            false => Err(request),
        };
        return left.map_or_else(|left| reject(left, &hello, Refusal::NoQueuePair), |()| ());
    }
    let mut asked = Some(request);
    if port_of(hello.peer) == asked.as_ref().map_or(0, |request| request.local().port()) {
        with_number(adapter, hello.peer, |qp, settings| {
            if let Some(request) = asked.take() {
                meeting::ask(qp, settings, &listeners.waiting, request, hello);
            }
        });
    }
    if let Some(request) = asked {
        reject(request, &hello, Refusal::NoQueuePair);
    }
}

/// Takes the events of queue pairs that connect here.
fn take(
    adapter: &'static Adapter,
    queue_pair: QpNumber,
    event: ConnectionEvent,
) -> Option<ConnectionEvent> {
    let Some(listeners) = Listeners::known(adapter) else {
        return Some(event);
    };
    let mut left = Some(event);
    QPS.with(adapter, queue_pair.0, |qp| {
        let settings = &mut lock(&qp.settings);
        if settings.meeting.is_none() {
            return;
        }
        let event = left.take();
        // What happens to a mirror happens to the queue pair itself, too.
        if let Some(event) = event.filter(|_| qp.number() == queue_pair) {
            meeting::follow(qp, settings, &listeners.waiting, event);
        }
    });
    left
}
