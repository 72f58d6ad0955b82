//! Local addresses and TCP ports: which of them a device has, and their reservation in the kernel.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockname, setsockopt, socket,
    sockopt,
};
use rnic_core::engine::{NetError, Peers};
use rnic_manager::Ways;

use crate::device::automatic_ports::choose;
use crate::device::domains::Domain;
use crate::device::listening::{has_connections, users_listening};
use crate::device::netlink::{
    Address, Groups, Link, NetlinkError, Policy, PolicySocket, RouteSocket, addresses,
    link_by_index, links,
};
use crate::device::policies::KnownPolicies;
use crate::device::routes::DeviceRoute;
use crate::device::vlans::{Places, in_words, places, removes_tags};

/// The local addresses of a device and of the VLANs on it. TCP ports are reserved in the network
/// namespace of the calling thread, which must be the device's.
#[derive(Debug)]
pub(crate) struct Locals {
    netdev: String,
    device: u32,
    max_mtu: u32,
    routes: Mutex<RouteSocket>,
    /// None if the kernel has no IPsec.
    policies: Option<Mutex<PolicySocket>>,
    pub(crate) ignores_ipsec: bool,
    /// The xfrm interface of policies that rnic meets itself.
    pub(crate) ipsec_if_id: Option<NonZeroU32>,
    /// From where a TCP port is taken if any will do; without it, the kernel chooses.
    pub(crate) automatic: Option<RangeInclusive<u16>>,
}

/// The name of the VRF in which to bind, if any.
#[derive(Debug)]
pub(crate) struct Vrf(Option<OsString>);

impl Locals {
    /// Looks at a device, in the network namespace of this thread. `max_mtu` bounds the MTU of
    /// routes.
    pub(crate) fn new(link: &Link, max_mtu: u32) -> Result<Self, NetlinkError> {
        Ok(Self {
            netdev: link.name.clone(),
            device: link.index,
            max_mtu,
            routes: Mutex::new(RouteSocket::open()?),
            policies: PolicySocket::open(Groups::NONE)?.map(Mutex::new),
            ignores_ipsec: false,
            ipsec_if_id: None,
            automatic: None,
        })
    }

    /// Returns the name of the device.
    pub(crate) fn netdev(&self) -> &str {
        &self.netdev
    }

    /// Fails if an IPsec policy protects what a listener would receive.
    pub(crate) fn check_listener(&self, local: SocketAddr, peers: &Peers) -> Result<(), NetError> {
        self.check_policies(local, |policies| policies.on_listener(local, peers))
    }

