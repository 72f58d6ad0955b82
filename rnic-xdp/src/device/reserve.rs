//! Local ports: reserved in the kernel by a bound socket, and steered here.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use nix::libc;
use rnic_core::connection::PortReservation;
use rnic_core::engine::{Found, Known, Net, NetError, Peers, ProtectedPort};
use rnic_core::esp::{ProtectionFacts, RequiredPorts};
use rnic_manager::PrivateFd;
use tracing::debug;

use crate::device::error::OpenError;
use crate::device::interface::numa::on_node;
use crate::device::interface::{ControlHandle, XdpInterface};
use crate::device::locals::{Locals, other};
use crate::device::netlink::Link;
use crate::device::port_mapper::{Listening, Mapping, PortMapper};
use crate::device::queue_choice::{Arrival, FlowRule, QueueChoice};
use crate::device::steering::{Entry, SteeredPorts};
use rnic_manager::Maker;

/// How many ports to try for one whose segments come to a certain worker: with a thousand workers,
/// one port in a thousand does.
const PORT_TRIES: u32 = 8192;

/// The address services of an open interface. Ports are reserved in the network namespace of the
/// calling thread, which must be the device's.
#[derive(Debug)]
pub struct XdpNet {
    locals: Locals,
    steered: SteeredPorts,
    placement: QueueChoice,
    control: ControlHandle,
    numa_node: Option<u32>,
    link: Link,
    /// Made for the first listener or question. None if it cannot be made.
    mapper: OnceLock<Option<PortMapper>>,
    /// The ports that speak protected or not at all, if anything is protected here.
    required: Option<RequiredPorts>,
}

/// A reserved port: the socket holds it in the kernel, the map entry brings its segments here.
#[derive(Debug)]
struct Reservation {
    /// Its entries in the steering maps.
    entries: Vec<Entry>,
    steered: SteeredPorts,
    /// The rule that brings its segments to its worker.
    rule: Option<FlowRule>,
    control: ControlHandle,
    maker: Maker,
    /// Makes a listener known to peers that ask for it.
    mapping: Option<Mapping>,
    /// Bound, never listening: the kernel answers only with RST.
    _socket: PrivateFd,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        if let Some(Entry { local, .. }) = self.entries.first() {
            debug!("{local} is given back to the kernel");
        }
        // Peers are not sent to a port that others may get.
        self.mapping = None;
        // Steering ends before the port is free for others, whose segments it would take. If that
        // fails, the entry goes with the map.
        for entry in &self.entries {
            let _ = self.steered.remove(entry);
        }
        // Removing a rule takes the kernel's lock (RTNL).
        if let Some(rule) = self.rule.take() {
            self.control.release(rule);
        }
    }
}

impl XdpNet {
    /// Makes the services of an interface that this process has opened, in the network namespace of
    /// this thread. The services of a port that was granted are those of its grant.
    pub fn new(interface: &XdpInterface) -> Result<Self, OpenError> {
        let report = interface.report();
        let device = interface.device().ok_or_else(|| OpenError::Managed {
            netdev: report.netdev.clone(),
        })?;
        let mut locals = Locals::new(device.link(), report.mtu)?;
        locals.ipsec_if_id = device.config().ipsec_if_id;
        Ok(Self {
            locals,
            steered: device.steering().ports(),
            placement: QueueChoice::new(device.link(), report.workers),
            control: interface.control().clone(),
            numa_node: report.numa_node,
            link: device.link().clone(),
            mapper: OnceLock::new(),
            required: device.required_ports().cloned(),
        })
    }

    /// Allows unprotected connections even if an IPsec policy of the host demands protection.
    pub fn ignore_ipsec(mut self) -> Self {
        self.locals.ignores_ipsec = true;
        self
    }

