//! The layout of the steering maps: the Rust side of `ebpf/steer.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rnic_core::engine::Prefix;
use rnic_core::esp::SaId;
use rnic_core::wire::encapsulation::UdpPorts;
use rnic_core::wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// An entry of the steering maps: a local address and port, and the VLAN of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// An unspecified address stands for all of its family, in all VLANs.
    pub local: SocketAddr,
    /// The VLAN that the address belongs to; 0 is none.
    pub vlan: u16,
}

/// The octets of a key in the map: address, port in network order, family, a zero, VLAN.
pub(crate) type KeyOctets = [u8; 24];

/// Returns the key of an entry.
pub(crate) fn key(entry: &Entry) -> KeyOctets {
    let mut octets = [0; 24];
    match entry.local.ip() {
        IpAddr::V4(address) => {
            octets[..4].copy_from_slice(&address.octets());
            octets[18] = IPV4;
        }
        IpAddr::V6(address) => {
            octets[..16].copy_from_slice(&address.octets());
            octets[18] = IPV6;
        }
    }
    octets[16..18].copy_from_slice(&entry.local.port().to_be_bytes());
    octets[20..].copy_from_slice(&u32::from(entry.vlan).to_ne_bytes());
    octets
}

/// The octets of a key in the map of associations of ESP: address, SPI in network order, family.
pub(crate) type AssociationOctets = [u8; 24];

/// Returns the key of an association.
pub(crate) fn association(id: SaId) -> AssociationOctets {
    let mut octets = [0; 24];
    let receiver = address(id.destination);
    octets[..16].copy_from_slice(&receiver[..16]);
    octets[16..20].copy_from_slice(&id.spi.to_be_bytes());
    octets[20..].copy_from_slice(&receiver[16..]);
    octets
}

/// Returns the association of a key. Returns `None` for an unknown family.
pub(crate) fn association_of(key: &AssociationOctets) -> Option<SaId> {
    let [a, b, c, d, ..] = *key;
    let destination = match u32::from_ne_bytes(key[20..].try_into().ok()?) {
        4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&key[..16]).ok()?)),
        _ => return None,
    };
    let spi = u32::from_be_bytes(key[16..20].try_into().ok()?);
    Some(SaId { spi, destination })
}

/// `struct steer_sa_use`: who has an association, and what was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UsedAssociation {
    /// That of a client, or of this process ([`OWN_SOCKETS`]).
    pub(crate) port: u32,
    /// A fingerprint of its key.
    pub(crate) print: u32,
    source: [u8; 16],
    /// The port of UDP that its packets come to; among those that clients send with, that of the
    /// sender above it. 0 if they are not in UDP.
    udp_port: u32,
    reserved: u32,
    pub(crate) packets: u64,
    /// Octets of whole frames.
    pub(crate) octets: u64,
}

/// The octets of a value in the maps of associations.
pub(crate) type UseOctets = [u8; 48];

impl UsedAssociation {
    /// Makes one with which nothing was done.
    pub(crate) fn new(port: u32, print: u32, source: Option<IpAddr>) -> Self {
        let mut octets = [0; 16];
        if let Some(source) = source {
            octets.copy_from_slice(&address(source)[..16]);
        }
        Self {
            port,
            print,
            source: octets,
            udp_port: 0,
            reserved: 0,
            packets: 0,
            octets: 0,
        }
    }

    /// The same, with packets in UDP that come to this port.
    pub(crate) fn in_udp(self, port: Option<u16>) -> Self {
        Self {
            udp_port: port.unwrap_or(0).into(),
            ..self
        }
    }

    /// The same, with packets in UDP between these ports.
    pub(crate) fn between(self, ports: Option<UdpPorts>) -> Self {
        let word = |ports: UdpPorts| u32::from(ports.source) << 16 | u32::from(ports.destination);
        Self {
            udp_port: ports.map_or(0, word),
            ..self
        }
    }

