//! Devices whose frames arrive on others: a bond, or hv_netvsc with a virtual function.

use crate::netlink::{Generic, Link, NetlinkError, RouteSocket, link_by_index, links};

/// The devices below a device, which is their master.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    master: String,
    links: Vec<Link>,
}

/// Offloads that merge received segments, by the kernel's name and by ethtool's. The kernel turns LRO off below a generic program,
/// and these only on the master itself.
const MERGING: [(&str, &str); 2] = [("rx-gro", "gro"), ("rx-gro-hw", "rx-gro-hw")];

impl Below {
    /// Returns the devices on whose queues the frames of a device arrive, if there are any.
    pub(crate) fn of(link: &Link) -> Result<Option<Self>, NetlinkError> {
        let mut links = links(&mut RouteSocket::open()?)?;
        links.retain(|each| each.master == Some(link.index));
        let master = link.name.clone();
        Ok((!links.is_empty()).then_some(Self { master, links }))
    }

    /// Returns their names.
    pub(crate) fn names(&self) -> String {
        self.list().join(" or ")
    }

    /// Says why a native program on the master is of no use. The kernel drops frames that it redirects to a socket of another device
    /// than the one on which they arrived.
    pub(crate) fn reason(&self) -> String {
        let names = self.list().join(" and ");
        format!("it is the master of {names}, where its frames arrive: its own sockets get none")
    }

    fn list(&self) -> Vec<&str> {
        self.links.iter().map(|link| link.name.as_str()).collect()
    }

    /// Returns why the master loses segments, and the remedy. What the devices below have merged is longer than a frame may be, and
    /// its checksum is only begun.
    pub(crate) fn losses(&self) -> Option<(String, String)> {
        let merging = self.links.iter().flat_map(|link| {
            let active = Generic::open().and_then(|mut socket| socket.active_features(link.index));
            let active = active.unwrap_or_default();
            let on = MERGING
                .into_iter()
                .filter(move |(feature, _)| active.iter().any(|found| found == feature));
            on.map(|(_, off)| (link.name.as_str(), off))
        });
        let (mut names, commands): (Vec<_>, Vec<_>) = merging
            .map(|(name, off)| (name, format!("ethtool -K {name} {off} off")))
            .unzip();
        names.dedup();
        let (names, master) = (names.join(" and "), &self.master);
        (!commands.is_empty()).then(|| {
            (
                format!("received segments are lost that {names} merges (GRO) ahead of the program of {master}"),
                commands.join("; "),
            )
        })
    }
}

/// Returns the master of a device that is a part of it: its addresses are the master's. A VRF is no such master.
pub(crate) fn above(link: &Link) -> Option<Link> {
    let master = link.master?;
    let found = RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, master));
    let found = found.ok().flatten();
    found.filter(|master| master.kind.as_deref() != Some("vrf"))
}
