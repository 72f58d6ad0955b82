//! The route to a destination through one device: which of its VLANs, which neighbour, which MTU.

use std::net::IpAddr;

use rnic_core::connection::NextHop;
use rnic_core::wire::ethernet::MacAddr;

use crate::netlink::{Link, NetlinkError, Route, RouteSocket, addresses, link_by_index, route};

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
}

impl DeviceRoute {
    /// Asks the kernel for the route to `destination` through `device`, from `source` if stated. Returns `None` if there
    /// is none, or it leads through another device.
    pub(crate) fn find(
        socket: &mut RouteSocket,
        device: u32,
        max_mtu: u32,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Option<Self>, NetlinkError> {
        // A link-local destination is on the link of the device.
        let only = is_link_local(destination).then_some(device);
        if let Some(found) = route(socket, destination, source, only)?
            && let Some(link) = link_on_device(socket, device, found.link)?
        {
            return Ok(Some(Self::new(&link, max_mtu, destination, found)));
        }
        // The kernel prefers another device; there may be a route through this one.
        let Some(found) = route(socket, destination, source, Some(device))? else {
            return Ok(None);
        };
        // If a device is stated, the kernel takes any IPv4 destination to be on its link: check its networks.
        if found.gateway.is_none() && !is_on_link(socket, device, destination)? {
            return Ok(None);
        }
        let link = link_on_device(socket, device, found.link)?;
        Ok(link.map(|link| Self::new(&link, max_mtu, destination, found)))
    }

    fn new(link: &Link, max_mtu: u32, destination: IpAddr, route: Route) -> Self {
        let mtu = link.mtu.min(max_mtu).min(route.mtu.unwrap_or(u32::MAX));
        Self {
            link: link.index,
            neighbour: route.gateway.unwrap_or(destination),
            source: route.source,
            source_mac: link.mac,
            vlan: link.vlan.map(|vlan| vlan.id),
            mtu: mtu.try_into().unwrap_or(u16::MAX),
        }
    }

    /// Returns the next hop, given the neighbour's link-layer address.
    pub(crate) fn next_hop(&self, neighbour: MacAddr) -> NextHop {
        NextHop {
            source_mac: self.source_mac,
            destination_mac: neighbour,
            vlan: self.vlan,
            mtu: self.mtu,
        }
    }
}

/// Returns the device with index `found`, if it is `device` or an 802.1Q VLAN on it.
fn link_on_device(
    socket: &mut RouteSocket,
    device: u32,
    found: u32,
) -> Result<Option<Link>, NetlinkError> {
    let link = link_by_index(socket, found)?;
    Ok(link
        .filter(|link| link.index == device || link.vlan_on(device).is_some())
        .map(|mut link| {
            if link.index == device {
                link.vlan = None; // the device's driver adds and removes that tag
            }
            link
        }))
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
