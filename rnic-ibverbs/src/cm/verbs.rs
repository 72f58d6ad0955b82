//! What rdma_cm does with the objects of the verbs.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "the program's objects")]

use std::net::IpAddr;
use std::sync::Mutex;

use rnic_verbs::{Error, NetError, QpNumber};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cm::sidr;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::device::context_of;
use crate::errno::{Errno, ToErrno, lock};
use crate::modify::ibv_modify_qp;
use crate::objects::{Cq, Qp};
use crate::pd::ibv_alloc_pd;
use crate::qp::{create_numbered, create_unnumbered, ibv_destroy_qp};
use crate::srq::{create_srq_ex as make_srq, ibv_destroy_srq};
use rnic_verbs::rdma::gid_of;

pub(super) use crate::settings::MAX_READS;

/// The protection domain of a device that ids share whose programs name none.
#[derive(Clone, Copy)]
struct SharedPd {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    process: u32,
}

// SAFETY: a context and a protection domain, which threads share, and which stay as long as the
// process.
unsafe impl Send for SharedPd {}

static SHARED: Mutex<Vec<SharedPd>> = Mutex::new(Vec::new());

/// Returns the lock of the domains, which a child makes new.
pub(super) fn renewed() -> &'static Mutex<impl Default> {
    &SHARED
}

/// Shows the program the device that an id is bound to.
///
/// # Safety
/// `id` is an id of the program.
pub(super) unsafe fn attach(id: *mut rdma_cm_id, adapter: &'static Adapter) -> Result<(), Errno> {
    let context = context_of(adapter)?;
    let pd = shared_pd(context)?;
    (*id).verbs = context;
    (*id).pd = pd;
    (*id).port_num = 1;
    Ok(())
}

/// Returns the protection domain that ids on a device share.
///
/// # Safety
/// The context is open, and stays so.
unsafe fn shared_pd(context: *mut ibv_context) -> Result<*mut ibv_pd, Errno> {
    let process = std::process::id();
    let mut shared = lock(&SHARED);
    let known = shared
        .iter()
        .find(|one| one.context == context && one.process == process);
    if let Some(known) = known {
        return Ok(known.pd);
    }
    let pd = made(ibv_alloc_pd(context))?;
    shared.push(SharedPd {
        context,
        pd,
        process,
    });
    Ok(pd)
}

/// Returns what a verb has made.
fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() {
        return Err(Errno::last());
    }
    Ok(object)
}

/// Writes the GID of an address.
///
/// # Safety
/// The program's id, of which it is a member, exists.
pub(super) unsafe fn show_gid(gid: *mut ibv_gid, ip: IpAddr) {
    let v6 = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    (*gid).raw = v6.octets();
}

/// Returns the attributes of the address handle of a peer.
pub(super) fn address_handle(adapter: &Adapter, local: IpAddr, remote: IpAddr) -> ibv_ah_attr {
    let own = adapter.addresses();
    let mut attr = ibv_ah_attr {
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    };
    attr.grh.dgid.raw = gid_of(remote);
    attr.grh.sgid_index = own.iter().position(|ip| *ip == local).unwrap_or(0) as u8;
    attr
}

/// Makes a completion queue with a channel of its own for an id.
///
/// # Safety
/// `id` is an id of the program that has a device.
pub(super) unsafe fn create_cq(
    id: *mut rdma_cm_id,
    entries: u32,
) -> Result<(*mut ibv_cq, *mut ibv_comp_channel), Errno> {
    let channel = made(ibv_create_comp_channel((*id).verbs))?;
    let entries = i32::try_from(entries).unwrap_or(i32::MAX);
    match made(ibv_create_cq((*id).verbs, entries, id.cast(), channel, 0)) {
        Ok(cq) => Ok((cq, channel)),
        Err(errno) => {
            ibv_destroy_comp_channel(channel);
            Err(errno)
        }
    }
}

/// Destroys a completion queue, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn destroy_cq(cq: *mut ibv_cq) {
    if !cq.is_null() {
        ibv_destroy_cq(cq);
    }
}

/// Destroys a completion channel, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn destroy_channel(channel: *mut ibv_comp_channel) {
    if !channel.is_null() {
        ibv_destroy_comp_channel(channel);
    }
}

