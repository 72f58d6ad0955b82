//! `verbs_context`: the operations that the headers call directly. It ends with the context, and
//! grows upwards.

use std::ffi::c_void;

use super::attributes::*;
use super::layout::MUTEX;
use super::objects::{
    Absent, ibv_context, ibv_cq, ibv_cq_ex, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_sge,
    ibv_srq, ibv_td,
};

c_structs! {
    verbs_context (656 + MUTEX) {
        free_buf: Absent;
        alloc_buf: Absent;
        dm_export_dmabuf_fd: Absent;
        reg_mr_ex: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr>;
        dealloc_dmah: Absent;
        alloc_dmah: Absent;
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> i32>;
        advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> i32>;
        alloc_null_mr: Absent;
        read_counters: Absent;
        attach_counters_point_flow: Absent;
        create_counters: Absent;
        destroy_counters: Absent;
        reg_dm_mr: Absent;
        alloc_dm: Absent;
        free_dm: Absent;
        modify_flow_action_esp: Absent;
        destroy_flow_action: Absent;
        create_flow_action_esp: Absent;
        modify_qp_rate_limit: Absent;
        alloc_parent_domain: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>;
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> i32>;
        alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>;
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> i32>;
        post_srq_ops: Absent;
        destroy_rwq_ind_table: Absent;
        create_rwq_ind_table: Absent;
        destroy_wq: Absent;
        modify_wq: Absent;
        create_wq: Absent;
        query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> i32>;
        create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
        r#priv: *mut c_void;
        query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize) -> i32>;
        ibv_destroy_flow: Absent;
        ABI_placeholder2: Absent;
        ibv_create_flow: Absent;
        ABI_placeholder1: Absent;
        open_qp: Absent;
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> i32>;
        create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
        open_xrcd: Absent;
        close_xrcd: Absent;
        _ABI_placeholder3: u64;
        sz: usize;
        context: ibv_context;
    }
}

// The distances from the context do not change.
const _: () = {
    macro_rules! at {
        ($member:ident, $distance:literal) => {
            assert!(
                std::mem::offset_of!(verbs_context, context)
                    - std::mem::offset_of!(verbs_context, $member)
                    == $distance
            )
        };
    }
    at!(sz, 8);
    at!(create_srq_ex, 40);
    at!(create_qp_ex, 56);
    at!(query_device_ex, 104);
    at!(create_cq_ex, 120);
    at!(query_port, 320);
};
