//! A queue pair that is its own peer.

use crate::calls::*;
use crate::end::qp_attributes;
use crate::itself::{PSNS, Side, change, receive, request, state_of};
use crate::shared::next_event;

/// The place of what is sent.
const SENT: usize = 8;

unsafe fn to_rts(side: &Side, qp: *mut ibv_qp) {
    for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
        change(side, qp, state, (*qp).qp_num);
    }
}

/// Sends to itself, and waits until that was received at a place.
unsafe fn send(side: &mut Side, qp: *mut ibv_qp, place: usize) {
    let octets: Vec<u8> = (0..=255u8).map(|at| at.wrapping_add(place as u8)).collect();
    side.memory.write(SENT * 256, &octets);
    ok(request(side, qp, IBV_WR_SEND, SENT, (0, 0)));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    assert_eq!(
        both.map(|wc| (wc.wr_id, wc.status, wc.opcode)),
        [
            (place as u64, IBV_WC_SUCCESS, IBV_WC_RECV),
            (100 + SENT as u64, IBV_WC_SUCCESS, IBV_WC_SEND)
        ]
    );
    assert_eq!(both.map(|wc| wc.qp_num), [(*qp).qp_num; 2]);
    assert_eq!(side.memory.read(place * 256, 256), octets);
}

/// Posts a receive to a shared queue.
pub(crate) unsafe fn receive_shared(side: &Side, srq: *mut ibv_srq, place: usize) {
    let mut sge = side.memory.sge(place * 256, 256);
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    (wr.wr_id, wr.sg_list, wr.num_sge) = (place as u64, &mut sge, 1);
    let mut bad = std::ptr::null_mut();
    ok((*(*srq).context).ops.post_srq_recv.unwrap()(
        srq, &mut wr, &mut bad,
    ));
}

/// With receives of its own, posted before and after it is connected, twice.
unsafe fn with_receives(side: &mut Side) {
    let qp = side.queue_pair();
    for _ in 0..2 {
        change(side, qp, IBV_QPS_INIT, 0);
        receive(side, qp, 1);
        to_rts(side, qp);
        receive(side, qp, 2);
        receive(side, qp, 3);
        send(side, qp, 1);
        send(side, qp, 2);
        // What waits is flushed once, whichever end has it.
        change(side, qp, IBV_QPS_ERR, 0);
        receive(side, qp, 4);
        ok(request(side, qp, IBV_WR_SEND, SENT, (0, 0)));
        let mut flushed = [(); 3].map(|()| completion(side.cq));
        flushed.sort_by_key(|wc| wc.wr_id);
        assert_eq!(flushed.map(|wc| wc.wr_id), [3, 4, 100 + SENT as u64]);
        assert_eq!(flushed.map(|wc| wc.status), [IBV_WC_WR_FLUSH_ERR; 3]);
        assert_eq!(flushed.map(|wc| wc.qp_num), [(*qp).qp_num; 3]);
        change(side, qp, IBV_QPS_RESET, 0);
        assert!(poll(side.cq).is_none());
    }
    // A message that is longer than its receive is an error of the sender, too.
    change(side, qp, IBV_QPS_INIT, 0);
    let mut sge = side.memory.sge(0, 8);
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    (wr.wr_id, wr.sg_list, wr.num_sge) = (5, &mut sge, 1);
    ok(post_recv(qp, &mut wr));
    to_rts(side, qp);
    ok(request(side, qp, IBV_WR_SEND, SENT, (0, 0)));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    assert_eq!(
        both.map(|wc| (wc.wr_id, wc.status)),
        [
            (5, IBV_WC_LOC_LEN_ERR),
            (100 + SENT as u64, IBV_WC_REM_INV_REQ_ERR)
        ]
    );
    while state_of(qp).qp_state != IBV_QPS_ERR {}
    ok(ibv_destroy_qp(qp));
}

/// With a shared receive queue.
unsafe fn with_shared_receives(side: &mut Side) {
    let mut init: ibv_srq_init_attr = std::mem::zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (16, 1);
    let srq = made(ibv_create_srq(side.pd, &mut init));
    let mut attr = qp_attributes(side.cq);
    attr.srq = srq;
    let qp = made(ibv_create_qp(side.pd, &mut attr));
    change(side, qp, IBV_QPS_INIT, 0);
    receive_shared(side, srq, 1);
    to_rts(side, qp);
    receive_shared(side, srq, 2);
    send(side, qp, 1);
    send(side, qp, 2);
    // This one finds no receive, and waits for one.
    ok(request(side, qp, IBV_WR_SEND, SENT, (0, 0)));
    assert_eq!(completion(side.cq).wr_id, 100 + SENT as u64);
    assert!(poll(side.cq).is_none());
    receive_shared(side, srq, 3);
    assert_eq!(completion(side.cq).wr_id, 3);
    change(side, qp, IBV_QPS_ERR, 0);
    loop {
        let mut event = next_event(side.context);
        ibv_ack_async_event(&mut event);
        if event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp {
            break;
        }
    }
    ok(ibv_destroy_qp(qp));
    ok(ibv_destroy_srq(srq));
}

pub(crate) unsafe fn own_peer() {
    let mut side = Side::new(false);
    side.at = [side.at[0]; 2];
    side.psns = [PSNS[0]; 2];
    with_receives(&mut side);
    with_shared_receives(&mut side);
    side.close();
}
