//! Structures of zeros, which programs and this library fill member by member.
#![allow(unsafe_code, reason = "the structures of C have no default values")]

use super::attributes::ibv_srq_init_attr_ex;
use super::attributes::{ibv_device_attr_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use super::objects::{ibv_context_ops, ibv_cq_ex, ibv_device_attr, ibv_qp_ex, ibv_send_wr};
use super::rdma_cm::{rdma_cm_event, rdma_cm_id, rdma_sockaddr};
use super::verbs::verbs_context;

/// A structure of which zeros are a value.
///
/// # Safety
/// It has only numbers, octets, pointers that may be null and functions that may be absent, or
/// unions of those.
pub(crate) unsafe trait Zeros: Sized {
    fn zeros() -> Self {
        // SAFETY: zeros are a value of it, says the implementation.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! zeros {
    ($($name:ident)*) => { $(
        // SAFETY: it has nothing else, nor have the structures in it. Mutexes and condition
        // variables of the C library are numbers.
        unsafe impl Zeros for $name {}
    )* };
}

zeros! {
    ibv_context_ops
    ibv_cq_ex
    ibv_device_attr
    ibv_device_attr_ex
    ibv_qp_ex
    ibv_qp_init_attr
    ibv_qp_init_attr_ex
    ibv_send_wr
    ibv_srq_init_attr_ex
    rdma_cm_event
    rdma_cm_id
    rdma_sockaddr
    verbs_context
}
