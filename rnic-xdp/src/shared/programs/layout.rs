//! The layout of the maps of clients: the Rust side of `ebpf/police.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rnic_core::engine::Prefix;
use rnic_core::wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::policy::{ClientPeers, ClientPolicy};

const IPV4: u32 = 4;
const IPV6: u32 = 6;

/// Bits of `steer_client.peers`.
const EVERYBODY: u32 = 1;
const ON_LINK: u32 = 2;
const LISTED: u32 = 4;
/// The parts of a token, and nanoseconds in a second.
const NANO: u64 = 1_000_000_000;

/// `struct police_client`
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Client {
    pub(super) port: u32,
    pub(super) mtu: u32,
    pub(super) rate: u64,
    pub(super) burst: u64,
    fill_time: u64,
    tokens: u64,
    refilled: u64,
}

/// The octets of a value in the map of clients.
pub(super) type ClientOctets = [u8; 48];

impl Client {
    /// Returns the value for a client, which may send a whole burst at once.
    pub(super) fn new(port: u32, policy: &ClientPolicy) -> Self {
        let (rate, burst) = policy.rate.map_or((0, 0), |rate| (rate, policy.burst));
        let full = burst * NANO;
        Self {
            port,
            mtu: policy.mtu,
            rate,
            burst,
            fill_time: if rate == 0 { 0 } else { full.div_ceil(rate) },
            tokens: full,
            refilled: 0,
        }
    }

    pub(super) fn octets(self) -> ClientOctets {
        transmute!(self)
    }

    pub(super) fn read(octets: ClientOctets) -> Self {
        transmute!(octets)
    }
}

/// Returns the value of `struct steer_client` for a client.
pub(super) fn client_peers(peers: &ClientPeers) -> u32 {
    let on_link = if peers.on_link { ON_LINK } else { 0 };
    on_link | peers.listed.limits().map_or(EVERYBODY, |_| LISTED)
}

/// Returns whether such a value lets a client speak with everybody, and with hosts on the link.
pub(super) fn are_peers(value: u32) -> (bool, bool) {
    (value & EVERYBODY != 0, value & ON_LINK != 0)
}

/// The octets of `struct police_neighbour`.
pub(super) type NeighbourOctets = [u8; 8];

/// The value of a slot without a neighbour.
pub(super) const NO_NEIGHBOUR: NeighbourOctets = [0; 8];

/// Returns the value of a slot with a neighbour and others; without others, the key of a neighbour.
pub(super) fn neighbour(mac: MacAddr, others: u16) -> NeighbourOctets {
    let ([a, b, c, d, e, f], [g, h]) = (mac.0, others.to_ne_bytes());
    [a, b, c, d, e, f, g, h]
}

/// Returns the MAC address of a neighbour.
pub(super) fn mac(octets: NeighbourOctets) -> MacAddr {
    let [mac @ .., _, _] = octets;
    MacAddr(mac)
}

/// Values in the map of addresses.
pub(super) const OWN: u32 = 1;
pub(super) const BROADCAST: u32 = 2;

/// Returns the octets of an address in a key, and its family.
fn address_octets(address: IpAddr) -> ([u8; 16], u32) {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (octets, IPV4)
        }
        IpAddr::V6(address) => (address.octets(), IPV6),
    }
}

/// `struct police_address`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Address {
    address: [u8; 16],
    family: u32,
    vlan: u32,
}

/// The octets of a key in the map of addresses.
pub(super) type AddressOctets = [u8; 24];

/// Returns the key of an address of this host in a VLAN.
pub(super) fn address(address: IpAddr, vlan: u16) -> AddressOctets {
    let (address, family) = address_octets(address);
    let vlan = vlan.into();
    transmute!(Address {
        address,
        family,
        vlan
    })
}

/// `struct police_peer`, without the number of bits.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Peer {
    port: u32,
    family: u32,
    address: [u8; 16],
}

/// The octets of a key in the map of peers, behind the number of bits.
pub(super) type PeerOctets = [u8; 24];

/// The bits of port and family.
const OWNER_BITS: u32 = 64;

/// Returns the key of the addresses with a prefix, to which the client with this port may send, and
/// the number of bits.
pub(super) fn peer(port: u32, prefix: Prefix) -> (u32, PeerOctets) {
    let (address, family) = address_octets(prefix.address());
    let octets = transmute!(Peer {
        port,
        family,
        address
    });
    (OWNER_BITS + u32::from(prefix.bits()), octets)
}

