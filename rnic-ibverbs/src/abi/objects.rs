//! The objects that programs have pointers to. Members beyond what is here follow in memory, and programs do not see them.

use std::ffi::c_void;

use nix::libc::{pthread_cond_t, pthread_mutex_t};

use super::context::ibv_context;
use super::work::{ibv_data_buf, ibv_mw_bind_info, ibv_sge};

/// An operation that is never there.
pub type Absent = Option<unsafe extern "C" fn()>;

type Wr<T> = Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> T>;
type Read<T> = Option<unsafe extern "C" fn(cq: *mut ibv_cq_ex) -> T>;

c_structs! {
    ibv_pd 16 {
        context: *mut ibv_context;
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
    ibv_cq 128 {
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
    ibv_cq_ex 288 {
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
        status: u32, @ 132;
        wr_id: u64;
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> i32>, @ 144;
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
    ibv_srq 128 {
        context: *mut ibv_context;
        srq_context: *mut c_void;
        pd: *mut ibv_pd;
        handle: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }
    ibv_qp 160 {
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
    ibv_qp_ex 360 {
        qp_base: ibv_qp;
        comp_mask: u64;
        wr_id: u64;
        wr_flags: u32, @ 176;
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>, @ 184;
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
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u32, u32)>;
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>;
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>;
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>;
        wr_start: Wr<()>;
        wr_complete: Wr<i32>;
        wr_abort: Wr<()>;
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>;
        wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>, @ 352;
    }
    ibv_async_event 16 {
        // A pointer, or a port number.
        element: ibv_async_event_element;
        event_type: u32;
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
