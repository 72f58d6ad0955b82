//! The functions of libibverbs and librdmacm, and what their headers have inline.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

pub(crate) use rnic_ibverbs::abi::*;

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut i32) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> i32;
    pub(crate) fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    pub(crate) fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> i32;
    pub(crate) fn ibv_query_port_speed(
        context: *mut ibv_context,
        port: u32,
        speed: *mut u64,
    ) -> i32;
    pub(crate) fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> i32;
    pub(crate) fn ibv_query_gid(
        context: *mut ibv_context,
        port: u8,
        index: i32,
        gid: *mut ibv_gid,
    ) -> i32;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> i32;
    pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: i32,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: i32,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: i32,
    ) -> i32;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> i32;
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> i32;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: i32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: i32,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_resize_cq(cq: *mut ibv_cq, cqe: i32) -> i32;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> i32;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> i32;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32);
    pub(crate) fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(crate) fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: i32) -> i32;
    pub(crate) fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> i32;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> i32;
    pub(crate) fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: i32) -> i32;
    pub(crate) fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: i32,
        init: *mut ibv_qp_init_attr,
    ) -> i32;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> i32;
    pub(crate) fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(crate) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut c_void,
        port: u8,
    ) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(ah: *mut ibv_ah) -> i32;
    pub(crate) fn ibv_get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> i32;
    pub(crate) fn ibv_ack_async_event(event: *mut ibv_async_event);

    #[link_name = "rnic_cm_rdma_create_id"]
    pub(crate) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: u32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_id"]
    pub(crate) fn rdma_destroy_id(id: *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_bind_addr"]
    pub(crate) fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *const c_void) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_addr"]
    pub(crate) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src: *const c_void,
        dst: *const c_void,
        timeout_ms: i32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_route"]
    pub(crate) fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: i32) -> i32;
    #[link_name = "rnic_cm_rdma_create_qp_ex"]
    pub(crate) fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_qp"]
    pub(crate) fn rdma_destroy_qp(id: *mut rdma_cm_id);
    #[link_name = "rnic_cm_rdma_connect"]
    pub(crate) fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_listen"]
    pub(crate) fn rdma_listen(id: *mut rdma_cm_id, backlog: i32) -> i32;
    #[link_name = "rnic_cm_rdma_get_request"]
    pub(crate) fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_accept"]
    pub(crate) fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_disconnect"]
    pub(crate) fn rdma_disconnect(id: *mut rdma_cm_id) -> i32;
}

/// Fails unless a call succeeded.
#[track_caller]
pub(crate) fn ok(outcome: i32) {
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// Fails if a call returned NULL.
#[track_caller]
pub(crate) fn made<T>(pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{}", std::io::Error::last_os_error());
    pointer
}

/// Fails unless a call returned NULL with this errno.
#[track_caller]
pub(crate) fn refused<T>(pointer: *mut T, errno: i32) {
    assert!(pointer.is_null());
    let found = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(found, Some(errno));
}

/// The operations of a context, as the headers find them.
pub(crate) unsafe fn operations<'a>(context: *mut ibv_context) -> &'a verbs_context {
    assert_eq!((*context).abi_compat, VERBS_ABI_IS_EXTENDED);
    let all: *mut verbs_context = context.byte_sub(offset_of!(verbs_context, context)).cast();
    assert_eq!((*all).sz, size_of::<verbs_context>());
    &*all
}

pub(crate) unsafe fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    let poll = (*(*cq).context).ops.poll_cq.unwrap();
    match poll(cq, 1, &mut wc) {
        0 => None,
        1 => Some(wc),
        wrong => panic!("ibv_poll_cq: {wrong}"),
    }
}

/// Polls until there is a completion, and returns it. The test's own time limit is that of the
/// whole run.
pub(crate) unsafe fn completion(cq: *mut ibv_cq) -> ibv_wc {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(wc) = poll(cq) {
            return wc;
        }
        assert!(Instant::now() < end, "nothing completes");
    }
}

pub(crate) unsafe fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> i32 {
    let mut bad = null_mut();
    let outcome = (*(*qp).context).ops.post_send.unwrap()(qp, wr, &mut bad);
    assert_eq!(
        outcome == 0,
        bad.is_null(),
        "bad_wr is told with a failure only"
    );
    outcome
}

pub(crate) unsafe fn post_recv(qp: *mut ibv_qp, wr: &mut ibv_recv_wr) -> i32 {
    let mut bad = null_mut();
    (*(*qp).context).ops.post_recv.unwrap()(qp, wr, &mut bad)
}

pub(crate) unsafe fn notify(cq: *mut ibv_cq, solicited: bool) {
    ok((*(*cq).context).ops.req_notify_cq.unwrap()(
        cq,
        solicited.into(),
    ));
}
