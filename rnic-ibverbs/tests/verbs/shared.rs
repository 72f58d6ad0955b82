//! A shared receive queue, and the asynchronous events that come of it.

use std::ptr::null_mut;

use crate::calls::*;
use crate::end::{MESSAGE, Memory, parameters, qp_attributes, resolve, say};
use crate::hosts::SERVER;

/// Receives that are posted, and how many have to be left.
const RECEIVES: usize = 8;
const LIMIT: u32 = 4;

/// Receives messages of the server through a shared queue. Its limit is told once. It is also told
/// once that a queue pair which is over uses no more of its receives.
pub(crate) unsafe fn shared() {
    let id = resolve(SERVER);
    let context = (*id).verbs;
    let pd = made(ibv_alloc_pd(context));
    let cq = made(ibv_create_cq(context, 64, null_mut(), null_mut(), 0));
    let mut init: ibv_srq_init_attr = std::mem::zeroed();
    init.attr.max_wr = RECEIVES as u32;
    init.attr.max_sge = 1;
    let srq = made(ibv_create_srq(pd, &mut init));
    let buffers = Memory::new(pd, RECEIVES * MESSAGE, IBV_ACCESS_LOCAL_WRITE);
    for place in 0..RECEIVES {
        receive(srq, &buffers, place);
    }
    let mut limit: ibv_srq_attr = std::mem::zeroed();
    limit.srq_limit = LIMIT;
    ok(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT));
    assert_eq!(limit_of(srq), LIMIT);

    let plain = qp_attributes(cq);
    let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
    (attr.send_cq, attr.recv_cq, attr.srq) = (cq, cq, srq);
    (attr.cap, attr.qp_type) = (plain.cap, IBV_QPT_RC);
    (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    ok(rdma_create_qp_ex(id, &mut attr));
    ok(rdma_connect(id, &mut parameters()));

    // What the server says first, and four echoes: three receives are left.
    for number in 0..=LIMIT {
        let wc = completion(cq);
        assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RECV));
        if number < LIMIT {
            say((*id).qp, &number.to_ne_bytes());
        }
    }
    let mut event = next_event(context);
    let expected = (IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    assert_eq!((event.event_type, event.element.srq), expected);
    ibv_ack_async_event(&mut event);
    assert_eq!(limit_of(srq), 0, "it is told once");

    ok(rdma_disconnect(id));
    let mut event = next_event(context);
    let expected = (IBV_EVENT_QP_LAST_WQE_REACHED, (*id).qp);
    assert_eq!((event.event_type, event.element.qp), expected);
    ibv_ack_async_event(&mut event);
    rdma_destroy_qp(id);
    ok(ibv_destroy_srq(srq));
    ok(ibv_destroy_cq(cq));
    drop(buffers);
    ok(ibv_dealloc_pd(pd));
    ok(rdma_destroy_id(id));
}

unsafe fn receive(srq: *mut ibv_srq, buffers: &Memory, place: usize) {
    let mut sge = buffers.sge(place * MESSAGE, MESSAGE);
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    (wr.sg_list, wr.num_sge) = (&mut sge, 1);
    let mut bad = null_mut();
    let post = (*(*srq).context).ops.post_srq_recv.unwrap();
    ok(post(srq, &mut wr, &mut bad));
}

unsafe fn limit_of(srq: *mut ibv_srq) -> u32 {
    let mut found: ibv_srq_attr = std::mem::zeroed();
    ok(ibv_query_srq(srq, &mut found));
    found.srq_limit
}

/// Returns the next event that is not about the port: the link may have come up a moment ago, and
/// with it an address.
pub(crate) unsafe fn next_event(context: *mut ibv_context) -> ibv_async_event {
    let mut event: ibv_async_event = std::mem::zeroed();
    loop {
        ok(ibv_get_async_event(context, &mut event));
        if ![IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE].contains(&event.event_type) {
            return event;
        }
        ibv_ack_async_event(&mut event);
    }
}
