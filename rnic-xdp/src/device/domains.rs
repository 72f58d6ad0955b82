//! Routing domains of their own (VRFs), to which a device and the VLANs on it may belong.

use std::net::IpAddr;

use crate::device::netlink::{Link, NetlinkError, RouteSocket, addresses, link_by_index};

/// Returns the device with index `found`, if it is `device` or an 802.1Q VLAN on it.
pub(crate) fn link_on_device(
    socket: &mut RouteSocket,
    device: u32,
    found: u32,
) -> Result<Option<Link>, NetlinkError> {
    let link = link_by_index(socket, found)?;
    Ok(link.filter(|link| link.index == device || link.vlan_on(device).is_some()))
}

/// A VRF, and the device or VLAN in it.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) vrf: Link,
    pub(crate) member: u32,
}

impl Domain {
    /// Returns the VRF to which a link belongs.
    pub(crate) fn of(socket: &mut RouteSocket, link: &Link) -> Result<Option<Self>, NetlinkError> {
        let Some(master) = link.master else {
            return Ok(None);
        };
        let vrf = link_by_index(socket, master)?.filter(Link::is_vrf);
        let member = link.index;
        Ok(vrf.map(|vrf| Self { vrf, member }))
    }

    /// Returns the VRF in which a device, or a VLAN on it, has a local address. An unspecified or
    /// link-local address counts as the device's.
    pub(crate) fn of_address(
        socket: &mut RouteSocket,
        device: u32,
        local: IpAddr,
    ) -> Result<Option<Self>, NetlinkError> {
        let of_device = local.is_unspecified()
            || matches!(local, IpAddr::V6(local) if local.is_unicast_link_local());
        let members = match of_device {
            true => vec![device],
            false => {
                let own = addresses(socket)?.into_iter();
                let own = own.filter(|own| own.address == local);
                own.map(|own| own.index).collect()
            }
        };
        for member in members {
            if let Some(link) = link_on_device(socket, device, member)?
                && let Some(domain) = Self::of(socket, &link)?
            {
                return Ok(Some(domain));
            }
        }
        Ok(None)
    }
}
