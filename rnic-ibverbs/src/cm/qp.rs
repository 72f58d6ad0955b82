//! The queue pair of an id, and the queues that are made with it.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::mem::offset_of;
use std::net::IpAddr;
use std::ptr::{copy_nonoverlapping, null_mut};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::cancellation::PutOff;
use crate::cm::id::{Id, Phase};
use crate::cm::sidr;
use crate::cm::verbs::{self, create_qp_ex, create_srq_ex};
use crate::errno::{Errno, fail};

/// The members that the two structures have in common.
const PLAIN_QP: usize = offset_of!(ibv_qp_init_attr_ex, comp_mask);
const PLAIN_SRQ: usize = size_of::<ibv_srq_init_attr>();

/// Destroys the completion queues and channels that an id has.
///
/// # Safety
/// `id` is an id of the program.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    if (*id).qp_type == IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
        return;
    }
    let (send, recv) = ((*id).send_cq, (*id).recv_cq);
    for cq in [recv, if send == recv { null_mut() } else { send }] {
        verbs::destroy_cq(cq);
    }
    ((*id).send_cq, (*id).recv_cq) = (null_mut(), null_mut());
    let (send, recv) = ((*id).send_cq_channel, (*id).recv_cq_channel);
    for channel in [recv, if send == recv { null_mut() } else { send }] {
        verbs::destroy_channel(channel);
    }
    ((*id).send_cq_channel, (*id).recv_cq_channel) = (null_mut(), null_mut());
}

/// Makes the completion queues that are wanted, each with a channel.
///
/// # Safety
/// `id` is an id of the program that has a device.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), Errno> {
    let made = (|| {
        if recv > 0 {
            ((*id).recv_cq, (*id).recv_cq_channel) = verbs::create_cq(id, recv)?;
        }
        if send > 0 {
            ((*id).send_cq, (*id).send_cq_channel) = verbs::create_cq(id, send)?;
        }
        Ok(())
    })();
    if made.is_err() {
        destroy_cqs(id);
    }
    made
}

/// Makes the queue pair of an id.
///
/// # Safety
/// `id` is NULL or an id of the program. The objects that the attributes name exist, or are NULL.
unsafe fn create_qp(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let is_datagram = Id::of(id)?.qp_type == IBV_QPT_UD;
    if !(*id).qp.is_null() || (*id).verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    if is_datagram != (attr.qp_type == IBV_QPT_UD) {
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = (*id).pd;
    } else if (*attr.pd).context != (*id).verbs {
        return Err(Errno::EINVAL);
    }
    let differ =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if differ((*id).recv_cq, attr.recv_cq) || differ((*id).send_cq, attr.send_cq) {
        return Err(Errno::EINVAL);
    }
    let wanted = |own: *mut ibv_cq, given: *mut ibv_cq, entries| {
        if own.is_null() && given.is_null() {
            entries
        } else {
            0
        }
    };
    let send = wanted((*id).send_cq, attr.send_cq, attr.cap.max_send_wr);
    let recv = wanted((*id).recv_cq, attr.recv_cq, attr.cap.max_recv_wr);
    create_cqs(id, send, recv)?;
    if attr.send_cq.is_null() {
        attr.send_cq = (*id).send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = (*id).recv_cq;
    }
    if attr.srq.is_null() {
        attr.srq = (*id).srq;
    }
    let qp = create_qp_ex(attr).inspect_err(|_| destroy_cqs(id))?;
    (*id).qp = qp;
    (*id).pd = attr.pd;
    Ok(())
}

#[unsafe(export_name = "rnic_cm_rdma_create_qp_ex")]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> i32 {
    let _whole = PutOff::new();
    match attr.as_mut() {
        Some(attr) => create_qp(id, attr).map_or_else(fail, |()| 0),
        None => fail(Errno::EINVAL),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_create_qp")]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> i32 {
    let _whole = PutOff::new();
    if qp_init_attr.is_null() {
        return fail(Errno::EINVAL);
    }
    let mut attr = ibv_qp_init_attr_ex::zeros();
    let (plain, extended) = (qp_init_attr.cast::<u8>(), (&raw mut attr).cast::<u8>());
    copy_nonoverlapping(plain, extended, PLAIN_QP);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    let made = rdma_create_qp_ex(id, &raw mut attr);
    // What was granted.
    copy_nonoverlapping((&raw const attr).cast::<u8>(), plain, PLAIN_QP);
    made
}

