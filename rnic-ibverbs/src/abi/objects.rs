//! The objects that programs have pointers to, the requests and completions that they exchange with
//! them, and the operations of a context. Members of objects beyond what is here follow in memory,
//! and programs do not see them.

use std::ffi::c_void;

use nix::libc::{pthread_cond_t, pthread_mutex_t};

use super::layout::MUTEX;

/// What `abi_compat` of an `ibv_context` is that lies in a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// An operation that is never there.
pub type Absent = Option<unsafe extern "C" fn()>;

type Wr<T> = Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> T>;
type Read<T> = Option<unsafe extern "C" fn(cq: *mut ibv_cq_ex) -> T>;

c_structs! {
    ibv_pd 16 {
        context: *mut ibv_context;
        handle: u32;
    }
    ibv_ah 24 {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        handle: u32;
    }
    ibv_td 8 {
        context: *mut ibv_context;
    }
    ibv_mr 48 {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        addr: *mut c_void;
        length: usize;
        handle: u32;
        lkey: u32;
        rkey: u32;
    }
    ibv_mw 32 {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        rkey: u32;
        handle: u32;
        r#type: u32;
    }
    ibv_comp_channel 16 {
        context: *mut ibv_context;
        fd: i32;
        refcnt: i32;
    }
    ibv_cq (88 + MUTEX) {
        context: *mut ibv_context;
        channel: *mut ibv_comp_channel;
        cq_context: *mut c_void;
        handle: u32;
        cqe: i32, @ 28;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        comp_events_completed: u32;
        async_events_completed: u32;
    }
    ibv_poll_cq_attr 4 {
        comp_mask: u32;
    }
    ibv_cq_ex (248 + MUTEX) {
        context: *mut ibv_context;
        channel: *mut ibv_comp_channel;
        cq_context: *mut c_void;
        handle: u32;
        cqe: i32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        comp_events_completed: u32;
        async_events_completed: u32;
        comp_mask: u32;
        status: u32, @ (92 + MUTEX);
        wr_id: u64;
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> i32>, @ (104 + MUTEX);
        next_poll: Read<i32>;
        end_poll: Read<()>;
        read_opcode: Read<u32>;
        read_vendor_err: Read<u32>;
        read_byte_len: Read<u32>;
        read_imm_data: Read<u32>;
        read_qp_num: Read<u32>;
        read_src_qp: Read<u32>;
        read_wc_flags: Read<u32>;
        read_slid: Read<u32>;
        read_sl: Read<u8>;
        read_dlid_path_bits: Read<u8>;
        read_completion_ts: Read<u64>;
        read_cvlan: Read<u16>;
        read_flow_tag: Read<u32>;
        read_tm_info: Absent;
        read_completion_wallclock_ns: Read<u64>;
    }
    ibv_srq (88 + MUTEX) {
        context: *mut ibv_context;
        srq_context: *mut c_void;
        pd: *mut ibv_pd;
        handle: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }
    ibv_qp (120 + MUTEX) {
        context: *mut ibv_context;
        qp_context: *mut c_void;
        pd: *mut ibv_pd;
        send_cq: *mut ibv_cq;
        recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        handle: u32;
        qp_num: u32, @ 52;
        state: u32;
        qp_type: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }
    ibv_qp_ex (320 + MUTEX) {
        qp_base: ibv_qp;
        comp_mask: u64;
        wr_id: u64;
        wr_flags: u32, @ (136 + MUTEX);
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>, @ (144 + MUTEX);
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>;
        wr_bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>;
        wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
        wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>;
        wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>;
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
        wr_send: Wr<()>;
        wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
        wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
        wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>;
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>;
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>;
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>;
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>;
        wr_start: Wr<()>;
        wr_complete: Wr<i32>;
        wr_abort: Wr<()>;
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>;
        wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>, @ (312 + MUTEX);
    }
    ibv_async_event 16 {
        // A pointer, or a port number.
        element: ibv_async_event_element;
        event_type: u32;
    }
    #[derive(Debug, Default)]
    ibv_sge 16 {
        addr: u64;
        length: u32;
        lkey: u32;
    }
    ibv_data_buf 16 {
        addr: *mut c_void;
        length: usize;
    }
    ibv_mw_bind_info 32 {
        mr: *mut ibv_mr;
        addr: u64;
        length: u64;
        mw_access_flags: u32;
    }
    ibv_mw_bind 48 {
        wr_id: u64;
        send_flags: u32;
        bind_info: ibv_mw_bind_info;
    }
    ibv_send_wr 128 {
        wr_id: u64;
        next: *mut ibv_send_wr;
        sg_list: *mut ibv_sge;
        num_sge: i32;
        opcode: u32, @ 28;
        send_flags: u32;
        // Or invalidate_rkey.
        imm_data: u32;
        wr: ibv_send_wr_remote, @ 40;
        qp_type: u32, @ 72;
        // Or tso.
        bind_mw: ibv_send_wr_bind, @ 80;
    }
    ibv_recv_wr 32 {
        wr_id: u64;
        next: *mut ibv_recv_wr;
        sg_list: *mut ibv_sge;
        num_sge: i32;
    }
    #[derive(Debug, Default)]
    ibv_wc 48 {
        wr_id: u64;
        status: u32;
        opcode: u32;
        vendor_err: u32;
        byte_len: u32;
        // Or invalidated_rkey.
        imm_data: u32;
        qp_num: u32;
        src_qp: u32;
        wc_flags: u32, @ 36;
        pkey_index: u16;
        slid: u16;
        sl: u8;
        dlid_path_bits: u8;
    }
    ibv_device_attr 232 {
        fw_ver: [u8; 64];
        node_guid: u64;
        sys_image_guid: u64;
        max_mr_size: u64;
        page_size_cap: u64;
        vendor_id: u32;
        vendor_part_id: u32;
        hw_ver: u32;
        max_qp: i32;
        max_qp_wr: i32;
        device_cap_flags: u32;
        max_sge: i32;
        max_sge_rd: i32;
        max_cq: i32;
        max_cqe: i32;
        max_mr: i32;
        max_pd: i32;
        max_qp_rd_atom: i32;
        max_ee_rd_atom: i32;
        max_res_rd_atom: i32;
        max_qp_init_rd_atom: i32;
        max_ee_init_rd_atom: i32;
        atomic_cap: u32;
        max_ee: i32;
        max_rdd: i32;
        max_mw: i32;
        max_raw_ipv6_qp: i32;
        max_raw_ethy_qp: i32;
        max_mcast_grp: i32;
        max_mcast_qp_attach: i32;
        max_total_mcast_qp_attach: i32;
        max_ah: i32;
        max_fmr: i32;
        max_map_per_fmr: i32;
        max_srq: i32;
        max_srq_wr: i32;
        max_srq_sge: i32;
        max_pkeys: u16;
        local_ca_ack_delay: u8;
        phys_port_cnt: u8;
    }
    #[derive(Debug, Default)]
    ibv_port_attr 56 {
        state: u32;
        max_mtu: u32;
        active_mtu: u32;
        gid_tbl_len: i32;
        port_cap_flags: u32;
        max_msg_sz: u32;
        bad_pkey_cntr: u32;
        qkey_viol_cntr: u32;
        pkey_tbl_len: u16;
        lid: u16;
        sm_lid: u16;
        lmc: u8;
        max_vl_num: u8;
        sm_sl: u8;
        subnet_timeout: u8;
        init_type_reply: u8;
        active_width: u8;
        active_speed: u8;
        phys_state: u8;
        link_layer: u8;
        flags: u8;
        port_cap_flags2: u16;
        active_speed_ex: u32, @ 52;
    }
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
    ibv_context (288 + MUTEX) {
        device: *mut ibv_device;
        ops: ibv_context_ops;
        cmd_fd: i32;
        async_fd: i32, @ 268;
        num_comp_vectors: i32;
        mutex: pthread_mutex_t;
        abi_compat: *mut c_void, @ (280 + MUTEX);
    }
}

/// `element` of an asynchronous event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub port_num: i32,
}

/// `wr.rdma` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `wr.atomic` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `wr.ud` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_remote {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
    pub ud: ibv_send_wr_ud,
}

/// `bind_mw` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_bind {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
