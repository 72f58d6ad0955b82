//! Local addresses, and the ways to remote ones.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::sockaddr;

use crate::abi::*;
use crate::adapter::{Adapter, adapters};
use crate::cancellation::PutOff;
use crate::cm::address::{
    self, Reserved, any_like, link_of, plain, reserve, reserve_again, source_for, told,
};
use crate::cm::claims::Claim;
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::cm::lifetime::complete;
use crate::cm::next_hop;
use crate::cm::route;
use crate::cm::verbs;
use crate::errno::{Errno, fail};

/// The most TCP ports that are tried where any will do.
const MAX_TRIES: usize = 256;

/// Where an id is bound.
struct Place {
    /// None for any address.
    adapter: Option<&'static Adapter>,
    /// The address on the device.
    ip: IpAddr,
}

/// Returns the adapter that has an address. Several links may have the same link-local one.
fn adapter_with(address: SocketAddr) -> Option<&'static Adapter> {
    let (ip, link) = (address.ip().to_canonical(), link_of(address));
    let mut adapters = adapters().iter();
    adapters.find(|adapter| adapter.interface().has(ip, link))
}

/// Returns the device that stands for the loopback device: the first that is active, and its first
/// address of a family.
fn loopback(ip: IpAddr) -> Result<Place, Errno> {
    let is_v4 = ip.to_canonical().is_ipv4();
    // The device of all interfaces has the loopback device itself.
    if let Some(any) = adapters().iter().find(|adapter| adapter.netdev.is_empty()) {
        let ip = match (ip.is_unspecified(), is_v4) {
            (false, _) => ip.to_canonical(),
            (true, true) => Ipv4Addr::LOCALHOST.into(),
            (true, false) => Ipv6Addr::LOCALHOST.into(),
        };
        return Ok(Place {
            adapter: Some(any),
            ip,
        });
    }
    let first = |adapter: &'static Adapter| {
        let mut addresses = adapter.addresses().into_iter();
        let ip = addresses.find(|own| own.is_ipv4() == is_v4)?;
        Some(Place {
            adapter: Some(adapter),
            ip,
        })
    };
    let mut active = adapters().iter().filter(|adapter| adapter.is_active());
    active.find_map(first).ok_or(Errno::ENODEV)
}

/// Returns where an address is.
fn place_of(address: SocketAddr) -> Result<Place, Errno> {
    let ip = address.ip();
    if ip.to_canonical().is_loopback() {
        return loopback(ip);
    }
    let adapter = match adapter_with(address) {
        None if !ip.is_unspecified() => return Err(Errno::ENODEV),
        adapter => adapter,
    };
    Ok(Place {
        adapter,
        ip: ip.to_canonical(),
    })
}

/// Binds an idle id.
///
/// # Safety
/// `id` is an id of the program.
unsafe fn bind(id: *mut rdma_cm_id, this: &Arc<Id>, wanted: SocketAddr) -> Result<(), Errno> {
    let mut state = this.state();
    if state.phase != Phase::Idle {
        return Err(Errno::EINVAL);
    }
    let mut local = wanted;
    let place = if wanted.ip().is_unspecified() {
        Place {
            adapter: None,
            ip: wanted.ip(),
        }
    } else {
        match place_of(wanted) {
            Ok(place) => {
                local.set_ip(place.ip);
                place
            }
            // An address of another device, or of another host.
            Err(errno) => {
                reserve(wanted, true)?;
                return Err(errno);
            }
        }
    };
    let reuse = state.options.reuse_address;
    let (reserved, bound, claimed) = match local.port() {
        0 => any_port(local, reuse)?,
        _ => {
            let claimed = Claim::new(plain(local), reuse)?;
            let (reserved, bound) = reserve_again(local, reuse)?;
            (reserved, bound, claimed)
        }
    };
    // The kernel shows no device for the loopback address. libfabric takes the one it sees there
    // for the only one.
    if let Some(adapter) = place.adapter
        && !wanted.ip().to_canonical().is_loopback()
    {
        verbs::attach(id, adapter)?;
    }
    state.adapter = place.adapter;
    state.local = Some(told(bound, place.adapter));
    state.any_port = wanted.port() == 0;
    state.reserved = Some(reserved);
    state.claim = Some(claimed);
    state.phase = Phase::Bound;
    let mut shown = wanted;
    shown.set_port(bound.port());
    address::write(shown, &raw mut (*id).route.addr.src_addr);
    verbs::show_gid(&raw mut (*id).route.addr.addr.sgid, place.ip);
    Ok(())
}

/// Reserves any TCP port of an address that no id has. The kernel may have one for free whose
/// connection has ended, and whose id is still there.
fn any_port(local: SocketAddr, reuse: bool) -> Result<(Reserved, SocketAddr, Claim), Errno> {
    let mut not_these = Vec::new();
    loop {
        let (reserved, bound) = reserve_again(local, reuse)?;
        match Claim::new(plain(bound), reuse) {
            Ok(claimed) => return Ok((reserved, bound, claimed)),
            Err(Errno::EADDRINUSE) if not_these.len() < MAX_TRIES => not_these.push(reserved),
            Err(errno) => return Err(errno),
        }
    }
}

#[unsafe(export_name = "rnic_cm_rdma_bind_addr")]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> i32 {
    let _whole = PutOff::new();
    let bound = match (Id::of(id), address::read(addr)) {
        (Ok(this), Some(wanted)) => bind(id, this, wanted),
        _ => Err(Errno::EINVAL),
    };
    let is_any = Id::of(id).is_ok_and(|this| this.state().adapter.is_none());
    if bound.is_ok() && is_any {
        // Opening devices takes its time, and programs tell their peers the port before they
        // listen.
        for adapter in adapters() {
            // Listening says what is wrong.
            let _ = adapter.device();
        }
    }
    bound.map_or_else(fail, |()| 0)
}

