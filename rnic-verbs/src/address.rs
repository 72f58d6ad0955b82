//! Addresses of memory: local pieces, and where the peer's memory is.

use rnic_core::verbs::sge;
use rnic_core::wire::ddp::Stag;
use zerocopy::{Immutable, IntoBytes};

/// A scatter/gather element: a piece of registered local memory. [`Mr::sge`](crate::Mr::sge) makes
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Sge(pub(crate) sge::Sge);

impl Sge {
    /// Makes one from its parts.
    pub fn new(stag: Stag, offset: u64, length: u32) -> Self {
        Self(sge::Sge {
            offset,
            length,
            lkey: stag.0,
        })
    }

    /// Returns the number of octets.
    pub fn length(&self) -> u32 {
        self.0.length
    }
}

/// An address in the peer's memory, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The peer's Steering Tag.
    pub stag: Stag,
    /// The tagged offset in it.
    pub offset: u64,
}

impl RemoteAddress {
    /// Octets of an advertisement.
    pub const LEN: usize = 12;

    /// Returns it as one side advertises it to the other, in private data or a message: the STag
    /// and the tagged offset in network byte order.
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..4].copy_from_slice(&self.stag.0.to_be_bytes());
        octets[4..].copy_from_slice(&self.offset.to_be_bytes());
        octets
    }

    /// Returns what [`to_octets`](Self::to_octets) made octets of.
    pub fn from_octets(octets: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, offset @ ..] = octets;
        Self {
            stag: Stag(u32::from_be_bytes([a, b, c, d])),
            offset: u64::from_be_bytes(offset),
        }
    }

    /// Returns the address so many octets further.
    pub fn plus(self, octets: u64) -> Self {
        Self {
            offset: self.offset.wrapping_add(octets),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_reads_as_it_was_written() {
        let address = RemoteAddress {
            stag: Stag(0x0102_0304),
            offset: 0x1112_1314_1516_1718,
        };
        let octets = [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(address.to_octets(), octets);
        assert_eq!(RemoteAddress::from_octets(octets), address);
        assert_eq!(address.plus(8).offset, 0x1112_1314_1516_1720);
    }
}
