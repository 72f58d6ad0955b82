//! Options of ids, and what only other transports have: multicast, and enhanced connection
//! establishment (ECE).
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::c_void;

use nix::libc::sockaddr;

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::cm::address;
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::errno::{Errno, fail};

const LEVEL_ID: i32 = 0;
const LEVEL_IB: i32 = 1;
const ID_TOS: i32 = 0;
const ID_REUSEADDR: i32 = 1;
const ID_AFONLY: i32 = 2;
const ID_ACK_TIMEOUT: i32 = 3;
const IB_PATH: i32 = 1;

/// Sets an option.
///
/// # Safety
/// `id` is NULL or an id of the program. The value is NULL, or `len` octets.
unsafe fn set(
    id: *mut rdma_cm_id,
    (level, name): (i32, i32),
    value: *const c_void,
    len: usize,
) -> Result<(), Errno> {
    let this = Id::of(id)?;
    if value.is_null() {
        return Err(Errno::EINVAL);
    }
    let mut state = this.state();
    let is_idle = state.phase == Phase::Idle;
    match (level, name, len) {
        // For the connections that begin behind this.
        (LEVEL_ID, ID_TOS, 1) => {
            state.options.type_of_service = value.cast::<u8>().read();
            Ok(())
        }
        // TCP has timers of its own.
        (LEVEL_ID, ID_ACK_TIMEOUT, 1) => Ok(()),
        (LEVEL_ID, ID_REUSEADDR, 4) => {
            let reuse = value.cast::<i32>().read_unaligned() != 0;
            let may = is_idle || (reuse && state.phase != Phase::Listening);
            if !may {
                return Err(Errno::EINVAL);
            }
            state.options.reuse_address = reuse;
            Ok(())
        }
        (LEVEL_ID, ID_AFONLY, 4) => {
            if !is_idle && state.phase != Phase::Bound {
                return Err(Errno::EINVAL);
            }
            state.options.one_family = value.cast::<i32>().read_unaligned() != 0;
            Ok(())
        }
        (LEVEL_ID, ID_TOS..=ID_ACK_TIMEOUT, _) | (LEVEL_IB, IB_PATH, _) => Err(Errno::EINVAL),
        _ => Err(Errno::ENOSYS),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_set_option")]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: i32,
    optname: i32,
    optval: *mut c_void,
    optlen: usize,
) -> i32 {
    let _whole = PutOff::new();
    set(id, (level, optname), optval, optlen).map_or_else(fail, |()| 0)
}

/// Returns why an id cannot join a multicast group: what the kernel says.
///
/// # Safety
/// `id` is NULL or an id of the program, and the address NULL or one of the program.
unsafe fn no_multicast(id: *mut rdma_cm_id, address: *const sockaddr) -> Errno {
    let Ok(this) = Id::of(id) else {
        return Errno::EINVAL;
    };
    let is_bound = matches!(this.state().phase, Phase::Bound | Phase::AddressResolved);
    if address::read(address).is_none() || !is_bound || this.qp_type != IBV_QPT_UD {
        return Errno::EINVAL;
    }
    Errno::ENOSYS
}

#[unsafe(export_name = "rnic_cm_rdma_join_multicast")]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    _context: *mut c_void,
) -> i32 {
    fail(no_multicast(id, addr))
}

#[unsafe(export_name = "rnic_cm_rdma_join_multicast_ex")]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> i32 {
    /// Address and flags.
    const BOTH: u32 = 3;
    match mc_join_attr.as_ref() {
        Some(attr) if attr.comp_mask > BOTH => fail(Errno::ENOTSUP),
        Some(attr) if attr.comp_mask == BOTH && attr.join_flags < 2 => {
            fail(no_multicast(id, attr.addr))
        }
        _ => fail(Errno::EINVAL),
    }
}

/// No id is in a group.
#[unsafe(export_name = "rnic_cm_rdma_leave_multicast")]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    _id: *mut rdma_cm_id,
    addr: *mut sockaddr,
) -> i32 {
    if address::read(addr).is_none() {
        return fail(Errno::EINVAL);
    }
    fail(Errno::EADDRNOTAVAIL)
}

#[unsafe(export_name = "rnic_cm_rdma_set_local_ece")]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> i32 {
    let (Ok(this), Some(ece)) = (Id::of(id), ece.as_ref()) else {
        return fail(Errno::EINVAL);
    };
    if !(*id).qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return fail(Errno::EINVAL);
    }
    this.state().local_ece = (ece.vendor_id, ece.options);
    0
}

/// MPA carries none.
#[unsafe(export_name = "rnic_cm_rdma_get_remote_ece")]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> i32 {
    match ece.as_mut() {
        Some(ece) if Id::of(id).is_ok() && (*id).qp.is_null() => {
            *ece = ibv_ece::default();
            0
        }
        _ => fail(Errno::EINVAL),
    }
}

/// Puts an event of the program's own into the channel.
#[unsafe(export_name = "rnic_cm_rdma_write_cm_event")]
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: u32,
    status: i32,
    arg: u64,
) -> i32 {
    let _whole = PutOff::new();
    match Id::of(id) {
        Ok(this) if event == RDMA_CM_EVENT_USER => {
            this.tell(EventData {
                arg: Some(arg),
                ..EventData::new(event, status)
            });
            0
        }
        _ => fail(Errno::EINVAL),
    }
}