#[unsafe(export_name = "rnic_cm_rdma_destroy_qp")]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let _whole = PutOff::new();
    verbs::destroy_qp((*id).qp);
    (*id).qp = null_mut();
    destroy_cqs(id);
}

/// Makes the shared receive queue of an id.
///
/// # Safety
/// `id` is NULL or an id of the program. The protection domain exists, or is NULL.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    Id::of(id)?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*id).verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    if attr.srq_type == IBV_SRQT_XRC {
        return Err(Errno::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = (*id).pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    (*id).srq = create_srq_ex((*id).verbs, attr)?;
    if (*id).pd.is_null() {
        (*id).pd = attr.pd;
    }
    Ok(())
}

#[unsafe(export_name = "rnic_cm_rdma_create_srq_ex")]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> i32 {
    let _whole = PutOff::new();
    match attr.as_mut() {
        Some(attr) => create_srq(id, attr).map_or_else(fail, |()| 0),
        None => fail(Errno::EINVAL),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_create_srq")]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> i32 {
    let _whole = PutOff::new();
    if attr.is_null() || id.is_null() {
        return fail(Errno::EINVAL);
    }
    let mut extended = ibv_srq_init_attr_ex::zeros();
    copy_nonoverlapping(attr.cast::<u8>(), (&raw mut extended).cast(), PLAIN_SRQ);
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = if (*id).qp_type == IBV_QPT_XRC_RECV {
        IBV_SRQT_XRC
    } else {
        IBV_SRQT_BASIC
    };
    extended.pd = pd;
    let made = rdma_create_srq_ex(id, &raw mut extended);
    (*attr).attr = extended.attr;
    made
}

#[unsafe(export_name = "rnic_cm_rdma_destroy_srq")]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let _whole = PutOff::new();
    verbs::destroy_srq((*id).srq);
    (*id).srq = null_mut();
    destroy_cqs(id);
}

/// Describes the way to a peer as adapters of RoCE do: UCX reads it, whatever the mask says.
fn describe_path(adapter: &Adapter, (local, remote): (IpAddr, IpAddr), attr: &mut ibv_qp_attr) {
    attr.path_mtu = adapter.mtu();
    attr.ah_attr = verbs::address_handle(adapter, local, remote);
}

/// Names the attributes with which a program moves its queue pair itself, as the kernel does for
/// iWARP.
#[unsafe(export_name = "rnic_cm_rdma_init_qp_attr")]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut i32,
) -> i32 {
    let _whole = PutOff::new();
    let (Ok(this), Some(attr), Some(mask)) = (Id::of(id), qp_attr.as_mut(), qp_attr_mask.as_mut())
    else {
        return fail(Errno::EINVAL);
    };
    let state = this.state();
    let begun = matches!(
        state.phase,
        Phase::Requested | Phase::Connecting | Phase::Connected | Phase::Over
    );
    attr.port_num = (*id).port_num;
    if let (Some(adapter), Some(local), Some(remote)) = (state.adapter, state.local, state.remote) {
        describe_path(adapter, (local.ip(), remote.ip()), attr);
    }
    *mask = match attr.qp_state {
        IBV_QPS_INIT if this.qp_type == IBV_QPT_UD => {
            attr.qkey = sidr::QKEY;
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
        }
        IBV_QPS_RTR if this.qp_type == IBV_QPT_UD => IBV_QP_STATE,
        IBV_QPS_RTS if this.qp_type == IBV_QPT_UD => IBV_QP_STATE | IBV_QP_SQ_PSN,
        IBV_QPS_INIT | IBV_QPS_RTR => {
            attr.qp_access_flags = if begun {
                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
            } else {
                0
            };
            IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT
        }
        IBV_QPS_RTS => IBV_QP_PORT,
        _ => return fail(Errno::EINVAL),
    };
    0
}
