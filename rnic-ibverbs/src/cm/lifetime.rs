//! Ids come and go, and move between channels.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::mem::take;
use std::ptr::null_mut;
use std::time::Duration;

use crate::abi::*;
use crate::adapter::adapters;
use crate::cancellation::PutOff;
use crate::cm::channel::{self, rdma_destroy_event_channel};
use crate::cm::children;
use crate::cm::deliver::{next_of, rdma_ack_cm_event};
use crate::cm::id::{Id, Phase, QpAttributes, State, rdma_freeaddrinfo};
use crate::cm::table;
use crate::cm::verbs;
use crate::errno::{Errno, fail};

/// How long a worker of the device may take to stop listening.
const LONGEST_UNLISTEN: Duration = Duration::from_secs(1);

/// Makes an id. Without a channel it gets one of its own, and calls wait for their outcome.
///
/// # Safety
/// The channel is NULL, or exists.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<*mut rdma_cm_id, Errno> {
    if adapters().is_empty() {
        return Err(Errno::ENODEV);
    }
    children::register();
    let is_sync = channel.is_null();
    let (channel, queue) = if is_sync {
        channel::make()?
    } else {
        (channel, channel::queue_of(channel)?)
    };
    let state = State {
        queue: Some(queue),
        is_sync,
        ..State::default()
    };
    Ok(Id::make(channel, context, (ps, qp_type), state))
}

#[unsafe(export_name = "rnic_cm_rdma_create_id")]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> i32 {
    let _whole = PutOff::new();
    let qp_type = match ps {
        RDMA_PS_TCP | RDMA_PS_IB => IBV_QPT_RC,
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => return fail(Errno::EINVAL),
    };
    match create(channel, context, ps, qp_type) {
        Ok(made) => {
            *id = made;
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_destroy_id")]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> i32 {
    let _whole = PutOff::new();
    if Id::is_inherited(id) {
        return 0;
    }
    let this = match Id::of(id) {
        Ok(this) => this.clone(),
        Err(errno) => return fail(errno),
    };
    // From here on nothing is told any more.
    let mut last = {
        let mut state = this.state();
        let last = take(&mut *state);
        state.phase = Phase::Destroyed;
        last
    };
    if let Some(queue) = &last.queue {
        // Requests that wait there are rejected.
        let unread = this.take_waiting(queue).len();
        this.count_done(unread);
    }
    end_connection(&last);
    if last.phase == Phase::Listening {
        stop_listening(&this);
    }
    // A peer that waits for an answer is rejected.
    drop(last.request.take());
    acknowledge_kept(id);
    this.wait_acknowledged(0);
    if let Some(addresses) = last.resolved.first.take() {
        rdma_freeaddrinfo(addresses.0);
    }
    let channel = (*id).channel;
    Id::free(id);
    if last.is_sync {
        rdma_destroy_event_channel(channel);
    }
    0
}

/// Ends what an id that is being destroyed has begun. An end in order that is under way goes on.
fn end_connection(last: &State) {
    let (Some(adapter), Some(number)) = (last.adapter, last.connection) else {
        return;
    };
    table::forget_connection(adapter, number);
    if matches!(last.phase, Phase::Connecting | Phase::Connected) && !last.disconnected {
        verbs::abort(adapter, number);
    }
}

/// Stops listening. Unless connections have the port, it is free when this returns.
fn stop_listening(this: &std::sync::Arc<Id>) {
    for adapter in adapters() {
        if table::forget_listeners(adapter, this)
            && let Ok(device) = adapter.device()
        {
            // Workers carry out commands in their order, so this one's answer comes behind the end
            // of listening.
            let _ = device.barrier(LONGEST_UNLISTEN);
        }
    }
}

#[unsafe(export_name = "rnic_cm_rdma_migrate_id")]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> i32 {
    let _whole = PutOff::new();
    match migrate(id, channel) {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

/// Moves an id, and its events that wait, to another channel.
///
/// # Safety
/// `id` is NULL or an id of the program. The channel is NULL, or exists.
unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let to_own = channel.is_null();
    if to_own && this.state().is_sync {
        return Err(Errno::EINVAL);
    }
    let (channel, queue) = if to_own {
        channel::make()?
    } else {
        (channel, channel::queue_of(channel)?)
    };
    let (was, was_sync, moved) = {
        let mut state = this.state();
        // Both at once: the ids of peers that ask have both.
        let was = std::mem::replace(&mut (*id).channel, channel);
        let before = state.queue.replace(queue.clone());
        let waiting = before.map(|before| this.take_waiting(&before));
        let mut moved = 0;
        for one in waiting.into_iter().flatten() {
            if one.what.request.is_some() {
                this.requests
                    .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            queue.push(one);
            moved += 1;
        }
        let was_sync = std::mem::replace(&mut state.is_sync, to_own);
        (was, was_sync, moved)
    };
    if was_sync {
        acknowledge_kept(id);
        rdma_destroy_event_channel(was);
    }
    this.wait_acknowledged(moved);
    Ok(())
}

/// Acknowledges the event that an id of calls that wait keeps for its program.
///
/// # Safety
/// `id` is an id of the program.
pub(super) unsafe fn acknowledge_kept(id: *mut rdma_cm_id) {
    if !(*id).event.is_null() {
        rdma_ack_cm_event((*id).event);
        (*id).event = null_mut();
    }
}

/// Waits for the outcome of what was begun, if the id's calls do that.
///
/// # Safety
/// `id` is NULL or an id of the program.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let queue = {
        let state = Id::of(id)?.state();
        if !state.is_sync {
            return Ok(());
        }
        state.queue.clone().ok_or(Errno::EINVAL)?
    };
    acknowledge_kept(id);
    let event = next_of(&queue)?;
    (*id).event = event;
    match ((*event).event, (*event).status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno::ECONNREFUSED),
        (_, status) => Err(Errno::from_raw(status.wrapping_abs())),
    }
}

/// Keeps the attributes of the queue pairs that an endpoint which listens makes.
///
/// # Safety
/// `id` is NULL or an id of the program. The attributes are NULL, or can be read.
pub(super) unsafe fn keep_attributes(
    id: *mut rdma_cm_id,
    attributes: *const ibv_qp_init_attr,
    qp_type: u32,
) -> Result<(), Errno> {
    if let Some(given) = attributes.as_ref() {
        let mut kept = *given;
        kept.qp_type = qp_type;
        Id::of(id)?.state().qp_attributes = Some(QpAttributes(kept));
    }
    Ok(())
}
