//! Listening, and what is done with those who ask.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{Peers, Prefix};

use crate::abi::*;
use crate::adapter::{Adapter, adapters};
use crate::cancellation::PutOff;
use crate::cm::address::{self, Reserved};
use crate::cm::deliver::next_of;
use crate::cm::id::{Id, Phase};
use crate::cm::lifetime;
use crate::cm::mapping;
use crate::cm::qp::rdma_create_qp;
use crate::cm::table;
use crate::cm::verbs::errno_of;
use crate::errno::{Errno, fail};

/// How many requests may wait to be read, if the program does not say, and at most.
const BACKLOG: i32 = 1024;

/// How long a worker of the device may take to listen.
const LONGEST_LISTEN: Duration = Duration::from_secs(1);

#[unsafe(export_name = "rnic_cm_rdma_listen")]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: i32) -> i32 {
    let _whole = PutOff::new();
    listen(id, backlog).map_or_else(fail, |()| 0)
}

/// Makes an id listen.
///
/// # Safety
/// `id` is NULL or an id of the program.
unsafe fn listen(id: *mut rdma_cm_id, backlog: i32) -> Result<(), Errno> {
    let this = Id::of(id)?;
    if this.state().phase == Phase::Idle {
        // As the kernel does.
        // Zeros are any port of any address.
        let any = std::mem::zeroed::<nix::libc::sockaddr_in>();
        let any = nix::libc::sockaddr_in {
            sin_family: nix::libc::AF_INET as u16,
            ..any
        };
        if super::resolve::rdma_bind_addr(id, (&raw const any).cast_mut().cast()) != 0 {
            return Err(Errno::last());
        }
    }
    let (local, adapter, _shared, one_family) = {
        let mut state = this.state();
        if state.phase != Phase::Bound {
            return Err(Errno::EINVAL);
        }
        let local = state.local.ok_or(Errno::EINVAL)?;
        state.phase = Phase::Listening;
        state.backlog = match backlog {
            1..BACKLOG => backlog as usize,
            _ => BACKLOG as usize,
        };
        // The engine reserves the port for itself.
        let shared = state.reserved.take().and_then(Reserved::free);
        (local, state.adapter, shared, state.options.one_family)
    };
    let shown = address::read(&raw const (*id).route.addr.src_addr.addr);
    let is_loopback = shown.is_some_and(|shown| shown.ip().to_canonical().is_loopback());
    let listening = match adapter {
        Some(adapter) => listen_on(adapter, local, this, is_loopback),
        None => listen_on_all(local, this, one_family),
    };
    listening.inspect_err(|_| {
        for adapter in adapters() {
            table::forget_listeners(adapter, this);
        }
        this.state().phase = Phase::Bound;
    })
}

/// Listens on a device. Whoever named the loopback address wants no peers but those of this host.
fn listen_on(
    adapter: &'static Adapter,
    local: SocketAddr,
    id: &Arc<Id>,
    is_loopback: bool,
) -> Result<(), Errno> {
    let device = adapter.device()?;
    if let Some(listener) = table::take_lingering(adapter, local)
        && !is_loopback
    {
        return table::remember_listener(adapter, listener, id);
    }
    let peers = match is_loopback {
        true => {
            let own = adapter.addresses().into_iter();
            Peers::only(own.map(|ip| Prefix::new(ip, u8::MAX)))
        }
        false => Peers::all(),
    };
    let listener = mapping::listen(&device, local, &peers);
    let listener = Arc::new(listener.map_err(errno_of)?);
    table::remember_listener(adapter, listener, id)?;
    // Peers may come once this returns: workers carry out commands in their order, so that this
    // one's answer comes when they listen.
    device.barrier(LONGEST_LISTEN).map_err(errno_of)?;
    Ok(())
}

/// Listens on all devices, for IPv4 too if the address stands for both families.
fn listen_on_all(local: SocketAddr, id: &Arc<Id>, one_family: bool) -> Result<(), Errno> {
    let mut families = vec![local];
    if local.is_ipv6() && !one_family {
        families.push(SocketAddr::from(([0; 4], local.port())));
    }
    for adapter in adapters() {
        for any in &families {
            // The kernel gives a port at any address to one socket.
            if adapters().len() == 1 {
                listen_on(adapter, *any, id, false)?;
                continue;
            }
            let own = adapter.addresses().into_iter();
            for ip in own.filter(|ip| ip.is_ipv4() == any.is_ipv4()) {
                let local = SocketAddr::new(ip, any.port());
                listen_on(adapter, local, id, false)?;
            }
        }
    }
    Ok(())
}

#[unsafe(export_name = "rnic_cm_rdma_get_request")]
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> i32 {
    match next_request(listen) {
        Ok(asked) => {
            *id = asked;
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Waits for a peer to ask.
///
/// # Safety
/// `listening` is NULL or an id of the program.
unsafe fn next_request(listening: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let this = Id::of(listening)?;
    let (queue, attributes) = {
        let state = this.state();
        if !state.is_sync {
            return Err(Errno::EINVAL);
        }
        (
            state.queue.clone().ok_or(Errno::EINVAL)?,
            state.qp_attributes,
        )
    };
    lifetime::acknowledge_kept(listening);
    let event = next_of(&queue)?;
    let asked = (*event).id;
    let made = match ((*event).event, (*event).status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno::ECONNREFUSED),
        (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => Ok(()),
        (_, 0) => Err(Errno::EINVAL),
        (_, status) => Err(Errno::from_raw(status.wrapping_abs())),
    };
    let made = made.and_then(|()| match attributes {
        None => Ok(()),
        Some(mut attributes) => {
            let made = rdma_create_qp(asked, (*listening).pd, &raw mut attributes.0);
            if made == 0 {
                Ok(())
            } else {
                let why = Errno::last();
                // The program does not get the id: its peer is rejected.
                lifetime::rdma_destroy_id(asked);
                (*event).id = null_mut();
                Err(why)
            }
        }
    });
    match made {
        Ok(()) => {
            (*asked).event = event;
            Ok(asked)
        }
        Err(errno) => {
            (*listening).event = event;
            Err(errno)
        }
    }
}