    /// Fails if an IPsec policy protects a connection.
    pub(crate) fn check_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), NetError> {
        self.check_policies(remote, |policies| policies.on_connection(local, remote))
    }

    /// Fails if a policy of rnic's own protects what a listener would receive.
    pub(crate) fn check_unprotected_listener(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(), NetError> {
        self.check_policies(local, |policies| policies.own_on_listener(local, peers))
    }

    /// Fails if a policy of rnic's own protects a connection.
    pub(crate) fn check_unprotected_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), NetError> {
        self.check_policies(remote, |policies| policies.own_on_connection(local, remote))
    }

    /// Fails unless rnic's own policies can protect a connection both ways.
    pub(crate) fn check_protected(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), NetError> {
        let known = self.known_policies(remote)?;
        match known.is_some_and(|known| known.can_protect(local, remote)) {
            true => Ok(()),
            false => Err(NetError::Unprotected {
                address: remote,
                reason: "no policy with the number of `ipsec_if_id` protects what is sent there, or one does not protect what comes from there",
            }),
        }
    }

    /// Fails if `find` finds a policy.
    fn check_policies(
        &self,
        address: SocketAddr,
        find: impl FnOnce(&KnownPolicies) -> Option<&Policy>,
    ) -> Result<(), NetError> {
        if self.ignores_ipsec {
            return Ok(());
        }
        let Some(known) = self.known_policies(address)? else {
            return Ok(());
        };
        match find(&known) {
            Some(policy) => Err(NetError::Protected {
                address,
                policy: policy.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Returns the policies of the host now, unless its kernel has none. `address` is what they are
    /// asked for.
    fn known_policies(&self, address: SocketAddr) -> Result<Option<KnownPolicies>, NetError> {
        let Some(policies) = &self.policies else {
            return Ok(None);
        };
        let mut policies = policies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = KnownPolicies::read(&mut policies, &mut routes, self.device, self.ipsec_if_id);
        // If they cannot be read, one may apply.
        known.map(Some).map_err(|error| other(address, error))
    }

    /// Binds a kernel socket, which reserves the port.
    pub(crate) fn bind(&self, wanted: SocketAddr) -> Result<(OwnedFd, SocketAddr), NetError> {
        self.bind_in(&self.domain(wanted)?, wanted)
    }

    /// Binds a kernel socket in the [domain](Self::domain) of its address.
    pub(crate) fn bind_in(
        &self,
        Vrf(vrf): &Vrf,
        wanted: SocketAddr,
    ) -> Result<(OwnedFd, SocketAddr), NetError> {
        let vrf = vrf.as_ref();
        let of_range = self.automatic.as_ref().filter(|_| wanted.port() == 0);
        let bound = match of_range {
            Some(range) => {
                // One socket tries all: where most are taken, a socket for each would take long.
                let socket = unbound(wanted, vrf, SockType::Stream)
                    .map_err(|errno| other(wanted, errno.desc()))?;
                let bind = |port| {
                    let wanted = SocketAddr::new(wanted.ip(), port);
                    bind_to(&socket, wanted, self.device)
                };
                let chosen = choose(range, bind, |errno| *errno == Errno::EADDRINUSE);
                let chosen = chosen.ok_or_else(|| all_taken(wanted, range))?;
                chosen.map(|local| (socket, local))
            }
            None => unbound(wanted, vrf, SockType::Stream).and_then(|socket| {
                let local = bind_to(&socket, wanted, self.device)?;
                Ok((socket, local))
            }),
        };
        bound.map_err(|errno| self.not_bound(wanted, errno))
    }

    /// Returns why the kernel does not bind a socket.
    fn not_bound(&self, wanted: SocketAddr, errno: Errno) -> NetError {
        match errno {
            Errno::EADDRINUSE if wanted.port() == 0 => NetError::NoPort(wanted.ip()),
            Errno::EADDRINUSE => NetError::InUse(wanted.into()),
            Errno::EADDRNOTAVAIL => NetError::NotLocal(wanted, self.netdev.clone()),
            Errno::EACCES => other(wanted, "ports below 1024 need CAP_NET_BIND_SERVICE"),
            errno => other(wanted, errno.desc()),
        }
    }

    /// Binds a UDP socket to an address of the device, and does not block on it.
    pub(crate) fn datagram(&self, wanted: SocketAddr) -> Result<OwnedFd, NetError> {
        let Vrf(vrf) = self.domain(wanted)?;
        let bound = unbound(wanted, vrf.as_ref(), SockType::Datagram)
            .and_then(|socket| bind_to(&socket, wanted, self.device).map(|_| socket));
        bound.map_err(|errno| self.not_bound(wanted, errno))
    }

    /// Fails unless a listener may be known by an address and TCP port at which it does not listen:
    /// nobody has them, or what listens there are TCP sockets of this user, of any without one.
    pub(crate) fn check_number(
        &self,
        wanted: SocketAddr,
        user: Option<u32>,
    ) -> Result<(), NetError> {
        let failed = |error: io::Error| other(wanted, error);
        let in_use = || Err(NetError::InUse(wanted.into()));
        if wanted.port() == 0 {
            return Err(other(wanted, "a number is needed that is known to peers"));
        }
        let bind = |reuse| self.bound_with(wanted, reuse);
        match bind(false) {
            Ok(_) => return Ok(()),
            Err(NetError::InUse(_)) => {}
            Err(error) => return Err(error),
        }
        let users = users_listening(wanted).map_err(failed)?;
        let is_others = |listening: &u32| user.is_some_and(|user| user != *listening);
        if users.iter().any(is_others) {
            return Err(other(
                wanted,
                "a TCP socket of another user listens there; RDMA and TCP share a number within a user",
            ));
        }
        // What is bound and does not listen may be for RDMA, or somebody's server a moment later. What
        // connections have left behind keeps nobody away.
        if users.is_empty() && (bind(true).is_err() || !has_connections(wanted).map_err(failed)?) {
            return in_use();
        }
        Ok(())
    }

    /// Binds a TCP socket to an address, for a moment.
    fn bound_with(&self, wanted: SocketAddr, reuse: bool) -> Result<(), NetError> {
        let Vrf(vrf) = self.domain(wanted)?;
        let bound = unbound(wanted, vrf.as_ref(), SockType::Stream).and_then(|socket| {
            setsockopt(&socket, sockopt::ReuseAddr, &reuse)?;
            bind_to(&socket, wanted, self.device)
        });
        bound
            .map(drop)
            .map_err(|errno| self.not_bound(wanted, errno))
    }

    /// Returns whether an address is one of the device or of a VLAN on it.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        !address.is_unspecified() && self.vlans_of(SocketAddr::new(address, 0)).is_ok()
    }

    /// Returns the addresses of a family that the device and the VLANs on it have.
    pub(crate) fn addresses(&self, is_ipv4: bool) -> Result<Vec<IpAddr>, NetError> {
        let any: IpAddr = match is_ipv4 {
            true => [0; 4].into(),
            false => [0; 16].into(),
        };
        let is_of_family = |own: &Address| own.address.is_ipv4() == is_ipv4;
        let places = self.places(SocketAddr::new(any, 0), is_of_family)?;
        Ok(places.into_keys().collect())
    }

    /// Returns the VRF that has an address: its ports are those of that domain.
    pub(crate) fn domain(&self, wanted: SocketAddr) -> Result<Vrf, NetError> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Domain::of_address(&mut routes, self.device, wanted.ip());
        let found = found.map_err(|error| other(wanted, error))?;
        Ok(Vrf(found.map(|domain| domain.vrf.name.into())))
    }

    /// Returns where a device has an address: in which VLANs, and 0 for the device itself. Fails
    /// unless the address is one of the device or of a VLAN on it. An unspecified address counts as
    /// the device's.
    pub(crate) fn vlans_of(&self, local: SocketAddr) -> Result<BTreeSet<u16>, NetError> {
        if local.ip().is_unspecified() {
            return Ok(BTreeSet::from([0]));
        }
        let only = scope(local, self.device);
        let is_there =
            |own: &Address| own.address == local.ip() && only.is_none_or(|only| only == own.index);
        let places = self.places(local, is_there)?;
        let vlans = places.get(&local.ip());
        vlans
            .cloned()
            .ok_or_else(|| NetError::NotLocal(local, self.netdev.clone()))
    }

    /// Returns the VLANs in which a listener gets its frames. Fails if none of them would show that
    /// it is for the listener.
    pub(crate) fn vlans_of_listener(&self, local: SocketAddr) -> Result<BTreeSet<u16>, NetError> {
        let vlans = self.vlans_of(local)?;
        match self.confusion(local, &vlans)? {
            Some(_) if vlans.contains(&0) => Ok(vlans),
            Some(place) => Err(other(
                local,
                format!(
                    "{} is {place}, which removes the tags, so that nothing tells them apart; keep the tags (`ethtool -K {} rxvlan \
                     off`), or use another address",
                    local.ip(),
                    self.netdev
                ),
            )),
            None => Ok(vlans),
        }
    }

    /// Returns the VLANs in which a connection gets its frames, 0 for those without a tag. Its peer
    /// and ports tell them from others.
    pub(crate) fn vlans_of_connection(&self, local: SocketAddr) -> Result<BTreeSet<u16>, NetError> {
        let mut vlans = self.vlans_of(local)?;
        if self.confusion(local, &vlans)?.is_some() {
            vlans.insert(0);
        }
        Ok(vlans)
    }

    /// Returns where an address is, if it is in several places and the device removes the tags that
    /// would tell them apart. `vlans` are those of its link: a link-local address may be on other
    /// links, too.
    fn confusion(
        &self,
        local: SocketAddr,
        vlans: &BTreeSet<u16>,
    ) -> Result<Option<String>, NetError> {
        let words = match scope(local, self.device) {
            None => in_words(&self.netdev, vlans),
            Some(_) => {
                let places = self.places(local, |own| own.address == local.ip())?;
                let vlans = places.get(&local.ip());
                vlans.and_then(|vlans| in_words(&self.netdev, vlans))
            }
        };
        let Some(words) = words else {
            return Ok(None);
        };
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let removes = links(&mut routes).and_then(|links| removes_tags(self.device, &links));
        let removes = removes.map_err(|error| other(local, error))?;
        Ok(removes.then_some(words))
    }

    /// Returns where the device has some of the addresses of this host.
    fn places(
        &self,
        local: SocketAddr,
        which: impl Fn(&Address) -> bool,
    ) -> Result<Places, NetError> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || -> Result<Places, NetlinkError> {
            let mut own = addresses(&mut routes)?;
            own.retain(which);
            let found = own.iter();
            let links = found.map(|own| link_by_index(&mut routes, own.index));
            let links = links.collect::<Result<Vec<_>, _>>()?;
            let links: Vec<_> = links.into_iter().flatten().collect();
            Ok(places(self.device, &links, &own))
        };
        read().map_err(|error| other(local, error))
    }

    /// Returns the local address to reach a destination from.
    pub(crate) fn source_for(
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

impl Ways for Locals {
    fn source(&self, remote: SocketAddr, local: Option<SocketAddr>) -> Option<SocketAddr> {
        let is_own = |address: &SocketAddr| self.is_own(address.ip());
        local
            .filter(is_own)
            .or_else(|| Some(remote).filter(is_own))
            .or_else(|| self.source_for(remote, None).ok())
    }

    fn datagram(&self, at: SocketAddr) -> Result<OwnedFd, String> {
        Self::datagram(self, at).map_err(|error| error.to_string())
    }
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

/// Makes a socket for an address, in a VRF if stated. A call on one for datagrams does not block.
fn unbound(wanted: SocketAddr, vrf: Option<&OsString>, kind: SockType) -> Result<OwnedFd, Errno> {
    let family = match wanted {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let mut flags = SockFlag::SOCK_CLOEXEC;
    flags.set(SockFlag::SOCK_NONBLOCK, kind == SockType::Datagram);
    let socket = socket(family, kind, flags, None)?;
    if wanted.is_ipv6() {
        // Steering entries are of one family each.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    if let Some(vrf) = vrf {
        setsockopt(&socket, sockopt::BindToDevice, vrf)?;
    }
    Ok(socket)
}

/// Binds a socket to an address, on `device` if it is link-local. Port 0 chooses one. Returns
/// where it is bound then.
fn bind_to(socket: &OwnedFd, wanted: SocketAddr, device: u32) -> Result<SocketAddr, Errno> {
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
    Ok(SocketAddr::new(wanted.ip(), port))
}

fn all_taken(wanted: SocketAddr, range: &RangeInclusive<u16>) -> NetError {
    let (first, last) = (range.start(), range.end());
    let why = format!(
        "all TCP ports from {first} to {last} are taken at this address; end connections, or give rnicd more (`automatic_ports`)"
    );
    other(wanted, why)
}

pub(crate) fn other(address: SocketAddr, reason: impl ToString) -> NetError {
    NetError::Other {
        address,
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::link_by_name;
    use crate::testing::{Namespace, VethEnd, veth_pair};

    fn host() -> Namespace {
        let namespace = Namespace::new("locals").unwrap();
        let end = |name, addresses| VethEnd {
            namespace: &namespace,
            name,
            addresses,
        };
        veth_pair(end("one", "10.77.0.1/24"), end("other", ""), 1).unwrap();
        namespace
    }

    fn locals() -> Locals {
        let link = link_by_name(&mut RouteSocket::open().unwrap(), "one");
        Locals::new(&link.unwrap().unwrap(), 1500).unwrap()
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn without_a_free_port_the_error_says_so_and_names_no_port() {
        host().run(|| {
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            std::fs::write(range, "50000 50001").unwrap();
            let locals = locals();
            let bind = |port| locals.bind(SocketAddr::from(([10, 77, 0, 1], port)));
            let _all = [bind(0).unwrap(), bind(0).unwrap()];
            let error = bind(0).unwrap_err();
            assert!(matches!(error, NetError::NoPort(_)), "{error}");
            assert!(error.to_string().contains("ip_local_port_range"));
            assert!(matches!(bind(50_001), Err(NetError::InUse(_))));
        });
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    #[cfg_attr(all(root, not(vrf)), ignore = "needs a kernel with VRFs")]
    fn the_addresses_of_a_device_in_a_vrf_are_bound_there() {
        let host = host();
        host.ip("link add red type vrf table 10").unwrap();
        host.ip("link set dev red up").unwrap();
        host.ip("link set dev one master red").unwrap();
        host.run(|| {
            let locals = locals();
            let address = SocketAddr::from(([10, 77, 0, 1], 0));
            let (_socket, bound) = locals.bind(address).unwrap();
            assert!(bound.port() != 0);
            let remote = SocketAddr::from(([10, 77, 0, 2], 7));
            assert_eq!(locals.source_for(remote, None).unwrap(), address);
        });
    }
}
