//! The host of these tests: its devices, its addresses, and what two clients have leased.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frames::{OURS, VLAN, VLANS};

/// The client whose frames are tested, and another one.
pub(crate) const CLIENT: u32 = 5;
pub(crate) const OTHER: u32 = 6;

/// VLANs (0 is none), each with the MAC addresses of this host in it.
pub(crate) const LINKS: [(u16, [[u8; 6]; 2]); 2] = [(0, [OURS, OURS]), (VLAN, [VLANS, OURS])];

/// The addresses of this host, each with its VLAN.
pub(crate) const ADDRESSES: [(&str, u16); 4] = [
    ("10.1.2.3", 0),
    ("10.1.2.4", 0),
    ("fd00::1", 0),
    ("10.1.100.3", VLAN),
];

/// The broadcast address of the network of the first one.
pub(crate) const BROADCAST: &str = "10.1.2.255";

/// Who has leased which address and port, in which VLAN.
pub(crate) const LEASES: [(u32, &str, u16); 12] = [
    (CLIENT, "10.1.2.3:4420", 0),
    (CLIENT, "[fd00::1]:4420", 0),
    (CLIENT, "0.0.0.0:7", 0),
    (CLIENT, "[::]:8", 0),
    (CLIENT, "127.0.0.1:9000", 0),
    (CLIENT, "[::1]:9000", 0),
    (CLIENT, "10.1.100.3:4420", VLAN),
    (OTHER, "10.1.2.3:5000", 0),
    (OTHER, "[fd00::1]:5000", 0),
    (OTHER, "127.0.0.1:9001", 0),
    (OTHER, "[::1]:9001", 0),
    (OTHER, "10.1.100.3:5000", VLAN),
];

/// Returns whether an address is this host's in a VLAN.
pub(crate) fn is_local(address: IpAddr, vlan: u16) -> bool {
    let same = |(ours, of): &(&str, u16)| ours.parse() == Ok(address) && *of == vlan;
    address.is_loopback() || ADDRESSES.iter().any(same)
}

/// Returns who has leased an address and port in a VLAN, or the port at any address.
pub(crate) fn owner(local: SocketAddr, vlan: u16) -> Option<u32> {
    let any: IpAddr = match local {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let any = SocketAddr::new(any, local.port());
    let find = |local: SocketAddr, vlan: u16| {
        let same = |lease: &&(u32, &str, u16)| lease.1.parse() == Ok(local) && lease.2 == vlan;
        LEASES.iter().find(same).map(|lease| lease.0)
    };
    find(local, vlan).or_else(|| find(any, 0))
}
