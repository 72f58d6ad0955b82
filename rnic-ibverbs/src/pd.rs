//! Protection domains, thread domains and parent domains.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ptr::null_mut;

use crate::abi::*;
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::errno::{Errno, pointer, result};
use crate::objects::Pd;
use crate::process;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let _whole = PutOff::new();
    pointer(alloc(context, null_mut()))
}

/// Makes a protection domain, or a parent of one if that is not NULL.
///
/// # Safety
/// The context is open, and the protection domain exists.
unsafe fn alloc(context: *mut ibv_context, parent_of: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    process::check(&Context::of(context).asynchronous.process)?;
    let pd = match parent_of.is_null() {
        true => Context::of(context).adapter.device()?.pd(),
        false => Pd::here(parent_of)?.pd.clone(),
    };
    Ok(Pd::new(context, pd, parent_of).give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> i32 {
    let _whole = PutOff::new();
    if Pd::is_inherited(pd) {
        return 0;
    }
    if Pd::of(pd).users.any() {
        return result(Err(Errno::EBUSY));
    }
    let freed = Pd::take(pd);
    if !freed.parent_of.is_null() {
        Pd::of(freed.parent_of).users.remove();
    }
    0
}

/// A thread domain promises that one thread uses its objects, which needs nothing here.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    if (*attr).comp_mask != 0 {
        return pointer(Err(Errno::EINVAL));
    }
    Box::into_raw(Box::new(ibv_td { context }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> i32 {
    drop(Box::from_raw(td));
    0
}

/// A parent domain is its protection domain. Queues lie in rings of the engine, so an allocator is
/// not asked.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _whole = PutOff::new();
    /// IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS and _PD_CONTEXT.
    const KNOWN: u32 = 3;
    let attr = &*attr;
    if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
        return pointer(Err(Errno::EINVAL));
    }
    let made = alloc(context, attr.pd);
    if made.is_ok() {
        Pd::of(attr.pd).users.add();
    }
    pointer(made)
}
