//! Devices and contexts.

use std::ffi::c_void;

use nix::libc::pthread_mutex_t;

use super::attributes::{ibv_device_attr, ibv_port_attr};
use super::objects::{Absent, ibv_cq, ibv_mw, ibv_pd, ibv_qp, ibv_srq};
use super::work::{ibv_mw_bind, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// What `abi_compat` of an `ibv_context` is that lies in a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

c_structs! {
    ibv_device 664 {
        _ops: [*mut c_void; 2];
        node_type: i32, @ 16;
        transport_type: i32;
        name: [u8; 64], @ 24;
        dev_name: [u8; 64];
        dev_path: [u8; 256];
        ibdev_path: [u8; 256];
    }
    ibv_context_ops 256 {
        _compat_query_device: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> i32>;
        _compat_query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> i32>;
        _compat_alloc_pd: Absent;
        _compat_dealloc_pd: Absent;
        _compat_reg_mr: Absent;
        _compat_rereg_mr: Absent;
        _compat_dereg_mr: Absent;
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>, @ 56;
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> i32>;
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> i32>;
        _compat_create_cq: Absent;
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32>, @ 88;
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, i32) -> i32>;
        _compat_cq_event: Absent;
        _compat_resize_cq: Absent;
        _compat_destroy_cq: Absent;
        _compat_create_srq: Absent;
        _compat_modify_srq: Absent;
        _compat_query_srq: Absent;
        _compat_destroy_srq: Absent;
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32>, @ 160;
        _compat_create_qp: Absent;
        _compat_query_qp: Absent;
        _compat_modify_qp: Absent;
        _compat_destroy_qp: Absent;
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32>, @ 200;
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32>, @ 208;
        _compat_create_ah: Absent;
        _compat_destroy_ah: Absent;
        _compat_attach_mcast: Absent;
        _compat_detach_mcast: Absent;
        _compat_async_event: Absent;
    }
    ibv_context 328 {
        device: *mut ibv_device;
        ops: ibv_context_ops;
        cmd_fd: i32;
        async_fd: i32, @ 268;
        num_comp_vectors: i32;
        mutex: pthread_mutex_t;
        abi_compat: *mut c_void, @ 320;
    }
}
