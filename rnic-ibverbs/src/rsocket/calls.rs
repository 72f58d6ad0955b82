//! The verbs and the calls of rdma_cm that rsockets are made of.

use std::ffi::c_void;

use nix::libc::sockaddr;

use crate::abi::*;

unsafe extern "C" {
    #[link_name = "rnic_cm_rdma_create_event_channel"]
    pub(super) fn rdma_create_event_channel() -> *mut rdma_event_channel;
    #[link_name = "rnic_cm_rdma_destroy_event_channel"]
    pub(super) fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    #[link_name = "rnic_cm_rdma_create_id"]
    pub(super) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: u32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_id"]
    pub(super) fn rdma_destroy_id(id: *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_migrate_id"]
    pub(super) fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> i32;
    #[link_name = "rnic_cm_rdma_bind_addr"]
    pub(super) fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> i32;
    #[link_name = "rnic_cm_rdma_listen"]
    pub(super) fn rdma_listen(id: *mut rdma_cm_id, backlog: i32) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_addr"]
    pub(super) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src: *mut sockaddr,
        dst: *mut sockaddr,
        timeout_ms: i32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_route"]
    pub(super) fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: i32) -> i32;
    #[link_name = "rnic_cm_rdma_create_qp"]
    pub(super) fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_qp"]
    pub(super) fn rdma_destroy_qp(id: *mut rdma_cm_id);
    #[link_name = "rnic_cm_rdma_connect"]
    pub(super) fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_accept"]
    pub(super) fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_reject"]
    pub(super) fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> i32;
    #[link_name = "rnic_cm_rdma_disconnect"]
    pub(super) fn rdma_disconnect(id: *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_get_cm_event"]
    pub(super) fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_ack_cm_event"]
    pub(super) fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> i32;
    #[link_name = "rnic_cm_rdma_set_option"]
    pub(super) fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: i32,
        name: i32,
        value: *mut c_void,
        len: usize,
    ) -> i32;

    pub(super) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> i32;
    pub(super) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(super) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> i32;
    pub(super) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: i32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: i32,
    ) -> *mut ibv_cq;
    pub(super) fn ibv_destroy_cq(cq: *mut ibv_cq) -> i32;
    pub(super) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> i32;
    pub(super) fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32);
    pub(super) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: i32,
    ) -> *mut ibv_mr;
    pub(super) fn ibv_dereg_mr(mr: *mut ibv_mr) -> i32;
}
