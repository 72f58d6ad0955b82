//! IPv6 headers (RFC 8200), without extension headers.

use core::net::Ipv6Addr;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::error::PacketError;

/// Octets of the header.
pub const HEADER_LEN: usize = 40;
/// Where the lower half of the traffic class stands, and the payload's length.
pub(super) const TRAFFIC_CLASS_AT: usize = 1;
pub(super) const LENGTH_AT: usize = 4;

/// Next-header value of a fragment.
const FRAGMENT: u8 = 44;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv6 {
    /// Version, traffic class and flow label.
    pub(super) first: U32,
    pub(super) payload_length: U16,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
    /// What follows: an IP protocol number or an extension header's.
    pub next_header: u8,
    /// Differentiated services and, in the two lowest bits, ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Ipv6Header {
    /// Reads a packet at the start of `octets`; returns its payload, cut to the length that the
    /// header states.
    pub fn parse(octets: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let too_short = PacketError::Truncated("IPv6");
        let (raw, rest) = RawIpv6::ref_from_prefix(octets).map_err(|_| too_short)?;
        let first = raw.first.get();
        if first >> 28 != 6 {
            return Err(PacketError::Malformed("IPv6 version"));
        }
        let payload = rest
            .get(..usize::from(raw.payload_length.get()))
            .ok_or(too_short)?;
        if raw.next_header == FRAGMENT {
            return Err(PacketError::Fragment);
        }
        let header = Self {
            source: raw.source.into(),
            destination: raw.destination.into(),
            next_header: raw.next_header,
            traffic_class: (first >> 20) as u8,
            hop_limit: raw.hop_limit,
        };
        Ok((header, payload))
    }

    /// Writes the header in front of `payload_len` octets, with flow label zero.
    /// Panics if `buffer` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, buffer: &mut [u8], payload_len: usize) -> usize {
        debug_assert!(payload_len <= usize::from(u16::MAX));
        let raw = RawIpv6 {
            first: U32::new(6 << 28 | u32::from(self.traffic_class) << 20),
            payload_length: U16::new(payload_len as u16),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        buffer[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        HEADER_LEN
    }
}
