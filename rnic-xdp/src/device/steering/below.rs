//! Devices whose frames arrive on others: a bond, or hv_netvsc with a virtual function.

use crate::device::netlink::{Link, NetlinkError, RouteSocket, link_by_index, links};

/// The devices below a device, which is their master.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    links: Vec<Link>,
}

impl Below {
    /// Returns the devices on whose queues the frames of a device arrive, if there are any.
    pub(crate) fn of(link: &Link) -> Result<Option<Self>, NetlinkError> {
        let mut links = links(&mut RouteSocket::open()?)?;
        links.retain(|each| each.master == Some(link.index));
        Ok((!links.is_empty()).then_some(Self { links }))
    }

    /// Returns their names.
    pub(crate) fn names(&self) -> String {
        self.list().join(" or ")
    }

    /// Explains why a native program on the master is of no use. The kernel drops frames that it
    /// redirects to a socket of another device than the one on which they arrived.
    pub(crate) fn reason(&self) -> String {
        let names = self.list().join(" and ");
        format!("it is the master of {names}, where its frames arrive: its own sockets get none")
    }

    fn list(&self) -> Vec<&str> {
        self.links.iter().map(|link| link.name.as_str()).collect()
    }
}

/// Returns the master of a device that is a part of it: its addresses are the master's. A VRF is no
/// such master.
pub(crate) fn above(link: &Link) -> Option<Link> {
    let master = link.master?;
    let found = RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, master));
    let found = found.ok().flatten();
    found.filter(|master| !master.is_vrf())
}
