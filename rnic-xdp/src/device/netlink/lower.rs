//! What carries the frames of a device that stands on another one.

use std::net::IpAddr;

use super::message::Attributes;

pub(super) const IFLA_LINK: u16 = 5;
pub(super) const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_GROUP6: u16 = 16;
const IFLA_GENEVE_REMOTE: u16 = 2;
const IFLA_GENEVE_REMOTE6: u16 = 7;
const IFLA_GRE_LINK: u16 = 1;
const IFLA_GRE_REMOTE: u16 = 7;

/// What carries the frames of a device that stands on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lower {
    /// The device with this index.
    Link(u32),
    /// The device of the route to this address: a tunnel ends there.
    Tunnel(IpAddr),
    /// Several devices, or one in another network namespace.
    Elsewhere,
}

/// Returns what carries the frames of a device.
pub(super) fn lower(
    index: u32,
    kind: Option<&str>,
    link: Attributes<'_>,
    data: Option<Attributes<'_>>,
) -> Option<Lower> {
    let kind = kind?;
    // The other end of a pair does not carry its frames.
    if matches!(kind, "veth" | "netkit" | "vxcan") {
        return None;
    }
    let of_tunnel = |link: Option<u16>, remotes: [u16; 2]| {
        let value = |kind| data?.value::<u32>(kind);
        let index = link.and_then(value).filter(|index| *index != 0);
        let mut remotes = remotes.into_iter().filter_map(|kind| data?.address(kind));
        let remote = remotes.find(|remote| !remote.is_unspecified());
        let by_route = remote.map_or(Lower::Elsewhere, Lower::Tunnel);
        Some(index.map_or(by_route, Lower::Link))
    };
    let found = match kind {
        "vxlan" => of_tunnel(Some(IFLA_VXLAN_LINK), [IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6]),
        "geneve" => of_tunnel(None, [IFLA_GENEVE_REMOTE, IFLA_GENEVE_REMOTE6]),
        "gretap" | "ip6gretap" | "erspan" | "ip6erspan" => {
            of_tunnel(Some(IFLA_GRE_LINK), [IFLA_GRE_REMOTE; 2])
        }
        _ => {
            let other = |lower: &u32| *lower != 0 && *lower != index;
            let lower = link.value(IFLA_LINK).filter(other);
            lower.map(Lower::Link)
        }
    };
    // An index of another network namespace means nothing here.
    let is_elsewhere = link.value::<u32>(IFLA_LINK_NETNSID).is_some();
    found.map(|found| {
        if is_elsewhere {
            Lower::Elsewhere
        } else {
            found
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::link::{
        ARPHRD_ETHER, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO,
        InterfaceInfo, Link, NEW_LINK,
    };
    use crate::device::netlink::message::{Builder, attribute, parse};

    /// Reads a link of this kind, with these attributes of its own and of its kind.
    fn read(kind: &str, own: &[(u16, u32)], data: &[(u16, &[u8])]) -> Link {
        let info = InterfaceInfo {
            index: 7,
            kind: ARPHRD_ETHER,
            ..Default::default()
        };
        let inner: Vec<u8> = data
            .iter()
            .flat_map(|(kind, value)| attribute(*kind, value))
            .collect();
        let mut built = Builder::new(NEW_LINK, 0, &info)
            .string(IFLA_IFNAME, "dev")
            .attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        for (kind, value) in own {
            built = built.attribute(*kind, &value.to_ne_bytes());
        }
        let kind = [kind.as_bytes(), &[0]].concat();
        let octets = built
            .nested(
                IFLA_LINKINFO,
                &[(IFLA_INFO_KIND, &kind), (IFLA_INFO_DATA, &inner)],
            )
            .finish(1);
        Link::from_message(&parse(&octets)[0]).unwrap()
    }

    #[test]
    fn what_carries_a_device_is_read() {
        let lower = |kind, own: &[_], data: &[_]| read(kind, own, data).lower;
        for kind in ["vlan", "macvlan", "macvtap", "ipvlan", "macsec", "dsa"] {
            assert_eq!(lower(kind, &[(IFLA_LINK, 3)], &[]), Some(Lower::Link(3)));
            let moved = [(IFLA_LINK, 3), (IFLA_LINK_NETNSID, 0)];
            assert_eq!(lower(kind, &moved, &[]), Some(Lower::Elsewhere), "{kind}");
        }
        // The other end of a pair, itself, and nothing.
        assert_eq!(lower("veth", &[(IFLA_LINK, 3)], &[]), None);
        assert_eq!(lower("bridge", &[(IFLA_LINK, 7)], &[]), None);
        assert_eq!(lower("bridge", &[], &[]), None);

        let link = 3u32.to_ne_bytes();
        let device = (IFLA_VXLAN_LINK, &link[..]);
        let remote = (IFLA_VXLAN_GROUP, &[192, 0, 2, 9][..]);
        let to = Lower::Tunnel([192, 0, 2, 9].into());
        assert_eq!(lower("vxlan", &[], &[remote, device]), Some(Lower::Link(3)));
        assert_eq!(lower("vxlan", &[], &[remote]), Some(to));
        assert_eq!(lower("vxlan", &[], &[]), Some(Lower::Elsewhere));
        let moved = lower("vxlan", &[(IFLA_LINK_NETNSID, 0)], &[remote, device]);
        assert_eq!(moved, Some(Lower::Elsewhere));
        let sixth = (IFLA_GENEVE_REMOTE6, &[0xfd; 16][..]);
        let to = Lower::Tunnel([0xfdu8; 16].into());
        assert_eq!(lower("geneve", &[], &[sixth]), Some(to));
        let any = (IFLA_GRE_REMOTE, &[0; 4][..]);
        assert_eq!(lower("gretap", &[], &[any]), Some(Lower::Elsewhere));
    }
}
