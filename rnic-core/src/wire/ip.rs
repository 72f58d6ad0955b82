//! IP packets of either version in their frames: where they lie, and how their headers change when
//! their payload does.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::{self, Checksums};
use super::error::PacketError;
use super::ethernet::{self, EthernetHeader};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::{self, Ipv6Header};

/// The ECN field of the traffic class.
const ECN: u8 = 3;
/// Where IPv4 has the number of its payload's protocol.
const IPV4_PROTOCOL_AT: usize = 9;
/// Where IPv6 has it.
const IPV6_NEXT_HEADER_AT: usize = 6;
/// Octets in front of the frame's IP packet that say what it is.
const ETHERTYPE_LEN: usize = 2;

/// Where an IP packet lies in its frame, and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// Where it begins.
    pub at: usize,
    /// Where its payload begins, behind options.
    pub payload_at: usize,
    /// Where it ends. Padding of Ethernet may follow.
    pub end: usize,
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// What the payload is.
    pub protocol: u8,
    /// Differentiated services and, in the two lowest bits, ECN.
    pub traffic_class: u8,
}

impl IpPacket {
    /// Finds the IP packet of a frame. Checks lengths, and IPv4's checksum unless it is
    /// [unnecessary](Checksums::Unnecessary). Fragments are refused.
    pub fn of_frame(frame: &[u8], checksums: Checksums) -> Result<Self, PacketError> {
        let (link, packet) = EthernetHeader::parse(frame)?;
        let at = frame.len() - packet.len();
        match link.ethertype {
            ethernet::IPV4 => Self::v4(packet, at, checksums),
            ethernet::IPV6 => Self::v6(packet, at),
            other => Err(PacketError::NotIp(other)),
        }
    }

    fn v4(packet: &[u8], at: usize, checksums: Checksums) -> Result<Self, PacketError> {
        let (header, payload) = Ipv4Header::parse(packet, checksums)?;
        let payload_at = at + usize::from(packet[0] & 0xf) * 4;
        Ok(Self {
            at,
            payload_at,
            end: payload_at + payload.len(),
            source: header.source.into(),
            destination: header.destination.into(),
            protocol: header.protocol,
            traffic_class: header.traffic_class,
        })
    }

    fn v6(packet: &[u8], at: usize) -> Result<Self, PacketError> {
        let (header, payload) = Ipv6Header::parse(packet)?;
        let payload_at = at + ipv6::HEADER_LEN;
        Ok(Self {
            at,
            payload_at,
            end: payload_at + payload.len(),
            source: header.source.into(),
            destination: header.destination.into(),
            protocol: header.next_header,
            traffic_class: header.traffic_class,
        })
    }
}

/// Returns the octets of an IP header without options.
pub const fn header_len(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => ipv4::HEADER_LEN,
        IpAddr::V6(_) => ipv6::HEADER_LEN,
    }
}

/// Gives the packet that begins at `packet` another payload, of this length.
///
/// # Panics
///
/// If `packet` does not begin with a whole IP header.
pub fn set_payload(packet: &mut [u8], protocol: u8, payload_len: usize) {
    match packet[0] >> 4 {
        4 => {
            let header_len = usize::from(packet[0] & 0xf) * 4;
            let total = (header_len + payload_len) as u16;
            packet[ipv4::LENGTH_AT..][..2].copy_from_slice(&total.to_be_bytes());
            packet[IPV4_PROTOCOL_AT] = protocol;
            set_checksum(&mut packet[..header_len]);
        }
        _ => {
            let len = payload_len as u16;
            packet[ipv6::LENGTH_AT..][..2].copy_from_slice(&len.to_be_bytes());
            packet[IPV6_NEXT_HEADER_AT] = protocol;
        }
    }
}

fn set_checksum(header: &mut [u8]) {
    header[ipv4::CHECKSUM_AT..][..2].fill(0);
    let sum = !checksum::sum(header);
    header[ipv4::CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the ECN field of the packet that begins at `packet`.
///
/// # Panics
///
/// If `packet` does not begin with a whole IP header.
pub fn set_ecn(packet: &mut [u8], ecn: u8) {
    match packet[0] >> 4 {
        4 => {
            let header_len = usize::from(packet[0] & 0xf) * 4;
            packet[ipv4::TRAFFIC_CLASS_AT] = packet[ipv4::TRAFFIC_CLASS_AT] & !ECN | ecn;
            set_checksum(&mut packet[..header_len]);
        }
        // The lower half of the class is the upper one of the octet.
        _ => {
            let at = ipv6::TRAFFIC_CLASS_AT;
            packet[at] = packet[at] & !(ECN << 4) | ecn << 4;
        }
    }
}

/// Writes the header of a packet that carries another one. Panics if `buffer` is too short.
pub fn emit_outer(
    buffer: &mut [u8],
    (source, destination): (IpAddr, IpAddr),
    (protocol, traffic_class): (u8, u8),
    payload_len: usize,
) {
    /// As Linux sends it.
    const HOP_LIMIT: u8 = 64;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header {
                source,
                destination,
                protocol,
                traffic_class,
                hop_limit: HOP_LIMIT,
            };
            header.emit(buffer, payload_len);
        }
        (source, destination) => {
            let header = Ipv6Header {
                source: as_v6(source),
                destination: as_v6(destination),
                next_header: protocol,
                traffic_class,
                hop_limit: HOP_LIMIT,
            };
            header.emit(buffer, payload_len);
        }
    }
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address),
        IpAddr::V6(address) => address,
    }
}

/// Says in the Ethernet header that ends in front of the packet which version of IP follows.
///
/// # Panics
///
/// If `link` is shorter than that.
pub fn set_ethertype(link: &mut [u8], address: IpAddr) {
    let ethertype = match address {
        IpAddr::V4(_) => ethernet::IPV4,
        IpAddr::V6(_) => ethernet::IPV6,
    };
    let at = link.len() - ETHERTYPE_LEN;
    link[at..].copy_from_slice(&ethertype.to_be_bytes());
}
