//! Event channels.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::abi::*;
use crate::adapter::adapters;
use crate::cancellation::PutOff;
use crate::cm::id::Queue;
use crate::errno::{Errno, fail_ptr};
use crate::event_queue::EventQueue;
use crate::process;

/// A channel in the program's hands.
#[repr(C)]
struct ProgramChannel {
    public: rdma_event_channel,
    queue: Queue,
}

/// Makes a channel.
pub(super) fn make() -> Result<(*mut rdma_event_channel, Queue), Errno> {
    let queue = Arc::new(EventQueue::new()?);
    let fd: RawFd = queue.fd();
    let made = ProgramChannel {
        public: rdma_event_channel { fd },
        queue: queue.clone(),
    };
    Ok((Box::into_raw(Box::new(made)).cast(), queue))
}

/// Returns the events of a channel of the program.
///
/// # Safety
/// It is NULL, or a channel that exists.
pub(super) unsafe fn queue_of(channel: *mut rdma_event_channel) -> Result<Queue, Errno> {
    let made = channel.cast::<ProgramChannel>().as_ref();
    let queue = &made.ok_or(Errno::EINVAL)?.queue;
    process::check(&queue.process)?;
    Ok(queue.clone())
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
    let made = channel.cast::<ProgramChannel>().as_ref();
    // What was inherited by a fork is left.
    if made.is_some_and(|made| !made.queue.process.is_forked()) {
        drop(Box::from_raw(channel.cast::<ProgramChannel>()));
    }
}
