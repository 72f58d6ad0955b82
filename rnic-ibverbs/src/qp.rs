//! Queue pairs: making and destroying them.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::libc;
use rnic_verbs::{MAX_INLINE, MAX_SGE, QpCaps, QpNumber};
use tracing::debug;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::asynchronous;
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::cq::MAX_ENTRIES;
use crate::datagrams::{DatagramQp, NewEndpoint, Taker};
use crate::errno::{Errno, ToErrno, lock, pointer};
use crate::numbers;
use crate::objects::{Cq, NewQp, Pd, Qp, Srq};
use crate::qp_ex;
use crate::registry::{QPS, leaving};
use crate::rendezvous;

/// How long the end of a queue pair may take in the engine before its completions are taken out.
const LONGEST_END: Duration = Duration::from_secs(1);

/// The most requests of a queue.
pub(crate) const MAX_WR: u32 = MAX_ENTRIES >> 4;

/// Calls `what` with the queue pair that has this number in the device.
pub(crate) fn with_number<R>(
    adapter: &Adapter,
    number: QpNumber,
    what: impl FnOnce(&Qp) -> R,
) -> Option<R> {
    QPS.with(adapter, number.0, what)
}

fn check(cap: &ibv_qp_cap, has_srq: bool) -> Result<(), Errno> {
    let own_receives = if has_srq { 0 } else { cap.max_recv_wr };
    let fits = cap.max_send_wr <= MAX_WR
        && own_receives <= MAX_WR
        && cap.max_send_sge as usize <= MAX_SGE
        && (has_srq || cap.max_recv_sge as usize <= MAX_SGE)
        && cap.max_inline_data as usize <= MAX_INLINE;
    fits.then_some(()).ok_or(Errno::EINVAL)
}

/// Calls `work` with the completion queues of sends and of receives, which may be one.
fn with_locked<R>(
    (send, recv): (&Cq, &Cq),
    work: impl FnOnce(&rnic_verbs::Cq, &rnic_verbs::Cq) -> R,
) -> R {
    if std::ptr::eq(send, recv) {
        let both = send.lock();
        return work(&both, &both);
    }
    // Always in the same order, or two threads that have exchanged them would wait for each other.
    let (send, recv) = if (&raw const *send) < (&raw const *recv) {
        let send = send.lock();
        (send, recv.lock())
    } else {
        let recv = recv.lock();
        (send.lock(), recv)
    };
    work(&send, &recv)
}

/// Makes the queue pair of the device, with the capacities that are asked for.
///
/// # Safety
/// The objects that are named exist, or are NULL.
unsafe fn make(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<rnic_verbs::Qp, Errno> {
    let srq = init.srq;
    let caps = QpCaps {
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_sge: MAX_SGE,
        // rdma-core's examples send inline without having asked for it.
        max_inline: MAX_INLINE,
        signal_all: init.sq_sig_all != 0,
    };
    let cqs = (Cq::here(init.send_cq)?, Cq::here(init.recv_cq)?);
    if !srq.is_null() {
        Srq::here(srq)?;
    }
    let made = with_locked(cqs, |send_cq, recv_cq| {
        let pd = &Pd::of(pd).pd;
        match srq.is_null() {
            true => pd.qp(send_cq, recv_cq, caps),
            false => pd.qp_with_srq(send_cq, recv_cq, &Srq::of(srq).lock(), caps),
        }
    });
    made.map_err(|why| why.errno())
}

/// Makes the other end of the connection of a queue pair that is its own peer. The queue pair of
/// the device that has the program's receives becomes that end, and is returned; a new one, without
/// receives, takes its place.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn make_mirror(base: &ibv_qp, object: &Qp) -> Result<rnic_verbs::Qp, Errno> {
    let mut init = init_of(base, object);
    init.srq = null_mut();
    init.cap.max_recv_wr = 1;
    let sends = make(base.pd, &init)?;
    let (adapter, former, number) = (object.adapter, object.number(), sends.number());
    // Completions of either have the number that the program knows.
    adapter.numbers.move_to(base.qp_num, number);
    let mirror = QPS.move_to(adapter, former.0, number.0, || object.replace(sends));
    QPS.add(adapter, former.0, object);
    object.is_own_peer.store(true, Ordering::Release);
    Ok(mirror)
}

