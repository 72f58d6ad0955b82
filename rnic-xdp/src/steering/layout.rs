//! The layout of the steering maps: the Rust side of `ebpf/steer.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// A key as it lies in the map: address, port in network order, family, a zero.
pub(crate) type KeyOctets = [u8; 20];

/// The key for a local address and port; an unspecified address stands for all of its family.
pub(crate) fn key(local: SocketAddr) -> KeyOctets {
    let mut octets = [0; 20];
    match local.ip() {
        IpAddr::V4(address) => {
            octets[..4].copy_from_slice(&address.octets());
            octets[18] = IPV4;
        }
        IpAddr::V6(address) => {
            octets[..16].copy_from_slice(&address.octets());
            octets[18] = IPV6;
        }
    }
    octets[16..18].copy_from_slice(&local.port().to_be_bytes());
    octets
}

/// A value of the map by port, as it lies there: address, family, whether any address, two zeros, number of others.
pub(crate) type PortOctets = [u8; 24];

/// What the steering program is told of a local port: one of its entries, which it compares with at once, and how many
/// others it has, which it looks up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortEntries {
    /// The octets of the address in a key.
    address: [u8; 16],
    /// Zero if there is none to compare with.
    family: u8,
    any_address: bool,
    others: u32,
}

impl PortEntries {
    pub(crate) fn read(octets: &PortOctets) -> Self {
        let [address @ .., family, any_address, _, _, a, b, c, d] = *octets;
        Self {
            address,
            family,
            any_address: any_address != 0,
            others: u32::from_ne_bytes([a, b, c, d]),
        }
    }

    pub(crate) fn octets(&self) -> PortOctets {
        let mut octets = [0; 24];
        octets[..16].copy_from_slice(&self.address);
        octets[16] = self.family;
        octets[17] = u8::from(self.any_address);
        octets[20..].copy_from_slice(&self.others.to_ne_bytes());
        octets
    }

    /// With one more.
    pub(crate) fn with(self, local: SocketAddr) -> Self {
        if !self.is_hidden() {
            let others = self.others + 1;
            return Self { others, ..self };
        }
        let [address @ .., _, _, family, _] = key(local);
        Self {
            address,
            family,
            any_address: local.ip().is_unspecified(),
            ..self
        }
    }

    /// With one less, which it has.
    pub(crate) fn without(self, local: SocketAddr) -> Self {
        let [address @ .., _, _, family, _] = key(local);
        if (self.address, self.family) == (address, family) {
            return self.hidden();
        }
        let others = self.others.saturating_sub(1);
        Self { others, ..self }
    }

    /// Without the one to compare with.
    pub(crate) fn hidden(self) -> Self {
        Self { family: 0, ..self }
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.family == 0
    }
}

/// The local address and port of a key; `None` for a family that is not ours.
pub(crate) fn local(key: &KeyOctets) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([key[16], key[17]]);
    let [a, b, c, d, ..] = *key;
    let address = match key[18] {
        IPV4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        IPV6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&key[..16]).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// What became of the frames that a device received, from the steering program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Handed to the engine: the kernel's TCP saw none of them.
    pub redirected: u64,
    /// For a steered port, but on a queue without a socket: passed to the kernel.
    pub no_socket: u64,
    /// TCP for other ports: passed to the kernel.
    pub not_steered: u64,
    /// IP fragments: passed to the kernel.
    pub fragments: u64,
    /// Other protocols, IPv6 extension headers: passed to the kernel.
    pub not_tcp: u64,
    /// Too short for what their headers announce: passed to the kernel.
    pub truncated: u64,
}

/// Number of counters.
pub(crate) const VERDICTS: u32 = 6;

impl SteeringCounters {
    pub(crate) fn from_values(values: [u64; VERDICTS as usize]) -> Self {
        let [
            redirected,
            no_socket,
            not_steered,
            fragments,
            not_tcp,
            truncated,
        ] = values;
        Self {
            redirected,
            no_socket,
            not_steered,
            fragments,
            not_tcp,
            truncated,
        }
    }

    /// Every counter with its name.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("redirected", self.redirected),
            ("no_socket", self.no_socket),
            ("not_steered", self.not_steered),
            ("fragments", self.fragments),
            ("not_tcp", self.not_tcp),
            ("truncated", self.truncated),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back() {
        for text in ["10.1.2.3:4420", "0.0.0.0:1", "[fd00::1]:65535", "[::]:7"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(local(&key(address)), Some(address));
        }
        assert_eq!(local(&[0; 20]), None);
    }

    #[test]
    fn keys_have_the_layout_of_the_c_structure() {
        let key = key("[102:304:506:708:90a:b0c:d0e:f10]:4370".parse().unwrap());
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12, 6, 0,
        ];
        assert_eq!(key, expected);
        assert_eq!(size_of::<crate::skeleton::types::steer_key>(), key.len());
    }

    #[test]
    fn what_is_said_of_a_port_has_the_layout_of_the_c_structure() {
        let any = "0.0.0.0:1".parse().unwrap();
        let first = "[102:304:506:708:90a:b0c:d0e:f10]:1".parse().unwrap();
        let one = PortEntries::default().with(first);
        let entries = one.with(any);
        assert_eq!(entries.without(any), one);
        let hidden = entries.without(first);
        assert!(hidden.is_hidden());
        assert_eq!(hidden.with(first), entries);
        let octets = entries.octets();
        let mut expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 6, 0, 0, 0, 0, 0, 0, 0,
        ];
        expected[20..].copy_from_slice(&1u32.to_ne_bytes());
        assert_eq!(octets, expected);
        assert_eq!(PortEntries::read(&octets), entries);
        use crate::skeleton::types::steer_port;
        assert_eq!(size_of::<steer_port>(), octets.len());
        assert_eq!(std::mem::offset_of!(steer_port, family), 16);
        assert_eq!(std::mem::offset_of!(steer_port, any_address), 17);
        assert_eq!(std::mem::offset_of!(steer_port, others), 20);
        let any = PortEntries::default().with(any);
        assert_eq!(any.octets()[..20], [&[0; 16][..], &[4, 1, 0, 0]].concat());
    }
}