/// Returns the port and the prefix of a key in the map of peers.
pub(super) fn prefix(bits: u32, octets: PeerOctets) -> (u32, Prefix) {
    let peer: Peer = transmute!(octets);
    let [a, b, c, d, ..] = peer.address;
    let address = match peer.family {
        IPV4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(peer.address)),
    };
    let len = bits.saturating_sub(OWNER_BITS);
    let len = len.try_into().unwrap_or(u8::MAX);
    (peer.port, Prefix::new(address, len))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use rnic_core::engine::Peers;

    use super::*;
    use crate::shared::programs::police_skeleton::types::{
        police_address, police_client, police_neighbour, police_peer,
    };

    #[test]
    fn clients_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_client>(), size_of::<Client>());
        for (ours, theirs) in [
            (offset_of!(Client, mtu), offset_of!(police_client, mtu)),
            (offset_of!(Client, rate), offset_of!(police_client, rate)),
            (offset_of!(Client, burst), offset_of!(police_client, burst)),
            (
                offset_of!(Client, fill_time),
                offset_of!(police_client, fill_time),
            ),
            (
                offset_of!(Client, tokens),
                offset_of!(police_client, tokens),
            ),
            (
                offset_of!(Client, refilled),
                offset_of!(police_client, refilled),
            ),
        ] {
            assert_eq!(ours, theirs);
        }
        let policy = ClientPolicy {
            mtu: 1500,
            rate: Some(3),
            burst: 2000,
            peers: Peers::all().into(),
        };
        let client = Client::new(7, &policy);
        assert_eq!(client.fill_time, 666_666_666_667);
        assert_eq!(client.tokens, 2000 * NANO);
        assert_eq!(Client::read(client.octets()), client);
        let limited = ClientPolicy {
            rate: None,
            ..policy
        };
        let limited = Client::new(7, &limited);
        assert_eq!((limited.rate, limited.burst, limited.fill_time), (0, 0, 0));
    }

    #[test]
    fn peers_are_everybody_or_those_that_are_said() {
        for (on_link, listed, bits, read) in [
            (false, Peers::all(), EVERYBODY, (true, false)),
            (true, Peers::all(), EVERYBODY | ON_LINK, (true, true)),
            (true, Peers::only([]), ON_LINK | LISTED, (false, true)),
            (false, Peers::only([]), LISTED, (false, false)),
        ] {
            let value = client_peers(&ClientPeers { on_link, listed });
            assert_eq!((value, are_peers(value)), (bits, read));
        }
        assert_eq!(are_peers(0), (false, false));
    }

    #[test]
    fn neighbours_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_neighbour>(), size_of::<NeighbourOctets>());
        assert_eq!(offset_of!(police_neighbour, others), 6);
        let one = MacAddr([2, 0, 0, 0, 1, 9]);
        assert_eq!(mac(neighbour(one, 7)), one);
        assert_eq!(neighbour(one, 7)[6..], 7u16.to_ne_bytes());
    }

    #[test]
    fn addresses_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_address>(), size_of::<Address>());
        assert_eq!(
            offset_of!(police_address, family),
            offset_of!(Address, family)
        );
        assert_eq!(offset_of!(police_address, vlan), offset_of!(Address, vlan));
        let octets = address([10, 1, 2, 3].into(), 0xabc);
        assert_eq!(octets[..16], [&[10, 1, 2, 3][..], &[0; 12]].concat());
        assert_eq!(octets[16..20], 4u32.to_ne_bytes());
        assert_eq!(octets[20..], 0xabc_u32.to_ne_bytes());
    }

    #[test]
    fn peers_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_peer>(), 4 + size_of::<Peer>());
        assert_eq!(offset_of!(police_peer, port), 4);
        assert_eq!(offset_of!(police_peer, family), 8);
        assert_eq!(offset_of!(police_peer, address), 12);
        for (text, bits) in [
            ("10.77.0.0/16", 80),
            ("fd00::/8", 72),
            ("::/0", 64),
            ("::1", 192),
        ] {
            let (found, octets) = peer(9, text.parse().unwrap());
            assert_eq!(found, bits);
            assert_eq!(prefix(found, octets), (9, text.parse().unwrap()));
        }
    }
}