/// Makes a queue pair, and moves it to INIT, or to RTS if it is for datagrams.
///
/// # Safety
/// The objects that the attributes name exist, or are NULL.
pub(super) unsafe fn create_qp_ex(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    const OF_DATAGRAMS: [(u32, i32); 3] = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (IBV_QPS_RTR, 0),
        (IBV_QPS_RTS, IBV_QP_SQ_PSN),
    ];
    const OF_CONNECTIONS: [(u32, i32); 1] = [(IBV_QPS_INIT, IBV_QP_ACCESS_FLAGS | IBV_QP_PORT)];
    let (qp, steps) = match attr.qp_type {
        IBV_QPT_UD => (create_numbered(attr)?, &OF_DATAGRAMS[..]),
        _ => (create_unnumbered(attr)?, &OF_CONNECTIONS[..]),
    };
    for (state, mask) in steps {
        let mut new = ibv_qp_attr {
            qp_state: *state,
            port_num: 1,
            qkey: sidr::QKEY,
            ..ibv_qp_attr::default()
        };
        let errno = ibv_modify_qp(qp, &raw mut new, mask | IBV_QP_STATE);
        if errno != 0 {
            ibv_destroy_qp(qp);
            return Err(Errno::from_raw(errno));
        }
    }
    Ok(qp)
}

/// Destroys a queue pair, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn destroy_qp(qp: *mut ibv_qp) {
    if !qp.is_null() {
        ibv_destroy_qp(qp);
    }
}

/// Makes a shared receive queue.
///
/// # Safety
/// The context is open, and the protection domain exists.
pub(super) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, Errno> {
    made(make_srq(context, attr))
}

/// Destroys a shared receive queue, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn destroy_srq(srq: *mut ibv_srq) {
    if !srq.is_null() {
        ibv_destroy_srq(srq);
    }
}

/// Shows the program the state to which librdmacm has moved its queue pair, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn show_state(qp: *mut ibv_qp, state: u32) {
    if let Some(qp) = qp.as_mut() {
        qp.state = state;
    }
}

/// Moves a queue pair to the error state, if there is one.
///
/// # Safety
/// It is NULL, or exists.
pub(super) unsafe fn fail_queue_pair(qp: *mut ibv_qp) {
    show_state(qp, IBV_QPS_ERR);
    if !qp.is_null() {
        // Fails only where there is no engine any more, which has completed everything.
        let _ = Qp::of(qp).lock().fail();
    }
}

/// Returns whether completions of a queue pair that succeeded wait to be polled.
pub(super) fn holds_success(adapter: &Adapter, number: QpNumber) -> bool {
    let holds = |qp: &Qp| {
        // SAFETY: the queue pair is there, and so are the queues that it uses.
        let queues = unsafe { [(*qp.pointer()).send_cq, (*qp.pointer()).recv_cq] };
        queues.into_iter().any(|cq| {
            // SAFETY: as before.
            let cq = unsafe { Cq::of(cq) };
            cq.lock().holds_success_of(number)
        })
    };
    crate::qp::with_number(adapter, number, holds).unwrap_or(false)
}

/// Calls `work` with the queue pair of an id: its own, or else the one of the device that the
/// program names by its number.
///
/// # Safety
/// `id` is an id of the program.
pub(super) unsafe fn with_queue_pair(
    id: *mut rdma_cm_id,
    adapter: &Adapter,
    qp_num: u32,
    work: impl FnOnce(&Qp) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !(*id).qp.is_null() {
        let qp = Qp::of((*id).qp);
        let fits = std::ptr::eq(qp.adapter, adapter);
        return if fits { work(qp) } else { Err(Errno::EINVAL) };
    }
    let number = adapter.numbers.find(qp_num).ok_or(Errno::EINVAL)?;
    let connects = (*id).qp_type != IBV_QPT_UD;
    let work = |qp: &Qp| match connects && qp.datagrams.is_some() {
        // What it would be sent over a connection has no receives.
        true => Err(Errno::EINVAL),
        false => work(qp),
    };
    crate::qp::with_number(adapter, number, work).unwrap_or(Err(Errno::EINVAL))
}

/// Calls `work` with a queue pair, if that is still there.
pub(super) fn with_number(adapter: &Adapter, number: QpNumber, work: impl FnOnce(&Qp)) {
    crate::qp::with_number(adapter, number, work);
}

/// Aborts the connection of a queue pair, if that is still there.
pub(super) fn abort(adapter: &Adapter, number: QpNumber) {
    with_number(adapter, number, |qp| {
        let _ = qp.lock().fail();
    });
}

/// Returns the errno that programs expect.
pub(super) fn errno_of(error: Error) -> Errno {
    match &error {
        Error::Net(NetError::InUse(_)) => Errno::EADDRINUSE,
        Error::Net(NetError::NotLocal(..)) => Errno::EADDRNOTAVAIL,
        Error::Net(NetError::NoRoute(..)) => Errno::ENETUNREACH,
        Error::Net(NetError::Protected { .. }) => Errno::EACCES,
        _ => error.errno(),
    }
}
