//! Memory regions: memory of the program, registered where it lies.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rnic_verbs::{Access, Error, Region, RegionError, Sge};

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::errno::{Errno, ToErrno, fail_ptr, lock, pointer, result};
use crate::objects::{Mr, Pd};
use crate::process::Process;

/// `IBV_REREG_MR_ERR_INPUT`: a wrong argument.
const REREG_INPUT: i32 = -1;
/// `IBV_REREG_MR_ERR_CMD`: the device refused.
const REREG_COMMAND: i32 = -4;

/// What is to be registered.
#[derive(Clone, Copy)]
struct Wanted {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
}

/// Returns the rights, of `IBV_ACCESS_*` bits. On-demand paging needs nothing: no memory is pinned.
/// Relaxed ordering and large pages may be ignored.
fn rights(access: u32) -> Result<Access, Errno> {
    let ignored = IBV_ACCESS_OPTIONAL_RANGE
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_ZERO_BASED;
    let mut rights = Access::default();
    let mut known = ignored;
    for (bit, right) in [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::MW_BIND),
    ] {
        known |= bit;
        if access & bit != 0 {
            rights = rights | right;
        }
    }
    let lets_peers_write = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    match access & !known {
        0 if lets_peers_write && access & IBV_ACCESS_LOCAL_WRITE == 0 => Err(Errno::EINVAL),
        0 => Ok(rights),
        // Flushing to persistent memory.
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Registers memory.
///
/// # Safety
/// The protection domain exists. While the memory is registered, the program has there what peers
/// may access.
unsafe fn register(wanted: Wanted) -> Result<rnic_verbs::Mr, Errno> {
    Pd::here(wanted.pd)?;
    let rights = rights(wanted.access)?;
    if wanted.length == 0 {
        return Err(Errno::EINVAL);
    }
    let writable = rights.contains(Access::LOCAL_WRITE);
    let (start, len) = (wanted.addr.cast(), wanted.length);
    let region = match wanted.access & IBV_ACCESS_ON_DEMAND {
        0 => Region::foreign(start, len, writable),
        _ => Region::on_demand(start, len, writable),
    };
    let region = region.map_err(|why| match why {
        RegionError::Foreign { source, .. } => match source.raw_os_error() {
            // A hole, or memory that may not be written.
            Some(_) => Errno::EFAULT,
            // It ends behind the last address.
            None if source.kind() == ErrorKind::InvalidInput => Errno::EINVAL,
            // There is no way to survive its loss on this processor.
            None => Errno::EOPNOTSUPP,
        },
        _ => Errno::EINVAL,
    })?;
    let pd = &Pd::of(wanted.pd).pd;
    let registration = pd.registration(&Arc::new(region)).access(rights);
    let base = if wanted.access & IBV_ACCESS_ZERO_BASED != 0 {
        0
    } else {
        wanted.iova
    };
    registration.base(base).register().map_err(|why| match why {
        Error::Registration(_) => Errno::ENOMEM,
        why => why.errno(),
    })
}

/// Makes a memory region.
///
/// # Safety
/// As of [`register`].
unsafe fn make(wanted: Wanted) -> Result<*mut ibv_mr, Errno> {
    let registered = register(wanted)?;
    let pd = Pd::of(wanted.pd);
    let key = registered.stag().0;
    let abi = ibv_mr {
        context: (*wanted.pd).context,
        pd: wanted.pd,
        addr: wanted.addr,
        length: wanted.length,
        handle: key,
        lkey: key,
        rkey: key,
    };
    pd.users.add();
    Ok(Mr {
        abi: UnsafeCell::new(abi),
        process: Process::this(),
        mr: Mutex::new(Some(registered)),
        access: AtomicU32::new(wanted.access),
    }
    .give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: i32,
) -> *mut ibv_mr {
    let _whole = PutOff::new();
    ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as u32)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: i32,
) -> *mut ibv_mr {
    let _whole = PutOff::new();
    ibv_reg_mr_iova2(pd, addr, length, iova, access as u32)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let _whole = PutOff::new();
    pointer(make(Wanted {
        pd,
        addr,
        length,
        iova,
        access,
    }))
}

/// Registers memory at an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    let _whole = PutOff::new();
    let attr = &*attr;
    if attr.comp_mask & !(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR) != 0 {
        return fail_ptr(Errno::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_REG_MR_MASK_ADDR == 0 {
        return fail_ptr(Errno::EINVAL);
    }
    let iova = match attr.comp_mask & IBV_REG_MR_MASK_IOVA {
        0 => attr.addr as u64,
        _ => attr.iova,
    };
    ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, attr.access as u32)
}

/// Memory of another device cannot be reached by a copy.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: i32,
    _access: i32,
) -> *mut ibv_mr {
    fail_ptr(Errno::EOPNOTSUPP)
}

