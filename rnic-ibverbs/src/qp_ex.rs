//! `ibv_qp_ex`: requests that a program builds by one call for each part.
//!
//! From `wr_start` to `wr_complete` or `wr_abort` the requests wait in a list, which belongs to the
//! thread that builds them. The queue pair is locked only while they are posted, all of them or
//! none: see `section`.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::c_void;
use std::slice;

use rnic_verbs::{MAX_INLINE, MAX_SGE};

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::errno::Errno;
use crate::objects::{Batch, BatchedRequest, Qp};
use crate::post;
use crate::section::Within;

/// What can be asked for.
const KNOWN: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// What can be asked for where datagrams are sent.
const OF_DATAGRAMS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

/// Returns a structure without operations.
pub(crate) fn none() -> ibv_qp_ex {
    Zeros::zeros()
}

/// Returns a structure with these send operations, which fails where there is one that iWARP, or
/// the type of the queue pair, has not.
pub(crate) fn operations(asked: u64, qp_type: u32) -> Result<ibv_qp_ex, Errno> {
    let known = match qp_type {
        IBV_QPT_UD => OF_DATAGRAMS,
        _ => KNOWN,
    };
    if asked & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(ibv_qp_ex {
        wr_atomic_cmp_swp: Some(atomic_cmp_swp),
        wr_atomic_fetch_add: Some(atomic_fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_inv),
        wr_rdma_read: Some(rdma_read),
        wr_rdma_write: Some(rdma_write),
        wr_rdma_write_imm: Some(rdma_write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: Some(send_inv),
        wr_send_tso: Some(send_tso),
        wr_set_ud_addr: Some(set_ud_addr),
        wr_set_xrc_srqn: Some(set_xrc_srqn),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: Some(atomic_write),
        wr_flush: Some(flush),
        ..none()
    })
}

/// Returns what was begun by `start`, if anything was.
///
/// # Safety
/// The queue pair exists, and the caller is the thread of the program that has begun it. It lets
/// the reference go before it calls this again.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Batch> {
    Qp::of(qp.cast()).batch.inside()
}

/// Empties it. Its lists keep their room.
fn clear(batch: &mut Batch) {
    batch.requests.clear();
    batch.pieces.clear();
    batch.inline.clear();
    batch.wrong = None;
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    if Qp::is_inherited(qp.cast()) {
        return;
    }
    match Qp::of(qp.cast()).batch.enter() {
        Ok(()) => batch(qp).map_or((), clear),
        Err(Within) => wrong(qp, Errno::EINVAL),
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    if !Qp::is_inherited(qp.cast()) {
        Qp::of(qp.cast()).batch.leave();
    }
}

/// Posts all requests, or none if one of them is wrong.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> i32 {
    let _whole = PutOff::new();
    let object = match Qp::here(qp.cast()) {
        Ok(object) => object,
        Err(errno) => return errno as i32,
    };
    let Some(batch) = batch(qp) else {
        return Errno::EINVAL as i32;
    };
    let posted = match batch.wrong {
        Some(errno) => Err(errno),
        None => post_batch(batch, object),
    };
    object.batch.leave();
    posted.map_or_else(|errno| errno as i32, |()| 0)
}

/// Notes why nothing of what is being built will be posted, unless it is known.
///
/// # Safety
/// As of [`batch`].
unsafe fn wrong(qp: *mut ibv_qp_ex, errno: Errno) {
    if let Some(batch) = batch(qp) {
        batch.wrong.get_or_insert(errno);
    }
}

/// Posts the requests of a batch.
///
/// # Safety
/// What they name is what the manual pages ask for.
unsafe fn post_batch(batch: &mut Batch, qp: &Qp) -> Result<(), Errno> {
    let Batch {
        requests,
        pieces,
        inline,
        inline_pieces,
        ..
    } = batch;
    // The inline data of a request are one piece. There is room for all, so that none of them
    // moves.
    inline_pieces.clear();
    inline_pieces.reserve(requests.len());
    for request in requests.iter_mut() {
        let (start, end) = request.pieces;
        request.wr.sg_list = pieces.as_mut_ptr().add(start);
        request.wr.num_sge = (end - start) as i32;
        if request.wr.send_flags & IBV_SEND_INLINE != 0 {
            let (start, end) = request.inline;
            inline_pieces.push(ibv_sge {
                addr: inline.as_ptr().add(start).expose_provenance() as u64,
                length: (end - start) as u32,
                lkey: 0,
            });
            request.wr.sg_list = inline_pieces.as_mut_ptr().add(inline_pieces.len() - 1);
            request.wr.num_sge = 1;
        }
    }
    let first = link(requests);
    match requests.len() {
        1 => post::post_list(qp, first).map_err(|(_, errno)| errno),
        _ => post::post_whole(qp, first),
    }
}

/// Makes a list of the requests, and returns its first, or NULL.
fn link(requests: &mut [BatchedRequest]) -> *mut ibv_send_wr {
    let mut next = std::ptr::null_mut();
    for request in requests.iter_mut().rev() {
        request.wr.next = next;
        next = &raw mut request.wr;
    }
    next
}