/// Removes the [mirror](make_mirror) of a queue pair, if it has one.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn forget_mirror(base: &ibv_qp, object: &Qp) {
    object.is_own_peer.store(false, Ordering::Release);
    let mut settings = lock(&object.settings);
    let meeting = settings.meeting.as_mut();
    let mirror = meeting.and_then(|meeting| meeting.mirror.take());
    drop(settings);
    let Some(mirror) = mirror else { return };
    let (adapter, number) = (object.adapter, mirror.number());
    QPS.remove(adapter, number.0);
    drop(mirror);
    forget_completions(adapter, number, base);
    rendezvous::take_number_back(adapter, number);
}

/// Fails if there can be no such queue pair.
fn check_type(qp_type: u32, connected_by: ConnectedBy) -> Result<(), Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(()),
        // RC does what UC promises, and more.
        IBV_QPT_UC | IBV_QPT_UD if connected_by == ConnectedBy::Program => Ok(()),
        IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV
        | IBV_QPT_DRIVER => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// Who connects a queue pair.
#[derive(Clone, Copy, PartialEq)]
enum ConnectedBy {
    /// rdma_cm, which needs no number that leads others to it.
    RdmaCm,
    /// The program, by rdma_cm or by itself.
    Program,
}

/// Has a new datagram queue pair take from the shared receives that its attributes name, if they do.
/// They serve either datagrams or connections.
///
/// # Safety
/// The objects that are named exist, or are NULL.
unsafe fn take_shared(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<Option<Taker>, Errno> {
    if init.srq.is_null() {
        return Ok(None);
    }
    let object = Srq::here(init.srq)?;
    if (*init.srq).pd != pd {
        return Err(Errno::EINVAL);
    }
    object.receives.taker().map(Some)
}

/// Makes the queue pair of the device for connections. Shared receives are theirs from then on, and
/// not before: where there is none they may still be for datagrams.
///
/// # Safety
/// As of [`make`].
unsafe fn make_connected(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
) -> Result<rnic_verbs::Qp, Errno> {
    let made = make(pd, init)?;
    if !init.srq.is_null() {
        Srq::here(init.srq)?.give_to_engine()?;
    }
    Ok(made)
}

/// Makes the queues of a datagram queue pair, which peers know by a number.
///
/// # Safety
/// The objects that are named exist.
unsafe fn make_datagrams(
    adapter: &'static Adapter,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    (qp, number): (QpNumber, u32),
    shared: Option<Taker>,
) -> Result<DatagramQp, Errno> {
    let writer = |cq: *mut ibv_cq| {
        let made = Cq::here(cq)?.lock().writer();
        made.map_err(|why| why.errno())
    };
    let new = NewEndpoint {
        qp,
        number,
        copier: Pd::of(pd).pd.copier(),
        send_cq: writer(init.send_cq)?,
        recv_cq: writer(init.recv_cq)?,
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_recv_sge: init.cap.max_recv_sge,
        shared,
        mtu: 128 << adapter.mtu(),
    };
    let made = DatagramQp::new(adapter, new)?;
    for cq in [init.send_cq, init.recv_cq] {
        let datagrams = &Cq::of(cq).datagrams;
        datagrams.get_or_init(|| Arc::clone(made.datagrams()));
    }
    Ok(made)
}

/// Makes a queue pair, and states its real capacities in `init`.
///
/// # Safety
/// The objects that are named exist, or are NULL.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
    connected_by: ConnectedBy,
) -> Result<*mut ibv_qp, Errno> {
    check_type(init.qp_type, connected_by)?;
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Errno::EINVAL);
    }
    let operations = match send_ops {
        Some(asked) => qp_ex::operations(asked, init.qp_type)?,
        None => qp_ex::none(),
    };
    Pd::here(pd)?;
    check(&init.cap, !init.srq.is_null())?;
    let adapter = Context::of((*pd).context).adapter;
    let is_datagram = init.qp_type == IBV_QPT_UD;
    let (shared, inner) = match is_datagram {
        true => {
            let shared = take_shared(pd, init)?;
            // Its receives are no engine's.
            let own = ibv_qp_init_attr {
                srq: null_mut(),
                ..*init
            };
            (shared, make(pd, &own)?)
        }
        false => (None, make_connected(pd, init)?),
    };
    let real = inner.caps();
    init.cap.max_send_wr = real.max_send_wr;
    init.cap.max_recv_wr = match init.srq.is_null() {
        true => real.max_recv_wr,
        false => 0,
    };
    init.cap.max_inline_data = real.max_inline as u32;
    let number = inner.number();
    let found_by = match connected_by {
        ConnectedBy::Program => rendezvous::give_number(adapter, number).map(Some),
        ConnectedBy::RdmaCm => Ok(None),
    };
    let datagrams = match found_by {
        Ok(Some(shown)) if is_datagram => {
            let made = make_datagrams(adapter, pd, init, (number, shown), shared);
            Some(made.inspect_err(|_| rendezvous::take_number_back(adapter, number))?)
        }
        Err(errno) if is_datagram => return Err(errno),
        Ok(_) => None,
        Err(errno) => {
            // rdma_cm can connect it.
            debug!("{}: no port to find {number} by: {errno}", adapter.name);
            None
        }
    };
    let mut abi = operations;
    abi.qp_base = ibv_qp {
        context: (*pd).context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: number.0,
        qp_num: adapter.numbers.shown(number),
        state: IBV_QPS_RESET,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let new = NewQp {
        abi,
        qp: inner,
        adapter,
        cap: init.cap,
        signal_all: init.sq_sig_all != 0,
        send_ops: send_ops.unwrap_or(0),
        datagrams,
    };
    let qp = Qp::new(new).give();
    each_used(&abi.qp_base, |users| users.add());
    asynchronous::watch_qp(qp);
    Ok(qp)
}

