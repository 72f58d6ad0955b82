//! `ibv_cq_ex`: completions that are read member by member.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use rnic_verbs::Completion;

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::cq::{NewCq, create, poll_first, work_completion};
use crate::errno::{Errno, pointer};
use crate::objects::Cq;
use crate::section::Within;

/// What a program may ask to read. Of the members that only InfiniBand has, each is 0.
const READABLE: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let _whole = PutOff::new();
    pointer(create_ex(context, &*attr)).cast()
}

/// Makes a completion queue.
///
/// # Safety
/// The context is open, and the channel exists or is NULL.
unsafe fn create_ex(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq, Errno> {
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if attr.comp_mask & !known != 0 || attr.wc_flags & !READABLE != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    // A queue that overruns is never allowed to here.
    if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let new = NewCq {
        context,
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
    };
    create(new, readers())
}

fn readers() -> ibv_cq_ex {
    let empty = ibv_cq_ex::zeros();
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(zero_u32),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(zero_u8),
        ..empty
    }
}

/// Begins to read, unless there is nothing. The queue itself is not locked until `end_poll`: see
/// `section`.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> i32 {
    let _whole = PutOff::new();
    if !attr.is_null() && (*attr).comp_mask != 0 {
        return Errno::EINVAL as i32;
    }
    let object = match Cq::here(cq.cast()) {
        Ok(object) => object,
        Err(errno) => return errno as i32,
    };
    if object.polled.is_mine() {
        return Errno::EBUSY as i32;
    }
    let Some((completion, queue)) = poll_first(object) else {
        return Errno::ENOENT as i32;
    };
    drop(queue);
    if let Err(Within) = object.polled.enter() {
        return Errno::EBUSY as i32;
    }
    if let Some(polled) = object.polled.inside() {
        show(cq, polled, &completion);
    }
    0
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> i32 {
    let _whole = PutOff::new();
    let object = Cq::of(cq.cast());
    let mut one = [Completion::default()];
    match object.polled.inside() {
        Some(polled) if object.lock().take(&mut one) == 1 => {
            show(cq, polled, &one[0]);
            0
        }
        _ => Errno::ENOENT as i32,
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    Cq::of(cq.cast()).polled.leave();
}

/// Shows a completion to the program.
///
/// # Safety
/// The queue exists.
unsafe fn show(cq: *mut ibv_cq_ex, polled: &mut ibv_wc, completion: &Completion) {
    *polled = work_completion(completion, &Cq::of(cq.cast()).adapter.numbers);
    (*cq).wr_id = polled.wr_id;
    (*cq).status = polled.status;
}

/// Returns the completion that was taken last.
///
/// # Safety
/// The queue exists, and the caller is the thread of the program that polls it.
unsafe fn shown(cq: *mut ibv_cq_ex) -> ibv_wc {
    match Cq::of(cq.cast()).polled.inside() {
        Some(polled) => *polled,
        None => ibv_wc::default(),
    }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).opcode
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).imm_data
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    shown(cq).wc_flags
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    shown(cq).sl
}

unsafe extern "C" fn zero_u32(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn zero_u8(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
