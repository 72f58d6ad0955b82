//! Changing queue pairs, and asking for what was set.
//!
//! A queue pair belongs to rdma_cm, which connects it, or its program connects it itself, which it
//! shows by naming the other side when it moves the queue pair to RTR.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::sync::atomic::Ordering;
use std::time::Instant;

use rnic_verbs::QpState;
use rnic_verbs::rdma::Label;

use crate::abi::*;
use crate::ah::addresses;
use crate::cancellation::PutOff;
use crate::datagrams::DatagramQp;
use crate::errno::{Errno, ToErrno, lock, result};
use crate::label;
use crate::numbers::{has_port, port_of};
use crate::objects::Qp;
use crate::qp::{forget_completions, forget_mirror, init_of, make_mirror, renew, send_posted};
use crate::rendezvous;
use crate::settings::{MAX_READS, Meeting, Settings, Stage};
use crate::states::{self, is_draining, state_of};

/// What names the other side.
const PEER: i32 = IBV_QP_AV | IBV_QP_DEST_QPN;

/// PSNs have so many bits.
const PSN: u32 = 0x00ff_ffff;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: i32,
) -> i32 {
    let _whole = PutOff::new();
    result(modify(qp, &*attr, mask))
}

/// # Safety
/// The queue pair exists.
unsafe fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: i32) -> Result<(), Errno> {
    let object = Qp::here(qp)?;
    // Threads that change the queue pair at once do so one after the other.
    let _alone = lock(&object.changing);
    if let Some(datagrams) = &object.datagrams {
        return move_datagrams(qp, object, datagrams, attr, mask);
    }
    let now = state_of(object, &lock(&object.settings));
    let wanted = match mask & IBV_QP_STATE {
        0 => now,
        _ => attr.qp_state,
    };
    let connects_itself = {
        let settings = lock(&object.settings);
        let names_peer = wanted == IBV_QPS_RTR && mask & PEER != 0;
        settings.meeting.is_some() || (names_peer && settings.has_no_peer())
    };
    match wanted {
        IBV_QPS_RESET if connects_itself || may_reset(object) => {
            states::check((*qp).qp_type, now, wanted, mask)?;
            reset(qp, object)?;
        }
        _ if connects_itself => {
            states::check((*qp).qp_type, now, wanted, mask)?;
            if wanted == IBV_QPS_ERR {
                send_posted(object);
            }
            move_to(qp, object, (now, wanted), attr, mask)?;
        }
        _ => move_for_rdma_cm(object, (now, wanted), attr, mask)?,
    }
    (*qp).state = wanted;
    Ok(())
}

/// Changes a datagram queue pair.
///
/// # Safety
/// It exists.
unsafe fn move_datagrams(
    qp: *mut ibv_qp,
    object: &Qp,
    datagrams: &DatagramQp,
    attr: &ibv_qp_attr,
    mask: i32,
) -> Result<(), Errno> {
    let mut settings = lock(&object.settings);
    let now = datagrams.state().ok_or(Errno::EINVAL)?;
    let wanted = match mask & IBV_QP_STATE {
        0 => now,
        _ => attr.qp_state,
    };
    states::check((*qp).qp_type, now, wanted, mask)?;
    check_values(attr, mask)?;
    if wanted == IBV_QPS_RESET {
        settings.attr = ibv_qp_attr::default();
    }
    if (now, wanted) == (IBV_QPS_RTS, IBV_QPS_SQD) {
        settings.forget_notification();
    }
    keep(&mut settings.attr, attr, mask);
    datagrams.move_to(wanted, settings.attr.qkey)?;
    drop(settings);
    if wanted == IBV_QPS_RESET {
        forget_completions(object.adapter, object.number(), &*qp);
    }
    (*qp).state = wanted;
    Ok(())
}

/// Returns whether a queue pair of rdma_cm may be made new: rdma_cm does not need it any more.
fn may_reset(object: &Qp) -> bool {
    let state = object.lock().state();
    state == QpState::Init || state.is_over()
}

/// The timeout of UC, which has none: its requests complete whether or not there is a peer. Here
/// they wait for one as shortly as any do, and not for ever.
const SHORTEST_TIMEOUT: u8 = 1;