/// Makes a queue pair new, as it was when the program made it: it has its number, its queues are
/// empty, and of the former connection nothing completes any more.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn renew(qp: *mut ibv_qp) -> Result<(), Errno> {
    let object = Qp::of(qp);
    let base = *qp;
    let adapter = object.adapter;
    let new = make(base.pd, &init_of(&base, object))?;
    let (former, number) = (object.number(), new.number());
    // rdma_cm tells nobody of it any more.
    leaving(object);
    match numbers::has_port(base.qp_num) {
        true => adapter.numbers.move_to(base.qp_num, number),
        false => (*qp).qp_num = adapter.numbers.shown(number),
    }
    let former_inner = QPS.move_to(adapter, former.0, number.0, || object.replace(new));
    drop(former_inner);
    forget_completions(adapter, former, &base);
    rendezvous::take_number_back(adapter, former);
    Ok(())
}

/// Returns the attributes by which a queue pair was made.
pub(crate) fn init_of(base: &ibv_qp, object: &Qp) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: base.qp_context,
        send_cq: base.send_cq,
        recv_cq: base.recv_cq,
        srq: base.srq,
        cap: object.cap,
        qp_type: base.qp_type,
        sq_sig_all: object.signal_all.into(),
    }
}

/// Calls `each` for the objects that a queue pair uses.
///
/// # Safety
/// They exist.
unsafe fn each_used(base: &ibv_qp, each: impl Fn(&crate::objects::Users)) {
    each(&Pd::of(base.pd).users);
    each(&Cq::of(base.send_cq).users);
    each(&Cq::of(base.recv_cq).users);
    if !base.srq.is_null() {
        each(&Srq::of(base.srq).users);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let _whole = PutOff::new();
    pointer(create(pd, &mut *init, None, ConnectedBy::Program))
}

/// `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let _whole = PutOff::new();
    pointer(create_extended(&mut *attr, ConnectedBy::Program))
}

