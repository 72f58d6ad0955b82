//! Asynchronous events: from the engine and the kernel to the contexts whose objects they are
//! about.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rnic_verbs::{AsyncEvent as Event, AsyncEvents, QpNumber};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::context::{AsyncEvent, Context, for_each, with_open};
use crate::datagrams;
use crate::errno::{Errno, fail, lock};
use crate::objects::{Cq, Qp, Srq, Unacknowledged};
use crate::registry::{CQS, QPS, SRQS};
use crate::states::has_drained;

/// Who reads the events of a device. Never dropped in a child, which must not touch it.
struct Reader {
    adapter: usize,
    process: u32,
    events: ManuallyDrop<AsyncEvents>,
}

static READERS: Mutex<Vec<Reader>> = Mutex::new(Vec::new());

/// Returns the lock of the readers, which a child makes new.
pub(crate) fn renewed() -> &'static Mutex<impl Default> {
    &READERS
}

/// Hands on what the engine of an adapter reports: a handler of its dispatcher.
pub(crate) fn deliver(adapter: &'static Adapter) -> Option<Instant> {
    let mut readers = lock(&READERS);
    let process = std::process::id();
    let is_this = |reader: &Reader| reader.adapter == adapter.index && reader.process == process;
    if !readers.iter().any(is_this) {
        let events = begin(adapter).ok()?;
        readers.push(Reader {
            adapter: adapter.index,
            process,
            events: ManuallyDrop::new(events),
        });
    }
    let reader = readers.iter_mut().find(|reader| is_this(reader))?;
    while let Ok(Some(event)) = reader.events.next(Duration::ZERO) {
        hand_on(adapter, event);
        if event == Event::DeviceFatal {
            break;
        }
    }
    drop(readers);
    for event in datagrams::take_events(adapter) {
        hand_on(adapter, event);
    }
    None
}

fn begin(adapter: &'static Adapter) -> Result<AsyncEvents, Errno> {
    let device = adapter.device()?;
    device.async_events().map_err(|_| Errno::EBUSY)
}

/// Tells the program of an event.
pub(crate) fn hand_on(adapter: &Adapter, event: Event) {
    let of_qp = |qp: QpNumber, event_type| {
        QPS.with(adapter, qp.0, |qp| push_of_qp(qp, event_type));
    };
    match event {
        Event::QpFatal { qp } => of_qp(qp, IBV_EVENT_QP_FATAL),
        Event::QpRequestError { qp } => of_qp(qp, IBV_EVENT_QP_REQ_ERR),
        Event::QpAccessError { qp } => of_qp(qp, IBV_EVENT_QP_ACCESS_ERR),
        Event::SqDrained { qp } => tell_drained(adapter, qp),
        Event::QpLastWqeReached { qp } => of_qp(qp, IBV_EVENT_QP_LAST_WQE_REACHED),
        Event::SrqLimitReached { srq, .. } => {
            SRQS.with(adapter, srq.0, |srq| {
                srq.limit.store(0, std::sync::atomic::Ordering::Relaxed);
                let element = ibv_async_event_element { srq: srq.pointer() };
                // SAFETY: the registry lends a queue that exists, and nothing changes its context.
                let context = unsafe { (*srq.pointer()).context };
                push(context, element, IBV_EVENT_SRQ_LIMIT_REACHED);
            });
        }
        Event::CqError { cq, .. } => {
            CQS.with(adapter, cq.0, |cq| {
                let element = ibv_async_event_element { cq: cq.pointer() };
                // SAFETY: the registry lends a queue that exists, and nothing changes its context.
                let context = unsafe { (*cq.pointer()).context };
                push(context, element, IBV_EVENT_CQ_ERR);
            });
        }
        Event::DeviceFatal => of_port(adapter, IBV_EVENT_DEVICE_FATAL),
        // The kernel tells of the port also where no device is open, and verbs know no shares of a
        // queue.
        Event::PortError
        | Event::PortActive
        | Event::SrqShareExceeded { .. }
        | Event::SrqHighWater { .. } => {}
    }
}

/// Tells that a send queue has drained, if the program has asked for that and has not let the queue
/// go on meanwhile.
fn tell_drained(adapter: &Adapter, qp: QpNumber) {
    QPS.with(adapter, qp.0, |qp| {
        if lock(&qp.settings).attr.en_sqd_async_notify != 0 && has_drained(qp) {
            push_of_qp(qp, IBV_EVENT_SQ_DRAINED);
        }
    });
}

