//! The host of these tests: its MAC addresses, and which addresses and ports are steered to it.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The MAC addresses of our device, of a VLAN device on it, and of another host.
pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const VLANS: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub(crate) const OTHERS: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// A VLAN whose device has a MAC address of its own, and one whose device has that of the device
/// below.
pub(crate) const VLAN: u16 = 100;
pub(crate) const PLAIN_VLAN: u16 = 4095;

/// Returns the MAC addresses at which frames of each VLAN are for us; VLAN 0 stands for frames
/// without a tag.
pub(crate) fn links() -> BTreeMap<u16, [[u8; 6]; 2]> {
    BTreeMap::from([
        (0, [OURS, OURS]),
        (VLAN, [VLANS, OURS]),
        (PLAIN_VLAN, [OURS, OURS]),
    ])
}

/// The addresses of this host.
pub(crate) const OWN: [&str; 9] = [
    "10.1.2.3",
    "10.1.2.4",
    "10.1.2.5",
    "10.1.100.3",
    "fd00::1",
    "fd00::2",
    "fd00::5",
    "fd00::99",
    "fd00:100::1",
];

/// Addresses and ports, each with its VLAN.
pub(crate) type Steered = HashSet<(SocketAddr, u16)>;

/// Returns whether a destination is an address of this host and among them, in this VLAN or as any
/// address.
pub(crate) fn is_steered(steered: &Steered, local: SocketAddr, vlan: u16) -> bool {
    let any: IpAddr = match local {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let any = SocketAddr::new(any, local.port());
    let is_own = OWN.iter().any(|own| own.parse() == Ok(local.ip()));
    is_own && (steered.contains(&(local, vlan)) || steered.contains(&(any, 0)))
}

/// Returns whether the kernel takes a frame with this MAC address in this VLAN.
pub(crate) fn is_for_us(mac: [u8; 6], vlan: u16) -> bool {
    links().get(&vlan).is_some_and(|macs| macs.contains(&mac))
}
