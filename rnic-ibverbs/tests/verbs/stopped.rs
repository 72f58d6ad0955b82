//! Send queues that the program stops: the state SQD.

use nix::libc;

use crate::calls::*;
use crate::datagrams::{QKEY, move_to};
use crate::end::qp_attributes;
use crate::itself::{PSNS, Side, change, receive, request, state_of};
use crate::shared::next_event;

/// Moves a queue pair to SQD.
unsafe fn stop(qp: *mut ibv_qp, notify: bool) {
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_SQD,
        en_sqd_async_notify: notify.into(),
        ..ibv_qp_attr::default()
    };
    let mask = match notify {
        true => IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY,
        false => IBV_QP_STATE,
    };
    ok(ibv_modify_qp(qp, &mut attr, mask));
}

unsafe fn resume(qp: *mut ibv_qp) {
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        ..ibv_qp_attr::default()
    };
    ok(ibv_modify_qp(qp, &mut attr, IBV_QP_STATE));
}

/// Waits until a stopped queue pair has drained.
unsafe fn drained(qp: *mut ibv_qp) {
    loop {
        let now = state_of(qp);
        assert_eq!(now.qp_state, IBV_QPS_SQD);
        if now.sq_draining == 0 {
            return;
        }
    }
}

unsafe fn expect_drained(side: &Side, qp: *mut ibv_qp) {
    let mut event = next_event(side.context);
    assert_eq!(event.event_type, IBV_EVENT_SQ_DRAINED);
    assert_eq!(event.element.qp, qp);
    ibv_ack_async_event(&mut event);
}

/// Two queue pairs of one process, connected.
unsafe fn connected(side: &Side) -> [*mut ibv_qp; 2] {
    let pair = [side.queue_pair(), side.queue_pair()];
    for (qp, peer) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        change(side, qp, IBV_QPS_INIT, 0);
        change(side, qp, IBV_QPS_RTR, (*peer).qp_num);
        change(side, qp, IBV_QPS_RTS, (*peer).qp_num);
    }
    pair
}

/// Requests may be posted in SQD, and begin in RTS.
unsafe fn connections(side: &Side) {
    let pair = connected(side);
    for place in 0..8 {
        receive(side, pair[1], place);
    }
    let send = |place| request(side, pair[0], IBV_WR_SEND, place, (0, 0));
    let wait_for = |ids: &mut Vec<u64>| {
        while !ids.is_empty() {
            let wc = completion(side.cq);
            let at = ids.iter().position(|id| *id == wc.wr_id);
            ids.remove(at.unwrap_or_else(|| panic!("{} of {ids:?}", wc.wr_id)));
            assert_eq!(wc.status, IBV_WC_SUCCESS);
        }
    };
    for (round, notify) in [true, false, true].into_iter().enumerate() {
        let place = 2 * round as u64;
        ok(send(8));
        stop(pair[0], notify);
        ok(send(9));
        drained(pair[0]);
        if notify {
            expect_drained(side, pair[0]);
        }
        // What had not begun before waits, too.
        let mut ids = vec![place, 108];
        while let Some(wc) = poll(side.cq) {
            assert!(ids.contains(&wc.wr_id), "round {round}: {}", wc.wr_id);
            ids.retain(|id| *id != wc.wr_id);
        }
        assert!(ids.len() != 1, "it had begun, and is not done");
        resume(pair[0]);
        ids.extend([place + 1, 109]);
        wait_for(&mut ids);
        assert_eq!(state_of(pair[0]).qp_state, IBV_QPS_RTS);
    }
    // The other side goes on meanwhile, and what waits is flushed in the end.
    stop(pair[0], false);
    drained(pair[0]);
    receive(side, pair[0], 12);
    ok(request(side, pair[1], IBV_WR_SEND, 10, (0, 0)));
    wait_for(&mut vec![12, 110]);
    ok(send(11));
    change(side, pair[0], IBV_QPS_ERR, 0);
    let wc = completion(side.cq);
    assert_eq!((wc.wr_id, wc.status), (111, IBV_WC_WR_FLUSH_ERR));
    for qp in pair {
        ok(ibv_destroy_qp(qp));
    }
    while poll(side.cq).is_some() {}
}

/// Datagrams wait as well.
unsafe fn datagrams(side: &mut Side) {
    const GRH: usize = 40;
    let qp = side.datagrams(8);
    let there = side.handle(0);
    let to = (there, (*qp).qp_num, QKEY);
    for (place, notify) in [(1, true), (2, false), (3, true)] {
        stop(qp, notify);
        if notify {
            expect_drained(side, qp);
        }
        assert_eq!(state_of(qp).sq_draining, 0);
        ok(side.wait_for(qp, place, GRH + 5));
        ok(side.tell(qp, to, b"later"));
        // It was copied: the program may not know that, but its memory is not needed any more.
        assert!(poll(side.cq).is_none());
        resume(qp);
        let mut both = [completion(side.cq), completion(side.cq)];
        both.sort_by_key(|wc| wc.wr_id);
        assert_eq!(
            both.map(|wc| (wc.wr_id, wc.status)),
            [(place as u64, IBV_WC_SUCCESS), (100, IBV_WC_SUCCESS)]
        );
    }
    stop(qp, false);
    ok(side.tell(qp, to, b"never"));
    move_to(qp, IBV_QPS_ERR, 0);
    assert_eq!(completion(side.cq).status, IBV_WC_WR_FLUSH_ERR);
    ok(ibv_destroy_ah(there));
    ok(ibv_destroy_qp(qp));
}

pub(crate) unsafe fn stopped() {
    let mut side = Side::new(false);
    side.at = [side.at[0]; 2];
    side.psns = [PSNS[0]; 2];
    connections(&side);
    datagrams(&mut side);
    // Nobody was told but those who had asked.
    let flags = libc::fcntl((*side.context).async_fd, libc::F_GETFL);
    let nonblocking = flags | libc::O_NONBLOCK;
    ok(libc::fcntl(
        (*side.context).async_fd,
        libc::F_SETFL,
        nonblocking,
    ));
    let mut event: ibv_async_event = std::mem::zeroed();
    assert_eq!(ibv_get_async_event(side.context, &mut event), -1);
    // In RTR and before nothing can be posted, stopped or not.
    let qp = made(ibv_create_qp(side.pd, &mut qp_attributes(side.cq)));
    change(&side, qp, IBV_QPS_INIT, 0);
    assert_eq!(request(&side, qp, IBV_WR_SEND, 8, (0, 0)), libc::EINVAL);
    ok(ibv_destroy_qp(qp));
    side.close();
}
