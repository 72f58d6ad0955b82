//! In which VLANs of a device this host has its addresses, and which of these addresses get their
//! frames without a tag.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use rnic_manager::Untagged;
use tracing::warn;

use crate::device::netlink::{Address, Generic, Link, NetlinkError, RouteSocket, addresses, links};

/// The most [`Untagged`] addresses: as many as `steer_untagged` has room for, and a message to a
/// client.
pub(crate) const MAX_UNTAGGED: usize = 512;

/// The offload that removes tags, as the kernel names it.
pub(crate) const REMOVES_TAGS: &str = "rx-vlan-hw-parse";

/// Where this host has an address: the VLANs of a device, and 0 for the device itself.
pub(crate) type Places = BTreeMap<IpAddr, BTreeSet<u16>>;

/// Returns the addresses of a device and of the VLANs on it.
pub(crate) fn places(device: u32, links: &[Link], addresses: &[Address]) -> Places {
    let mut places = Places::new();
    for own in addresses {
        let link = links.iter().find(|link| link.index == own.index);
        let vlan = match own.index == device {
            true => Some(0),
            false => link.and_then(|link| link.vlan_on(device)),
        };
        if let Some(vlan) = vlan {
            places.entry(own.address).or_default().insert(vlan);
        }
    }
    places
}

/// Returns the addresses of a device whose frames arrive without the tag of their VLAN.
pub(crate) fn untagged(socket: &mut RouteSocket, device: u32) -> Result<Untagged, NetlinkError> {
    let links = links(socket)?;
    if !links.iter().any(|link| link.vlan_on(device).is_some()) {
        return Ok(Untagged::new());
    }
    let mut untagged = only_in_a_vlan(&places(device, &links, &addresses(socket)?));
    if untagged.is_empty() || !removes_tags(device, &links)? {
        return Ok(Untagged::new());
    }
    if let Some(first) = untagged.keys().nth(MAX_UNTAGGED).copied() {
        let netdev = links.iter().find(|link| link.index == device);
        let netdev = netdev.map_or("?", |link| &link.name);
        warn!(
            "{netdev} removes VLAN tags, and has more than {MAX_UNTAGGED} addresses in VLANs: {first} and those behind it get no frames; \
             `ethtool -K {netdev} rxvlan off` keeps the tags"
        );
        untagged.split_off(&first);
    }
    Ok(untagged)
}

/// Returns the addresses that are in one VLAN and nowhere else.
fn only_in_a_vlan(places: &Places) -> Untagged {
    let only = |vlans: &BTreeSet<u16>| vlans.first().copied().filter(|_| vlans.len() == 1);
    let all = places.iter();
    let found = all.filter_map(|(address, vlans)| Some((*address, only(vlans)?)));
    found.filter(|(_, vlan)| *vlan != 0).collect()
}

/// Returns whether a device removes the tags of VLANs ahead of an XDP program.
pub(crate) fn removes_tags(device: u32, links: &[Link]) -> Result<bool, NetlinkError> {
    // What devices pass to their master has lost its tag, whatever the master says of itself.
    if links.iter().any(|link| link.master == Some(device)) {
        return Ok(true);
    }
    let active = Generic::open()?.active_features(device)?;
    Ok(active.iter().any(|feature| feature == REMOVES_TAGS))
}

/// Returns where an address is, in words, if frames that have lost their tag do not show it.
pub(crate) fn in_words(netdev: &str, vlans: &BTreeSet<u16>) -> Option<String> {
    let tagged: Vec<_> = vlans.iter().filter(|vlan| **vlan != 0).collect();
    let all: Vec<_> = tagged.iter().map(ToString::to_string).collect();
    let all = all.join(" and ");
    match (vlans.contains(&0), tagged.len()) {
        (true, 1..) => Some(format!("on {netdev} itself and in its VLAN {all}")),
        (false, 2..) => Some(format!("in the VLANs {all} of {netdev}")),
        _ => None,
    }
}

