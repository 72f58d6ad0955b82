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
