//! The structures of `rdma/rdma_cma.h`.

use std::ffi::{c_char, c_void};

use nix::libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use super::attributes::{ibv_ah_attr, ibv_gid};
use super::objects::ibv_context;
use super::objects::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_srq};

/// An address of either family.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_sockaddr {
    pub addr: sockaddr,
    pub sin: sockaddr_in,
    pub sin6: sockaddr_in6,
    pub storage: sockaddr_storage,
}

/// `param` of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}

c_structs! {
    rdma_ib_addr 40 {
        sgid: ibv_gid;
        dgid: ibv_gid;
        pkey: u16;
    }
    rdma_addr 296 {
        src_addr: rdma_sockaddr;
        dst_addr: rdma_sockaddr;
        addr: rdma_ib_addr;
    }
    rdma_route 312 {
        addr: rdma_addr;
        path_rec: *mut c_void;
        num_paths: i32;
    }
    rdma_event_channel 4 {
        fd: i32;
    }
    rdma_cm_id 416 {
        verbs: *mut ibv_context;
        channel: *mut rdma_event_channel;
        context: *mut c_void;
        qp: *mut ibv_qp, @ 24;
        route: rdma_route, @ 32;
        ps: u32;
        port_num: u8;
        event: *mut rdma_cm_event, @ 352;
        send_cq_channel: *mut ibv_comp_channel;
        send_cq: *mut ibv_cq;
        recv_cq_channel: *mut ibv_comp_channel;
        recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        pd: *mut ibv_pd, @ 400;
        qp_type: u32;
    }
    rdma_conn_param 24 {
        private_data: *const c_void;
        private_data_len: u8;
        responder_resources: u8;
        initiator_depth: u8;
        flow_control: u8;
        retry_count: u8;
        rnr_retry_count: u8;
        srq: u8;
        qp_num: u32;
    }
    rdma_ud_param 56 {
        private_data: *const c_void;
        private_data_len: u8;
        ah_attr: ibv_ah_attr;
        qp_num: u32;
        qkey: u32;
    }
    rdma_cm_event 80 {
        id: *mut rdma_cm_id;
        listen_id: *mut rdma_cm_id;
        event: u32;
        status: i32;
        param: rdma_cm_event_param, @ 24;
    }
    rdma_addrinfo 96 {
        ai_flags: i32;
        ai_family: i32;
        ai_qp_type: i32;
        ai_port_space: i32;
        ai_src_len: u32;
        ai_dst_len: u32;
        ai_src_addr: *mut sockaddr;
        ai_dst_addr: *mut sockaddr;
        ai_src_canonname: *mut c_char;
        ai_dst_canonname: *mut c_char;
        ai_route_len: usize;
        ai_route: *mut c_void;
        ai_connect_len: usize;
        ai_connect: *mut c_void;
        ai_next: *mut rdma_addrinfo;
    }
    rdma_cm_join_mc_attr_ex 16 {
        comp_mask: u32;
        join_flags: u32;
        addr: *mut sockaddr;
    }
}

pub const RDMA_CM_EVENT_ADDR_RESOLVED: u32 = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: u32 = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: u32 = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: u32 = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: u32 = 4;
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
pub const RDMA_CM_EVENT_CONNECT_ERROR: u32 = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: u32 = 7;
pub const RDMA_CM_EVENT_REJECTED: u32 = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: u32 = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: u32 = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: u32 = 11;
pub const RDMA_CM_EVENT_MULTICAST_JOIN: u32 = 12;
pub const RDMA_CM_EVENT_MULTICAST_ERROR: u32 = 13;
pub const RDMA_CM_EVENT_ADDR_CHANGE: u32 = 14;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: u32 = 15;
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: u32 = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: u32 = 17;
pub const RDMA_CM_EVENT_USER: u32 = 18;
pub const RDMA_CM_EVENT_INTERNAL: u32 = 19;

pub const RDMA_PS_IPOIB: u32 = 0x0002;
pub const RDMA_PS_TCP: u32 = 0x0106;
pub const RDMA_PS_UDP: u32 = 0x0111;
pub const RDMA_PS_IB: u32 = 0x013f;

pub const RAI_PASSIVE: i32 = 1;
pub const RAI_NUMERICHOST: i32 = 2;
pub const RAI_NOROUTE: i32 = 4;
pub const RAI_FAMILY: i32 = 8;
pub const RAI_SA: i32 = 0x10;
pub const RAI_DNS: i32 = 0x20;
