//! Address handles: where datagrams go.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::cancellation::PutOff;
use crate::context::Context;
use crate::datagrams::{Destination, GRH_LEN};
use crate::errno::{Errno, fail, pointer};
use crate::numbers::{has_port, port_of};
use crate::objects::{Ah, Pd};
use rnic_verbs::rdma::{address_of, gid_of, socket_address};

/// The hop limit of an answer, as rdma-core sets it.
const ANSWER_HOPS: u8 = 0xff;

/// Returns the local address and that of the other side which an address of InfiniBand names. The
/// ports are 0.
pub(crate) fn addresses(
    adapter: &Adapter,
    attr: &ibv_ah_attr,
) -> Result<(SocketAddr, SocketAddr), Errno> {
    if attr.is_global == 0 {
        return Err(Errno::EINVAL);
    }
    let interface = adapter.interface();
    let at = usize::from(attr.grh.sgid_index);
    let local = interface.at_gid_index(at).ok_or(Errno::EINVAL)?;
    let remote = address_of(attr.grh.dgid.raw);
    if local.is_ipv4() != remote.is_ipv4() || remote.is_unspecified() || remote.is_multicast() {
        return Err(Errno::EINVAL);
    }
    let link = interface.link_of(local);
    let with_scope = |ip| socket_address(ip, 0, link);
    Ok((with_scope(local), with_scope(remote)))
}

/// # Safety
/// The protection domain exists.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    Pd::here(pd)?;
    if attr.port_num != 1 {
        return Err(Errno::EINVAL);
    }
    let context = (*pd).context;
    let adapter = Context::of(context).adapter;
    let (local, remote) = addresses(adapter, attr)?;
    let destination = Destination {
        local,
        remote,
        traffic_class: attr.grh.traffic_class,
        number: 0,
        is_here: adapter.addresses().contains(&remote.ip()),
    };
    Pd::of(pd).users.add();
    Ok(Ah::new(context, pd, destination).give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    let _whole = PutOff::new();
    pointer(create(pd, &*attr))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> i32 {
    let _whole = PutOff::new();
    if Ah::is_inherited(ah) {
        return 0;
    }
    Pd::of((*ah).pd).users.remove();
    drop(Ah::take(ah));
    0
}

/// Returns where a datagram goes that names this handle and this number.
///
/// # Safety
/// The handle is NULL, or exists.
pub(crate) unsafe fn destination(ah: *mut ibv_ah, number: u32) -> Result<Destination, Errno> {
    if ah.is_null() || !has_port(number) {
        return Err(Errno::EINVAL);
    }
    let mut destination = Ah::here(ah)?.destination;
    destination.remote.set_port(port_of(number));
    Ok(Destination {
        number,
        ..destination
    })
}

/// Returns the addresses in the header that a datagram has brought: from where, and to where; and
/// its traffic class.
fn addresses_of(grh: &[u8; GRH_LEN]) -> Option<(IpAddr, IpAddr, u8)> {
    let (_, v4) = grh.split_at(GRH_LEN - 20);
    let quad = |at: usize| Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]);
    // A header of IPv6 begins with its version, and the room before one of IPv4 with 0.
    match (grh[0] >> 4, v4[0]) {
        (6, _) => {
            let gid = |at: usize| {
                let mut gid = [0; 16];
                gid.copy_from_slice(&grh[at..at + 16]);
                address_of(gid)
            };
            Some((gid(8), gid(24), grh[0] << 4 | grh[1] >> 4))
        }
        (0, 0x45) => Some((quad(12).into(), quad(16).into(), v4[1])),
        _ => None,
    }
}

/// Makes the address of the sender of a datagram.
///
/// # Safety
/// The context is open, and what a completion and its receive have is there.
unsafe fn answer(
    context: *mut ibv_context,
    port_num: u8,
    wc: &ibv_wc,
    grh: *const [u8; GRH_LEN],
) -> Result<ibv_ah_attr, Errno> {
    if port_num != 1 || wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return Err(Errno::EINVAL);
    }
    let (from, to, traffic_class) = addresses_of(&*grh).ok_or(Errno::EINVAL)?;
    let adapter = Context::of(context).adapter;
    let sgid_index = adapter.addresses().iter().position(|own| *own == to);
    let sgid_index = sgid_index.and_then(|at| u8::try_from(at).ok());
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid_of(from) },
            sgid_index: sgid_index.ok_or(Errno::EINVAL)?,
            hop_limit: ANSWER_HOPS,
            traffic_class,
            ..ibv_global_route::default()
        },
        is_global: 1,
        port_num,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        dlid: wc.slid,
        ..ibv_ah_attr::default()
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH_LEN],
    attr: *mut ibv_ah_attr,
) -> i32 {
    let _whole = PutOff::new();
    match answer(context, port_num, &*wc, grh) {
        Ok(made) => {
            *attr = made;
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH_LEN],
    port_num: u8,
) -> *mut ibv_ah {
    let _whole = PutOff::new();
    let made = answer((*pd).context, port_num, &*wc, grh);
    pointer(made.and_then(|attr| create(pd, &attr)))
}
