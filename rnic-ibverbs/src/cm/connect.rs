//! Connecting, answering, and ending connections.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{ConnectionOptions, Keepalive};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::cancellation::PutOff;
use crate::cm::address::Reserved;
use crate::cm::attempt::{ASKED_AGAIN, Attempt};
use crate::cm::id::{Asking, Id, Phase};
use crate::cm::lifetime::complete;
use crate::cm::sidr;
use crate::cm::table;
use crate::cm::verbs::{MAX_READS, errno_of, show_state, with_number, with_queue_pair};
use crate::errno::{Errno, fail, lock};
use crate::objects::Qp;

/// The values that leave the read depths to rdma_cm.
const DEFAULT_DEPTH: u8 = 0xff;

/// The longest private data.
const MAX_PRIVATE_DATA: usize = 255;

/// How long an initiator waits before it sends. The kernel's siw can overlook what reaches it right
/// behind its Reply, and then stands still.
const FIRST_FPDU_DELAY: Duration = Duration::from_millis(5);

/// When a silent peer is probed. Where the peer was killed, nobody has told this side that the
/// connection is over: its host answers the probe with a reset. A peer that answers nothing is
/// another matter, and gets as many probes as there can be.
const PROBES: Keepalive = Keepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(5),
    count: u8::MAX,
};

/// How long a call waits until the engine has done what it was told.
const PROMPT: Duration = Duration::from_millis(100);

/// Waits until the engine has done what it was told. The program may end right behind it, without
/// what it has registered for the end, and the peer is to have the answer, or the end of the
/// connection, as from the kernel's rdma_cm.
fn settle(adapter: &Adapter) {
    if let Some(device) = adapter.opened() {
        // Fails only where there is no engine any more.
        let _ = device.barrier(PROMPT);
    }
}

/// Checks the parameters of a program.
///
/// # Safety
/// `id` is an id of the program. The parameters are NULL, or stay as they are during the call.
unsafe fn checked<'a>(
    id: *mut rdma_cm_id,
    given: *const rdma_conn_param,
) -> Result<Option<&'a rdma_conn_param>, Errno> {
    let given = given.as_ref();
    let too_deep = |depth: u8| depth != DEFAULT_DEPTH && u16::from(depth) > MAX_READS;
    match given {
        None if (*id).qp.is_null() => Err(Errno::EINVAL),
        Some(given) if too_deep(given.responder_resources) => Err(Errno::EINVAL),
        Some(given) if too_deep(given.initiator_depth) => Err(Errno::EINVAL),
        given => Ok(given),
    }
}

/// Returns a depth: what the program says, or the default.
fn depth(given: Option<u8>, default: u16) -> u16 {
    match given {
        None | Some(DEFAULT_DEPTH) => default,
        Some(depth) => depth.into(),
    }
}

/// Returns private data of the program.
///
/// # Safety
/// They are NULL, or so many octets, which stay as they are during the call.
unsafe fn octets<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    std::slice::from_raw_parts(data.cast(), len.into())
}

/// Returns the private data of parameters.
///
/// # Safety
/// As of [`octets`].
unsafe fn private_data(given: Option<&rdma_conn_param>) -> &[u8] {
    given.map_or(&[], |given| {
        octets(given.private_data, given.private_data_len)
    })
}

/// Connects an id whose route is resolved.
///
/// # Safety
/// `id` is NULL or an id of the program, and the parameters are NULL or those of a call.
unsafe fn connect(id: *mut rdma_cm_id, given: *const rdma_conn_param) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let given = checked(id, given)?;
    let attempt = begin(this, given)?;
    let number = given.map_or(0, |given| given.qp_num);
    let connected = match this.qp_type {
        IBV_QPT_UD => ask(this, &attempt),
        _ => with_queue_pair(id, attempt.adapter, number, |qp| start(this, qp, &attempt)),
    };
    if let Err(errno) = connected {
        table::forget_connection_of(attempt.adapter, this);
        let mut state = this.state();
        (state.phase, state.attempt) = (Phase::RouteResolved, None);
        state.asking = None;
        return Err(errno);
    }
    this.state().connect_data.clear();
    complete(id)
}

