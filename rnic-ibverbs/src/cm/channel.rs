//! Event channels.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::abi::*;
use crate::adapter::adapters;
use crate::cancellation::PutOff;
use crate::cm::id::Queue;
use crate::errno::{Errno, fail_ptr, lock};
use crate::event_queue::EventQueue;
use crate::process::{self, Process, in_children, renew};

/// A channel in the program's hands.
///
/// Its memory is never freed, but given out again. Some programs have a thread that waits for events
/// to the very end, and comes back to a channel that another thread has destroyed meanwhile (rping is
/// one). Over rdma-core such a call fails.
#[repr(C)]
struct ProgramChannel {
    public: rdma_event_channel,
    process: Process,
    queue: Mutex<Option<Queue>>,
}

/// What a channel shows that was destroyed.
const GONE: RawFd = -1;

/// A channel that was destroyed.
struct Unused(*mut ProgramChannel);

// SAFETY: its memory stays, and no thread but the one that gives it out again writes to it, except
// under its lock.
unsafe impl Send for Unused {}

static UNUSED: Mutex<VecDeque<Unused>> = Mutex::new(VecDeque::new());

/// So many channels stay unused behind their end before the oldest is given out again: a thread that
/// comes back late is not to wait for another one's events.
const RESTING: usize = 64;

/// Forgets the parent's channels in a child.
extern "C" fn renew_unused() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe { renew(&UNUSED) };
}

/// Makes a channel.
pub(super) fn make() -> Result<(*mut rdma_event_channel, Queue), Errno> {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_unused);
    let queue = Arc::new(EventQueue::new()?);
    let unused = {
        let mut unused = lock(&UNUSED);
        let is_enough = unused.len() > RESTING;
        is_enough.then(|| unused.pop_front()).flatten()
    };
    let channel = unused.map_or_else(new, |unused| unused.0);
    // SAFETY: its memory is never freed, and nobody else is given this channel.
    unsafe {
        (*channel).public.fd = queue.fd();
        *lock(&(*channel).queue) = Some(queue.clone());
    }
    Ok((channel.cast(), queue))
}

fn new() -> *mut ProgramChannel {
    Box::into_raw(Box::new(ProgramChannel {
        public: rdma_event_channel { fd: GONE },
        process: Process::this(),
        queue: Mutex::default(),
    }))
}

/// Returns the events of a channel of the program. Fails with EBADF if it was destroyed.
///
/// # Safety
/// It is NULL, or a channel that was made.
pub(super) unsafe fn queue_of(channel: *mut rdma_event_channel) -> Result<Queue, Errno> {
    let made = channel.cast::<ProgramChannel>();
    if made.is_null() {
        return Err(Errno::EINVAL);
    }
    process::check(&(*made).process)?;
    lock(&(*made).queue).clone().ok_or(Errno::EBADF)
}

#[unsafe(export_name = "rnic_cm_rdma_create_event_channel")]
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let _whole = PutOff::new();
    if adapters().is_empty() {
        return fail_ptr(Errno::ENODEV);
    }
    match make() {
        Ok((channel, _)) => channel,
        Err(errno) => fail_ptr(errno),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_destroy_event_channel")]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _whole = PutOff::new();
    let made = channel.cast::<ProgramChannel>();
    // What was inherited by a fork is left.
    if made.is_null() || (*made).process.is_forked() {
        return;
    }
    // Dropped behind the lock. Who has destroyed a channel twice has done so once.
    let queue = lock(&(*made).queue).take();
    if queue.is_some() {
        (*made).public.fd = GONE;
        lock(&UNUSED).push_back(Unused(made));
    }
}
