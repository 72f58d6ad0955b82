//! HMAC-SHA2-256-128 and HMAC-SHA1-96, alone and as the ICV of what is encrypted otherwise.

use core::hint::black_box;

use ring::hmac::{self, Context, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256, Key};
use subtle::ConstantTimeEq;

use crate::wire::esp::ALIGNMENT;

use super::transform::{Cipher, Forged, Label, Shape};

/// Octets of a key (RFC 2404, RFC 4868).
const SHA1_KEY: usize = 20;
const SHA256_KEY: usize = 32;

/// Makes and verifies ICVs.
pub(super) struct Authenticator {
    key: Key,
    /// Octets of the ICV: the front of the HMAC.
    len: usize,
}

impl Authenticator {
    pub(super) fn sha256(key: &[u8]) -> Option<Self> {
        Self::new(HMAC_SHA256, key, SHA256_KEY, 16)
    }

    pub(super) fn sha1(key: &[u8]) -> Option<Self> {
        Self::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, key, SHA1_KEY, 12)
    }

    fn new(algorithm: hmac::Algorithm, key: &[u8], key_len: usize, len: usize) -> Option<Self> {
        (key.len() == key_len).then(|| Self {
            key: Key::new(algorithm, key),
            len,
        })
    }

    /// Returns the octets of an ICV.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the HMAC of a packet, whose front is the ICV: of the header, of `text`, and of the
    /// upper half of an extended number (RFC 4303 section 2.2.1).
    fn hmac(&self, label: &Label, text: &[u8]) -> hmac::Tag {
        let mut context = Context::with_key(&self.key);
        context.update(&label.spi.to_be_bytes());
        context.update(&(label.number as u32).to_be_bytes());
        context.update(text);
        if label.extended {
            context.update(&((label.number >> 32) as u32).to_be_bytes());
        }
        context.sign()
    }

    /// Writes the ICV behind the text of a packet.
    pub(super) fn write(&self, label: &Label, packet: &mut [u8]) {
        let at = packet.len() - self.len;
        let (text, icv) = packet.split_at_mut(at);
        icv.copy_from_slice(&self.hmac(label, text).as_ref()[..self.len]);
    }

    /// Verifies the ICV behind the text of a packet.
    pub(super) fn verify(&self, label: &Label, packet: &[u8]) -> Result<(), Forged> {
        let (text, icv) = packet.split_at(packet.len() - self.len);
        let right = self.hmac(label, text);
        match bool::from(right.as_ref()[..self.len].ct_eq(icv)) {
            true => Ok(()),
            false => Err(Forged),
        }
    }
}

impl Drop for Authenticator {
    /// The library leaves keys in memory: another one takes the place of this.
    fn drop(&mut self) {
        self.key = Key::new(self.key.algorithm(), &[]);
        black_box(&*self);
    }
}

/// Authenticates, and encrypts nothing (RFC 2410).
pub(super) struct Null(pub(super) Authenticator);

impl Cipher for Null {
    fn shape(&self) -> Shape {
        Shape {
            iv: 0,
            block: ALIGNMENT,
            icv: self.0.len(),
        }
    }

    fn seal(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) {
        self.0.write(label, packet);
    }

    fn open(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) -> Result<(), Forged> {
        self.0.verify(label, packet)
    }
}