    /// Steers a reserved port here, before anything is sent from it.
    fn steer(
        &self,
        socket: OwnedFd,
        local: SocketAddr,
        vlans: &BTreeSet<u16>,
        peers: &Peers,
        rule: Option<FlowRule>,
    ) -> Result<(SocketAddr, Reservation), NetError> {
        let mut lease = Reservation {
            entries: Vec::with_capacity(vlans.len()),
            steered: self.steered.clone(),
            rule,
            control: self.control.clone(),
            maker: Maker::this(),
            mapping: None,
            _socket: socket.into(),
        };
        for &vlan in vlans {
            let entry = Entry { local, vlan };
            self.steered.add(&entry, peers).map_err(|error| match error.raw_os_error() {
                Some(libc::EEXIST) => NetError::InUse(local.into()),
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
            self.locals.netdev()
        );
        Ok((local, lease))
    }

    /// Fails if what goes between two ends is not protected now, and has to be.
    fn check_required(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), NetError> {
        let is_all = self.required.as_ref().is_some_and(RequiredPorts::is_all);
        match is_all {
            true => self.locals.check_protected(local, remote),
            false => Ok(()),
        }
    }

    /// Reserves a port to listen on, and steers it here.
    fn reserve_listener(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, Reservation), NetError> {
        let vlans = self.locals.vlans_of_listener(local)?;
        let (socket, local) = self.locals.bind(local)?;
        self.locals.check_listener(local, peers)?;
        self.steer(socket, local, &vlans, peers, None)
    }

    /// Returns the port mapper of the device.
    fn mapper(&self) -> Option<&PortMapper> {
        let mapper = self.mapper.get_or_init(|| {
            let started = PortMapper::start(&self.link);
            let failed = |error: &OpenError| debug!("{}: {error}", self.locals.netdev());
            started.inspect_err(failed).ok()
        });
        mapper.as_ref()
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
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let (local, mut lease) = self.reserve_listener(local, peers)?;
        // Peers find it without being told.
        if let Some(mapper) = self.mapper() {
            lease.mapping = Some(mapper.map(listening(local, local))?);
        }
        Ok((local, Arc::new(lease)))
    }

    fn make_known(&self, wanted: SocketAddr, local: SocketAddr) -> Result<Known, NetError> {
        self.locals.check_number(wanted, None)?;
        let mapper = self
            .mapper()
            .ok_or_else(|| NetError::InUse(wanted.into()))?;
        Ok(Box::new(mapper.map(listening(wanted, local))?))
    }

    fn find_listener(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        match self.mapper() {
            Some(mapper) => mapper.ask(remote, local, found),
            None => found(remote),
        }
    }

    fn admits(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.locals.ignores_ipsec || self.control.policies().on_connection(local, peer).is_none()
    }

    fn check(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), NetError> {
        self.locals.source_for(remote, Some(local))?;
        self.locals.check_connection(local, remote)?;
        self.check_required(local, remote)
    }

    fn require_protection(
        &self,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> Result<ProtectedPort, NetError> {
        let Some(required) = &self.required else {
            return Err(NetError::Unprotected {
                address: peer.unwrap_or(local),
                reason: "the device has no `ipsec_if_id`, which names the policies that protect",
            });
        };
        if let Some(peer) = peer {
            self.locals.check_protected(local, peer)?;
        }
        Ok(Box::new(required.require(local.port())))
    }

    fn protection(&self, local: SocketAddr, remote: SocketAddr) -> Option<ProtectionFacts> {
        let required = self.required.as_ref()?.contains(local.port());
        self.control.protection().facts(local, remote, required)
    }

    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let wanted = self.locals.source_for(remote, local)?;
        let vlans = self.locals.vlans_of_connection(wanted)?;
        let flow = self.placement.flow(remote, engine.into());
        let suits = |local| wanted.port() != 0 || flow.arrival(remote, local) == Arrival::Here;
        let domain = self.locals.domain(wanted)?;
        let (socket, local) = until_it_suits(|| self.locals.bind_in(&domain, wanted), suits)?;
        self.locals.check_connection(local, remote)?;
        self.check_required(local, remote)?;
        let rule = self.placement.install_rule(&flow, remote, local);
        let (local, lease) = self.steer(socket, local, &vlans, &Peers::all(), rule)?;
        Ok((local, Arc::new(lease)))
    }
}

/// Returns a listener of an interface that one process has for itself.
fn listening(wanted: SocketAddr, local: SocketAddr) -> Listening {
    Listening {
        owner: 0,
        user: None,
        local: wanted,
        mapped: local.port(),
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