    /// Returns the value for another holder of the same association: its counts begin at 0, and its
    /// packets come to the same port of UDP.
    pub(crate) fn for_other(self, port: u32, print: u32) -> Self {
        Self {
            udp_port: self.udp_port,
            ..Self::new(port, print, None)
        }
    }

    pub(crate) fn octets(self) -> UseOctets {
        transmute!(self)
    }

    pub(crate) fn read(octets: UseOctets) -> Self {
        transmute!(octets)
    }
}

/// The words of a value in the map of entries: which peers, and the port of the client.
pub(crate) type TargetWords = [u32; 2];

/// Which peers may connect to an entry: all, or those in the map of peers.
pub(crate) const ALL_PEERS: u32 = 1;
pub(crate) const SOME_PEERS: u32 = 2;

/// The number of the port of entries whose frames go to the socket of their receive queue.
pub(crate) const OWN_SOCKETS: u32 = 0;

/// Where the number of a queue begins in the word that says who gets the frames of an entry: below
/// it is that of the port.
const QUEUE_SHIFT: u32 = 16;

/// Set in that word if nothing goes there or comes from there unprotected.
const PROTECTED: u32 = 1 << 31;

/// Returns the word for a port of a client to which nothing goes unprotected.
pub(crate) fn protected_recipient(port: u32) -> u32 {
    port | PROTECTED
}

/// Returns whether nothing goes unprotected to the port in such a word.
pub(crate) fn is_protected(recipient: u32) -> bool {
    recipient & PROTECTED != 0
}

/// Returns the word for a port of a client, which may be a hardware queue of the device.
pub(crate) fn recipient(port: u32, queue: Option<u32>) -> u32 {
    port | queue.map_or(0, |queue| (queue + 1) << QUEUE_SHIFT)
}

/// Returns the number of the port in such a word.
pub(crate) fn port_in(recipient: u32) -> u32 {
    recipient & ((1 << QUEUE_SHIFT) - 1)
}

/// Returns whether the port in such a word is a hardware queue.
pub(crate) fn is_queue(recipient: u32) -> bool {
    (recipient & !PROTECTED) >> QUEUE_SHIFT != 0
}

/// A key of the map of peers behind its number of bits: the key of an entry, and the address.
pub(crate) type PeerOctets = [u8; 40];

/// Returns the key for the peers of an entry that have a prefix. Returns `None` if the prefix is of
/// another family. The number of bits includes those of the entry.
pub(crate) fn peers(entry: &Entry, prefix: Prefix) -> Option<(u32, PeerOctets)> {
    if prefix.is_ipv4() != entry.local.is_ipv4() {
        return None;
    }
    let mut octets = [0; 40];
    octets[..24].copy_from_slice(&key(entry));
    match prefix.address() {
        IpAddr::V4(address) => octets[24..28].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets[24..].copy_from_slice(&address.octets()),
    }
    Some((24 * 8 + u32::from(prefix.bits()), octets))
}

/// Returns the key of the entry to which a key of the map of peers belongs.
pub(crate) fn entry_of(peers: &PeerOctets) -> KeyOctets {
    let mut key = [0; 24];
    key.copy_from_slice(&peers[..24]);
    key
}

/// Returns the prefix of such a key. Returns `None` for an unknown family.
pub(crate) fn peer_of(bits: u32, peers: &PeerOctets) -> Option<Prefix> {
    let [a, b, c, d, ..] = peers[24..] else {
        return None;
    };
    let address = match peers[18] {
        IPV4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        IPV6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&peers[24..]).ok()?)),
        _ => return None,
    };
    Some(Prefix::new(
        address,
        bits.checked_sub(24 * 8)?.try_into().ok()?,
    ))
}

/// The octets of a value in the map of links: two MAC addresses, and whether there is such a VLAN.
pub(crate) type LinkOctets = [u8; 16];

/// Values of `known` in the map of links.
const KNOWN: u32 = 1;
const UNTAGS: u32 = 2;

