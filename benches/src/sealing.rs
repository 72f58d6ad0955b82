//! The work of ESP on octets, without its protocol: AES-GCM with a key of 128 bits, by the library
//! that rnic uses.

use std::hint::black_box;
use std::ops::Range;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::failure::Failure;

/// Octets of SPI, sequence number and IV, in front of what is encrypted.
const FRONT: usize = 8 + 8;
/// Octets behind it: the ICV.
const ICV: usize = 16;
/// Octets of the trailer, which is encrypted.
const TRAILER: usize = 2;
/// Octets that a packet has more than what is in it, without padding.
pub(crate) const OVERHEAD: usize = FRONT + TRAILER + ICV;

/// Returns where what is in a packet of so many octets lies.
pub(crate) fn inside_of(packet: usize) -> Range<usize> {
    FRONT..packet - TRAILER - ICV
}

/// Seals and opens packets. Whoever makes two gives both the same key.
pub(crate) struct Sealing {
    key: LessSafeKey,
    number: u64,
    buffer: Vec<u8>,
}

impl Sealing {
    pub(crate) fn new() -> Result<Self, Failure> {
        let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).map_err(|_| "AES-GCM takes no key")?;
        Ok(Self {
            key: LessSafeKey::new(key),
            number: 0,
            buffer: Vec::new(),
        })
    }

    /// Seals a packet in place, whose front, trailer and ICV are in it.
    pub(crate) fn seal(&mut self, packet: &mut [u8]) {
        self.number += 1;
        let number = self.number.to_be_bytes();
        let (front, rest) = packet.split_at_mut(FRONT);
        front[8..].copy_from_slice(&number);
        let at = rest.len() - ICV;
        let (text, icv) = rest.split_at_mut(at);
        let (nonce, aad) = (nonce(&number), Aad::from(&front[..8]));
        let sealed = self.key.seal_in_place_separate_tag(nonce, aad, text);
        // It fails for more than 64 GiB alone.
        icv.copy_from_slice(sealed.expect("a packet is short enough").as_ref());
    }

    /// Opens a packet, in a buffer: the library opens in place, and a received frame is not
    /// written. Returns what was in it, `None` if it was changed on its way.
    pub(crate) fn open(&mut self, packet: &[u8]) -> Option<&[u8]> {
        let (front, rest) = packet.split_at(FRONT);
        self.buffer.clear();
        self.buffer.extend_from_slice(rest);
        let (nonce, aad) = (nonce(&front[8..]), Aad::from(&front[..8]));
        let opened = self.key.open_in_place(nonce, aad, &mut self.buffer);
        let text = opened.ok()?;
        Some(black_box(&text[..text.len() - TRAILER]))
    }
}

fn nonce(number: &[u8]) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - number.len()..].copy_from_slice(number);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_opened_unless_it_was_changed() {
        let (mut one, mut other) = (Sealing::new().unwrap(), Sealing::new().unwrap());
        let inside: Vec<u8> = (0..100).collect();
        let mut packet = vec![0; inside.len() + OVERHEAD];
        let range = inside_of(packet.len());
        packet[range].copy_from_slice(&inside);
        one.seal(&mut packet);
        assert_ne!(packet[FRONT..][..100], inside);
        assert_eq!(other.open(&packet), Some(inside.as_slice()));
        packet[FRONT] ^= 1;
        assert_eq!(other.open(&packet), None);
    }
}
