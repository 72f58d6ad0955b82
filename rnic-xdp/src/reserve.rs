//! Local ports: reserved in the kernel by a bound socket, and steered here.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockname, setsockopt, socket,
    sockopt,
};
use rnic_core::connection::PortLease;
use rnic_core::engine::{Net, NetError, Peers};
use tracing::debug;

use crate::netlink::{
    Groups, NetlinkError, Policy, PolicySocket, RouteSocket, addresses, link_by_index,
};
use crate::placement::{Arrival, FlowRule, Placement};
use crate::policies::KnownPolicies;
use crate::port::numa::on_node;
use crate::port::{ControlHandle, XdpPort};
use crate::process::Maker;
use crate::routes::DeviceRoute;
use crate::steering::{Entry, SteeredPorts};

/// How many ports to try for one whose segments come to a certain worker: with a thousand workers, one port in a thousand does.
const PORT_TRIES: u32 = 8192;

/// The address services of an open port. Ports are reserved in the network namespace of the calling thread, which
/// must be the device's.
#[derive(Debug)]
pub struct XdpNet {
    netdev: String,
    device: u32,
    max_mtu: u32,
    routes: Mutex<RouteSocket>,
    /// None if the kernel has no IPsec.
    policies: Option<Mutex<PolicySocket>>,
    ignores_ipsec: bool,
    steered: SteeredPorts,
    placement: Placement,
    control: ControlHandle,
    numa_node: Option<u32>,
}

/// A reserved port: the socket holds it in the kernel, the map entry brings its segments here.
#[derive(Debug)]
struct Lease {
    /// Its entries in the steering maps, and the peers that they are for.
    entries: Vec<Entry>,
    peers: Peers,
    steered: SteeredPorts,
    /// The rule that brings its segments to its worker.
    rule: Option<FlowRule>,
    control: ControlHandle,
    maker: Maker,
    /// Bound, never listening: the kernel answers only with RST.
    _socket: OwnedFd,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        if let Some(Entry { local, .. }) = self.entries.first() {
            debug!("{local} is given back to the kernel");
        }
        // Steering ends before the port is free for others, whose segments it would take. If that fails, the entry goes with
        // the map.
        for entry in &self.entries {
            let _ = self.steered.remove(entry, &self.peers);
        }
        // Removing a rule takes the kernel's lock (RTNL).
        if let Some(rule) = self.rule.take() {
            self.control.release(rule);
        }
    }
}

impl XdpNet {
    /// Makes the services of a port, in the network namespace of this thread.
    pub fn new(port: &XdpPort) -> Result<Self, NetlinkError> {
        Ok(Self {
            netdev: port.report().netdev.clone(),
            device: port.link().index,
            max_mtu: port.report().mtu,
            routes: Mutex::new(RouteSocket::open()?),
            policies: PolicySocket::open(Groups::NONE)?.map(Mutex::new),
            ignores_ipsec: false,
            steered: port.steered_ports(),
            placement: Placement::new(port.link(), port.report().workers),
            control: port.control().clone(),
            numa_node: port.report().numa_node,
        })
    }

    /// Allows unprotected connections even if an IPsec policy of the host demands protection.
    pub fn ignore_ipsec(self) -> Self {
        Self {
            ignores_ipsec: true,
            ..self
        }
    }

