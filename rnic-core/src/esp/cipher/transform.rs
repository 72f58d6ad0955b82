//! What all ciphers have in common.

use crate::wire::esp::HEADER_LEN;

/// What is authenticated in front of the payload: SPI and sequence number.
#[derive(Clone, Copy, Debug)]
pub(in crate::esp) struct Label {
    pub(in crate::esp) spi: u32,
    /// All of the number.
    pub(in crate::esp) number: u64,
    /// The upper half of the number is authenticated, though it is not sent (ESN).
    pub(in crate::esp) extended: bool,
}

/// Octets of a [`Label`] as AEADs authenticate it, with ESN.
const LABEL: usize = HEADER_LEN + 4;

impl Label {
    /// Returns the octets that an AEAD authenticates, and how many (RFC 4106 section 5).
    pub(super) fn aad(&self) -> ([u8; LABEL], usize) {
        let (high, low) = ((self.number >> 32) as u32, self.number as u32);
        let mut octets = [0; LABEL];
        octets[..4].copy_from_slice(&self.spi.to_be_bytes());
        if !self.extended {
            octets[4..8].copy_from_slice(&low.to_be_bytes());
            return (octets, HEADER_LEN);
        }
        // rfc: 7146-6
        octets[4..8].copy_from_slice(&high.to_be_bytes());
        octets[8..].copy_from_slice(&low.to_be_bytes());
        (octets, LABEL)
    }
}

/// What an algorithm adds to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::esp) struct Shape {
    /// Octets of the IV, behind the header.
    pub(in crate::esp) iv: usize,
    /// What is encrypted ends at a multiple of so many octets.
    pub(in crate::esp) block: usize,
    /// Octets of the ICV, behind the trailer.
    pub(in crate::esp) icv: usize,
}

/// The ICV of a received packet is wrong: somebody else made it, or it was changed on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::esp) struct Forged;

/// Seals and opens packets in place. A packet here is IV, what is encrypted (payload, padding and
/// trailer), ICV. `scratch` is the caller's, for what a cipher must put together, and used again.
pub(in crate::esp) trait Cipher: Send + Sync {
    fn shape(&self) -> Shape;

    /// Writes the IV, encrypts, and writes the ICV. The IV follows from the number, so that there
    /// are as many as numbers.
    fn seal(&self, label: &Label, packet: &mut [u8], scratch: &mut Vec<u8>);

    /// Verifies the ICV, and decrypts. What is [`Forged`] may be spoilt afterwards.
    fn open(&self, label: &Label, packet: &mut [u8], scratch: &mut Vec<u8>) -> Result<(), Forged>;
}
