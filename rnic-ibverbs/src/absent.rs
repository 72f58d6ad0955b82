//! Symbols that no program with an iWARP device calls. They exist because programs and libraries
//! need them to be loaded.
//!
//! perftest and libfabric load the libraries of rdma-core's drivers, which need what drivers use.
//! None of these finds a device of its own, so none calls it. The rest are verbs that iWARP lacks.
//! All of them fail.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;

use crate::errno::{Errno, fail, fail_ptr};

/// Defines functions that return EOPNOTSUPP. They look at none of their arguments.
macro_rules! absent {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> i32 {
            Errno::EOPNOTSUPP as i32
        }
    )* };
}

/// Defines functions that return -1, with EOPNOTSUPP in errno, where others return a descriptor.
macro_rules! no_descriptor {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> i32 {
            fail(Errno::EOPNOTSUPP)
        }
    )* };
}

/// Defines functions that return nothing and do nothing.
macro_rules! idle {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() {}
    )* };
}

/// Defines functions that return NULL, with EOPNOTSUPP in errno.
macro_rules! none {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> *mut c_void {
            fail_ptr(Errno::EOPNOTSUPP)
        }
    )* };
}

// Verbs of other transports: multicast, Ethernet headers.
absent! {
    ibv_attach_mcast
    ibv_detach_mcast
    ibv_resolve_eth_l2_from_gid
}

// What rdma-core has since version 59: completion counters, buffers and handles of the device's
// memory.
absent! {
    _ibv_query_comp_cntr_caps
    ibv_dealloc_dmah
    ibv_destroy_comp_cntr
    ibv_inc_comp_cntr
    ibv_inc_err_comp_cntr
    ibv_qp_attach_comp_cntr
    ibv_read_comp_cntr
    ibv_read_err_comp_cntr
    ibv_set_comp_cntr
    ibv_set_err_comp_cntr
}

none! {
    ibv_alloc_buf
    ibv_alloc_dmah
    ibv_create_comp_cntr
    ibv_reg_buf_mr
}

no_descriptor! {
    ibv_dm_export_dmabuf_fd
    ibv_export_buf_dmabuf_fd
}

idle! {
    ibv_free_buf
}

// What drivers say to the kernel.
absent! {
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex2
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
}

none! {
    _verbs_init_and_alloc_context
    verbs_open_device
}

// What drivers say to the library: the messages of their log, and that they are there.
idle! {
    __verbs_log
    verbs_init_cq
    verbs_register_driver_34
    verbs_set_ops
    verbs_uninit_context
}

/// Returns the number of attributes of a command and of those that are linked to it: nothing is
/// linked.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __ioctl_final_num_attrs(attributes: u32, _link: *mut c_void) -> u32 {
    attributes
}

/// Whether objects of a device that is gone may be destroyed: drivers read it.
#[unsafe(no_mangle)]
pub(crate) static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