/// Adds a request, whose number and flags the program has put into the structure.
///
/// # Safety
/// As of [`batch`].
unsafe fn add(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut ibv_send_wr)) {
    let Some(batch) = batch(qp) else { return };
    let mut wr = ibv_send_wr::zeros();
    wr.wr_id = (*qp).wr_id;
    wr.send_flags = (*qp).wr_flags & !IBV_SEND_INLINE;
    wr.opcode = opcode;
    fill(&mut wr);
    let (pieces, inline) = (batch.pieces.len(), batch.inline.len());
    batch.requests.push(BatchedRequest {
        wr,
        pieces: (pieces, pieces),
        inline: (inline, inline),
    });
}

fn to(rkey: u32, remote_addr: u64) -> ibv_send_wr_remote {
    ibv_send_wr_remote {
        rdma: ibv_send_wr_rdma { remote_addr, rkey },
    }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    add(qp, IBV_WR_RDMA_READ, |wr| wr.wr = to(rkey, remote));
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    add(qp, IBV_WR_RDMA_WRITE, |wr| wr.wr = to(rkey, remote));
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, imm: u32) {
    add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
        wr.wr = to(rkey, remote);
        wr.imm_data = imm;
    });
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    add(qp, IBV_WR_SEND, |_| ());
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    add(qp, IBV_WR_SEND_WITH_IMM, |wr| wr.imm_data = imm);
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    add(qp, IBV_WR_SEND_WITH_INV, |wr| wr.imm_data = rkey);
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    add(qp, IBV_WR_LOCAL_INV, |wr| wr.imm_data = rkey);
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    let bind = ibv_send_wr_bind {
        mw,
        rkey,
        bind_info: *info,
    };
    add(qp, IBV_WR_BIND_MW, |wr| wr.bind_mw = bind);
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = ibv_send_wr_atomic {
        remote_addr,
        compare_add,
        swap,
        rkey,
    };
    add(qp, IBV_WR_ATOMIC_CMP_AND_SWP, |wr| wr.wr.atomic = atomic);
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, sum: u64) {
    let atomic = ibv_send_wr_atomic {
        remote_addr,
        compare_add: sum,
        swap: 0,
        rkey,
    };
    add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| wr.wr.atomic = atomic);
}

/// Notes that a program called what the queue pair was not made for.
///
/// # Safety
/// As of [`batch`].
unsafe fn unsupported(qp: *mut ibv_qp_ex) {
    wrong(qp, Errno::EOPNOTSUPP);
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    unsupported(qp);
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let Some(batch) = batch(qp) else { return };
    let ud = ibv_send_wr_ud {
        ah,
        remote_qpn,
        remote_qkey,
    };
    match batch.requests.last_mut() {
        Some(last) => last.wr.wr.ud = ud,
        None => batch.wrong = Some(Errno::EINVAL),
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, _srqn: u32) {
    unsupported(qp);
}

unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _remote: u64,
    _data: *const c_void,
) {
    unsupported(qp);
}

unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _remote: u64,
    _length: usize,
    _placement: u8,
    _level: u8,
) {
    unsupported(qp);
}

/// Adds pieces to the last request.
///
/// # Safety
/// As of [`batch`].
unsafe fn add_pieces(qp: *mut ibv_qp_ex, pieces: &[ibv_sge]) {
    let Some(batch) = batch(qp) else { return };
    // More than a request takes are not kept, so that their number fits its member.
    if pieces.len() > MAX_SGE {
        batch.wrong.get_or_insert(Errno::EINVAL);
        return;
    }
    batch.pieces.extend_from_slice(pieces);
    match batch.requests.last_mut() {
        Some(last) => last.pieces.1 = batch.pieces.len(),
        None => batch.wrong = Some(Errno::EINVAL),
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    add_pieces(qp, &[ibv_sge { addr, length, lkey }]);
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    match count {
        0 => {}
        // Such a list is not looked at.
        _ if count > MAX_SGE || list.is_null() => wrong(qp, Errno::EINVAL),
        _ => add_pieces(qp, slice::from_raw_parts(list, count)),
    }
}

/// Adds inline data to the last request: the program may change them afterwards.
///
/// # Safety
/// As of [`batch`], and `length` octets can be read from `from`.
unsafe fn add_inline(qp: *mut ibv_qp_ex, from: *const u8, length: usize) {
    let Some(batch) = batch(qp) else { return };
    let Some(last) = batch.requests.last_mut() else {
        batch.wrong = Some(Errno::EINVAL);
        return;
    };
    if length > MAX_INLINE {
        batch.wrong.get_or_insert(Errno::EINVAL);
        return;
    }
    let end = batch.inline.len() + length;
    batch.inline.reserve(length);
    let to = batch.inline.as_mut_ptr().add(batch.inline.len());
    // A copy, and no reference: a peer may write there at the same time.
    std::ptr::copy_nonoverlapping(from, to, length);
    batch.inline.set_len(end);
    last.inline.1 = end;
    last.wr.send_flags |= IBV_SEND_INLINE;
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    add_inline(qp, addr.cast(), length);
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    if count == 0 {
        return;
    }
    if list.is_null() {
        return wrong(qp, Errno::EINVAL);
    }
    for piece in slice::from_raw_parts(list, count) {
        add_inline(qp, piece.addr.cast(), piece.length);
    }
}