/// Returns the first address that is in several places, in words. Link-local addresses often are,
/// and few listen there.
pub(crate) fn first_confused(netdev: &str, places: &Places) -> Option<String> {
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let mut wide = places.iter().filter(|(address, _)| !is_link_local(address));
    wide.find_map(|(address, vlans)| Some(format!("{address} is {}", in_words(netdev, vlans)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::Vlan;
    use crate::testing::{Namespace, VethEnd, veth_pair};

    const DEVICE: u32 = 3;

    fn vlan(index: u32, parent: u32, id: u16) -> Link {
        Link {
            index,
            vlan: Some(Vlan {
                parent,
                id,
                is_8021q: true,
            }),
            ..Link::for_test()
        }
    }

    fn address(index: u32, address: &str) -> Address {
        Address {
            index,
            address: address.parse().unwrap(),
            prefix_len: 24,
        }
    }

    /// The device has VLANs 7 and 9; another device has 7 too.
    fn host() -> Places {
        let device = Link {
            index: DEVICE,
            ..Link::for_test()
        };
        let links = [
            device,
            vlan(11, DEVICE, 7),
            vlan(12, DEVICE, 9),
            vlan(13, DEVICE + 1, 7),
        ];
        let addresses = [
            address(DEVICE, "192.0.2.1"),
            address(DEVICE, "fe80::1"),
            address(11, "192.0.2.7"),
            address(11, "fe80::1"),
            address(11, "192.0.2.79"),
            address(12, "192.0.2.79"),
            address(12, "fd00::9"),
            address(13, "192.0.2.13"),
            address(99, "192.0.2.99"),
        ];
        places(DEVICE, &links, &addresses)
    }

    #[test]
    fn an_address_is_where_a_device_or_a_vlan_on_it_has_it() {
        let places = host();
        let of = |address: &str| {
            let found = places.get(&address.parse::<IpAddr>().unwrap());
            found.map(|vlans| vlans.iter().copied().collect::<Vec<_>>())
        };
        assert_eq!(of("192.0.2.1"), Some(vec![0]));
        assert_eq!(of("192.0.2.7"), Some(vec![7]));
        assert_eq!(of("192.0.2.79"), Some(vec![7, 9]));
        assert_eq!(of("fe80::1"), Some(vec![0, 7]));
        assert_eq!(of("fd00::9"), Some(vec![9]));
        assert_eq!((of("192.0.2.13"), of("192.0.2.99")), (None, None));
    }

    #[test]
    fn only_an_address_in_one_vlan_says_which() {
        let expected = [("192.0.2.7", 7), ("fd00::9", 9)];
        let expected = expected.map(|(address, vlan)| (address.parse().unwrap(), vlan));
        assert_eq!(only_in_a_vlan(&host()), Untagged::from(expected));
    }

    #[test]
    fn places_that_cannot_be_told_apart_are_named() {
        let words = |vlans: &[u16]| in_words("eth1", &vlans.iter().copied().collect());
        assert_eq!((words(&[]), words(&[0]), words(&[7])), (None, None, None));
        let both = words(&[7, 9]).unwrap();
        assert_eq!(both, "in the VLANs 7 and 9 of eth1");
        let below = words(&[0, 7]).unwrap();
        assert_eq!(below, "on eth1 itself and in its VLAN 7");
        // Not fe80::1, which is in two places as well.
        let first = first_confused("eth1", &host());
        assert_eq!(
            first.as_deref(),
            Some("192.0.2.79 is in the VLANs 7 and 9 of eth1")
        );
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_device_removes_tags_while_its_offload_is_on_and_a_master_always() {
        let namespace = Namespace::new("vlans").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 1).unwrap();
        namespace.ip("link add above type bridge").unwrap();
        let removes = |name: &str| {
            namespace.run(|| {
                let links = links(&mut RouteSocket::open().unwrap()).unwrap();
                let device = links.iter().find(|link| link.name == name).unwrap();
                removes_tags(device.index, &links).unwrap()
            })
        };
        for (state, expected) in [("off", false), ("on", true), ("off", false)] {
            let mut ethtool = namespace.command("ethtool");
            let done = ethtool.args(["-K", "one", "rxvlan", state]).status();
            assert!(done.unwrap().success());
            assert_eq!(removes("one"), expected, "{state}");
        }
        assert!(!removes("above"));
        namespace.ip("link set dev one master above").unwrap();
        assert!(removes("above"));
    }
}
