//! The layout of the steering maps: the Rust side of `ebpf/steer.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rnic_core::engine::Prefix;
use rnic_core::esp::SaId;
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
    /// The port of UDP that its packets come to; 0 if they are not in UDP.
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
mod tests {
    use super::*;

    fn entry_at(local: &str, vlan: u16) -> Entry {
        let local = local.parse().unwrap();
        Entry { local, vlan }
    }

    #[test]
    fn keys_read_back() {
        for text in ["10.1.2.3:4420", "0.0.0.0:1", "[fd00::1]:65535", "[::]:7"] {
            let written = entry_at(text, 42);
            assert_eq!(entry(&key(&written)), Some(written));
        }
        assert_eq!(entry(&[0; 24]), None);
    }

    #[test]
    fn keys_have_the_layout_of_the_c_structure() {
        let key = key(&entry_at("[102:304:506:708:90a:b0c:d0e:f10]:4370", 0xabc));
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12, 6, 0,
        ];
        assert_eq!(key[..20], expected);
        assert_eq!(key[20..], 0xabc_u32.to_ne_bytes());
        use crate::device::steering::skeleton::types::steer_key;
        assert_eq!(size_of::<steer_key>(), key.len());
        assert_eq!(std::mem::offset_of!(steer_key, vlan), 20);
    }

    #[test]
    fn peers_have_the_layout_of_the_c_structure() {
        let entry = entry_at("192.0.2.1:4370", 0xabc);
        let (bits, octets) = peers(&entry, "10.77.0.0/16".parse().unwrap()).unwrap();
        assert_eq!((bits, &octets[..24]), (24 * 8 + 16, &key(&entry)[..]));
        assert_eq!(octets[24..], [&[10, 77][..], &[0; 14]].concat());
        assert_eq!(peers(&entry, "fd00::/8".parse().unwrap()), None);
        use crate::device::steering::skeleton::types::steer_peer;
        assert_eq!(size_of::<steer_peer>(), 4 + octets.len());
        assert_eq!(std::mem::offset_of!(steer_peer, local), 4);
        assert_eq!(std::mem::offset_of!(steer_peer, address), 28);
    }

    #[test]
    fn links_have_the_layout_of_the_c_structure() {
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].map(MacAddr);
        let octets = link(Some(macs), false);
        assert_eq!(octets[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        assert_eq!(octets[12..], 1u32.to_ne_bytes());
        let removing = link(Some(macs), true);
        assert_eq!(removing[..12], octets[..12]);
        assert_eq!(removing[12..], 2u32.to_ne_bytes());
        assert_eq!((untags(&octets), untags(&removing)), (false, true));
        assert_eq!((link(None, false), link(None, true)), ([0; 16], [0; 16]));
        use crate::device::steering::skeleton::types::steer_link;
        assert_eq!(size_of::<steer_link>(), octets.len());
        assert_eq!(std::mem::offset_of!(steer_link, known), 12);
    }

    #[test]
    fn addresses_have_the_layout_of_the_c_structure() {
        let octets = address([10, 1, 2, 3].into());
        assert_eq!(octets[..16], [&[10, 1, 2, 3][..], &[0; 12]].concat());
        assert_eq!(octets[16..], 4u32.to_ne_bytes());
        let octets = address("102:304:506:708:90a:b0c:d0e:f10".parse().unwrap());
        let expected: Vec<u8> = (1..=16).collect();
        assert_eq!(octets[..16], expected);
        assert_eq!(octets[16..], 6u32.to_ne_bytes());
        use crate::device::steering::skeleton::types::steer_address;
        assert_eq!(size_of::<steer_address>(), octets.len());
        assert_eq!(std::mem::offset_of!(steer_address, family), 16);
    }

    #[test]
    fn associations_have_the_layout_of_the_c_structure() {
        let octets = association(SaId {
            spi: 0x0102_0304,
            destination: [10, 1, 2, 3].into(),
        });
        let address = [&[10, 1, 2, 3][..], &[0; 12]].concat();
        assert_eq!(
            (&octets[..16], &octets[16..20]),
            (&address[..], &[1, 2, 3, 4][..])
        );
        assert_eq!(octets[20..], 4u32.to_ne_bytes());
        use crate::device::steering::skeleton::types::steer_sa;
        assert_eq!(size_of::<steer_sa>(), octets.len());
        assert_eq!(std::mem::offset_of!(steer_sa, spi), 16);
        assert_eq!(std::mem::offset_of!(steer_sa, family), 20);
    }

    #[test]
    fn associations_read_back() {
        for destination in ["10.1.2.3", "fd00::1"] {
            let destination = destination.parse().unwrap();
            let id = SaId {
                spi: 0x0102_0304,
                destination,
            };
            assert_eq!(association_of(&association(id)), Some(id));
        }
        assert_eq!(association_of(&[0; 24]), None);
    }

    #[test]
    fn uses_of_associations_have_the_layout_of_the_c_structure() {
        use crate::device::steering::skeleton::types::steer_sa_use;
        assert_eq!(size_of::<steer_sa_use>(), size_of::<UsedAssociation>());
        let offsets = [
            std::mem::offset_of!(steer_sa_use, print),
            std::mem::offset_of!(steer_sa_use, source),
            std::mem::offset_of!(steer_sa_use, udp_port),
            std::mem::offset_of!(steer_sa_use, packets),
            std::mem::offset_of!(steer_sa_use, octets),
        ];
        assert_eq!(offsets, [4, 8, 24, 32, 40]);
        let used = UsedAssociation::new(7, 9, Some([10, 1, 2, 3].into()));
        assert_eq!(used.octets()[4..8], 9u32.to_ne_bytes());
        assert_eq!(used.octets()[8..12], [10, 1, 2, 3]);
        let in_udp = used.in_udp(Some(4500)).octets();
        assert_eq!(in_udp[24..28], 4500u32.to_ne_bytes());
        assert_eq!(UsedAssociation::read(used.octets()), used);
    }

    #[test]
    fn what_is_protected_is_no_queue() {
        let word = protected_recipient(7);
        assert_eq!((port_in(word), is_queue(word)), (7, false));
        assert!(is_protected(word) && !is_protected(recipient(7, Some(3))));
    }

    #[test]
    fn targets_have_the_layout_of_the_c_structure() {
        use crate::device::steering::skeleton::types::steer_target;
        assert_eq!(size_of::<steer_target>(), size_of::<TargetWords>());
        assert_eq!(std::mem::offset_of!(steer_target, port), 4);
    }

    #[test]
    fn port_entries_have_the_layout_of_the_c_structure() {
        let any = entry_at("0.0.0.0:1", 0);
        let first = entry_at("[102:304:506:708:90a:b0c:d0e:f10]:1", 0xabc);
        let other_vlan = Entry { vlan: 7, ..first };
        let one = PortEntries::default().with(&first, 9);
        let entries = one.with(&any, 7);
        assert_eq!(entries.without(&any), one);
        assert_eq!(one.with(&other_vlan, 7).without(&other_vlan), one);
        let hidden = entries.without(&first);
        assert!(hidden.is_hidden());
        assert_eq!(hidden.with(&first, 9), entries);
        let octets = entries.octets();
        let mut expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0,
        ];
        expected[18..20].copy_from_slice(&0xabc_u16.to_ne_bytes());
        expected[20..24].copy_from_slice(&1u32.to_ne_bytes());
        expected[24..].copy_from_slice(&9u32.to_ne_bytes());
        assert_eq!(octets, expected);
        assert_eq!(PortEntries::read(&octets), entries);
        use crate::device::steering::skeleton::types::steer_port;
        assert_eq!(size_of::<steer_port>(), octets.len());
        assert_eq!(std::mem::offset_of!(steer_port, family), 16);
        assert_eq!(std::mem::offset_of!(steer_port, any_address), 17);
        assert_eq!(std::mem::offset_of!(steer_port, vlan), 18);
        assert_eq!(std::mem::offset_of!(steer_port, others), 20);
        assert_eq!(std::mem::offset_of!(steer_port, port), 24);
        let any = PortEntries::default().with(&any, 0);
        assert_eq!(any.octets()[..20], [&[0; 16][..], &[4, 1, 0, 0]].concat());
    }
}
