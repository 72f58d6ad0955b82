//! Completion queues.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use nix::libc;
use rnic_verbs::{Completion, WcOpcode};

use crate::abi::*;
use crate::asynchronous;
use crate::cancellation::PutOff;
use crate::channel::Notifier;
use crate::context::Context;
use crate::errno::{Errno, ToErrno, fail, pointer, result};
use crate::numbers::Numbers;
use crate::objects::{Channel, Cq};
use crate::process;

/// The most entries of a queue of any kind.
pub(crate) const MAX_ENTRIES: u32 = 1 << 20;

/// Completions that are taken at once.
const BATCH: usize = 16;

/// What a completion queue is made of.
pub(crate) struct NewCq {
    pub(crate) context: *mut ibv_context,
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
}

/// Makes a completion queue whose structure begins with these operations.
///
/// # Safety
/// The context is open, and the channel exists or is NULL.
pub(crate) unsafe fn create(new: NewCq, mut abi: ibv_cq_ex) -> Result<*mut ibv_cq, Errno> {
    process::check(&Context::of(new.context).asynchronous.process)?;
    let vectors = (*new.context).num_comp_vectors as u32;
    if new.cqe == 0 || new.cqe > MAX_ENTRIES || new.comp_vector >= vectors {
        return Err(Errno::EINVAL);
    }
    let channel = match new.channel.is_null() {
        true => None,
        false => Some(Channel::here(new.channel)?),
    };
    let adapter = Context::of(new.context).adapter;
    let notifier = Notifier::new(channel);
    let made = adapter.device()?.cq_notifying(new.cqe, notifier.waker());
    let cq = made.map_err(|why| why.errno())?;
    abi.context = new.context;
    abi.channel = new.channel;
    abi.cq_context = new.cq_context;
    abi.handle = cq.id().0;
    abi.cqe = cq.capacity() as i32;
    abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    abi.cond = libc::PTHREAD_COND_INITIALIZER;
    let (notify, stop) = (notifier.waker(), notifier.clone());
    let cq = Cq::new(abi, cq, adapter, notify, move || stop.stop()).give();
    if let Some(channel) = channel {
        channel.users.add();
    }
    notifier.start(cq);
    asynchronous::watch_cq(cq);
    Ok(cq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: i32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: i32,
) -> *mut ibv_cq {
    let _whole = PutOff::new();
    let new = NewCq {
        context,
        // Negative numbers become too large.
        cqe: cqe as u32,
        cq_context,
        channel,
        comp_vector: comp_vector as u32,
    };
    // Zeros are numbers and null pointers.
    pointer(create(new, Zeros::zeros()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> i32 {
    let _whole = PutOff::new();
    if Cq::is_inherited(cq) {
        return 0;
    }
    let object = Cq::of(cq);
    if object.users.any() {
        return result(Err(Errno::EBUSY));
    }
    (object.quiet)();
    asynchronous::forget_cq(cq);
    object.notifications.wait();
    object.asynchronous.wait();
    let channel = (*cq).channel;
    if !channel.is_null() {
        Channel::of(channel).users.remove();
    }
    drop(Cq::take(cq));
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: i32) -> i32 {
    let _whole = PutOff::new();
    if cqe <= 0 || cqe as u32 > MAX_ENTRIES {
        return result(Err(Errno::EINVAL));
    }
    let mut inner = match Cq::here(cq) {
        Ok(object) => object.lock(),
        Err(errno) => return result(Err(errno)),
    };
    let resized = inner.resize(cqe as u32).map_err(|why| why.errno());
    if resized.is_ok() {
        (*cq).cqe = inner.capacity() as i32;
    }
    result(resized)
}

/// `ibv_poll_cq`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: i32, wc: *mut ibv_wc) -> i32 {
    let _whole = PutOff::new();
    let entries = usize::try_from(entries).unwrap_or(0);
    let object = match Cq::here(cq) {
        Ok(object) => object,
        Err(errno) => return fail(errno),
    };
    if entries == 0 {
        return 0;
    }
    // Mostly there is none, or one.
    let Some((first, mut inner)) = poll_first(object) else {
        return 0;
    };
    let numbers = &object.adapter.numbers;
    wc.write(work_completion(&first, numbers));
    let mut polled = 1;
    let mut batch = [Completion::default(); BATCH];
    while polled < entries {
        let most = BATCH.min(entries - polled);
        let taken = inner.take(&mut batch[..most]);
        for completion in &batch[..taken] {
            wc.add(polled).write(work_completion(completion, numbers));
            polled += 1;
        }
        if taken < most {
            break;
        }
    }
    polled as i32
}

/// Returns the first completion, and the queue, which stays locked. Looking for it drives the engine
/// where nothing is there yet, and then looks for datagrams.
#[inline]
pub(crate) fn poll_first(object: &Cq) -> Option<(Completion, MutexGuard<'_, rnic_verbs::Cq>)> {
    let mut inner = object.lock();
    if let Some(first) = inner.poll_one() {
        return Some((first, inner));
    }
    let datagrams = object.datagrams.get()?;
    // Others write to the queue meanwhile.
    drop(inner);
    datagrams.progress();
    let mut inner = object.lock();
    let mut one = [Completion::default()];
    (inner.take(&mut one) == 1).then_some((one[0], inner))
}

/// Returns a completion as programs read it.
///
/// Of the 8 octets of Immediate Data on the wire, the first 4 are those of the verbs. The last 4
/// say the length of the Write: the engine has counted its octets, and the peer's word is not taken
/// for it.
#[inline]
pub(crate) fn work_completion(completion: &Completion, numbers: &Numbers) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: completion.wr_id(),
        status: completion.status() as u32,
        opcode: opcode(completion.opcode()),
        byte_len: completion.byte_len(),
        qp_num: numbers.shown(completion.qp()),
        ..ibv_wc::default()
    };
    if let Some([a, b, c, d, ..]) = completion.immediate() {
        wc.imm_data = u32::from_ne_bytes([a, b, c, d]);
        wc.wc_flags |= IBV_WC_WITH_IMM;
    }
    if let Some(stag) = completion.invalidated() {
        wc.imm_data = stag.0;
        wc.wc_flags |= IBV_WC_WITH_INV;
    }
    if let Some(source) = completion.source() {
        wc.src_qp = source.number;
        wc.sl = header_type(source.is_ipv6);
        wc.wc_flags |= IBV_WC_GRH;
    }
    wc
}

/// Returns what adapters of RoCE v2 say in the place of a service level: how to read the header in
/// front of a datagram. UCX drops datagrams whose header it reads in another way.
fn header_type(is_ipv6: bool) -> u8 {
    const ROCE_V2: u8 = 8;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    ROCE_V2 | if is_ipv6 { IPV6 } else { IPV4 }
}

fn opcode(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::CmpSwap => IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::BindWindow | WcOpcode::FastRegister => IBV_WC_BIND_MW,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: i32) -> i32 {
    let _whole = PutOff::new();
    result(Cq::here(cq).map(|object| {
        {
            let cq = object.lock();
            let solicited_only = solicited_only != 0;
            cq.arm(solicited_only);
            // Adapters notify of what has come since the last notification too. Programs rely on
            // it: UCX polls one queue, then another, which can fill the first, and waits.
            let is_untold = cq.written() != object.told.load(Ordering::Relaxed);
            if is_untold && cq.fires_now(solicited_only) {
                object.notify.wake_by_ref();
            }
        }
        if let Some(datagrams) = object.datagrams.get() {
            datagrams.arm();
        }
    }))
}

/// `ibv_modify_cq`: an engine notifies at once, so there is nothing to moderate.
pub(crate) unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, _attr: *mut ibv_modify_cq_attr) -> i32 {
    Errno::EOPNOTSUPP as i32
}
