//! What a device and its port are.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::mem::offset_of;
use std::ptr::write_bytes;

use rnic_verbs::MAX_SGE;
use rnic_verbs::rdma::{FIRMWARE, Lanes, Netdev, PKEY, PORT, gid_of};

use crate::abi::*;
use crate::adapter::{Adapter, QUEUE_PAIRS, STAGS};
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::cq::MAX_ENTRIES;
use crate::errno::{Errno, fail};
use crate::label;
use crate::qp::MAX_WR;
use crate::settings::MAX_READS;

/// The most completion queues, and shared receive queues, of a process.
const MAX_QUEUES: i32 = 1 << 16;

/// The vendor, where others have an identifier of the IEEE: the one that the kernel's rxe has,
/// which is nobody's. Programs expect that it is not 0.
const VENDOR: u32 = 0x00ff_ffff;

/// Octets of the port's attributes that programs know which call the exported function.
const SHORT_PORT_ATTR: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// Returns the GUID of a device in network byte order.
pub(crate) fn guid(adapter: &Adapter) -> u64 {
    u64::from_ne_bytes(adapter.interface().guid())
}

fn device_attr(adapter: &Adapter) -> ibv_device_attr {
    let mut attr = ibv_device_attr::zeros();
    attr.fw_ver[..FIRMWARE.len()].copy_from_slice(FIRMWARE.as_bytes());
    let guid = guid(adapter);
    ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: VENDOR,
        max_qp: QUEUE_PAIRS as i32,
        max_qp_wr: MAX_WR as i32,
        device_cap_flags: IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: MAX_SGE as i32,
        max_sge_rd: MAX_SGE as i32,
        max_cq: MAX_QUEUES,
        max_cqe: MAX_ENTRIES as i32,
        max_mr: STAGS as i32,
        max_pd: i32::MAX,
        max_qp_rd_atom: MAX_READS.into(),
        max_res_rd_atom: i32::from(MAX_READS) * QUEUE_PAIRS as i32,
        max_qp_init_rd_atom: MAX_READS.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: STAGS as i32,
        // No device has a table of them.
        max_ah: i32::MAX,
        max_srq: MAX_QUEUES,
        max_srq_wr: MAX_WR as i32,
        max_srq_sge: MAX_SGE as i32,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..attr
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> i32 {
    let _whole = PutOff::new();
    *attr = device_attr(Context::of(context).adapter);
    0
}

/// `ibv_query_device_ex`, of which the program knows the first `size` octets.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> i32 {
    let _whole = PutOff::new();
    /// Everything that was there first.
    const LEAST: usize = offset_of!(ibv_device_attr_ex, odp_caps);
    if !input.is_null() && (*input).comp_mask != 0 || size < LEAST {
        return Errno::EINVAL as i32;
    }
    let mut all = ibv_device_attr_ex::zeros();
    all.orig_attr = device_attr(Context::of(context).adapter);
    // No memory is pinned, so what the program maps anew is what peers reach.
    let each = IBV_ODP_SUPPORT_SEND
        | IBV_ODP_SUPPORT_RECV
        | IBV_ODP_SUPPORT_WRITE
        | IBV_ODP_SUPPORT_READ
        | IBV_ODP_SUPPORT_ATOMIC
        | IBV_ODP_SUPPORT_SRQ_RECV;
    const RELIABLE: u32 = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
    all.odp_caps = ibv_odp_caps {
        general_caps: IBV_ODP_SUPPORT,
        per_transport_caps: [each, each & !RELIABLE, datagrams],
    };
    all.device_cap_flags_ex = all.orig_attr.device_cap_flags.into();
    all.phys_port_cnt_ex = 1;
    copy_part(&all, attr, size);
    0
}

/// Copies the part of a structure that the program knows. What it knows beyond is zeroed.
///
/// # Safety
/// The program may write `size` octets at `to`.
unsafe fn copy_part<T>(all: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    std::ptr::copy_nonoverlapping((&raw const *all).cast::<u8>(), to.cast::<u8>(), known);
    write_bytes(to.cast::<u8>().add(known), 0, size - known);
}