/// Chooses the device and the local address for a remote one.
///
/// # Safety
/// `id` is an id of the program.
unsafe fn choose(id: *mut rdma_cm_id, this: &Arc<Id>, remote: SocketAddr) -> Result<(), Errno> {
    let mut state = this.state();
    let is_loopback = remote.ip().is_unspecified() || remote.ip().to_canonical().is_loopback();
    let mut there = plain(remote);
    if is_loopback {
        there.set_ip(loopback(remote.ip())?.ip);
    }
    let mut local = state.local.ok_or(Errno::EINVAL)?;
    if state.adapter.is_none() {
        let mut shown = if is_loopback {
            there
        } else {
            source_for(remote)?
        };
        let place = place_of(shown)?;
        let adapter = place.adapter.ok_or(Errno::ENODEV)?;
        verbs::attach(id, adapter)?;
        state.adapter = Some(adapter);
        local.set_ip(place.ip);
        shown.set_port(local.port());
        if is_loopback && !remote.ip().is_unspecified() {
            shown.set_ip(remote.ip());
        }
        address::write(shown, &raw mut (*id).route.addr.src_addr);
        verbs::show_gid(&raw mut (*id).route.addr.addr.sgid, place.ip);
    } else if let (Some(adapter), true) = (state.adapter, (*id).verbs.is_null()) {
        // Bound to the loopback address.
        verbs::attach(id, adapter)?;
    } else if let (Some(adapter), Some(link)) = (state.adapter, link_of(remote))
        && !adapter.netdev.is_empty()
        && link != adapter.interface().index
    {
        return Err(Errno::ENETUNREACH);
    }
    state.local = Some(local);
    if !is_loopback {
        there = told(remote, state.adapter);
    }
    state.remote = Some(there);
    address::write(remote, &raw mut (*id).route.addr.dst_addr);
    verbs::show_gid(&raw mut (*id).route.addr.addr.dgid, there.ip());
    Ok(())
}

/// Resolves an address.
///
/// # Safety
/// `id` is NULL or an id of the program. The addresses are NULL, or addresses of the program.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    remote: *const sockaddr,
    most: Duration,
) -> Result<(), Errno> {
    let this = Id::of(id)?;
    let remote = address::read(remote).ok_or(Errno::EINVAL)?;
    let source = match address::read(source) {
        None if !source.is_null() => return Err(Errno::EINVAL),
        source => source.unwrap_or_else(|| any_like(remote)),
    };
    if this.state().phase == Phase::Idle {
        bind(id, this, source)?;
    }
    {
        let state = this.state();
        let family_fits = (*id).route.addr.src_addr.addr.sa_family == family(remote);
        if state.phase != Phase::Bound || !family_fits {
            return Err(Errno::EINVAL);
        }
    }
    let found = match choose(id, this, remote) {
        // Without a route there is nothing to wait for.
        Err(errno @ (Errno::ENETUNREACH | Errno::EHOSTUNREACH)) => return Err(errno),
        found => found,
    };
    let (adapter, path) = {
        let mut state = this.state();
        if let Err(errno) = found {
            let what = EventData::new(RDMA_CM_EVENT_ADDR_ERROR, -(errno as i32));
            this.tell_in(&state, what);
            drop(state);
            return complete(id);
        }
        state.phase = Phase::Resolving;
        (
            state.adapter.ok_or(Errno::EINVAL)?,
            (
                state.local.ok_or(Errno::EINVAL)?.ip(),
                state.remote.ok_or(Errno::EINVAL)?.ip(),
            ),
        )
    };
    let finding = next_hop::find(this, adapter, path, most);
    finding.inspect_err(|_| this.state().phase = Phase::Bound)?;
    complete(id)
}

fn family(address: SocketAddr) -> u16 {
    (if address.is_ipv4() {
        nix::libc::AF_INET
    } else {
        nix::libc::AF_INET6
    }) as u16
}

#[unsafe(export_name = "rnic_cm_rdma_resolve_addr")]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: i32,
) -> i32 {
    // The kernel takes the number for one without a sign.
    let most = Duration::from_millis(timeout_ms.cast_unsigned().into());
    resolve(id, src_addr, dst_addr, most).map_or_else(fail, |()| 0)
}

/// Resolves the route to an address.
///
/// # Safety
/// `id` is NULL or an id of the program.
unsafe fn resolve_route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let this = Id::of(id)?;
    {
        let mut state = this.state();
        if state.phase != Phase::AddressResolved {
            return Err(Errno::EINVAL);
        }
        state.phase = Phase::ResolvingRoute;
    }
    route::find(this)?;
    complete(id)
}

#[unsafe(export_name = "rnic_cm_rdma_resolve_route")]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: i32,
) -> i32 {
    resolve_route(id).map_or_else(fail, |()| 0)
}

#[unsafe(export_name = "rnic_cm_rdma_get_src_port")]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let port = address::read(&raw const (*id).route.addr.src_addr.addr);
    port.map_or(0, |address| address.port().to_be())
}

#[unsafe(export_name = "rnic_cm_rdma_get_dst_port")]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let port = address::read(&raw const (*id).route.addr.dst_addr.addr);
    port.map_or(0, |address| address.port().to_be())
}