/// Returns the value in the map of links for a VLAN: the MAC addresses of this host in it, if there
/// is such a VLAN. `untags` says of VLAN 0 that tags are removed ahead of the program.
pub(crate) fn link(macs: Option<[MacAddr; 2]>, untags: bool) -> LinkOctets {
    let mut octets = [0; 16];
    if let Some([own, below]) = macs {
        octets[..6].copy_from_slice(&own.0);
        octets[6..12].copy_from_slice(&below.0);
        let known = if untags { UNTAGS } else { KNOWN };
        octets[12..].copy_from_slice(&known.to_ne_bytes());
    }
    octets
}

/// Returns whether a value in the map of links says that tags are removed ahead of the program.
pub(crate) fn untags(octets: &LinkOctets) -> bool {
    octets[12..] == UNTAGS.to_ne_bytes()
}

/// The octets of a key in the map of addresses whose frames arrive without a tag: address and
/// family.
pub(crate) type AddressOctets = [u8; 20];

/// Returns the key of an address in the map of those whose frames arrive without a tag.
pub(crate) fn address(address: IpAddr) -> AddressOctets {
    let mut octets = [0; 20];
    let family: u32 = match address {
        IpAddr::V4(address) => {
            octets[..4].copy_from_slice(&address.octets());
            4
        }
        IpAddr::V6(address) => {
            octets[..16].copy_from_slice(&address.octets());
            6
        }
    };
    octets[16..].copy_from_slice(&family.to_ne_bytes());
    octets
}

/// The octets of a value in the map by port: address, family, whether any address, VLAN, number of
/// others, port of the client.
pub(crate) type PortOctets = [u8; 28];

/// The value in the map by port: one entry of the port, with which the program compares at once,
/// and the number of others, which it looks up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortEntries {
    /// The octets of the address in a key.
    address: [u8; 16],
    /// Zero if there is none to compare with.
    family: u8,
    any_address: bool,
    vlan: u16,
    others: u32,
    /// The client that has the entry to compare with.
    port: u32,
}

impl PortEntries {
    /// Reads a value of the map.
    pub(crate) fn read(octets: &PortOctets) -> Self {
        let [
            address @ ..,
            family,
            any_address,
            e,
            f,
            a,
            b,
            c,
            d,
            g,
            h,
            i,
            j,
        ] = *octets;
        Self {
            address,
            family,
            any_address: any_address != 0,
            vlan: u16::from_ne_bytes([e, f]),
            others: u32::from_ne_bytes([a, b, c, d]),
            port: u32::from_ne_bytes([g, h, i, j]),
        }
    }

    /// Returns the octets of the value in the map.
    pub(crate) fn octets(&self) -> PortOctets {
        let mut octets = [0; 28];
        octets[..16].copy_from_slice(&self.address);
        octets[16] = self.family;
        octets[17] = u8::from(self.any_address);
        octets[18..20].copy_from_slice(&self.vlan.to_ne_bytes());
        octets[20..24].copy_from_slice(&self.others.to_ne_bytes());
        octets[24..].copy_from_slice(&self.port.to_ne_bytes());
        octets
    }

    /// Returns it with one more entry, of the client with this port.
    pub(crate) fn with(self, entry: &Entry, port: u32) -> Self {
        if !self.is_hidden() {
            let others = self.others + 1;
            return Self { others, ..self };
        }
        Self {
            others: self.others,
            port,
            ..Self::of(entry)
        }
    }

    /// Returns it with one more entry that is not for all peers, which must be looked up.
    pub(crate) fn with_limited(self) -> Self {
        let others = self.others + 1;
        Self { others, ..self }
    }

    /// Returns it without one of its entries.
    pub(crate) fn without(self, entry: &Entry) -> Self {
        let Self {
            address,
            family,
            vlan,
            ..
        } = Self::of(entry);
        if (self.address, self.family, self.vlan) == (address, family, vlan) {
            return self.hidden();
        }
        let others = self.others.saturating_sub(1);
        Self { others, ..self }
    }

