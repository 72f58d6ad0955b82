//! Queue pairs of UC, which take fewer attributes than those of RC.

use crate::calls::*;
use crate::end::qp_attributes;
use crate::itself::{PSNS, Side, change_by, receive, request};

const INIT: i32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const RTR: i32 = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const RTS: i32 = IBV_QP_STATE | IBV_QP_SQ_PSN;

unsafe fn queue_pair(side: &Side) -> *mut ibv_qp {
    let mut attr = qp_attributes(side.cq);
    attr.qp_type = IBV_QPT_UC;
    made(ibv_create_qp(side.pd, &mut attr))
}

unsafe fn to_rts(side: &Side, qp: *mut ibv_qp, peer: u32) {
    change_by(side, qp, IBV_QPS_INIT, 0, INIT);
    change_by(side, qp, IBV_QPS_RTR, peer, RTR);
    change_by(side, qp, IBV_QPS_RTS, peer, RTS);
}

/// Two of one process talk. A peer that does not come, or has left, is given up: no program sets how
/// long that takes, and it is not for ever.
pub(crate) unsafe fn unreliable() {
    let mut side = Side::new(false);
    side.at = [side.at[0]; 2];
    side.psns = [PSNS[0]; 2];
    let [one, other, lone] = [(); 3].map(|()| queue_pair(&side));
    let nobody = (*lone).qp_num ^ 0x80;
    for (qp, peer) in [
        (one, (*other).qp_num),
        (other, (*one).qp_num),
        (lone, nobody),
    ] {
        to_rts(&side, qp, peer);
    }
    receive(&side, other, 1);
    ok(request(&side, one, IBV_WR_SEND, 8, (0, 0)));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    assert_eq!(
        both.map(|wc| (wc.status, wc.wr_id)),
        [(IBV_WC_SUCCESS, 1), (IBV_WC_SUCCESS, 108)]
    );
    ok(ibv_destroy_qp(other));
    for qp in [lone, one] {
        ok(request(&side, qp, IBV_WR_SEND, 8, (0, 0)));
        let wc = completion(side.cq);
        assert_eq!((wc.status, wc.qp_num), (IBV_WC_RETRY_EXC_ERR, (*qp).qp_num));
        ok(ibv_destroy_qp(qp));
    }
    side.close();
}