/// Moves an id to the state in which it connects.
///
/// # Safety
/// The private data are as long as the parameters say.
unsafe fn begin(this: &Arc<Id>, given: Option<&rdma_conn_param>) -> Result<Attempt, Errno> {
    let mut state = this.state();
    if state.phase != Phase::RouteResolved {
        return Err(Errno::EINVAL);
    }
    let mut data = state.connect_data.clone();
    data.extend_from_slice(private_data(given));
    let most = match this.qp_type {
        IBV_QPT_UD => sidr::MAX_PRIVATE_DATA,
        _ => MAX_PRIVATE_DATA,
    };
    if data.len() > most {
        return Err(Errno::EINVAL);
    }
    if this.qp_type == IBV_QPT_UD {
        data = sidr::question(&data);
    }
    let options = ConnectionOptions {
        ird: depth(given.map(|given| given.responder_resources), MAX_READS),
        ord: depth(given.map(|given| given.initiator_depth), MAX_READS),
        private_data: data,
        // Either program may send first, as over any other RDMA device.
        peer_to_peer: true,
        first_fpdu_delay: FIRST_FPDU_DELAY,
        traffic_class: state.options.type_of_service,
        keepalive: Some(PROBES),
        ..ConnectionOptions::default()
    };
    // The engine reserves the port for itself.
    let shared = state.reserved.take().and_then(Reserved::free);
    let adapter = state.adapter.ok_or(Errno::EINVAL)?;
    let by_sockets = adapter.device()?.kernel().is_some();
    let attempt = Attempt {
        adapter,
        local: state.local.ok_or(Errno::EINVAL)?,
        remote: state.remote.ok_or(Errno::EINVAL)?,
        any_port: state.any_port,
        options,
        again: if by_sockets { ASKED_AGAIN } else { 0 },
        _shared: shared.map(Arc::new),
    };
    state.phase = Phase::Connecting;
    state.attempt = Some(attempt.clone());
    Ok(attempt)
}

/// Makes the queue pair connect, and remembers whose connection it is.
fn start(this: &Arc<Id>, qp: &Qp, attempt: &Attempt) -> Result<(), Errno> {
    table::remember_connection(attempt.adapter, qp.number(), this)?;
    attempt.start(&mut qp.lock())
}

/// Asks a peer for the queue pair of its datagrams, with a queue pair for that alone: whatever the
/// peer does with the connection, those of the program stay as they are.
fn ask(this: &Arc<Id>, attempt: &Attempt) -> Result<(), Errno> {
    let qp = sidr::asker(attempt.adapter)?;
    table::remember_connection(attempt.adapter, qp.number(), this)?;
    let mut state = this.state();
    let forget = table::forget_connection;
    let asking = state.asking.insert(Asking { qp, forget });
    attempt.start(&mut asking.qp)
}

#[unsafe(export_name = "rnic_cm_rdma_connect")]
pub(crate) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> i32 {
    connect(id, conn_param).map_or_else(fail, |()| 0)
}

/// Tells a peer the queue pair to which it may send datagrams. That is all there is of it.
///
/// # Safety
/// As of [`accept`].
unsafe fn accept_datagrams(
    id: *mut rdma_cm_id,
    given: Option<&rdma_conn_param>,
) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let data = private_data(given);
    if data.len() > sidr::MAX_PRIVATE_DATA {
        return Err(Errno::EINVAL);
    }
    let (number, qkey) = match (*id).qp.as_ref() {
        Some(qp) => (qp.qp_num, lock(&Qp::of((*id).qp).settings).attr.qkey),
        None => (given.map_or(0, |given| given.qp_num), sidr::QKEY),
    };
    let (asked, adapter) = {
        let mut state = this.state();
        if state.phase != Phase::Requested {
            return Err(Errno::EINVAL);
        }
        let asked = state.request.take().ok_or(Errno::EINVAL)?;
        state.phase = Phase::Over;
        (asked, state.adapter)
    };
    let answer = sidr::acceptance(number, qkey, data);
    asked.reject(&answer).map_err(errno_of)?;
    adapter.into_iter().for_each(settle);
    Ok(())
}

