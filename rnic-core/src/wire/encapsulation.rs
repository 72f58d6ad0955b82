//! ESP in UDP (RFC 3948), for paths that pass nothing but UDP and TCP.

use core::fmt;
use core::net::IpAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{combine, pseudo_header_v6, sum};
use super::error::PacketError;

/// IP protocol number of UDP.
pub const PROTOCOL: u8 = 17;

/// Octets of the header.
pub const HEADER_LEN: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUdp {
    source: U16,
    destination: U16,
    len: U16,
    checksum: U16,
}

/// The UDP ports of packets of ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// The sender's.
    pub source: u16,
    /// The receiver's.
    pub destination: u16,
}

impl fmt::Display for UdpPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} to {}", self.source, self.destination)
    }
}

impl UdpPorts {
    /// Reads the header of a datagram that is all of `octets`; returns what follows. The checksum is
    /// not looked at: ESP has a better one (RFC 3948 section 3.1.2).
    pub fn parse(octets: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (raw, _) =
            RawUdp::ref_from_prefix(octets).map_err(|_| PacketError::Truncated("UDP"))?;
        let all = octets.get(..raw.len.get().into());
        let all = all.ok_or(PacketError::Truncated("UDP"))?;
        let payload = all.get(HEADER_LEN..);
        let ports = Self {
            source: raw.source.get(),
            destination: raw.destination.get(),
        };
        Ok((ports, payload.ok_or(PacketError::Malformed("UDP length"))?))
    }

    /// Writes the header in front of a payload that fills the rest of `datagram`. IPv4 needs no
    /// checksum (RFC 3948 section 2.1), and IPv6 does (RFC 8200 section 8.1).
    ///
    /// # Panics
    ///
    /// If `datagram` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, datagram: &mut [u8], source: IpAddr, destination: IpAddr) {
        let len = datagram.len() as u16;
        let mut raw = RawUdp {
            source: U16::new(self.source),
            destination: U16::new(self.destination),
            len: U16::new(len),
            checksum: U16::ZERO,
        };
        datagram[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
            let pseudo = pseudo_header_v6(source, destination, PROTOCOL, len);
            raw.checksum = match !combine(pseudo, sum(datagram)) {
                // Zero says that there is none.
                0 => U16::new(u16::MAX),
                checksum => U16::new(checksum),
            };
            datagram[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        }
    }
}
