//! Memory windows.
//!
//! rnic has windows of type 2: what is bound on a queue pair is for the peer of that queue pair. A
//! window of type 1 is one whose bindings follow each other without the program invalidating them,
//! so it too serves only the queue pair on which it was bound last.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::cell::UnsafeCell;
use std::sync::Mutex;

use rnic_verbs::{Access, Binding, SendRequest};

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::errno::{Errno, ToErrno, lock, pointer};
use crate::objects::{Mr, Mw, Pd, Qp};
use crate::process::Process;

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    let _whole = PutOff::new();
    if kind != IBV_MW_TYPE_1 && kind != IBV_MW_TYPE_2 {
        return pointer(Err(Errno::EINVAL));
    }
    let made = Pd::here(pd).and_then(|pd| pd.pd.window().map_err(|_| Errno::ENOMEM));
    pointer(made.map(|mw| {
        Pd::of(pd).users.add();
        let abi = ibv_mw {
            context: (*pd).context,
            pd,
            rkey: mw.stag().0,
            handle: mw.stag().0,
            r#type: kind,
        };
        Mw {
            abi: UnsafeCell::new(abi),
            process: Process::this(),
            mw,
            bound: Mutex::default(),
        }
        .give()
    }))
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> i32 {
    let _whole = PutOff::new();
    if Mw::is_inherited(mw) {
        return 0;
    }
    let pd = (*mw).pd;
    drop(Mw::take(mw));
    Pd::of(pd).users.remove();
    0
}

/// Returns the binding that a request asks for, under the key that it names.
///
/// # Safety
/// The region exists, or is NULL.
pub(crate) unsafe fn binding(
    window: &Mw,
    rkey: Option<u32>,
    info: &ibv_mw_bind_info,
) -> Result<Binding, Errno> {
    let mut rights = Access::default();
    // A window is for peers: local rights, which adapters take too, say nothing of it.
    let mut rest = info.mw_access_flags & !(IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    for (bit, right) in [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if rest & bit != 0 {
            rights = rights | right;
            rest &= !bit;
        }
    }
    if rest != 0 || info.mr.is_null() {
        return Err(Errno::EINVAL);
    }
    let registered = lock(&Mr::of(info.mr).mr);
    let mr = registered.as_ref().ok_or(Errno::EINVAL)?;
    // What does not lie in the region is found when the request is carried out.
    let start = info.addr.wrapping_sub(mr.base()) as usize;
    let end = start
        .checked_add(info.length as usize)
        .ok_or(Errno::EINVAL)?;
    let mut binding = window.mw.binding(mr, start..end, rights);
    if info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
        binding = binding.base(0);
    }
    match rkey {
        None => Ok(binding),
        Some(rkey) if rkey >> 8 == window.mw.stag().0 >> 8 => Ok(binding.key(rkey as u8)),
        Some(_) => Err(Errno::EINVAL),
    }
}

/// `ibv_bind_mw`, for windows of type 1. A length of 0 unbinds.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> i32 {
    let _whole = PutOff::new();
    match Qp::here(qp).and_then(|qp| bind_type_1(qp, Mw::of(mw), &*bind)) {
        Ok(()) => 0,
        Err(errno) => errno as i32,
    }
}

/// Binds a window, and shows the program its new key.
///
/// # Safety
/// The region exists, or is NULL.
unsafe fn bind_type_1(qp: &Qp, window: &Mw, bind: &ibv_mw_bind) -> Result<(), Errno> {
    let mut bound = lock(&window.bound);
    let mut inner = qp.lock();
    let signaled = bind.send_flags & IBV_SEND_SIGNALED != 0;
    let unbinds = bind.bind_info.length == 0;
    let new = match unbinds {
        true => None,
        false => Some(binding(window, None, &bind.bind_info)?),
    };
    let replaces = bound.is_some_and(|(_, on)| on == qp.number());
    // Both requests have room, or none is posted.
    if inner.send_room() < u32::from(replaces) + u32::from(!unbinds) {
        return Err(Errno::ENOMEM);
    }
    let post = |request: SendRequest<'_>, inner: &mut rnic_verbs::Qp| {
        let request = request.wr_id(bind.wr_id);
        let request = match bind.send_flags & IBV_SEND_FENCE {
            0 => request,
            _ => request.fenced(),
        };
        inner.post_send(&request).map_err(|why| why.errno())
    };
    match *bound {
        Some((old, on)) if on == qp.number() => {
            let invalidate = SendRequest::invalidate(old).signaled(unbinds && signaled);
            post(invalidate, &mut inner)?;
        }
        // Elsewhere no request of this queue pair can reach it.
        Some(_) => window.mw.recall().map_err(|why| why.errno())?,
        None if unbinds => return Err(Errno::EINVAL),
        None => {}
    }
    *bound = None;
    let mut key = window.mw.stag();
    if let Some(new) = new {
        post(SendRequest::bind(&new).signaled(signaled), &mut inner)?;
        key = new.stag();
        *bound = Some((key, qp.number()));
    }
    // Behind the lock of `bound`, with which it agrees.
    (*window.abi.get()).rkey = key.0;
    Ok(())
}
