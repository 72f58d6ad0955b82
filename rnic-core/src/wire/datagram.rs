//! What stands in front of a datagram: on its way, and in the receive of the program.
//!
//! A datagram travels as one Send:
//!
//! | octets | content |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | flags: 1 has Immediate Data, 2 Solicited Event |
//! | 2 | traffic class |
//! | 3 | 0, not looked at |
//! | 4-7 | number of the queue pair that is to get it |
//! | 8-11 | number of the queue pair that sends it |
//! | 12-15 | Q_Key |
//! | 16-19 | Immediate Data |
//! | 20-23 | 0, not looked at |
//! | 24- | payload |
//!
//! Numbers are in network byte order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Octets in front of the payload.
pub const LEN: usize = 24;

/// The most octets of a datagram: the greatest MTU of InfiniBand.
pub const MOST: usize = 4096;

/// Octets in front of the payload in a receive: the Global Route Header.
pub const GRH_LEN: usize = 40;

const VERSION: u8 = 1;

const HAS_IMMEDIATE: u8 = 1;
const SOLICITED: u8 = 2;

/// What a datagram says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The traffic class of its packet.
    pub traffic_class: u8,
    /// The number of the queue pair that is to get it.
    pub to: u32,
    /// That of the queue pair that sends it.
    pub from: u32,
    /// The Q_Key.
    pub qkey: u32,
    /// Its Immediate Data.
    pub immediate: Option<[u8; 4]>,
    /// Whether its completion is a Solicited Event.
    pub solicited: bool,
}

impl Header {
    /// Returns the octets.
    pub fn octets(&self) -> [u8; LEN] {
        let mut octets = [0; LEN];
        let has_immediate = self.immediate.map_or(0, |_| HAS_IMMEDIATE);
        let solicited = if self.solicited { SOLICITED } else { 0 };
        octets[..3].copy_from_slice(&[VERSION, has_immediate | solicited, self.traffic_class]);
        octets[4..8].copy_from_slice(&self.to.to_be_bytes());
        octets[8..12].copy_from_slice(&self.from.to_be_bytes());
        octets[12..16].copy_from_slice(&self.qkey.to_be_bytes());
        octets[16..20].copy_from_slice(&self.immediate.unwrap_or_default());
        octets
    }

    /// Reads what a peer has sent: the header, and the payload. Returns `None` if it is no datagram
    /// of this version, or too long for one.
    pub fn parse(octets: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = octets.split_first_chunk::<LEN>()?;
        if header[0] != VERSION || payload.len() > MOST {
            return None;
        }
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let header = Self {
            traffic_class: header[2],
            to: u32::from_be_bytes(word(4)),
            from: u32::from_be_bytes(word(8)),
            qkey: u32::from_be_bytes(word(12)),
            immediate: (header[1] & HAS_IMMEDIATE != 0).then(|| word(16)),
            solicited: header[1] & SOLICITED != 0,
        };
        Some((header, payload))
    }
}

/// Returns the Global Route Header of a datagram, as a device of RoCE v2 writes it into the receive:
/// the IPv6 header of its packet, or the IPv4 header in the last 20 octets.
pub fn grh(from: IpAddr, to: IpAddr, traffic_class: u8, payload: usize) -> [u8; GRH_LEN] {
    /// What RoCE v2 has around the payload behind IP: UDP, BTH, DETH and ICRC.
    const AROUND: u16 = 8 + 12 + 8 + 4;
    // Payloads have `MOST` octets.
    let len = AROUND + payload as u16;
    match (from.to_canonical(), to.to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, traffic_class, len),
        (from, to) => {
            let v6 = |ip| match ip {
                IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
                IpAddr::V6(v6) => v6,
            };
            ipv6(v6(from), v6(to), traffic_class, len)
        }
    }
}

const UDP: u8 = 17;
const HOPS: u8 = 64;

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, traffic_class: u8, len: u16) -> [u8; GRH_LEN] {
    const HEADER: usize = 20;
    let mut grh = [0; GRH_LEN];
    let header = &mut grh[GRH_LEN - HEADER..];
    header[..2].copy_from_slice(&[0x45, traffic_class]);
    header[2..4].copy_from_slice(&(len + HEADER as u16).to_be_bytes());
    // Do not fragment.
    header[6] = 0x40;
    header[8..10].copy_from_slice(&[HOPS, UDP]);
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    grh
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, traffic_class: u8, len: u16) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let first = 6u32 << 28 | u32::from(traffic_class) << 20;
    grh[..4].copy_from_slice(&first.to_be_bytes());
    grh[4..6].copy_from_slice(&len.to_be_bytes());
    grh[6..8].copy_from_slice(&[UDP, HOPS]);
    grh[8..24].copy_from_slice(&from.octets());
    grh[24..40].copy_from_slice(&to.octets());
    grh
}
