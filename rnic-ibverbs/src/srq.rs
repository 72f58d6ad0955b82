//! Shared receive queues.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::sync::atomic::Ordering;

use nix::libc;
use rnic_verbs::{AsyncEvent, MAX_SGE, SrqCaps};

use crate::abi::*;
use crate::asynchronous;
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::errno::{Errno, ToErrno, pointer, result};
use crate::objects::{Pd, Srq};
use crate::qp::MAX_WR;

/// Makes a shared receive queue, and states its real capacity in `init`.
///
/// # Safety
/// The protection domain exists.
unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    let attr = &mut init.attr;
    if attr.max_wr == 0 || attr.max_wr > MAX_WR || attr.max_sge as usize > MAX_SGE {
        return Err(Errno::EINVAL);
    }
    let caps = SrqCaps {
        max_wr: attr.max_wr,
        max_sge: MAX_SGE,
        ..SrqCaps::default()
    };
    let srq = Pd::here(pd)?.pd.srq(caps).map_err(|why| why.errno())?;
    attr.max_wr = srq.capacity();
    attr.max_sge = attr.max_sge.max(1);
    let abi = ibv_srq {
        context: (*pd).context,
        srq_context: init.srq_context,
        pd,
        handle: srq.id().0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let adapter = Context::of((*pd).context).adapter;
    let srq = Srq::new(abi, srq, adapter, (attr.max_wr, attr.max_sge)).give();
    Pd::of(pd).users.add();
    asynchronous::watch_srq(srq);
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let _whole = PutOff::new();
    pointer(create(pd, &mut *init))
}

/// `ibv_create_srq_ex`: basic queues only.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let _whole = PutOff::new();
    let attr = &mut *attr;
    let kind = match attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE {
        0 => IBV_SRQT_BASIC,
        _ => attr.srq_type,
    };
    let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    if kind != IBV_SRQT_BASIC || attr.comp_mask & !known != 0 {
        return pointer(Err(Errno::EOPNOTSUPP));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return pointer(Err(Errno::EINVAL));
    }
    let mut init = ibv_srq_init_attr {
        srq_context: attr.srq_context,
        attr: attr.attr,
    };
    let made = create(attr.pd, &mut init);
    attr.attr = init.attr;
    pointer(made)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> i32 {
    let _whole = PutOff::new();
    if Srq::is_inherited(srq) {
        return 0;
    }
    if Srq::of(srq).users.any() {
        return result(Err(Errno::EBUSY));
    }
    asynchronous::forget_srq(srq);
    let pd = (*srq).pd;
    drop(Srq::take(srq));
    Pd::of(pd).users.remove();
    0
}

/// Arms the limit. The size of a queue cannot be changed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: i32,
) -> i32 {
    let _whole = PutOff::new();
    let (object, attr) = match Srq::here(srq) {
        Ok(object) => (object, &*attr),
        Err(errno) => return result(Err(errno)),
    };
    if mask & !IBV_SRQ_LIMIT != 0 {
        return result(Err(Errno::EOPNOTSUPP));
    }
    if mask & IBV_SRQ_LIMIT == 0 {
        return 0;
    }
    if attr.srq_limit > object.max_wr {
        return result(Err(Errno::EINVAL));
    }
    // Before it is armed: the event, which makes it 0, may come at once.
    let before = object.limit.swap(attr.srq_limit, Ordering::Relaxed);
    let armed = arm(object, attr.srq_limit);
    if armed.is_err() {
        object.limit.store(before, Ordering::Relaxed);
    }
    result(armed)
}

/// Arms the limit of a queue, where its receives are.
fn arm(object: &Srq, left: u32) -> Result<(), Errno> {
    match object.receives.arm(left) {
        None => object.arm_engine(left),
        Some(is_reached) => {
            if is_reached {
                let reached = AsyncEvent::SrqLimitReached {
                    srq: object.id,
                    left,
                    taken: 0,
                    greediest: None,
                };
                asynchronous::hand_on(object.adapter, reached);
            }
            Ok(())
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> i32 {
    let _whole = PutOff::new();
    let object = Srq::of(srq);
    *attr = ibv_srq_attr {
        max_wr: object.max_wr,
        max_sge: object.max_sge,
        srq_limit: object.limit.load(Ordering::Relaxed),
    };
    0
}

/// `ibv_get_srq_num`, which names queues of XRC.
pub(crate) unsafe extern "C" fn get_srq_num(_srq: *mut ibv_srq, _number: *mut u32) -> i32 {
    Errno::EOPNOTSUPP as i32
}
