//! The events that programs get from their channels.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::libc;

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::cm::channel::queue_of;
use crate::cm::given::Given;
use crate::cm::id::{Id, Queue, Waiting};
use crate::cm::request;
use crate::cm::verbs;
use crate::errno::{Errno, fail};
use crate::exit;

#[unsafe(export_name = "rnic_cm_rdma_get_cm_event")]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> i32 {
    if event.is_null() {
        return fail(Errno::EINVAL);
    }
    let next = match queue_of(channel) {
        Ok(queue) => next_of(&queue),
        // The program has destroyed it on its way out, and this thread would end the process anew, by
        // another code: the process is over first. An exit handler may cancel the thread, or wait for
        // it.
        Err(Errno::EBADF) if exit::has_begun() => {
            libc::sleep(exit::LONGEST_SECONDS);
            Err(Errno::EBADF)
        }
        Err(errno) => Err(errno),
    };
    match next {
        Ok(given) => {
            *event = given;
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Waits for the next event of a channel that there is something to say of.
pub(super) fn next_of(queue: &Queue) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        let waiting = queue.next()?;
        // SAFETY: the event was told to its id, and is not acknowledged. Whoever destroys the id
        // waits for that.
        if let Some(given) = unsafe { give(waiting) } {
            return Ok(given);
        }
    }
}

/// Makes the program's event of one that waited. Returns `None` if it came to nothing.
///
/// # Safety
/// The program's part of the id is there.
unsafe fn give(waiting: Waiting) -> Option<*mut rdma_cm_event> {
    let Waiting { id, mut what } = waiting;
    let public = id.public();
    if let Some(asked) = what.request.take() {
        id.requests.fetch_sub(1, Ordering::Relaxed);
        let Some(child) = request::make_id(&id, asked, &what) else {
            id.count_done(1);
            return None;
        };
        return Some(Given::give(&what, child, public, id));
    }
    match what.event {
        RDMA_CM_EVENT_ESTABLISHED => id.show_port(),
        // As rdma-core does: what is posted completes.
        RDMA_CM_EVENT_REJECTED => verbs::fail_queue_pair((*public).qp),
        RDMA_CM_EVENT_DISCONNECTED => id.state().knows_end = true,
        _ => {}
    }
    Some(Given::give(&what, public, null_mut(), id))
}

#[unsafe(export_name = "rnic_cm_rdma_ack_cm_event")]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> i32 {
    let _whole = PutOff::new();
    if event.is_null() {
        return fail(Errno::EINVAL);
    }
    let counted: Arc<Id> = Given::take_back(event);
    if counted.is_of_parent() {
        std::mem::forget(counted);
        return 0;
    }
    counted.count_done(1);
    0
}