/// Keeps what the program sets.
fn keep(kept: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: i32) {
    macro_rules! keep {
        ($($bit:ident: $($member:ident)*;)*) => { $(
            if mask & $bit != 0 {
                $( kept.$member = attr.$member; )*
            }
        )* };
    }
    keep! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_ALT_PATH: alt_ah_attr alt_pkey_index alt_port_num alt_timeout;
        IBV_QP_PATH_MIG_STATE: path_mig_state;
        IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
    }
    kept.rq_psn &= PSN;
    kept.sq_psn &= PSN;
}

/// Changes a queue pair that rdma_cm connects: the states between INIT and RTS are rdma_cm's, and
/// are accepted where the queue pair is on its way.
fn move_for_rdma_cm(
    object: &Qp,
    (now, wanted): (u32, u32),
    attr: &ibv_qp_attr,
    mask: i32,
) -> Result<(), Errno> {
    // InfiniBand's programs name the partition, which iWARP has not.
    if wanted == IBV_QPS_INIT && mask & IBV_QP_PKEY_INDEX != 0 {
        states::check(IBV_QPT_RC, now, wanted, mask)?;
        check_values(attr, mask)?;
    }
    let mut settings = lock(&object.settings);
    if mask & IBV_QP_STATE != 0 {
        let mut inner = object.lock();
        match (wanted, inner.state()) {
            (IBV_QPS_ERR, _) => fail(&mut inner)?,
            (IBV_QPS_SQD, QpState::Rts) => inner.disconnect().map_err(|why| why.errno())?,
            (IBV_QPS_INIT, QpState::Init) => settings.state = IBV_QPS_INIT,
            _ if wanted == now => {}
            // The engine may be further than the program knows, and a program that connects moves
            // its queue pair to RTR before.
            (IBV_QPS_RTR, QpState::Init | QpState::Rts) => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    keep(&mut settings.attr, attr, mask);
    Ok(())
}

/// Fails if an attribute has a value that no device of ours has.
fn check_values(attr: &ibv_qp_attr, mask: i32) -> Result<(), Errno> {
    let wrong = [
        (IBV_QP_PORT, attr.port_num != 1),
        (IBV_QP_PKEY_INDEX, attr.pkey_index != 0),
        (
            IBV_QP_PATH_MTU,
            !(IBV_MTU_256..=IBV_MTU_4096).contains(&attr.path_mtu),
        ),
        (
            IBV_QP_MAX_QP_RD_ATOMIC,
            u16::from(attr.max_rd_atomic) > MAX_READS,
        ),
        (
            IBV_QP_MAX_DEST_RD_ATOMIC,
            u16::from(attr.max_dest_rd_atomic) > MAX_READS,
        ),
        // 5 bits, 3 bits.
        (IBV_QP_TIMEOUT, attr.timeout > 31),
        (IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer > 31),
        (IBV_QP_RETRY_CNT, attr.retry_cnt > 7),
        (IBV_QP_RNR_RETRY, attr.rnr_retry > 7),
    ];
    let is_wrong = wrong.iter().any(|(bit, wrong)| mask & bit != 0 && *wrong);
    (!is_wrong).then_some(()).ok_or(Errno::EINVAL)
}

/// Changes a queue pair that its program connects.
///
/// # Safety
/// It exists.
unsafe fn move_to(
    qp: *mut ibv_qp,
    object: &Qp,
    (now, wanted): (u32, u32),
    attr: &ibv_qp_attr,
    mask: i32,
) -> Result<(), Errno> {
    check_values(attr, mask)?;
    let begun = match (now, wanted) {
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some(meeting(qp, object, attr)?),
        _ => None,
    };
    let mut settings = lock(&object.settings);
    if begun.is_some() {
        settings.meeting = begun;
    }
    if (now, wanted) == (IBV_QPS_RTS, IBV_QPS_SQD) {
        settings.forget_notification();
    }
    keep(&mut settings.attr, attr, mask);
    if (*qp).qp_type == IBV_QPT_UC {
        settings.attr.timeout = SHORTEST_TIMEOUT;
    }
    settings.state = wanted;
    if mask & IBV_QP_RNR_RETRY != 0 {
        let set = object.lock().set_rnr_retry(attr.rnr_retry);
        set.map_err(|why| why.errno())?;
    }
    let is_begun = !matches!(now, IBV_QPS_RESET | IBV_QPS_INIT);
    if mask & IBV_QP_ACCESS_FLAGS != 0 && is_begun {
        rendezvous::set_access(object, &mut settings)?;
    }
    match (now, wanted) {
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            object.connects_itself.store(true, Ordering::Relaxed);
            object.lock().open_sends(false);
            rendezvous::begin(object, &mut settings);
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            object.lock().open_sends(true);
            rendezvous::may_send(object, &mut settings);
        }
        (IBV_QPS_RTS, IBV_QPS_SQD) => {
            object.lock().stop_sends().map_err(|why| why.errno())?;
        }
        (IBV_QPS_SQD, IBV_QPS_RTS) => {
            object.lock().resume_sends().map_err(|why| why.errno())?;
            // Its times may be others now.
            rendezvous::may_send(object, &mut settings);
        }
        (_, IBV_QPS_ERR) => {
            fail(&mut object.lock())?;
            rendezvous::end(object, &mut settings);
        }
        _ => {}
    }
    drop(settings);
    match wanted {
        // Something may be due.
        IBV_QPS_RTR | IBV_QPS_RTS => object.adapter.wake(),
        IBV_QPS_ERR => rendezvous::forget(object.adapter, (*qp).qp_num),
        _ => {}
    }
    Ok(())
}

/// Fails a queue pair. Programs post a last request then, and wait until that is flushed, also where
/// the engine has not got so far.
fn fail(qp: &mut rnic_verbs::Qp) -> Result<(), Errno> {
    qp.open_sends(true);
    qp.fail().map_err(|why| why.errno())
}

/// Returns the other side that the program names.
///
/// # Safety
/// The queue pair exists.
unsafe fn meeting(qp: *mut ibv_qp, object: &Qp, attr: &ibv_qp_attr) -> Result<Meeting, Errno> {
    let own = object.adapter.numbers.shown(object.number());
    let (handle, peer) = (&attr.ah_attr, attr.dest_qp_num);
    // Without a port in its number nobody finds a queue pair.
    if !has_port(own) || !has_port(peer) {
        return Err(Errno::EINVAL);
    }
    let (local, mut remote) = addresses(object.adapter, handle)?;
    remote.set_port(port_of(peer));
    let is_itself = (local.ip(), own) == (remote.ip(), peer);
    Ok(Meeting {
        mirror: is_itself.then(|| make_mirror(&*qp, object)).transpose()?,
        connects: is_itself || rendezvous::connects((local, own), (remote, peer)),
        own,
        peer,
        local,
        remote,
        expected: 0,
        stage: Stage::Apart,
        pause: rendezvous::FIRST_PAUSE,
        not_before: Instant::now(),
        waits_since: None,
    })
}

/// Makes a queue pair as new.
///
/// # Safety
/// It exists.
unsafe fn reset(qp: *mut ibv_qp, object: &Qp) -> Result<(), Errno> {
    let is_new = {
        let mut settings = lock(&object.settings);
        if let Some(meeting) = &mut settings.meeting {
            // It does not connect again meanwhile.
            meeting.stage = Stage::Over;
        }
        settings.has_no_peer() && settings.state == IBV_QPS_RESET && is_idle(object)
    };
    forget_mirror(&*qp, object);
    if !is_new {
        renew(qp)?;
    }
    // The former peer's requests wait from here on, as those of any peer.
    *lock(&object.settings) = Settings::default();
    object.connects_itself.store(false, Ordering::Relaxed);
    Ok(())
}

fn is_idle(object: &Qp) -> bool {
    object.lock().state() == QpState::Init
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: i32,
    init: *mut ibv_qp_init_attr,
) -> i32 {
    let _whole = PutOff::new();
    let object = match Qp::here(qp) {
        Ok(object) => object,
        Err(errno) => return result(Err(errno)),
    };
    let settings = lock(&object.settings);
    let state = match (state_of(object, &settings), label::chosen()) {
        // The kernel's iWARP has no RESET.
        (IBV_QPS_RESET, Label::Iwarp) => IBV_QPS_INIT,
        (state, _) => state,
    };
    *attr = ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: match settings.attr.path_mtu {
            0 => IBV_MTU_4096,
            set => set,
        },
        cap: object.cap,
        port_num: 1,
        sq_draining: (state == IBV_QPS_SQD && is_draining(object)).into(),
        ..settings.attr
    };
    *init = init_of(&*qp, object);
    0
}