/// Makes a queue pair as `ibv_create_qp_ex` does.
///
/// # Safety
/// The objects that the attributes name exist, or are NULL.
pub(crate) unsafe fn create_numbered(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    create_extended(attr, ConnectedBy::Program)
}

/// Makes a queue pair as `ibv_create_qp_ex` does, for rdma_cm.
///
/// # Safety
/// The objects that the attributes name exist, or are NULL.
pub(crate) unsafe fn create_unnumbered(
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    create_extended(attr, ConnectedBy::RdmaCm)
}

/// # Safety
/// The objects that the attributes name exist, or are NULL.
unsafe fn create_extended(
    attr: &mut ibv_qp_init_attr_ex,
    connected_by: ConnectedBy,
) -> Result<*mut ibv_qp, Errno> {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flags = match attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS {
        0 => 0,
        _ => attr.create_flags,
    };
    if attr.comp_mask & !known != 0 || flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::EINVAL);
    }
    let send_ops =
        (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    let mut init = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let made = create(attr.pd, &mut init, send_ops, connected_by);
    attr.cap = init.cap;
    made
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> i32 {
    let _whole = PutOff::new();
    if Qp::is_inherited(qp) {
        return 0;
    }
    leaving(Qp::of(qp));
    send_posted(Qp::of(qp));
    forget_mirror(&*qp, Qp::of(qp));
    asynchronous::forget_qp(qp);
    let base = *qp;
    let (adapter, number) = (Qp::of(qp).adapter, Qp::of(qp).number());
    if let Some(datagrams) = &Qp::of(qp).datagrams {
        datagrams.end();
    }
    drop(Qp::take(qp));
    forget_completions(adapter, number, &base);
    rendezvous::take_number_back(adapter, number);
    rendezvous::forget(adapter, base.qp_num);
    // Now they may be destroyed.
    each_used(&base, |users| users.remove());
    0
}

/// Lets the engine send what the program has posted to a queue pair that it connects itself, and is
/// about to end. An adapter has sent it by then, and programs rely on that (3FS).
pub(crate) fn send_posted(object: &Qp) {
    if !object.connects_itself.load(Ordering::Relaxed) {
        return;
    }
    let inner = object.lock();
    if inner.send_room() < inner.caps().max_send_wr {
        // Fails only where there is no engine any more.
        let _ = inner.send_first(LONGEST_END);
    }
}

/// Removes the completions of a queue pair that was destroyed: programs may have freed what `wr_id`
/// stands for.
///
/// # Safety
/// The objects that it used exist.
pub(crate) unsafe fn forget_completions(
    adapter: &'static Adapter,
    number: rnic_verbs::QpNumber,
    base: &ibv_qp,
) {
    if let Ok(device) = adapter.device() {
        // Workers carry out commands in their order, so this one's answer comes behind the end of
        // the queue pair.
        let _ = device.barrier(LONGEST_END);
    }
    for cq in [base.send_cq, base.recv_cq] {
        // Without memory they stay.
        let _ = Cq::of(cq).lock().forget(number);
    }
}

/// Returns the queue pair's `ibv_qp_ex`, if it was made with send operations.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match Qp::of(qp).send_ops {
        0 => null_mut(),
        _ => qp.cast(),
    }
}

/// TCP delivers in order, but a peer may not see its octets change in order before a completion.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: u32,
    _flags: u32,
) -> i32 {
    0
}

/// There are no options of a vendor.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> i32 {
    *ece = ibv_ece::default();
    Errno::EOPNOTSUPP as i32
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> i32 {
    match (*ece).vendor_id {
        0 => 0,
        _ => Errno::EOPNOTSUPP as i32,
    }
}
