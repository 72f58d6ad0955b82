//! Datagram queue pairs that share their receives.

use nix::libc;

use crate::calls::*;
use crate::datagrams::{QKEY, move_to};
use crate::end::qp_attributes;
use crate::itself::{PSNS, Side, change, request};
use crate::own_peer::receive_shared;
use crate::shared::next_event;

const GRH: usize = 40;
const PLACE: usize = 256;

unsafe fn expect(side: &Side, event_type: u32, is_it: impl Fn(&ibv_async_event) -> bool) {
    let mut event = next_event(side.context);
    assert_eq!(event.event_type, event_type);
    assert!(is_it(&event));
    ibv_ack_async_event(&mut event);
}

/// Sends a datagram, and returns the completion of its receive.
unsafe fn send(side: &mut Side, from: *mut ibv_qp, to: (*mut ibv_ah, u32, u32)) -> ibv_wc {
    ok(side.tell(from, to, b"datagram"));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    assert_eq!(both.map(|wc| wc.status), [IBV_WC_SUCCESS; 2]);
    assert_eq!(both[1].wr_id, 100);
    let place = both[0].wr_id as usize;
    assert_eq!(side.memory.read(place * PLACE + GRH, 8), b"datagram");
    assert_eq!(both[0].byte_len as usize, GRH + 8);
    both[0]
}

unsafe fn datagrams(side: &mut Side, srq: *mut ibv_srq) {
    let mut attr = qp_attributes(side.cq);
    attr.srq = srq;
    let pair = [(); 2].map(|()| side.datagrams_of(&mut attr));
    let there = side.handle(0);
    // Connections have them from elsewhere.
    attr.qp_type = IBV_QPT_RC;
    refused(ibv_create_qp(side.pd, &mut attr), libc::EOPNOTSUPP);
    assert_eq!(side.wait_for(pair[0], 1, 100), libc::EINVAL);
    // The receives come in their order, whichever queue pair is sent to.
    for (place, to) in [(1, 1), (2, 0), (3, 1)] {
        let wc = send(side, pair[0], (there, (*pair[to]).qp_num, QKEY));
        assert_eq!((wc.wr_id, wc.qp_num), (place, (*pair[to]).qp_num));
    }
    // One is left: that was fewer than the limit.
    expect(side, IBV_EVENT_SRQ_LIMIT_REACHED, |event| {
        event.element.srq == srq
    });
    let mut limit = ibv_srq_attr {
        srq_limit: 2,
        ..ibv_srq_attr::default()
    };
    ok(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT));
    expect(side, IBV_EVENT_SRQ_LIMIT_REACHED, |event| {
        event.element.srq == srq
    });
    // A queue pair that ends leaves the receives to the others.
    move_to(pair[1], IBV_QPS_ERR, 0);
    expect(side, IBV_EVENT_QP_LAST_WQE_REACHED, |event| {
        event.element.qp == pair[1]
    });
    assert!(poll(side.cq).is_none());
    assert_eq!(
        send(side, pair[0], (there, (*pair[0]).qp_num, QKEY)).wr_id,
        4
    );
    // What finds none is dropped.
    ok(side.tell(pair[0], (there, (*pair[0]).qp_num, QKEY), b"dropped"));
    assert_eq!(completion(side.cq).wr_id, 100);
    receive_shared(side, srq, 5);
    assert!(poll(side.cq).is_none());
    for qp in pair {
        ok(ibv_destroy_qp(qp));
    }
    ok(ibv_destroy_ah(there));
}

pub(crate) unsafe fn shared_datagrams() {
    let mut side = Side::new(false);
    side.at = [side.at[0]; 2];
    side.psns = [PSNS[0]; 2];
    let mut init: ibv_srq_init_attr = std::mem::zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (16, 1);
    let srq = made(ibv_create_srq(side.pd, &mut init));
    for place in 1..5 {
        receive_shared(&side, srq, place);
    }
    let mut limit = ibv_srq_attr {
        srq_limit: 2,
        ..ibv_srq_attr::default()
    };
    ok(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT));
    // A queue pair of connections that is not made leaves them to datagrams.
    let elsewhere = made(ibv_alloc_pd(side.context));
    let mut attr = qp_attributes(side.cq);
    attr.srq = srq;
    refused(ibv_create_qp(elsewhere, &mut attr), libc::EINVAL);
    ok(ibv_dealloc_pd(elsewhere));
    datagrams(&mut side, srq);
    // A connection gets what is left, and then datagrams do not any more.
    let mut attr = qp_attributes(side.cq);
    attr.srq = srq;
    let qp = made(ibv_create_qp(side.pd, &mut attr));
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        change(&side, qp, state, (*qp).qp_num);
    }
    ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    assert_eq!(both.map(|wc| wc.wr_id), [5, 108]);
    attr.qp_type = IBV_QPT_UD;
    refused(ibv_create_qp(side.pd, &mut attr), libc::EOPNOTSUPP);
    ok(ibv_destroy_qp(qp));
    ok(ibv_destroy_srq(srq));
    side.close();
}
