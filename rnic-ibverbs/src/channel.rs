//! Completion channels, and the notifications of completion queues.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::errno::{Errno, fail, lock, pointer, result};
use crate::event_queue::EventQueue;
use crate::objects::{Channel, Cq, CqPointer, Users};
use crate::process;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let _whole = PutOff::new();
    let made = process::check(&Context::of(context).asynchronous.process);
    pointer(made.and_then(|()| EventQueue::new()).map(|notified| {
        let abi = ibv_comp_channel {
            context,
            fd: notified.fd(),
            refcnt: 0,
        };
        Channel {
            abi: UnsafeCell::new(abi),
            process: notified.process,
            notified: Arc::new(notified),
            users: Users::default(),
        }
        .give()
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> i32 {
    let _whole = PutOff::new();
    if Channel::is_inherited(channel) {
        return 0;
    }
    if Channel::of(channel).users.any() {
        return result(Err(Errno::EBUSY));
    }
    drop(Channel::take(channel));
    0
}

/// Waits for a notification. A thread that waits here can be cancelled.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> i32 {
    let count = |notified: &CqPointer| Cq::of(notified.0).notifications.add();
    match Channel::of(channel).notified.next_counted(count) {
        Ok(CqPointer(notified)) => {
            let _whole = PutOff::new();
            let object = Cq::of(notified);
            object
                .told
                .store(object.lock().written(), Ordering::Relaxed);
            *cq = notified;
            *cq_context = (*notified).cq_context;
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    if !Cq::is_inherited(cq) {
        let object = Cq::of(cq);
        {
            let _counting = object.lock();
            (*cq).comp_events_completed = (*cq).comp_events_completed.wrapping_add(events);
        }
        object.notifications.acknowledge(events);
    }
}

/// Registers `watcher`, which is called for each notification of a channel.
///
/// # Safety
/// The channel exists.
pub(crate) unsafe fn on_notification(
    channel: *mut ibv_comp_channel,
    watcher: impl Fn() + Send + Sync + 'static,
) {
    Channel::of(channel).notified.watch(watcher);
}

/// The engine's way from a completion queue to its channel.
pub(crate) struct Notifier(Mutex<Notified>);

struct Notified {
    /// The channel, as long as the queue exists: the engine may keep its way for longer, and the
    /// program closes the descriptor.
    channel: Option<Arc<EventQueue<CqPointer>>>,
    /// The queue, once it exists.
    queue: Option<CqPointer>,
}

impl Notifier {
    /// Makes one for a queue that is about to be made.
    pub(crate) fn new(channel: Option<&Channel>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Notified {
            channel: channel.map(|channel| channel.notified.clone()),
            queue: None,
        })))
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(crate) fn start(&self, queue: *mut ibv_cq) {
        lock(&self.0).queue = Some(CqPointer(queue));
    }

    /// Ends it: what was not read is dropped, and nothing follows.
    pub(crate) fn stop(&self) {
        let mut notified = lock(&self.0);
        if let (Some(queue), Some(channel)) = (notified.queue.take(), notified.channel.take()) {
            channel.remove(|waiting| *waiting == queue);
        }
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let notified = lock(&self.0);
        if let (Some(queue), Some(channel)) = (notified.queue, &notified.channel) {
            channel.push(queue);
        }
    }
}