/// Registers anew what changes. The keys change too. The old registration is gone when this returns
/// 0, and is as it was otherwise.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: i32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: i32,
) -> i32 {
    let _whole = PutOff::new();
    let failed = |code: i32, errno: Errno| {
        errno.set();
        code
    };
    let known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags & !known != 0 || flags == 0 {
        return failed(REREG_INPUT, Errno::EINVAL);
    }
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    if moves && (addr.is_null() || length == 0) {
        return failed(REREG_INPUT, Errno::EINVAL);
    }
    let object = match Mr::here(mr) {
        Ok(object) => object,
        Err(errno) => return failed(REREG_COMMAND, errno),
    };
    let mut registered = lock(&object.mr);
    let Some(old) = registered.as_mut() else {
        return failed(REREG_COMMAND, Errno::EINVAL);
    };
    // Other threads that change the region wait for the lock.
    let abi = *object.abi.get();
    let wanted = Wanted {
        pd: if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            pd
        } else {
            abi.pd
        },
        addr: if moves { addr } else { abi.addr },
        length: if moves { length } else { abi.length },
        iova: if moves { addr as u64 } else { old.base() },
        access: if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            access as u32
        } else {
            object.access.load(Ordering::Relaxed)
        },
    };
    if wanted.pd.is_null() {
        return failed(REREG_INPUT, Errno::EINVAL);
    }
    let new = match register(wanted) {
        Ok(new) => new,
        Err(errno) => return failed(REREG_COMMAND, errno),
    };
    if old.deregister().is_err() {
        return failed(REREG_COMMAND, Errno::EBUSY);
    }
    Pd::of(wanted.pd).users.add();
    Pd::of(abi.pd).users.remove();
    let key = new.stag().0;
    *object.abi.get() = ibv_mr {
        context: abi.context,
        pd: wanted.pd,
        addr: wanted.addr,
        length: wanted.length,
        handle: key,
        lkey: key,
        rkey: key,
    };
    object.access.store(wanted.access, Ordering::Relaxed);
    *registered = Some(new);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> i32 {
    let _whole = PutOff::new();
    if Mr::is_inherited(mr) {
        return 0;
    }
    let object = Mr::of(mr);
    let deregistered = lock(&object.mr).as_mut().map(rnic_verbs::Mr::deregister);
    // Windows are bound to it. That a peer has invalidated it does no harm.
    if let Some(Err(_)) = deregistered
        && lock(&object.mr)
            .as_ref()
            .is_some_and(rnic_verbs::Mr::is_valid)
    {
        return result(Err(Errno::EBUSY));
    }
    let pd = (*mr).pd;
    drop(Mr::take(mr));
    Pd::of(pd).users.remove();
    0
}

/// Objects of another process or of the kernel do not exist here.
/// `ibv_advise_mr`: the pages are there when a peer wants them. All of it is done at once, with
/// IBV_ADVISE_MR_FLAG_FLUSH and without. What may be written is read here, so that it is not
/// changed.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> i32 {
    let _whole = PutOff::new();
    let known = (
        IBV_ADVISE_MR_ADVICE_PREFETCH..=IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        IBV_ADVISE_MR_FLAG_FLUSH,
    );
    if !known.0.contains(&advice) || flags & !known.1 != 0 || count == 0 || list.is_null() {
        return Errno::EINVAL as i32;
    }
    let pd = match Pd::here(pd) {
        Ok(pd) => pd,
        Err(errno) => return errno as i32,
    };
    // An ibv_sge is an Sge: see `post`.
    let pieces = std::slice::from_raw_parts(list.cast::<Sge>(), count as usize);
    match pd.pd.copier().prefetch(pieces) {
        Ok(()) => 0,
        Err(_) => Errno::EFAULT as i32,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    fail_ptr(Errno::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_pd(
    _context: *mut ibv_context,
    _handle: u32,
) -> *mut ibv_pd {
    fail_ptr(Errno::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(
    _context: *mut ibv_context,
    _handle: u32,
) -> *mut c_void {
    fail_ptr(Errno::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// Nothing is pinned, so that a fork changes nothing for the memory of either process. What is not
/// memory, a child does not get: see `process`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> i32 {
    let _whole = PutOff::new();
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> i32 {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> i32 {
    0
}
