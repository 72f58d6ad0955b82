//! ICMP (RFC 792, RFC 1191) and ICMPv6 (RFC 4443), as far as they say that a packet of ours was too
//! big for a link.
//!
//! Everything else that ICMP can say of a connection is soft (RFC 1122 section 4.2.3.9, RFC 5461):
//! retransmission finds out whether it lasts, and anybody can forge it. So it is not read at all.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::checksum;
use super::encapsulation;
use super::esp::{self, EspHeader};
use super::tcp::{self, Seq};
use super::{ipv4, ipv6};

/// ICMP's type "destination unreachable".
pub const UNREACHABLE: u8 = 3;
/// ICMPv6's type "packet too big".
pub const PACKET_TOO_BIG: u8 = 2;

/// ICMP's code "fragmentation needed and DF set".
const FRAGMENTATION_NEEDED: u8 = 4;

/// MTUs of links, for routers that do not tell theirs (RFC 1191 section 7).
const PLATEAUS: [u16; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];

/// The least path MTU that is accepted, as in Linux: IPv4 paths with less are not known to exist,
/// and IPv6 ones must not (RFC 8200 section 5). With a lower value we would send little but
/// headers.
const LEAST_MTU_V4: u16 = 552;
const LEAST_MTU_V6: u16 = 1280;

/// Returns the least MTU that is accepted of a path to an address.
pub fn least_mtu(destination: IpAddr) -> u16 {
    match destination {
        IpAddr::V4(_) => LEAST_MTU_V4,
        IpAddr::V6(_) => LEAST_MTU_V6,
    }
}

/// What a router says of a packet of ours that did not fit into a link on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It was a segment.
    Segment(TooBig),
    /// It was protected.
    Protected(EspTooBig),
}

/// A packet of ESP of ours did not fit into a link on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspTooBig {
    /// The sender of the packet.
    pub source: IpAddr,
    /// Its receiver.
    pub destination: IpAddr,
    /// SPI and sequence number of the packet.
    pub header: EspHeader,
    /// Octets of the largest IP packet that fits.
    pub mtu: u16,
}

/// A segment of ours did not fit into a link on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// The sender of the segment.
    pub local: SocketAddr,
    /// Its receiver.
    pub remote: SocketAddr,
    /// The sequence number of the segment.
    pub seq: Seq,
    /// Octets of the largest IP packet that fits.
    pub mtu: u16,
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawIcmp {
    kind: u8,
    code: u8,
    checksum: U16,
    /// ICMP: 16 bits unused, 16 bits of MTU. ICMPv6: all of it.
    mtu: U32,
}

/// What is quoted of a TCP header at least.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QuotedTcp {
    source_port: U16,
    destination_port: U16,
    seq: U32,
}

impl Report {
    /// Reads an ICMP message in its IPv4 packet, as a raw socket gives it. `None` if it says
    /// anything else.
    pub fn parse_v4(packet: &[u8]) -> Option<Self> {
        let (ip, _) = ipv4::RawIpv4::ref_from_prefix(packet).ok()?;
        let message = packet.get(header_len(ip)?..)?;
        let (header, quoted) = RawIcmp::ref_from_prefix(message).ok()?;
        if (header.kind, header.code) != (UNREACHABLE, FRAGMENTATION_NEEDED)
            || checksum::sum(message) != 0xffff
        {
            return None;
        }
        // What is quoted is cut short: a length that says more than is there is right.
        let (ip, _) = ipv4::RawIpv4::ref_from_prefix(quoted).ok()?;
        let first_piece = ip.flags_and_offset.get() & ipv4::FRAGMENT_OFFSET == 0;
        if !first_piece {
            return None;
        }
        let payload = quoted.get(header_len(ip)?..)?;
        let mtu = match (header.mtu.get() & 0xffff) as u16 {
            0 => plateau_below(ip.total_length.get()),
            told => told,
        };
        let ends = [ip.source, ip.destination].map(|end| Ipv4Addr::from(end).into());
        Self::about(ends, (ip.protocol, payload), mtu)
    }

    /// Reads an ICMPv6 message, as a raw socket gives it: without its packet, its checksum
    /// verified.
    pub fn parse_v6(message: &[u8]) -> Option<Self> {
        let (header, quoted) = RawIcmp::ref_from_prefix(message).ok()?;
        let (ip, payload) = ipv6::RawIpv6::ref_from_prefix(quoted).ok()?;
        if header.kind != PACKET_TOO_BIG || ip.first.get() >> 28 != 6 {
            return None;
        }
        let mtu = u16::try_from(header.mtu.get()).unwrap_or(u16::MAX);
        let ends = [ip.source, ip.destination].map(|end| Ipv6Addr::from(end).into());
        Self::about(ends, (ip.next_header, payload), mtu)
    }

    fn about(
        [source, destination]: [IpAddr; 2],
        (protocol, payload): (u8, &[u8]),
        mtu: u16,
    ) -> Option<Self> {
        match protocol {
            tcp::PROTOCOL => {
                let (tcp, _) = QuotedTcp::ref_from_prefix(payload).ok()?;
                Some(Self::Segment(TooBig {
                    local: SocketAddr::new(source, tcp.source_port.get()),
                    remote: SocketAddr::new(destination, tcp.destination_port.get()),
                    seq: Seq(tcp.seq.get()),
                    mtu,
                }))
            }
            esp::PROTOCOL | encapsulation::PROTOCOL => {
                let udp = match protocol {
                    esp::PROTOCOL => 0,
                    _ => encapsulation::HEADER_LEN,
                };
                let (header, _) = EspHeader::parse(payload.get(udp..)?).ok()?;
                Some(Self::Protected(EspTooBig {
                    source,
                    destination,
                    header,
                    mtu,
                }))
            }
            _ => None,
        }
    }
}

fn header_len(ip: &ipv4::RawIpv4) -> Option<usize> {
    let len = usize::from(ip.version_and_length & 0xf) * 4;
    (ip.version_and_length >> 4 == 4 && len >= ipv4::HEADER_LEN).then_some(len)
}

fn plateau_below(len: u16) -> u16 {
    PLATEAUS.into_iter().find(|mtu| *mtu < len).unwrap_or(68)
}
