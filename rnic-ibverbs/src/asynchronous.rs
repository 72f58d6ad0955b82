//! Asynchronous events: from the engine and the kernel to the contexts whose objects they are about.

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::time::Duration;

use rnic_verbs::{AsyncEvent as Event, AsyncEvents, QpNumber};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::context::{AsyncEvent, Context, for_each};
use crate::errno::{Errno, fail, lock};
use crate::objects::{Cq, Qp, Srq};
use crate::registry::{CQS, QPS, SRQS};

/// Who reads the events of a device. Never dropped in a child, which must not touch it.
struct Reader {
    adapter: usize,
    process: u32,
    events: ManuallyDrop<AsyncEvents>,
}

static READERS: Mutex<Vec<Reader>> = Mutex::new(Vec::new());

/// Hands on what the engine of an adapter reports: a handler of its dispatcher.
pub(crate) fn deliver(adapter: &'static Adapter) {
    let mut readers = lock(&READERS);
    let process = std::process::id();
    let is_this = |reader: &Reader| reader.adapter == adapter.index && reader.process == process;
    if !readers.iter().any(is_this) {
        let Ok(events) = begin(adapter) else { return };
        readers.push(Reader {
            adapter: adapter.index,
            process,
            events: ManuallyDrop::new(events),
        });
    }
    let Some(reader) = readers.iter_mut().find(|reader| is_this(reader)) else {
        return;
    };
    while let Ok(Some(event)) = reader.events.next(Duration::ZERO) {
        hand_on(adapter, event);
        if event == Event::DeviceFatal {
            return;
        }
    }
}

fn begin(adapter: &'static Adapter) -> Result<AsyncEvents, Errno> {
    let device = adapter.device()?;
    device.async_events().map_err(|_| Errno::EBUSY)
}

fn hand_on(adapter: &Adapter, event: Event) {
    let of_qp = |qp: QpNumber, event_type| {
        QPS.with(adapter, qp.0, |qp| {
            let element = ibv_async_event_element { qp: qp.pointer() };
            // SAFETY: the queue pair exists, and so its context does.
            let context = unsafe { (*qp.pointer()).context };
            push(context, element, event_type);
        });
    };
    match event {
        Event::QpFatal { qp } => of_qp(qp, IBV_EVENT_QP_FATAL),
        Event::QpRequestError { qp } => of_qp(qp, IBV_EVENT_QP_REQ_ERR),
        Event::QpAccessError { qp } => of_qp(qp, IBV_EVENT_QP_ACCESS_ERR),
        Event::QpLastWqeReached { qp } => of_qp(qp, IBV_EVENT_QP_LAST_WQE_REACHED),
        Event::SrqLimitReached { srq, .. } => {
            SRQS.with(adapter, srq.0, |srq| {
                srq.limit.store(0, std::sync::atomic::Ordering::Relaxed);
                let element = ibv_async_event_element { srq: srq.pointer() };
                // SAFETY: as for a queue pair.
                let context = unsafe { (*srq.pointer()).context };
                push(context, element, IBV_EVENT_SRQ_LIMIT_REACHED);
            });
        }
        Event::CqError { cq, .. } => {
            CQS.with(adapter, cq.0, |cq| {
                let element = ibv_async_event_element { cq: cq.pointer() };
                // SAFETY: as for a queue pair.
                let context = unsafe { (*cq.pointer()).context };
                push(context, element, IBV_EVENT_CQ_ERR);
            });
        }
        Event::DeviceFatal => of_port(adapter, IBV_EVENT_DEVICE_FATAL),
        // The kernel tells of the port also where no device is open, and verbs know no shares of a queue.
        Event::PortError
        | Event::PortActive
        | Event::SrqShareExceeded { .. }
        | Event::SrqHighWater { .. } => {}
    }
}

fn push(context: *mut ibv_context, element: ibv_async_event_element, event_type: u32) {
    let event = ibv_async_event {
        element,
        event_type,
    };
    // SAFETY: a context is open as long as its objects exist.
    unsafe { Context::of(context) }
        .asynchronous
        .push(AsyncEvent(event));
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
enum About<'a> {
    Cq(&'a Cq),
    Qp(&'a Qp),
    Srq(&'a Srq),
    Port,
}

unsafe fn about<'a>(event: &ibv_async_event) -> About<'a> {
    match event.event_type {
        IBV_EVENT_CQ_ERR => About::Cq(Cq::of(event.element.cq)),
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => About::Qp(Qp::of(event.element.qp)),
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => About::Srq(Srq::of(event.element.srq)),
        _ => About::Port,
    }
}

/// Drops the events about an object that is being destroyed, and waits until the program has acknowledged those that it has read.
///
/// # Safety
/// The object exists, and belongs to this context.
unsafe fn drop_events(context: *mut ibv_context, is_it: impl Fn(&About<'_>) -> bool) {
    let context = Context::of(context);
    context.asynchronous.remove(|event| is_it(&about(&event.0)));
}

/// Begins to tell of a completion queue.
pub(crate) unsafe fn watch_cq(cq: *mut ibv_cq) {
    let cq = Cq::of(cq);
    CQS.add(cq.adapter, cq.id.0, cq);
}

/// Ends to tell of a completion queue.
pub(crate) unsafe fn forget_cq(cq: *mut ibv_cq) {
    let object = Cq::of(cq);
    CQS.remove(object.adapter, object.id.0);
    drop_events(
        (*cq).context,
        |about| matches!(about, About::Cq(cq) if std::ptr::eq(*cq, object)),
    );
    object.asynchronous.wait();
}

/// Begins to tell of a queue pair.
pub(crate) unsafe fn watch_qp(qp: *mut ibv_qp) {
    let qp = Qp::of(qp);
    QPS.add(qp.adapter, qp.number.0, qp);
}

/// Ends to tell of a queue pair.
pub(crate) unsafe fn forget_qp(qp: *mut ibv_qp) {
    let object = Qp::of(qp);
    QPS.remove(object.adapter, object.number.0);
    drop_events(
        (*qp).context,
        |about| matches!(about, About::Qp(qp) if std::ptr::eq(*qp, object)),
    );
    object.asynchronous.wait();
}

/// Begins to tell of a shared receive queue.
pub(crate) unsafe fn watch_srq(srq: *mut ibv_srq) {
    let srq = Srq::of(srq);
    SRQS.add(srq.adapter, srq.id.0, srq);
}

/// Ends to tell of a shared receive queue.
pub(crate) unsafe fn forget_srq(srq: *mut ibv_srq) {
    let object = Srq::of(srq);
    SRQS.remove(object.adapter, object.id.0);
    drop_events(
        (*srq).context,
        |about| matches!(about, About::Srq(srq) if std::ptr::eq(*srq, object)),
    );
    object.asynchronous.wait();
}

/// Waits for an event. A thread that waits here can be cancelled.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> i32 {
    let count = |event: &AsyncEvent| match about(&event.0) {
        About::Cq(cq) => cq.asynchronous.add(),
        About::Qp(qp) => qp.asynchronous.add(),
        About::Srq(srq) => srq.asynchronous.add(),
        About::Port => {}
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
    match about(&*event) {
        About::Cq(cq) => cq.asynchronous.acknowledge(1),
        About::Qp(qp) => qp.asynchronous.acknowledge(1),
        About::Srq(srq) => srq.asynchronous.acknowledge(1),
        About::Port => {}
    }
}