fn port_attr(adapter: &Adapter) -> ibv_port_attr {
    let interface = adapter.interface();
    let lanes = Lanes::of(Netdev::speed(&adapter.netdev));
    let (state, phys_state) = match interface.is_active {
        // IB_PORT_PHYS_STATE_LINK_UP and _DISABLED.
        true => (IBV_PORT_ACTIVE, 5),
        false => (IBV_PORT_DOWN, 3),
    };
    ibv_port_attr {
        state,
        max_mtu: IBV_MTU_4096,
        active_mtu: adapter.mtu(),
        gid_tbl_len: interface.addresses.len().max(1) as i32,
        max_msg_sz: u32::MAX,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: lanes.width,
        active_speed: lanes.speed,
        active_speed_ex: lanes.speed.into(),
        phys_state,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        ..ibv_port_attr::default()
    }
}

/// `query_port`, where the program says how much it knows.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> i32 {
    let _whole = PutOff::new();
    if port != PORT {
        return Errno::EINVAL as i32;
    }
    copy_part(&port_attr(Context::of(context).adapter), attr, size);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> i32 {
    query_port(context, port, attr, SHORT_PORT_ATTR)
}

/// Tells the speed of the interface in units of 100 Mb/s, and 1 Gb/s where its driver tells none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> i32 {
    let _whole = PutOff::new();
    if port != u32::from(PORT) {
        return Errno::EINVAL as i32;
    }
    let megabits = Netdev::speed(&Context::of(context).adapter.netdev).unwrap_or(1000);
    *speed = u64::from(megabits).div_ceil(100).max(1);
    0
}

/// Returns the GIDs: the addresses of the interface.
fn gids(adapter: &Adapter) -> (Vec<ibv_gid>, u32) {
    let interface = adapter.interface();
    let gids = interface
        .addresses
        .iter()
        .map(|a| ibv_gid { raw: gid_of(*a) });
    (gids.collect(), interface.index)
}

/// An interface without an address has one GID, which is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: i32,
    gid: *mut ibv_gid,
) -> i32 {
    let _whole = PutOff::new();
    let interface = Context::of(context).adapter.interface();
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let raw = match interface.at_gid_index(index) {
        Some(address) => gid_of(address),
        None if index == 0 => [0; 16],
        None => return fail(Errno::EINVAL),
    };
    if port != PORT {
        return fail(Errno::EINVAL);
    }
    *gid = ibv_gid { raw };
    0
}

/// Returns the entries of the table of GIDs.
fn entries(adapter: &Adapter) -> Vec<ibv_gid_entry> {
    let (gids, ndev_ifindex) = gids(adapter);
    let numbered = (0..).zip(gids);
    numbered
        .map(|(gid_index, gid)| ibv_gid_entry {
            gid,
            gid_index,
            port_num: PORT.into(),
            gid_type: label::gid_type(),
            ndev_ifindex,
        })
        .collect()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> i32 {
    let _whole = PutOff::new();
    if flags != 0 {
        return Errno::EOPNOTSUPP as i32;
    }
    if port != u32::from(PORT) {
        return Errno::EINVAL as i32;
    }
    match entries(Context::of(context).adapter).get(index as usize) {
        Some(found) => {
            copy_part(found, entry, entry_size);
            0
        }
        None if index == 0 => Errno::ENODATA as i32,
        None => Errno::EINVAL as i32,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    list: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let _whole = PutOff::new();
    if flags != 0 {
        return -(Errno::EOPNOTSUPP as isize);
    }
    let found = entries(Context::of(context).adapter);
    if found.len() > max {
        return -(Errno::EINVAL as isize);
    }
    for (place, entry) in found.iter().enumerate() {
        copy_part(entry, list.byte_add(place * entry_size), entry_size);
    }
    found.len() as isize
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    _index: u32,
    kind: *mut u32,
) -> i32 {
    if port != PORT {
        return fail(Errno::EINVAL);
    }
    *kind = label::sysfs_gid_type();
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: i32,
    pkey: *mut u16,
) -> i32 {
    if port != PORT || index != 0 {
        return fail(Errno::EINVAL);
    }
    *pkey = PKEY.to_be();
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> i32 {
    match port == PORT && pkey == PKEY.to_be() {
        true => 0,
        false => fail(Errno::EINVAL),
    }
}
