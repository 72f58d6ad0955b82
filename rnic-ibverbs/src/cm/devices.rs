//! The devices that connections can use.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ptr::null_mut;

use nix::libc::{free, malloc};

use crate::abi::ibv_context;
use crate::adapter::adapters;
use crate::cancellation::PutOff;
use crate::errno::{Errno, fail_ptr};

#[unsafe(export_name = "rnic_cm_rdma_get_devices")]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut i32) -> *mut *mut ibv_context {
    let _whole = PutOff::new();
    if let Some(number) = num_devices.as_mut() {
        *number = 0;
    }
    let all = adapters();
    if all.is_empty() {
        return fail_ptr(Errno::ENODEV);
    }
    let open = all
        .iter()
        .filter_map(|adapter| crate::device::context_of(adapter).ok());
    let contexts: Vec<_> = open.collect();
    let list = malloc((contexts.len() + 1) * size_of::<*mut ibv_context>());
    let list = list.cast::<*mut ibv_context>();
    if list.is_null() {
        return fail_ptr(Errno::ENOMEM);
    }
    for (place, context) in contexts.iter().enumerate() {
        *list.add(place) = *context;
    }
    *list.add(contexts.len()) = null_mut();
    if let Some(number) = num_devices.as_mut() {
        *number = contexts.len() as i32;
    }
    list
}

#[unsafe(export_name = "rnic_cm_rdma_free_devices")]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    free(list.cast());
}