/// Accepts a peer.
///
/// # Safety
/// `id` is NULL or an id of the program, and the parameters are NULL or those of a call.
unsafe fn accept(id: *mut rdma_cm_id, given: *const rdma_conn_param) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let given = checked(id, given)?;
    if this.qp_type == IBV_QPT_UD {
        return accept_datagrams(id, given);
    }
    let (adapter, asked, options) = {
        let mut state = this.state();
        let adapter = state.adapter.ok_or(Errno::EINVAL)?;
        if state.phase != Phase::Requested {
            return Err(Errno::EINVAL);
        }
        // By default what the peer can do with, and this side can.
        let ird = state.responder_resources.min(MAX_READS);
        let ord = state.initiator_depth.min(MAX_READS);
        let options = ConnectionOptions {
            ird: depth(given.map(|given| given.responder_resources), ird),
            ord: depth(given.map(|given| given.initiator_depth), ord),
            private_data: private_data(given).to_vec(),
            traffic_class: state.options.type_of_service,
            keepalive: Some(PROBES),
            ..ConnectionOptions::default()
        };
        let asked = state.request.take().ok_or(Errno::EINVAL)?;
        state.phase = Phase::Connecting;
        (adapter, asked, options)
    };
    let number = given.map_or(0, |given| given.qp_num);
    let accepted = with_queue_pair(id, adapter, number, |qp| {
        table::remember_connection(adapter, qp.number(), this)?;
        asked.accept(&mut qp.lock(), options).map_err(errno_of)
    });
    if let Err(errno) = accepted {
        // The peer was rejected.
        table::forget_connection_of(adapter, this);
        this.state().phase = Phase::Over;
        return Err(errno);
    }
    // As librdmacm does: over iWARP the move to RTS is the kernel's.
    show_state((*id).qp, IBV_QPS_RTR);
    complete(id)
}

#[unsafe(export_name = "rnic_cm_rdma_accept")]
pub(crate) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> i32 {
    accept(id, conn_param).map_or_else(fail, |()| 0)
}

/// Rejects a peer.
///
/// # Safety
/// `id` is NULL or an id of the program. As of [`octets`].
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let (asked, adapter) = {
        let mut state = this.state();
        let asked = state.request.take().ok_or(Errno::EINVAL)?;
        state.phase = Phase::Over;
        (asked, state.adapter)
    };
    let data = octets(data, len);
    match this.qp_type {
        IBV_QPT_UD => asked.reject(&sidr::rejection(data)),
        _ => asked.reject(data),
    }
    .map_err(errno_of)?;
    adapter.into_iter().for_each(settle);
    Ok(())
}

#[unsafe(export_name = "rnic_cm_rdma_reject")]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> i32 {
    let _whole = PutOff::new();
    reject(id, private_data, private_data_len).map_or_else(fail, |()| 0)
}

#[unsafe(export_name = "rnic_cm_rdma_reject_ece")]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> i32 {
    let _whole = PutOff::new();
    // MPA has no reasons.
    rdma_reject(id, private_data, private_data_len)
}

/// Ends a connection in order.
///
/// # Safety
/// `id` is NULL or an id of the program.
unsafe fn disconnect(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let this = Id::of(id)?;
    // There is no connection.
    if this.qp_type == IBV_QPT_UD {
        return Err(Errno::EINVAL);
    }
    let (adapter, connection, knows_end) = {
        let mut state = this.state();
        let was_connected = matches!(state.phase, Phase::Connecting | Phase::Connected)
            || (state.phase == Phase::Over && state.was_begun);
        if !was_connected || std::mem::replace(&mut state.disconnected, true) {
            return Err(Errno::EINVAL);
        }
        let adapter = state.adapter.ok_or(Errno::EINVAL)?;
        (adapter, state.connection, state.knows_end)
    };
    show_state((*id).qp, IBV_QPS_SQD);
    if let Some(number) = connection {
        with_number(adapter, number, |qp| {
            // Fails if the connection is over already.
            let _ = qp.lock().disconnect();
        });
        settle(adapter);
    }
    if knows_end {
        return Ok(());
    }
    complete(id)
}

#[unsafe(export_name = "rnic_cm_rdma_disconnect")]
pub(crate) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> i32 {
    disconnect(id).map_or_else(fail, |()| 0)
}

/// For a CONNECT_RESPONSE, which no iWARP device reports.
#[unsafe(export_name = "rnic_cm_rdma_establish")]
pub(crate) unsafe extern "C" fn rdma_establish(_id: *mut rdma_cm_id) -> i32 {
    fail(Errno::EINVAL)
}

/// For what InfiniBand devices report of connections.
#[unsafe(export_name = "rnic_cm_rdma_notify")]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: u32) -> i32 {
    let _whole = PutOff::new();
    let known = Id::of(id).is_ok_and(|this| {
        let phase = this.state().phase;
        matches!(phase, Phase::Connecting | Phase::Connected | Phase::Over)
    });
    if known { 0 } else { fail(Errno::EINVAL) }
}
