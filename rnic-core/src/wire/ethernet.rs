//! Ethernet II frames and VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).

use core::fmt;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::error::PacketError;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of a customer VLAN tag (802.1Q).
pub const VLAN: u16 = 0x8100;

/// Octets of a header without VLAN tag.
pub const HEADER_LEN: usize = 14;
/// Octets that one VLAN tag adds.
pub const VLAN_LEN: usize = 4;
/// The bits of a VLAN tag that say which VLAN it is; the others are priority and drop eligibility.
const VLAN_ID: u16 = 0x0fff;

/// A link-layer address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is the address of a group: multicast or broadcast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEthernet {
    destination: [u8; 6],
    source: [u8; 6],
    ethertype: U16,
}

/// What follows the EtherType of a VLAN tag.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTag {
    control: U16,
    ethertype: U16,
}

/// A frame's header. `ethertype` is the one behind a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Receiver.
    pub destination: MacAddr,
    /// Sender.
    pub source: MacAddr,
    /// The VLAN that it belongs to. A tag that has a priority alone names none.
    pub vlan: Option<u16>,
    /// What the payload is.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Reads the header of a frame with its VLAN tag, if it has one; returns what follows (with the
    /// padding, if any).
    ///
    /// A second tag, or one of a provider (802.1ad), is the EtherType of something that is none of
    /// ours.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let too_short = PacketError::Truncated("Ethernet");
        let (raw, mut rest) = RawEthernet::ref_from_prefix(frame).map_err(|_| too_short)?;
        let mut vlan = None;
        let mut ethertype = raw.ethertype.get();
        if ethertype == VLAN {
            let (tag, inner) = RawTag::ref_from_prefix(rest).map_err(|_| too_short)?;
            vlan = Some(tag.control.get() & VLAN_ID).filter(|id| *id != 0);
            ethertype = tag.ethertype.get();
            rest = inner;
        }
        let (destination, source) = (MacAddr(raw.destination), MacAddr(raw.source));
        Ok((
            Self {
                destination,
                source,
                vlan,
                ethertype,
            },
            rest,
        ))
    }

    /// Returns the number of octets that [`emit`](Self::emit) writes.
    pub const fn len(&self) -> usize {
        if self.vlan.is_some() {
            HEADER_LEN + VLAN_LEN
        } else {
            HEADER_LEN
        }
    }

    /// Writes the header, with an 802.1Q tag if there is a VLAN. Panics if `buffer` is shorter than
    /// that.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let raw = RawEthernet {
            destination: self.destination.0,
            source: self.source.0,
            ethertype: U16::new(if self.vlan.is_some() {
                VLAN
            } else {
                self.ethertype
            }),
        };
        buffer[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        if let Some(id) = self.vlan {
            let tag = RawTag {
                control: U16::new(id),
                ethertype: U16::new(self.ethertype),
            };
            buffer[HEADER_LEN..HEADER_LEN + VLAN_LEN].copy_from_slice(tag.as_bytes());
        }
        self.len()
    }
}
