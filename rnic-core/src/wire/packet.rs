//! A TCP segment in its frame: the whole way down for received frames, and up for those to be sent.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use super::checksum::Checksums;
use super::checksum::{combine, pseudo_header_v4, pseudo_header_v6};
use super::error::PacketError;
use super::ethernet::{self, EthernetHeader, MacAddr};
use super::ipv4::Ipv4Header;
use super::ipv6::{self, Ipv6Header};
use super::tcp::{self, TcpSegment};

/// A TCP segment and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Link-layer sender: the neighbour that an answer may go to.
    pub source_mac: MacAddr,
    /// Link-layer receiver: this host.
    pub destination_mac: MacAddr,
    /// The VLAN that it came in, if that could be seen.
    pub vlan: Option<u16>,
    /// The peer.
    pub source: SocketAddr,
    /// Our end.
    pub destination: SocketAddr,
    /// Header and payload.
    pub segment: TcpSegment<'a>,
    /// The ECN field of the IP header (RFC 3168): 0 not capable, 1 and 2 capable, 3 congestion
    /// experienced.
    pub ecn: u8,
}

/// The ECN field of a sender that heeds marks, ECT(0).
pub const ECN_CAPABLE: u8 = 2;

/// Returns the ECN field of a packet that routers may mark (RFC 3168), or not.
pub fn ecn_field(capable: bool) -> u8 {
    if capable { ECN_CAPABLE } else { 0 }
}
/// The ECN field that a congested router sets.
pub const CONGESTION_EXPERIENCED: u8 = 3;

/// Reads a frame: Ethernet, a VLAN tag or none, IPv4 with options or IPv6 without extension
/// headers, TCP. Checks lengths always, and checksums unless they are
/// [unnecessary](Checksums::Unnecessary). Cuts off Ethernet padding.
pub fn parse(frame: &[u8], checksums: Checksums) -> Result<Packet<'_>, PacketError> {
    parse_as(frame, checksums, false)
}

/// Reads a frame as [`parse`] does, and also accepts a partial TCP checksum (`CHECKSUM_PARTIAL`):
/// the sum of the pseudo-header. A kernel on this host, at the other end of a veth, leaves the rest
/// to a device that the packet never meets.
pub fn parse_with_partial(frame: &[u8], checksums: Checksums) -> Result<Packet<'_>, PacketError> {
    parse_as(frame, checksums, true)
}

fn parse_as(frame: &[u8], checksums: Checksums, partial: bool) -> Result<Packet<'_>, PacketError> {
    let (link, rest) = EthernetHeader::parse(frame)?;
    if link.destination.is_group() {
        return Err(PacketError::NotUnicast("destination MAC"));
    }
    let datagram = match link.ethertype {
        ethernet::IPV4 => parse_ipv4(rest, checksums)?,
        ethernet::IPV6 => parse_ipv6(rest)?,
        other => return Err(PacketError::NotIp(other)),
    };
    if datagram.protocol != tcp::PROTOCOL {
        return Err(PacketError::NotTcp(datagram.protocol));
    }
    let payload_sum = checksums.sum_of(datagram.payload, frame);
    if payload_sum.is_some_and(|sum| combine(datagram.pseudo_sum, sum) != 0xffff)
        && !(partial && tcp::checksum_field(datagram.payload) == Some(datagram.pseudo_sum))
    {
        return Err(PacketError::Checksum("TCP"));
    }
    let segment = TcpSegment::parse(datagram.payload)?;
    Ok(Packet {
        source_mac: link.source,
        destination_mac: link.destination,
        vlan: link.vlan,
        source: SocketAddr::new(datagram.source, segment.header.source_port),
        destination: SocketAddr::new(datagram.destination, segment.header.destination_port),
        segment,
        ecn: datagram.traffic_class & 3,
    })
}

/// Returns the addresses of a frame, source first, as [`parse`] would find them. Nothing is
/// checked: they are good to prepare for a frame, and no more.
pub fn addresses(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (link, datagram) = EthernetHeader::parse(frame).ok()?;
    let (source, destination, tcp_at): (IpAddr, IpAddr, usize) = match link.ethertype {
        ethernet::IPV4 => {
            let address = |at| Some(Ipv4Addr::from(*datagram.get(at..)?.first_chunk()?).into());
            (
                address(12)?,
                address(16)?,
                usize::from(datagram[0] & 15) * 4,
            )
        }
        ethernet::IPV6 => {
            let address = |at| Some(Ipv6Addr::from(*datagram.get(at..)?.first_chunk()?).into());
            (address(8)?, address(24)?, ipv6::HEADER_LEN)
        }
        _ => return None,
    };
    let port = |at| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
    Some((
        SocketAddr::new(source, port(tcp_at)?),
        SocketAddr::new(destination, port(tcp_at + 2)?),
    ))
}

/// What both versions of IP say.
struct Datagram<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    traffic_class: u8,
    pseudo_sum: u16,
    payload: &'a [u8],
}

#[inline]
fn parse_ipv4(octets: &[u8], checksums: Checksums) -> Result<Datagram<'_>, PacketError> {
    let (header, payload) = Ipv4Header::parse(octets, checksums)?;
    let Ipv4Header {
        source,
        destination,
        protocol,
        traffic_class,
        ..
    } = header;
    let not_unicast = |a: Ipv4Addr| a.is_multicast() || a.is_broadcast() || a.is_unspecified();
    check_unicast(not_unicast(source), not_unicast(destination))?;
    Ok(Datagram {
        source: source.into(),
        destination: destination.into(),
        protocol,
        traffic_class,
        // No longer than 65535: the IP header counted it in 16 bits.
        pseudo_sum: pseudo_header_v4(source, destination, protocol, payload.len() as u16),
        payload,
    })
}

fn parse_ipv6(octets: &[u8]) -> Result<Datagram<'_>, PacketError> {
    let (header, payload) = Ipv6Header::parse(octets)?;
    let Ipv6Header {
        source,
        destination,
        next_header,
        traffic_class,
        ..
    } = header;
    let not_unicast = |a: Ipv6Addr| a.is_multicast() || a.is_unspecified();
    check_unicast(not_unicast(source), not_unicast(destination))?;
    Ok(Datagram {
        source: source.into(),
        destination: destination.into(),
        protocol: next_header,
        traffic_class,
        pseudo_sum: pseudo_header_v6(source, destination, next_header, payload.len() as u16),
        payload,
    })
}

fn check_unicast(bad_source: bool, bad_destination: bool) -> Result<(), PacketError> {
    match (bad_source, bad_destination) {
        (true, _) => Err(PacketError::NotUnicast("source IP")),
        (_, true) => Err(PacketError::NotUnicast("destination IP")),
        _ => Ok(()),
    }
}