/// Tells of something about a queue pair.
fn push_of_qp(qp: &Qp, event_type: u32) {
    let element = ibv_async_event_element { qp: qp.pointer() };
    // SAFETY: the registry lends a queue pair that exists, and nothing changes its context.
    let context = unsafe { (*qp.pointer()).context };
    push(context, element, event_type);
}

fn push(context: *mut ibv_context, element: ibv_async_event_element, event_type: u32) {
    let event = ibv_async_event {
        element,
        event_type,
    };
    // The program may have closed it and forgotten the object.
    with_open(context, |context| {
        context.asynchronous.push(AsyncEvent(event));
    });
}

/// Tells all contexts of an adapter of something about its port.
pub(crate) fn of_port(adapter: &Adapter, event_type: u32) {
    for_each(adapter, |context| {
        let element = ibv_async_event_element { port_num: 1 };
        context.asynchronous.push(AsyncEvent(ibv_async_event {
            element,
            event_type,
        }));
    });
}

/// What an event is about.
enum About {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
    Port,
}

/// # Safety
/// The event is one of a context.
unsafe fn about(event: &ibv_async_event) -> About {
    match event.event_type {
        IBV_EVENT_CQ_ERR => About::Cq(event.element.cq),
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => About::Qp(event.element.qp),
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => About::Srq(event.element.srq),
        _ => About::Port,
    }
}

/// Returns where an event is counted until it is acknowledged.
///
/// # Safety
/// The event is one of a context, and what it is about exists.
unsafe fn count_of<'a>(event: &ibv_async_event) -> Option<&'a Unacknowledged> {
    match about(event) {
        About::Cq(cq) => Some(&Cq::of(cq).asynchronous),
        About::Qp(qp) => Some(&Qp::of(qp).asynchronous),
        About::Srq(srq) => Some(&Srq::of(srq).asynchronous),
        About::Port => None,
    }
}

/// Drops the events about an object that is being destroyed.
///
/// # Safety
/// The context is open.
unsafe fn drop_events(context: *mut ibv_context, is_it: impl Fn(About) -> bool) {
    let context = Context::of(context);
    context.asynchronous.remove(|event| is_it(about(&event.0)));
}

/// Begins to tell of a completion queue.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn watch_cq(cq: *mut ibv_cq) {
    let cq = Cq::of(cq);
    CQS.add(cq.adapter, cq.id.0, cq);
}

/// Ends to tell of a completion queue, and waits until the program has acknowledged the events that
/// it has read.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn forget_cq(cq: *mut ibv_cq) {
    let object = Cq::of(cq);
    CQS.remove(object.adapter, object.id.0);
    drop_events(
        (*cq).context,
        |about| matches!(about, About::Cq(its) if its == cq),
    );
    object.asynchronous.wait();
}

/// Begins to tell of a queue pair.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn watch_qp(qp: *mut ibv_qp) {
    let qp = Qp::of(qp);
    QPS.add(qp.adapter, qp.number().0, qp);
}

/// Ends to tell of a queue pair, and waits until the program has acknowledged the events that it
/// has read.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn forget_qp(qp: *mut ibv_qp) {
    let object = Qp::of(qp);
    QPS.remove(object.adapter, object.number().0);
    drop_events(
        (*qp).context,
        |about| matches!(about, About::Qp(its) if its == qp),
    );
    object.asynchronous.wait();
}

/// Begins to tell of a shared receive queue.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn watch_srq(srq: *mut ibv_srq) {
    let srq = Srq::of(srq);
    SRQS.add(srq.adapter, srq.id.0, srq);
}

/// Ends to tell of a shared receive queue, and waits until the program has acknowledged the events
/// that it has read.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn forget_srq(srq: *mut ibv_srq) {
    let object = Srq::of(srq);
    SRQS.remove(object.adapter, object.id.0);
    drop_events(
        (*srq).context,
        |about| matches!(about, About::Srq(its) if its == srq),
    );
    object.asynchronous.wait();
}

/// Waits for an event. A thread that waits here can be cancelled.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> i32 {
    // Under the lock of the queue, from which events are removed before what they are about is
    // destroyed.
    let count = |event: &AsyncEvent| {
        if let Some(count) = count_of(&event.0) {
            count.add();
        }
    };
    match Context::of(context).asynchronous.next_counted(count) {
        Ok(next) => {
            *event = next.0;
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let is_inherited = match about(&*event) {
        About::Cq(cq) => Cq::is_inherited(cq),
        About::Qp(qp) => Qp::is_inherited(qp),
        About::Srq(srq) => Srq::is_inherited(srq),
        About::Port => true,
    };
    if !is_inherited && let Some(count) = count_of(&*event) {
        count.acknowledge(1);
    }
}
