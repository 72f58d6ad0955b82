//! The states of a queue pair that its program moves, and the attributes of each change: those of
//! InfiniBand for reliable and unreliable connections and for datagrams, as `ibv_modify_qp(3)` lists them.

use rnic_verbs::QpState;

use crate::abi::*;
use crate::errno::{Errno, lock};
use crate::objects::Qp;
use crate::settings::Settings;

/// A change of state, what must be set with it, and what may be.
struct Change {
    from: u32,
    to: u32,
    required: i32,
    optional: i32,
}

const fn change(from: u32, to: u32, required: i32, optional: i32) -> Change {
    Change {
        from,
        to,
        required,
        optional,
    }
}

/// What may be set wherever a connection exists.
const ANY_TIME: i32 = IBV_QP_CUR_STATE
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_ALT_PATH
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_PATH_MIG_STATE;

const INIT: i32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

/// What an unreliable connection has not: it is never acknowledged, and has no Reads.
const RELIABLE: i32 = IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;

/// The changes, but for those to RESET and ERR, which are always allowed.
const CHANGES: [Change; 9] = [
    change(IBV_QPS_RESET, IBV_QPS_INIT, INIT, 0),
    change(IBV_QPS_INIT, IBV_QPS_INIT, 0, INIT),
    change(
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
        IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
    ),
    change(
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
        ANY_TIME,
    ),
    change(IBV_QPS_RTS, IBV_QPS_RTS, 0, ANY_TIME),
    change(IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    change(IBV_QPS_SQD, IBV_QPS_RTS, 0, ANY_TIME),
    change(
        IBV_QPS_SQD,
        IBV_QPS_SQD,
        0,
        ANY_TIME
            | IBV_QP_PORT
            | IBV_QP_PKEY_INDEX
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC
            | IBV_QP_MAX_DEST_RD_ATOMIC,
    ),
    change(IBV_QPS_ERR, IBV_QPS_ERR, 0, 0),
];

/// What may be set of a datagram queue pair at any time.
const OF_DATAGRAMS: i32 = IBV_QP_CUR_STATE | IBV_QP_QKEY;

/// The changes of a datagram queue pair.
const DATAGRAM_CHANGES: [Change; 10] = [
    change(
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        0,
    ),
    change(
        IBV_QPS_INIT,
        IBV_QPS_INIT,
        0,
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    ),
    change(
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        0,
        IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    ),
    change(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, OF_DATAGRAMS),
    change(IBV_QPS_RTS, IBV_QPS_RTS, 0, OF_DATAGRAMS),
    // A request has failed.
    change(IBV_QPS_SQE, IBV_QPS_RTS, 0, OF_DATAGRAMS),
    change(IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    change(IBV_QPS_SQD, IBV_QPS_RTS, 0, OF_DATAGRAMS),
    change(IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    change(IBV_QPS_ERR, IBV_QPS_ERR, 0, 0),
];

/// Fails unless a queue pair of this type may change so, with these attributes.
pub(crate) fn check(qp_type: u32, from: u32, to: u32, mask: i32) -> Result<(), Errno> {
    let mask = mask & !IBV_QP_STATE;
    if matches!(to, IBV_QPS_RESET | IBV_QPS_ERR) {
        return (mask & !IBV_QP_CUR_STATE == 0)
            .then_some(())
            .ok_or(Errno::EINVAL);
    }
    let changes: &[Change] = match qp_type {
        IBV_QPT_UD => &DATAGRAM_CHANGES,
        _ => &CHANGES,
    };
    let known = changes.iter().find(|one| (one.from, one.to) == (from, to));
    let Change {
        required, optional, ..
    } = known.ok_or(Errno::EINVAL)?;
    let known = match qp_type {
        IBV_QPT_UC => !RELIABLE,
        _ => !0,
    };
    let (required, optional) = (required & known, optional & known);
    let is_whole = mask & required == required;
    let is_known = mask & !(required | optional) == 0;
    (is_whole && is_known).then_some(()).ok_or(Errno::EINVAL)
}

/// Returns the state that a queue pair has, as verbs have it.
pub(crate) fn state_of(object: &Qp, settings: &Settings) -> u32 {
    if let Some(datagrams) = &object.datagrams {
        return datagrams.state().unwrap_or(IBV_QPS_ERR);
    }
    let inner = object.lock().state();
    match (inner, &settings.meeting) {
        // rdma_cm has no other states before it connects.
        (QpState::Init, None) => settings.state,
        (QpState::Connecting, None) => IBV_QPS_RTR,
        (QpState::Rts, None) => IBV_QPS_RTS,
        (QpState::Sqd, None) => IBV_QPS_SQD,
        (QpState::Terminate, None) => IBV_QPS_SQE,
        (QpState::Terminate, Some(_)) | (QpState::Error, _) => IBV_QPS_ERR,
        (_, Some(_)) => settings.state,
    }
}

/// Returns whether a queue pair is in SQD, and no request that had begun is unfinished.
pub(crate) fn has_drained(object: &Qp) -> bool {
    state_of(object, &lock(&object.settings)) == IBV_QPS_SQD && !is_draining(object)
}

/// Returns whether requests that had begun are not finished, of a queue pair in SQD.
pub(crate) fn is_draining(object: &Qp) -> bool {
    match &object.datagrams {
        Some(datagrams) => datagrams.is_draining(),
        None => object.lock().is_draining(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_goes_from_state_to_state_with_what_each_step_needs() {
        let connecting = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let sending = IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        let steps = [
            (IBV_QPS_RESET, IBV_QPS_INIT, INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR, connecting),
            (IBV_QPS_RTR, IBV_QPS_RTS, sending),
        ];
        for (from, to, mask) in steps {
            assert_eq!(check(IBV_QPT_RC, from, to, mask | IBV_QP_STATE), Ok(()));
            for bit in 0..26 {
                let changed = mask ^ (1 << bit);
                let is_missing = mask & (1 << bit) != 0;
                if is_missing || 1 << bit == IBV_QP_QKEY {
                    let outcome = check(IBV_QPT_RC, from, to, changed | IBV_QP_STATE);
                    // The state itself is always in the mask.
                    let same = 1 << bit == IBV_QP_STATE;
                    assert_eq!(outcome.is_ok(), same, "{from} to {to} with {changed:#x}");
                }
            }
        }
        for (from, to) in [
            (IBV_QPS_RESET, IBV_QPS_RTR),
            (IBV_QPS_INIT, IBV_QPS_RTS),
            (IBV_QPS_RTS, IBV_QPS_RTR),
            (IBV_QPS_RTS, IBV_QPS_INIT),
            (IBV_QPS_ERR, IBV_QPS_RTS),
            (IBV_QPS_RTR, IBV_QPS_SQD),
        ] {
            for mask in [0, connecting, sending, INIT] {
                assert_eq!(
                    check(IBV_QPT_RC, from, to, mask),
                    Err(Errno::EINVAL),
                    "{from} to {to}"
                );
            }
        }
        for from in [
            IBV_QPS_RESET,
            IBV_QPS_INIT,
            IBV_QPS_RTR,
            IBV_QPS_RTS,
            IBV_QPS_ERR,
        ] {
            assert_eq!(check(IBV_QPT_RC, from, IBV_QPS_ERR, IBV_QP_STATE), Ok(()));
            assert_eq!(check(IBV_QPT_RC, from, IBV_QPS_RESET, IBV_QP_STATE), Ok(()));
        }
        assert_eq!(
            check(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_ERR, sending),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn a_datagram_queue_pair_names_no_peer() {
        let ud = |from, to, mask| check(IBV_QPT_UD, from, to, mask | IBV_QP_STATE);
        let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(ud(IBV_QPS_RESET, IBV_QPS_INIT, init), Ok(()));
        assert_eq!(ud(IBV_QPS_INIT, IBV_QPS_RTR, 0), Ok(()));
        assert_eq!(ud(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN), Ok(()));
        assert_eq!(ud(IBV_QPS_RTS, IBV_QPS_ERR, 0), Ok(()));
        for (from, to, mask) in [
            (IBV_QPS_RESET, IBV_QPS_INIT, INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV),
            (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_DEST_QPN),
            (IBV_QPS_RTR, IBV_QPS_RTS, 0),
            (IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT),
            (IBV_QPS_RESET, IBV_QPS_RTR, 0),
        ] {
            assert_eq!(ud(from, to, mask), Err(Errno::EINVAL), "{from} to {to}");
        }
        let connection = check(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, init);
        assert_eq!(connection, Err(Errno::EINVAL));
    }

    #[test]
    fn an_unreliable_connection_has_less() {
        let uc = |from, to, mask| check(IBV_QPT_UC, from, to, mask);
        let connecting = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        assert_eq!(uc(IBV_QPS_INIT, IBV_QPS_RTR, connecting), Ok(()));
        assert_eq!(uc(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN), Ok(()));
        let with_reads = connecting | IBV_QP_MAX_DEST_RD_ATOMIC;
        assert_eq!(
            uc(IBV_QPS_INIT, IBV_QPS_RTR, with_reads),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            check(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, connecting),
            Err(Errno::EINVAL)
        );
    }
}
