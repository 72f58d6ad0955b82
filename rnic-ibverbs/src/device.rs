//! Devices: which there are, and contexts of them.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;

use nix::libc;

use crate::abi::*;
use crate::adapter::{Adapter, adapters};
use crate::asynchronous;
use crate::cancellation::PutOff;
use crate::children;
use crate::context::{Context, shared};
use crate::errno::{Errno, fail, fail_ptr, pointer};
use crate::exit;
use crate::label;
use crate::operations::operations;
use crate::query;
use crate::watch;

/// The name of the file under `/dev/infiniband` that programs look for, and do not open. One stands
/// for all devices.
const NODE: &str = "rnic";

/// A device, which lives as long as the process.
#[repr(C)]
struct Device {
    abi: ibv_device,
    /// Where the libraries of rdma-core's drivers look for operations of their own, to find out
    /// whether a device is theirs. Room for the rest of their `verbs_device` follows.
    drivers: [*mut c_void; 8],
    adapter: &'static Adapter,
}

// SAFETY: its pointers are NULL.
unsafe impl Send for Device {}
// SAFETY: nothing in it changes.
unsafe impl Sync for Device {}

/// Returns the devices: one for each adapter, in their order.
fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Box<[Device]>> = OnceLock::new();
    if let Some(known) = DEVICES.get() {
        return known;
    }
    let adapters = adapters();
    if adapters.is_empty() {
        return &[];
    }
    DEVICES.get_or_init(|| adapters.iter().map(Device::new).collect())
}

/// Returns a string of C in a member of this size. What does not fit is cut off.
fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut octets = [0; N];
    let length = text.len().min(N - 1);
    octets[..length].copy_from_slice(&text.as_bytes()[..length]);
    octets
}

impl Device {
    fn new(adapter: &'static Adapter) -> Self {
        let name = &adapter.name;
        let (node_type, transport_type) = label::types();
        let abi = ibv_device {
            _ops: [null_mut(); 2],
            node_type,
            transport_type,
            name: text(name),
            dev_name: text(NODE),
            dev_path: text(&format!("/sys/class/infiniband_verbs/{NODE}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
        };
        Self {
            abi,
            drivers: [null_mut(); 8],
            adapter,
        }
    }

    fn pointer(&'static self) -> *mut ibv_device {
        // To all of it, which `of` and drivers read, and not to `abi` alone.
        (&raw const *self).cast_mut().cast()
    }

    /// Returns the device that the program has a pointer to.
    ///
    /// # Safety
    /// The pointer came from `ibv_get_device_list`, or from a context.
    unsafe fn of(device: *mut ibv_device) -> &'static Self {
        const { assert!(offset_of!(Self, abi) == 0) };
        // SAFETY: `pointer` made it, and devices live as long as the process.
        unsafe { &*device.cast() }
    }
}

/// Returns the context that rdma_cm gives out for an adapter.
pub(crate) fn context_of(adapter: &'static Adapter) -> Result<*mut ibv_context, Errno> {
    let device = devices().get(adapter.index).ok_or(Errno::ENODEV)?;
    let context = shared(adapter, || pointer(open(device)));
    if context.is_null() {
        return Err(Errno::last());
    }
    Ok(context)
}

fn open(device: &'static Device) -> Result<*mut ibv_context, Errno> {
    let context = Context::open(device.adapter, device.pointer(), operations())?;
    // Before anything happens that it would tell of: the dispatcher may come late.
    asynchronous::deliver(device.adapter);
    device.adapter.on_events(asynchronous::deliver);
    watch::start();
    exit::register();
    children::register();
    Ok(context)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut i32) -> *mut *mut ibv_device {
    let _whole = PutOff::new();
    let devices = devices();
    if let Some(count) = count.as_mut() {
        *count = 0;
    }
    // With room for the NULL at its end.
    let list: *mut *mut ibv_device =
        libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()).cast();
    if list.is_null() {
        return fail_ptr(Errno::ENOMEM);
    }
    for (place, device) in devices.iter().enumerate() {
        *list.add(place) = device.pointer();
    }
    if let Some(count) = count.as_mut() {
        *count = devices.len() as i32;
    }
    list
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    libc::free(list.cast());
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    (*device).name.as_ptr().cast()
}

/// The kernel, which numbers devices, has none of these.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> i32 {
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let _whole = PutOff::new();
    query::guid(Device::of(device).adapter)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _whole = PutOff::new();
    pointer(open(Device::of(device)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> i32 {
    let _whole = PutOff::new();
    Context::close(context).map_or_else(fail, |()| 0)
}

/// A descriptor of the kernel's device names none of these.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(_cmd_fd: i32) -> *mut ibv_context {
    fail_ptr(Errno::EOPNOTSUPP)
}
