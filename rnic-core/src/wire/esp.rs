//! ESP (RFC 4303): the header in front of what is protected, and the trailer behind it.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::PacketError;

/// IP protocol number.
pub const PROTOCOL: u8 = 50;

/// Octets of the header.
pub const HEADER_LEN: usize = 8;

/// Octets of the trailer behind the padding.
pub const TRAILER_LEN: usize = 2;

/// What is protected ends at a multiple of so many octets (RFC 4303 section 2.4).
pub const ALIGNMENT: usize = 4;

/// Next-header value of an IPv4 packet, in tunnel mode.
pub const IPV4: u8 = 4;
/// Next-header value of an IPv6 packet, in tunnel mode.
pub const IPV6: u8 = 41;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEsp {
    spi: U32,
    number: U32,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspHeader {
    /// The Security Parameters Index: names the association at the receiver.
    pub spi: u32,
    /// The lower half of the sequence number.
    pub number: u32,
}

impl EspHeader {
    /// Reads a header; returns what follows.
    pub fn parse(octets: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let too_short = |_| PacketError::Truncated("ESP");
        let (raw, rest) = RawEsp::ref_from_prefix(octets).map_err(too_short)?;
        let header = Self {
            spi: raw.spi.get(),
            number: raw.number.get(),
        };
        Ok((header, rest))
    }

    /// Writes the header. Panics if `buffer` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let raw = RawEsp {
            spi: U32::new(self.spi),
            number: U32::new(self.number),
        };
        buffer[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        HEADER_LEN
    }
}

/// Returns how many octets of padding follow a payload, so that they end together with the trailer
/// at a multiple of `block`, which is one of [`ALIGNMENT`].
pub const fn padding(payload_len: usize, block: usize) -> usize {
    let end = payload_len + TRAILER_LEN;
    end.next_multiple_of(block) - end
}

/// Writes padding and trailer into all of `room`, which is behind the payload.
///
/// # Panics
///
/// If `room` is shorter than the trailer, or longer than padding can be.
pub fn emit_trailer(room: &mut [u8], next_header: u8) {
    let padding = room.len() - TRAILER_LEN;
    assert!(padding <= usize::from(u8::MAX), "too much padding");
    // 1, 2, 3 and so on (RFC 4303 section 2.4).
    for (octet, value) in room[..padding].iter_mut().zip(1..=u8::MAX) {
        *octet = value;
    }
    room[padding] = padding as u8;
    room[padding + 1] = next_header;
}

/// Reads the trailer of what was protected. Returns the payload in front of it and what it is.
pub fn parse_trailer(octets: &[u8]) -> Result<(&[u8], u8), PacketError> {
    let too_short = PacketError::Truncated("ESP");
    let (rest, [padding, next_header]) = octets.split_last_chunk().ok_or(too_short)?;
    let at = rest.len().checked_sub(usize::from(*padding));
    let (payload, padding) = rest.split_at(at.ok_or(too_short)?);
    // A receiver should look (RFC 4303 section 2.4).
    if !padding
        .iter()
        .copied()
        .eq((1..=u8::MAX).take(padding.len()))
    {
        return Err(PacketError::Malformed("ESP padding"));
    }
    Ok((payload, *next_header))
}
