//! The devices below a device, down to those on which its frames arrive.
//!
//! A program on a VLAN, a macvlan or the end of a tunnel sees what the devices below have made of
//! the frames, and who else sends there. Segments that GRO there has merged are lost:
//! `rnic-ctl doctor` says so.

use std::net::IpAddr;

use crate::device::drivers::driver_name;
use crate::device::netlink::{Generic, Link, Lower, NetlinkError, RouteSocket, links, route};

/// Offloads that merge received segments, by the kernel's name and by ethtool's. The kernel turns
/// LRO off below a generic program, and these only on the device of the program.
const MERGING: [(&str, &str); 2] = [("rx-gro", "gro"), ("rx-gro-hw", "rx-gro-hw")];

/// Kinds of devices whose offload merges nothing: they only pass on what others receive, or take it
/// from a process.
const PASSING: [&str; 8] = [
    "bond", "bridge", "ipvlan", "macvlan", "macvtap", "team", "tun", "vlan",
];

/// Kinds of devices that merge what they take out of other frames, above those that receive these.
const UNPACKING: [&str; 7] = [
    "erspan",
    "geneve",
    "gretap",
    "ip6erspan",
    "ip6gretap",
    "macsec",
    "vxlan",
];

/// Kinds of devices that only kernels reach which reach the devices below.
const TRANSPARENT: [&str; 5] = ["bond", "dsa", "macsec", "team", "vlan"];

/// Drivers of devices through which a virtual machine gets the segments of kernels on its host as
/// these are.
const OF_GUESTS: [&str; 2] = ["virtio_net", "vif"];

/// What lies below a device.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    netdev: String,
    /// From the next one down.
    links: Vec<Link>,
    /// A device of which this process cannot see what carries its frames.
    blind: Option<String>,
}

impl Stack {
    /// Returns what lies below a device, in the network namespace of this thread.
    pub(crate) fn below(link: &Link) -> Result<Self, NetlinkError> {
        let mut socket = RouteSocket::open()?;
        let all = links(&mut socket)?;
        let towards = |remote| {
            let route = route(&mut socket, remote, None, None);
            Some(route.ok()??.link)
        };
        Ok(Self::among(&all, link, towards))
    }

    /// Returns what of these lies below a device. `towards` returns the device of the route to an
    /// address.
    fn among(all: &[Link], link: &Link, mut towards: impl FnMut(IpAddr) -> Option<u32>) -> Self {
        let mut stack = Self {
            netdev: link.name.clone(),
            links: Vec::new(),
            blind: None,
        };
        let mut uppers = vec![link];
        while let Some(upper) = uppers.pop() {
            let carrier = match upper.lower {
                Some(Lower::Link(index)) => Some(index),
                Some(Lower::Tunnel(remote)) => towards(remote),
                Some(Lower::Elsewhere) | None => None,
            };
            let carrier = all.iter().find(|each| carrier == Some(each.index));
            if upper.lower.is_some() && carrier.is_none() {
                stack.blind.get_or_insert_with(|| upper.name.clone());
            }
            let members = all.iter().filter(|each| each.master == Some(upper.index));
            for lower in members.chain(carrier) {
                let is_new = |known: &Link| known.index != lower.index;
                if is_new(link) && stack.links.iter().all(is_new) {
                    stack.links.push(lower.clone());
                    uppers.push(lower);
                }
            }
        }
        stack
    }

