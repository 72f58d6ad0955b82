//! Endpoints: ids whose addresses are resolved, and whose queue pairs are made, in one call.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ptr::null_mut;

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::cm::id::Id;
use crate::cm::lifetime::{create, keep_attributes, rdma_destroy_id};
use crate::cm::qp::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::cm::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::errno::{Errno, fail};

/// rdma-core's, which is not used.
const TIMEOUT_MS: i32 = 2000;

/// Returns an error if a call has failed.
fn check(outcome: i32) -> Result<(), Errno> {
    if outcome == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

/// Binds an endpoint that is going to listen.
///
/// # Safety
/// `id` is an id of the program, and the others are what `rdma_create_ep` asks for.
unsafe fn passive(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    check(rdma_bind_addr(id, res.ai_src_addr))?;
    if !pd.is_null() {
        (*id).pd = pd;
    }
    keep_attributes(id, attributes, res.ai_qp_type as u32)
}

/// Resolves the way to the peer of an endpoint, and makes its queue pair.
///
/// # Safety
/// `id` is an id of the program, and the others are what `rdma_create_ep` asks for.
unsafe fn active(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    check(rdma_resolve_addr(
        id,
        res.ai_src_addr,
        res.ai_dst_addr,
        TIMEOUT_MS,
    ))?;
    check(rdma_resolve_route(id, TIMEOUT_MS))?;
    if let Some(attributes) = attributes.as_mut() {
        attributes.qp_type = res.ai_qp_type as u32;
        check(rdma_create_qp(id, pd, attributes))?;
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
        Id::of(id)?.state().connect_data = data.to_vec();
    }
    Ok(())
}

#[unsafe(export_name = "rnic_cm_rdma_create_ep")]
pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> i32 {
    let Some(res) = res.as_ref() else {
        return fail(Errno::EINVAL);
    };
    let kind = (res.ai_port_space as u32, res.ai_qp_type as u32);
    let made = match create(null_mut(), null_mut(), kind.0, kind.1) {
        Ok(made) => made,
        Err(errno) => return fail(errno),
    };
    let done = if res.ai_flags & RAI_PASSIVE != 0 {
        passive(made, res, pd, qp_init_attr)
    } else {
        active(made, res, pd, qp_init_attr)
    };
    match done {
        Ok(()) => {
            *id = made;
            0
        }
        Err(errno) => {
            rdma_destroy_ep(made);
            fail(errno)
        }
    }
}

#[unsafe(export_name = "rnic_cm_rdma_destroy_ep")]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    let _whole = PutOff::new();
    if id.is_null() {
        return;
    }
    if !(*id).qp.is_null() {
        rdma_destroy_qp(id);
    }
    if !(*id).srq.is_null() {
        rdma_destroy_srq(id);
    }
    rdma_destroy_id(id);
}
