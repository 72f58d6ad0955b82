//! Completion channels, and the notifications of completion queues.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::errno::{Errno, fail, lock, pointer, result};
use crate::event_queue::EventQueue;
use crate::objects::{Channel, Cq, CqPointer, Users};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let _whole = PutOff::new();
    pointer(EventQueue::new().map(|notified| {
        let abi = ibv_comp_channel {
            context,
            fd: notified.fd(),
            refcnt: 0,
        };
        Channel {
            abi: UnsafeCell::new(abi),
            notified: Arc::new(notified),
            users: Users::default(),
        }
        .give()
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> i32 {
    let _whole = PutOff::new();
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
            *cq = notified;
            *cq_context = (*notified).cq_context;
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    Cq::of(cq).notifications.acknowledge(events);
}

/// The engine's way from a completion queue to its channel.
pub(crate) struct Notifier {
    channel: Option<Arc<EventQueue<CqPointer>>>,
    /// The queue, as long as it exists.
    queue: Mutex<Option<CqPointer>>,
}

impl Notifier {
    /// Makes one for a queue that is about to be made.
    pub(crate) fn new(channel: Option<&Channel>) -> Arc<Self> {
        Arc::new(Self {
            channel: channel.map(|channel| channel.notified.clone()),
            queue: Mutex::new(None),
        })
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(crate) fn start(&self, queue: *mut ibv_cq) {
        *lock(&self.queue) = Some(CqPointer(queue));
    }

    /// Ends it: what was not read is dropped, and nothing follows.
    pub(crate) fn stop(&self) {
        let stopped = lock(&self.queue).take();
        if let (Some(queue), Some(channel)) = (stopped, &self.channel) {
            channel.remove(|waiting| *waiting == queue);
        }
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let queue = lock(&self.queue);
        if let (Some(queue), Some(channel)) = (*queue, &self.channel) {
            channel.push(queue);
        }
    }
}
