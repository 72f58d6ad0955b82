//! The route to a destination through one device: which of its VLANs, which neighbour, which MTU.

use std::net::IpAddr;
use std::num::NonZeroU16;

use rnic_core::connection::NextHop;
use rnic_core::wire::ethernet::MacAddr;

use crate::device::domains::{Domain, link_on_device};
use crate::device::netlink::{Address, Link, NetlinkError, Route, RouteSocket, addresses, route};

/// A route to a destination through the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRoute {
    /// The device itself, or a VLAN on it.
    pub(crate) link: u32,
    /// The next hop's IP address: the destination, or a router.
    pub(crate) neighbour: IpAddr,
    /// The local address that the route prefers.
    pub(crate) source: Option<IpAddr>,
    source_mac: MacAddr,
    vlan: Option<u16>,
    mtu: u16,
    advertised_mss: Option<NonZeroU16>,
}

impl DeviceRoute {
    /// Asks the kernel for the route to `destination` through `device`, from `source` if stated.
    /// Returns `None` if there is none, or it leads through another device.
    pub(crate) fn find(
        socket: &mut RouteSocket,
        device: u32,
        max_mtu: u32,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Option<Self>, NetlinkError> {
        let domain = match source {
            Some(source) => Domain::of_address(socket, device, source)?,
            None => None,
        };
        let found = Self::find_in(socket, device, max_mtu, (destination, source), domain)?;
        match source {
            None if found.is_none() => Self::from_own(socket, device, max_mtu, destination),
            _ => Ok(found),
        }
    }

    /// Asks for the route of what comes from an address in a VRF, if stated: it goes as the routes
    /// of the VRF say, and nothing else does.
    fn find_in(
        socket: &mut RouteSocket,
        device: u32,
        max_mtu: u32,
        (destination, source): (IpAddr, Option<IpAddr>),
        domain: Option<Domain>,
    ) -> Result<Option<Self>, NetlinkError> {
        let made = |link: Link, found| Some(Self::new(&link, device, max_mtu, destination, found));
        // A link-local destination is on the link of the device.
        let only = match is_link_local(destination) {
            true => Some(device),
            false => domain.as_ref().map(|domain| domain.vrf.index),
        };
        if let Some(found) = route(socket, destination, source, only)?
            && let Some(link) = link_on_device(socket, device, found.link)?
        {
            return Ok(made(link, found));
        }
        // The kernel prefers another device; there may be a route through this one.
        let this = domain.map_or(device, |domain| domain.member);
        if let Some(found) = route(socket, destination, source, Some(this))?
            // If a device is stated, the kernel takes any IPv4 destination to be on its link: check
            // its networks.
            && (found.gateway.is_some() || is_on_link(socket, this, destination)?)
            && let Some(link) = link_on_device(socket, device, found.link)?
        {
            return Ok(made(link, found));
        }
        Ok(None)
    }

    /// Looks for a route from one of the device's own addresses. Where rules or VRFs choose the
    /// table by the source, there may be none without.
    fn from_own(
        socket: &mut RouteSocket,
        device: u32,
        max_mtu: u32,
        destination: IpAddr,
    ) -> Result<Option<Self>, NetlinkError> {
        for Address { index, address, .. } in addresses(socket)? {
            if address.is_ipv4() != destination.is_ipv4() || is_link_local(address) {
                continue;
            }
            let Some(link) = link_on_device(socket, device, index)? else {
                continue;
            };
            let domain = Domain::of(socket, &link)?;
            let pair = (destination, Some(address));
            if let Some(found) = Self::find_in(socket, device, max_mtu, pair, domain)? {
                let source = Some(address);
                return Ok(Some(Self { source, ..found }));
            }
        }
        Ok(None)
    }

    fn new(link: &Link, device: u32, max_mtu: u32, destination: IpAddr, route: Route) -> Self {
        let mtu = link.mtu.min(max_mtu).min(route.mtu.unwrap_or(u32::MAX));
        Self {
            link: link.index,
            neighbour: route.gateway.unwrap_or(destination),
            source: route.source,
            source_mac: link.mac,
            // None if the device is a VLAN itself: its driver adds and removes that tag.
            vlan: link.vlan_on(device),
            mtu: mtu.try_into().unwrap_or(u16::MAX),
            advertised_mss: route.advertised_mss.and_then(octets),
        }
    }

    /// Returns the next hop, given the neighbour's link-layer address.
    pub(crate) fn next_hop(&self, neighbour: MacAddr) -> NextHop {
        NextHop {
            source_mac: self.source_mac,
            destination_mac: neighbour,
            vlan: self.vlan,
            mtu: self.mtu,
            advertised_mss: self.advertised_mss,
        }
    }
}

/// Returns a size in octets as a NextHop has it.
fn octets(size: u32) -> Option<NonZeroU16> {
    NonZeroU16::new(size.try_into().ok()?)
}

fn is_on_link(
    socket: &mut RouteSocket,
    device: u32,
    destination: IpAddr,
) -> Result<bool, NetlinkError> {
    let addresses = addresses(socket)?;
    Ok(addresses
        .iter()
        .any(|own| own.index == device && own.shares_network_with(destination)))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
