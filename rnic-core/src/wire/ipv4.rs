//! IPv4 headers (RFC 791).

use core::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::error::PacketError;

use super::checksum::{self, Checksums};

/// Octets of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where its fields stand.
pub(super) const TRAFFIC_CLASS_AT: usize = 1;
pub(super) const LENGTH_AT: usize = 2;
pub(super) const CHECKSUM_AT: usize = 10;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
pub(super) const FRAGMENT_OFFSET: u16 = 0x1fff;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv4 {
    pub(super) version_and_length: u8,
    pub(super) traffic_class: u8,
    pub(super) total_length: U16,
    pub(super) identification: U16,
    pub(super) flags_and_offset: U16,
    pub(super) hop_limit: u8,
    pub(super) protocol: u8,
    pub(super) checksum: U16,
    pub(super) source: [u8; 4],
    pub(super) destination: [u8; 4],
}

/// The header of a whole datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
    /// What the payload is: an IP protocol number.
    pub protocol: u8,
    /// Differentiated services and, in the two lowest bits, ECN.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
}

impl Ipv4Header {
    /// Reads a datagram at the start of `octets`; returns its payload, cut to the length that the
    /// header states. Options are skipped; fragments are refused.
    #[inline]
    pub fn parse(octets: &[u8], checksums: Checksums) -> Result<(Self, &[u8]), PacketError> {
        let too_short = PacketError::Truncated("IPv4");
        let (raw, _) = RawIpv4::ref_from_prefix(octets).map_err(|_| too_short)?;
        if raw.version_and_length >> 4 != 4 {
            return Err(PacketError::Malformed("IPv4 version"));
        }
        let header_len = usize::from(raw.version_and_length & 0xf) * 4;
        let total_len = usize::from(raw.total_length.get());
        if header_len < HEADER_LEN || total_len < header_len {
            return Err(PacketError::Malformed("IPv4 length"));
        }
        let datagram = octets.get(..total_len).ok_or(too_short)?;
        let (header, payload) = datagram.split_at_checked(header_len).ok_or(too_short)?;
        if checksums != Checksums::Unnecessary && checksum::sum(header) != 0xffff {
            return Err(PacketError::Checksum("IPv4"));
        }
        if raw.flags_and_offset.get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
            return Err(PacketError::Fragment);
        }
        let header = Self {
            source: raw.source.into(),
            destination: raw.destination.into(),
            protocol: raw.protocol,
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
        };
        Ok((header, payload))
    }

    /// Writes a header without options in front of `payload_len` octets. The datagram is atomic: it
    /// must not be fragmented, and so its identification means nothing and is zero (RFC 6864
    /// section 4.1). Panics if `buffer` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, buffer: &mut [u8], payload_len: usize) -> usize {
        debug_assert!(payload_len <= usize::from(u16::MAX) - HEADER_LEN);
        let mut raw = RawIpv4 {
            version_and_length: 0x45,
            traffic_class: self.traffic_class,
            total_length: U16::new((HEADER_LEN + payload_len) as u16),
            identification: U16::ZERO,
            flags_and_offset: U16::new(DONT_FRAGMENT),
            hop_limit: self.hop_limit,
            protocol: self.protocol,
            checksum: U16::ZERO,
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        raw.checksum = U16::new(!checksum::sum(raw.as_bytes()));
        buffer[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        HEADER_LEN
    }
}