    /// Returns the value of a port with this entry only.
    fn of(entry: &Entry) -> Self {
        let octets = key(entry);
        let mut address = [0; 16];
        address.copy_from_slice(&octets[..16]);
        Self {
            address,
            family: octets[18],
            any_address: entry.local.ip().is_unspecified(),
            vlan: entry.vlan,
            others: 0,
            port: OWN_SOCKETS,
        }
    }

    /// Returns it without the entry to compare with.
    pub(crate) fn hidden(self) -> Self {
        Self { family: 0, ..self }
    }

    /// Returns whether it has no entry to compare with.
    pub(crate) fn is_hidden(&self) -> bool {
        self.family == 0
    }
}

/// Returns the entry of a key. Returns `None` for an unknown family.
pub(crate) fn entry(key: &KeyOctets) -> Option<Entry> {
    let port = u16::from_be_bytes([key[16], key[17]]);
    let [a, b, c, d, ..] = *key;
    let address = match key[18] {
        IPV4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        IPV6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&key[..16]).ok()?)),
        _ => return None,
    };
    let vlan = u32::from_ne_bytes([key[20], key[21], key[22], key[23]]);
    Some(Entry {
        local: SocketAddr::new(address, port),
        vlan: vlan.try_into().ok()?,
    })
}

/// The steering program's counters of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Redirected to the engine.
    pub redirected: u64,
    /// For a steered port, but on a queue without a socket: passed to the kernel.
    pub no_socket: u64,
    /// TCP for other ports: passed to the kernel.
    pub not_steered: u64,
    /// IP fragments: passed to the kernel.
    pub fragments: u64,
    /// Other protocols, IPv6 extension headers: passed to the kernel.
    pub not_tcp: u64,
    /// Shorter than their headers say: passed to the kernel.
    pub truncated: u64,
    /// For a steered port, but to a MAC address of another host, or in a VLAN without a device
    /// here: passed to the kernel, which drops them.
    pub other_host: u64,
    /// For a steered port, from a peer that may not connect there: passed to the kernel, which
    /// answers with RST.
    pub strangers: u64,
    /// Redirected to a client that shares the device.
    pub to_ports: u64,
    /// For a client whose device is gone: passed to the kernel.
    pub no_port: u64,
    /// On a shared device, from or to a loopback address, which must not come from a network:
    /// passed to the kernel, which drops them.
    pub loopback: u64,
    /// For a client that has a hardware queue of the device, but from another queue: dropped.
    pub wrong_queue: u64,
    /// For a client, unprotected where nothing may be: dropped.
    pub unprotected: u64,
}

/// Number of counters.
pub(crate) const VERDICTS: u32 = 13;

impl SteeringCounters {
    pub(crate) fn from_values(values: [u64; VERDICTS as usize]) -> Self {
        let [
            redirected,
            no_socket,
            not_steered,
            fragments,
            not_tcp,
            truncated,
            other_host,
            strangers,
            to_ports,
            no_port,
            loopback,
            wrong_queue,
            unprotected,
        ] = values;
        Self {
            redirected,
            no_socket,
            not_steered,
            fragments,
            not_tcp,
            truncated,
            other_host,
            strangers,
            to_ports,
            no_port,
            loopback,
            wrong_queue,
            unprotected,
        }
    }

    /// Returns every counter with its name.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("redirected", self.redirected),
            ("no_socket", self.no_socket),
            ("not_steered", self.not_steered),
            ("fragments", self.fragments),
            ("not_tcp", self.not_tcp),
            ("truncated", self.truncated),
            ("other_host", self.other_host),
            ("strangers", self.strangers),
            ("to_ports", self.to_ports),
            ("no_port", self.no_port),
            ("loopback", self.loopback),
            ("wrong_queue", self.wrong_queue),
            ("unprotected", self.unprotected),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests;