    /// Returns whether nothing lies below the device.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.blind.is_none()
    }

    /// Returns why the device loses segments, and the remedy. What the devices below have merged is
    /// longer than a frame may be, and its checksum is only begun.
    pub(crate) fn losses(&self) -> Option<(String, String)> {
        let may_merge = self.links.iter().filter(|link| self.may_merge(link));
        let merging = may_merge.flat_map(|link| {
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
        let (names, netdev) = (names.join(" and "), &self.netdev);
        (!commands.is_empty()).then(|| {
            (
                format!("received segments are lost that {names} merges (GRO) ahead of the program of {netdev}"),
                commands.join("; "),
            )
        })
    }

    /// Returns what may be lost that this process cannot see, and the remedy.
    pub(crate) fn doubts(&self) -> Option<(String, String)> {
        let upper = self.blind.as_ref()?;
        Some((
            format!(
                "what carries the frames of {upper} is not in sight (it may be in another network namespace); segments that it merges \
                 (GRO) do not come through"
            ),
            format!("turn that off on the device that carries {upper}: `ethtool -K DEV gro off`"),
        ))
    }

    fn may_merge(&self, link: &Link) -> bool {
        let is = |kinds: &[&str]| {
            let kind = link.kind.as_deref();
            kind.is_some_and(|kind| kinds.contains(&kind))
        };
        let has_members = || {
            self.links
                .iter()
                .any(|each| each.master == Some(link.index))
        };
        is(&UNPACKING) || !is(&PASSING) && link.lower.is_none() && !has_members()
    }

    /// Returns whether kernels on this host reach the device by way of what lies below.
    fn joins_kernels(&self) -> bool {
        self.blind.is_some() || self.links.iter().any(hears_kernels)
    }
}

/// Returns whether the peers of a device may be kernels on this host. Their segments come with
/// partial checksums.
pub(crate) fn joins_kernels(link: &Link) -> bool {
    hears_kernels(link) || Stack::below(link).map_or(true, |stack| stack.joins_kernels())
}

/// Returns whether kernels on this host reach a device, other than by way of those below.
fn hears_kernels(link: &Link) -> bool {
    match &link.kind {
        Some(kind) => !TRANSPARENT.contains(&kind.as_str()),
        None => driver_name(link).is_some_and(|name| OF_GUESTS.contains(&name.as_str())),
    }
}

/// Returns what to know and to do where kernels on this host reach a device whose program runs in
/// the kernel's stack. The segments that they cut for nobody but us are longer than a frame may be.
pub(crate) fn for_kernels(netdev: &str) -> (String, String) {
    (
        format!(
            "a kernel on this host (a container's or a virtual machine's) reaches {netdev} only with segments of its MTU"
        ),
        "on that peer's interface: `ethtool -K DEV tso off gso off`".to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: Option<&str>, lower: Option<Lower>) -> Link {
        Link {
            index,
            name: name.into(),
            kind: kind.map(Into::into),
            lower,
            ..Link::for_test()
        }
    }

    /// A VLAN on a bond of two NICs, a macvlan and a vxlan on that VLAN, a bridge with a veth and a
    /// tap, and what comes from elsewhere.
    fn host() -> Vec<Link> {
        let on = |index| Some(Lower::Link(index));
        let member = |index, name, kind, master| Link {
            master: Some(master),
            ..link(index, name, kind, None)
        };
        vec![
            member(1, "eth0", None, 3),
            member(2, "eth1", None, 3),
            link(3, "bond0", Some("bond"), None),
            link(4, "bond0.7", Some("vlan"), on(3)),
            link(5, "mv0", Some("macvlan"), on(4)),
            link(
                6,
                "vx0",
                Some("vxlan"),
                Some(Lower::Tunnel([192, 0, 2, 9].into())),
            ),
            link(7, "pod0", Some("macvlan"), Some(Lower::Elsewhere)),
            link(8, "br0", Some("bridge"), None),
            member(9, "vnet0", Some("tun"), 8),
            member(10, "veth0", Some("veth"), 8),
            link(11, "br0.5", Some("vlan"), on(8)),
            // Two that stand on each other are no reason to search for ever.
            link(12, "one", Some("vlan"), on(13)),
            link(13, "other", Some("vlan"), on(12)),
            link(14, "onvx", Some("macvlan"), on(6)),
        ]
    }

    fn stack(name: &str) -> Stack {
        let host = host();
        let link = host.iter().find(|link| link.name == name).unwrap();
        Stack::among(&host, link, |_| Some(4))
    }

    /// What may merge below a device.
    fn merging(name: &str) -> Vec<String> {
        let stack = stack(name);
        let merging = stack.links.iter().filter(|link| stack.may_merge(link));
        let mut names: Vec<_> = merging.map(|link| link.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn frames_arrive_on_the_lowest_devices_however_far_down() {
        for upper in ["bond0", "bond0.7", "mv0", "vx0"] {
            assert_eq!(merging(upper), ["eth0", "eth1"], "{upper}");
        }
        // What a tunnel takes out of frames it merges too.
        assert_eq!(merging("onvx"), ["eth0", "eth1", "vx0"]);
        // A tap does not, although it says that it would.
        assert_eq!(merging("br0.5"), ["veth0"]);
        assert!(merging("one").is_empty() && stack("eth0").is_empty());
        let blind = stack("pod0");
        assert!(!blind.is_empty() && blind.losses().is_none());
        let (doubt, remedy) = blind.doubts().unwrap();
        assert!(doubt.contains("pod0") && remedy.contains("gro off"));
        assert_eq!(stack("mv0").doubts(), None);
    }

    #[test]
    fn a_wire_alone_has_no_kernels_of_this_host() {
        let joins = |name: &str| {
            let host = host();
            let link = host.iter().find(|link| link.name == name).unwrap();
            hears_kernels(link) || stack(name).joins_kernels()
        };
        for name in ["eth0", "bond0", "bond0.7"] {
            assert!(!joins(name), "{name}");
        }
        // Other macvlans, the far end of a tunnel, containers and virtual machines may be of this
        // host.
        for name in ["mv0", "vx0", "pod0", "br0", "br0.5", "veth0", "vnet0"] {
            assert!(joins(name), "{name}");
        }
    }
}
