//! What a program posts last, before it ends its queue pair.

use crate::calls::*;
use crate::itself::{Side, Talk, change, connect_and_talk, receive, request};

/// Sends, and ends at once, by the error state or altogether: the peer gets the message.
pub(crate) unsafe fn last_words(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    for round in 0..20 {
        let qp = side.queue_pair();
        connect_and_talk(&mut side, &mut talk, qp, is_server);
        while poll(side.cq).is_some() {}
        talk.meet();
        if is_server {
            receive(&side, qp, 5);
            talk.meet();
            // Three were posted before.
            for place in [1, 2, 3, 5] {
                let wc = completion(side.cq);
                let seen = (wc.wr_id, wc.status, wc.byte_len);
                assert_eq!(seen, (place, IBV_WC_SUCCESS, 256), "round {round}");
            }
        } else {
            talk.meet();
            for _ in 0..4 {
                ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
            }
            if round % 2 == 0 {
                change(&side, qp, IBV_QPS_ERR, 0);
            }
        }
        ok(ibv_destroy_qp(qp));
        talk.meet();
    }
    side.close();
}

/// Queue pairs that have much to send, and octets of each of their requests.
const BUSY: usize = 24;
const LONG: usize = 60_000;

/// As [`last_words`], while other queue pairs of the process have much to send.
pub(crate) unsafe fn last_words_of_many(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    let mut busy = Vec::new();
    for _ in 0..BUSY {
        let qp = side.queue_pair();
        connect_and_talk(&mut side, &mut talk, qp, is_server);
        busy.push(qp);
    }
    let there = (
        talk.exchange(side.memory.address(4096)),
        talk.exchange((*side.memory.mr).rkey.into()) as u32,
    );
    for round in 0..6 {
        let qp = side.queue_pair();
        connect_and_talk(&mut side, &mut talk, qp, is_server);
        while poll(side.cq).is_some() {}
        talk.meet();
        if is_server {
            for place in [1, 2, 3] {
                let wc = completion(side.cq);
                let seen = (wc.wr_id, wc.status, wc.byte_len);
                assert_eq!(seen, (place, IBV_WC_SUCCESS, 256), "round {round}");
            }
            ok(ibv_destroy_qp(qp));
        } else {
            for qp in &busy {
                for _ in 0..4 {
                    ok(write(&side, *qp, there));
                }
            }
            for _ in 0..3 {
                ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
            }
            if round % 2 == 0 {
                change(&side, qp, IBV_QPS_ERR, 0);
            }
            ok(ibv_destroy_qp(qp));
            for _ in 0..4 * BUSY {
                assert_eq!(completion(side.cq).status, IBV_WC_SUCCESS);
            }
        }
        talk.meet();
    }
    for qp in busy {
        ok(ibv_destroy_qp(qp));
    }
    side.close();
}

/// Writes as much as the memory has room for.
unsafe fn write(side: &Side, qp: *mut ibv_qp, there: (u64, u32)) -> i32 {
    let mut sge = side.memory.sge(4096, LONG);
    let mut wr: ibv_send_wr = std::mem::zeroed();
    (wr.opcode, wr.send_flags) = (IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (&mut sge, 1);
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: there.0,
        rkey: there.1,
    };
    post_send(qp, &mut wr)
}
