//! Devices whose frames arrive on others: a bond, or hv_netvsc with a virtual function.

use crate::netlink::{Link, NetlinkError, RouteSocket, links};

/// The devices below a device, which is their master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Below(Vec<String>);

impl Below {
    /// Returns the devices on whose queues the frames of a device arrive, if there are any.
    pub(crate) fn of(link: &Link) -> Result<Option<Self>, NetlinkError> {
        let all = links(&mut RouteSocket::open()?)?;
        let below = all.iter().filter(|each| each.master == Some(link.index));
        let names: Vec<_> = below.map(|each| each.name.clone()).collect();
        Ok((!names.is_empty()).then_some(Self(names)))
    }

    /// Returns their names.
    pub(crate) fn names(&self) -> String {
        self.0.join(" or ")
    }

    /// Says why a native program on the master is of no use. The kernel drops frames that it redirects to a socket of another device
    /// than the one on which they arrived.
    pub(crate) fn reason(&self) -> String {
        let names = self.0.join(" and ");
        format!("it is the master of {names}, where its frames arrive: its own sockets get none")
    }
}
