//! Work requests and completions.

use super::objects::{ibv_mr, ibv_mw};

c_structs! {
    #[derive(Debug, Default)]
    ibv_sge 16 {
        addr: u64;
        length: u32;
        lkey: u32;
    }
    ibv_data_buf 16 {
        addr: *mut std::ffi::c_void;
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

/// `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_remote {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
}

/// `bind_mw` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_bind {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
