//! The verbs and the calls of rdma_cm that rsockets are made of.

pub(super) use crate::channel::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
pub(super) use crate::cm::{
    rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp,
    rdma_disconnect, rdma_get_cm_event, rdma_listen, rdma_migrate_id, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
pub(super) use crate::cq::{ibv_create_cq, ibv_destroy_cq};
pub(super) use crate::mr::{ibv_dereg_mr, ibv_reg_mr};
pub(super) use crate::query::ibv_query_device;