    /// Fails if `find` finds a policy.
    fn check_policies(
        &self,
        address: SocketAddr,
        find: impl FnOnce(&KnownPolicies) -> Option<&Policy>,
    ) -> Result<(), NetError> {
        let Some(policies) = self.policies.as_ref().filter(|_| !self.ignores_ipsec) else {
            return Ok(());
        };
        let mut policies = policies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = KnownPolicies::read(&mut policies, &mut routes, self.device);
        // If they cannot be read, one may apply.
        let known = known.map_err(|error| other(address, error))?;
        match find(&known) {
            Some(policy) => Err(NetError::Protected {
                address,
                policy: policy.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Binds a kernel socket, which reserves the port.
    fn bind(&self, wanted: SocketAddr) -> Result<(OwnedFd, SocketAddr), NetError> {
        bound(wanted, self.device).map_err(|errno| match errno {
            Errno::EADDRINUSE => NetError::InUse(wanted),
            Errno::EADDRNOTAVAIL => NetError::NotLocal(wanted, self.netdev.clone()),
            Errno::EACCES => other(wanted, "ports below 1024 need CAP_NET_BIND_SERVICE"),
            errno => other(wanted, errno.desc()),
        })
    }

    /// Steers a reserved port here, before anything is sent from it.
    fn steer(
        &self,
        socket: OwnedFd,
        local: SocketAddr,
        vlans: &[u16],
        peers: &Peers,
        rule: Option<FlowRule>,
    ) -> Result<(SocketAddr, PortLease), NetError> {
        let mut lease = Lease {
            entries: Vec::with_capacity(vlans.len()),
            peers: peers.clone(),
            steered: self.steered.clone(),
            rule,
            control: self.control.clone(),
            maker: Maker::this(),
            _socket: socket,
        };
        for &vlan in vlans {
            let entry = Entry { local, vlan };
            self.steered.add(&entry, peers).map_err(|error| match error.raw_os_error() {
                Some(libc::EEXIST) => NetError::InUse(local),
                Some(libc::E2BIG) => other(
                    local,
                    "the steering map is full (65536 addresses and ports, as many prefixes of peers); close connections or listeners",
                ),
                _ => other(local, format!("cannot steer the port here: {error}")),
            })?;
            lease.entries.push(entry);
        }
        debug!(
            "{local} is reserved in the kernel and steered from {}",
            self.netdev
        );
        Ok((local, Arc::new(lease)))
    }

    /// Returns the VLANs in which frames for an address arrive, 0 for untagged. Fails unless the address is one of the device
    /// or of a VLAN on it. Frames of a VLAN may also arrive untagged: a device that strips tags (`rxvlan`), or a veth whose
    /// other end leaves them to it, does so before the steering program sees the frame.
    fn vlans_of(&self, local: SocketAddr) -> Result<Vec<u16>, NetError> {
        if local.ip().is_unspecified() {
            return Ok(vec![0]);
        }
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: NetlinkError| other(local, error);
        let only = scope(local, self.device);
        let mut vlans = Vec::new();
        for own in addresses(&mut routes).map_err(failed)? {
            if own.address != local.ip() || only.is_some_and(|only| only != own.index) {
                continue;
            }
            let link = link_by_index(&mut routes, own.index).map_err(failed)?;
            let vlan = link.and_then(|link| link.vlan_on(self.device));
            if own.index == self.device || vlan.is_some() {
                vlans.push(0);
                vlans.extend(vlan);
            }
        }
        if vlans.is_empty() {
            return Err(NetError::NotLocal(local, self.netdev.clone()));
        }
        vlans.sort_unstable();
        vlans.dedup();
        Ok(vlans)
    }

    /// Returns the local address to reach a destination from.
    fn source_for(
        &self,
        remote: SocketAddr,
        wanted: Option<SocketAddr>,
    ) -> Result<SocketAddr, NetError> {
        let stated = wanted
            .map(|local| local.ip())
            .filter(|ip| !ip.is_unspecified());
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let route = DeviceRoute::find(&mut routes, self.device, self.max_mtu, remote.ip(), stated);
        let route = route.map_err(|error| other(remote, error))?;
        let no_route = || NetError::NoRoute(remote, self.netdev.clone());
        let route = route.ok_or_else(no_route)?;
        let source = stated.or(route.source).ok_or_else(no_route)?;
        Ok(SocketAddr::new(
            source,
            wanted.map_or(0, |local| local.port()),
        ))
    }
}

impl Net for XdpNet {
    fn near_device(&self, make: &mut dyn FnMut()) {
        on_node(self.numa_node, make);
    }

    fn listen_to(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, PortLease), NetError> {
        let vlans = self.vlans_of(local)?;
        let (socket, local) = self.bind(local)?;
        self.check_policies(local, |policies| policies.on_listener(local, peers))?;
        self.steer(socket, local, &vlans, peers, None)
    }

    fn admits(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.ignores_ipsec || self.control.policies().on_connection(local, peer).is_none()
    }

    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        engine: u16,
    ) -> Result<(SocketAddr, PortLease), NetError> {
        let wanted = self.source_for(remote, local)?;
        let vlans = self.vlans_of(wanted)?;
        let flow = self.placement.flow(remote, engine.into());
        let suits = |local| wanted.port() != 0 || flow.arrival(remote, local) == Arrival::Here;
        let (socket, local) = until_it_suits(|| self.bind(wanted), suits)?;
        self.check_policies(remote, |policies| policies.on_connection(local, remote))?;
        let rule = self.placement.install_rule(&flow, remote, local);
        self.steer(socket, local, &vlans, &Peers::all(), rule)
    }
}

/// Binds until the port suits, or gives up after [`PORT_TRIES`] and takes any.
fn until_it_suits<T, E>(
    mut bind: impl FnMut() -> Result<(T, SocketAddr), E>,
    suits: impl Fn(SocketAddr) -> bool,
) -> Result<(T, SocketAddr), E> {
    for _ in 1..PORT_TRIES {
        let (socket, local) = bind()?;
        if suits(local) {
            return Ok((socket, local));
        }
    }
    bind()
}

/// Returns the link of a link-local address: its scope, or `device`.
fn scope(address: SocketAddr, device: u32) -> Option<u32> {
    match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => {
            Some(match address.scope_id() {
                0 => device,
                scope => scope,
            })
        }
        _ => None,
    }
}

/// Binds a TCP socket to an address, on `device` if it is link-local. Port 0 chooses one.
fn bound(wanted: SocketAddr, device: u32) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = match wanted {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if wanted.is_ipv6() {
        // Steering entries are of one family each.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    let mut with_scope = wanted;
    if let (SocketAddr::V6(address), Some(link)) = (&mut with_scope, scope(wanted, device)) {
        address.set_scope_id(link);
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(with_scope))?;
    let name: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let port = match (name.as_sockaddr_in(), name.as_sockaddr_in6()) {
        (Some(v4), _) => v4.port(),
        (_, Some(v6)) => v6.port(),
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    // Without the scope of a link-local address: headers do not carry it.
    Ok((socket, SocketAddr::new(wanted.ip(), port)))
}

fn other(address: SocketAddr, reason: impl ToString) -> NetError {
    NetError::Other {
        address,
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_tried_until_one_suits_or_the_limit_is_reached() {
        let mut bound = 0;
        let mut bind = || {
            bound += 1;
            Ok::<_, ()>((bound, SocketAddr::from(([192, 0, 2, 1], bound as u16))))
        };
        let (socket, local) = until_it_suits(&mut bind, |local| local.port() == 5).unwrap();
        assert_eq!((socket, local.port()), (5, 5));
        let (last, _) = until_it_suits(&mut bind, |_| false).unwrap();
        assert_eq!(last, 5 + PORT_TRIES);
    }
}
