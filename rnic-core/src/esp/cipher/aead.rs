//! AES-GCM, ChaCha20-Poly1305 and AES-GMAC. The nonce is the salt and the sequence number, so that
//! none comes twice under a key.

use core::hint::black_box;

use ring::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::aead::{Aad, Algorithm, NONCE_LEN};

use crate::wire::esp::ALIGNMENT;

use super::transform::{Cipher, Forged, Label, Shape};

/// Octets of the salt behind a key.
const SALT: usize = 4;
/// Octets of the IV, which is the other part of the nonce.
const IV: usize = NONCE_LEN - SALT;
/// Octets of the ICV.
const ICV: usize = 16;

const SHAPE: Shape = Shape {
    iv: IV,
    block: ALIGNMENT,
    icv: ICV,
};

/// A key with its salt.
struct SaltedKey {
    key: LessSafeKey,
    salt: [u8; SALT],
}

impl SaltedKey {
    /// Reads a key with its salt. Returns `None` if it has another length.
    fn new(algorithm: &'static Algorithm, octets: &[u8]) -> Option<Self> {
        let (key, salt) = octets.split_last_chunk()?;
        let key = UnboundKey::new(algorithm, key).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            salt: *salt,
        })
    }

    /// Reads a key of AES.
    fn aes(octets: &[u8]) -> Option<Self> {
        Self::new(&AES_128_GCM, octets).or_else(|| Self::new(&AES_256_GCM, octets))
    }

    fn nonce(&self, iv: &[u8]) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..SALT].copy_from_slice(&self.salt);
        nonce[SALT..].copy_from_slice(iv);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Drop for SaltedKey {
    /// The library leaves keys in memory: another one takes the place of this.
    fn drop(&mut self) {
        const NOTHING: [u8; 32] = [0; 32];
        let algorithm = self.key.algorithm();
        if let Ok(key) = UnboundKey::new(algorithm, &NOTHING[..algorithm.key_len()]) {
            self.key = LessSafeKey::new(key);
        }
        self.salt = [0; SALT];
        black_box(&*self);
    }
}

/// An algorithm that encrypts and authenticates.
pub(super) struct Aead(SaltedKey);

impl Aead {
    pub(super) fn aes_gcm(key: &[u8]) -> Option<Self> {
        SaltedKey::aes(key).map(Self)
    }

    pub(super) fn chacha20_poly1305(key: &[u8]) -> Option<Self> {
        SaltedKey::new(&CHACHA20_POLY1305, key).map(Self)
    }
}

impl Cipher for Aead {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn seal(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) {
        let (aad, len) = label.aad();
        let (iv, rest) = packet.split_at_mut(IV);
        iv.copy_from_slice(&label.number.to_be_bytes());
        let at = rest.len() - ICV;
        let (text, icv) = rest.split_at_mut(at);
        let (key, nonce) = (&self.0.key, self.0.nonce(iv));
        let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(&aad[..len]), text);
        // It fails for more than 64 GiB alone.
        icv.copy_from_slice(sealed.expect("a packet is short enough").as_ref());
    }

    fn open(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) -> Result<(), Forged> {
        let (aad, len) = label.aad();
        let (iv, rest) = packet.split_at_mut(IV);
        let nonce = self.0.nonce(iv);
        let opened = self
            .0
            .key
            .open_in_place(nonce, Aad::from(&aad[..len]), rest);
        opened.map(drop).map_err(|_| Forged)
    }
}

/// AES-GMAC: AES-GCM of nothing, where all that is sent is authenticated beside it.
pub(super) struct Gmac(SaltedKey);

impl Gmac {
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        SaltedKey::aes(key).map(Self)
    }
}

/// Gathers what is authenticated: the label, IV and text (RFC 4543 section 3.3).
fn gather<'a>(label: &Label, text: &[u8], scratch: &'a mut Vec<u8>) -> Aad<&'a [u8]> {
    let (aad, len) = label.aad();
    scratch.clear();
    scratch.extend_from_slice(&aad[..len]);
    scratch.extend_from_slice(text);
    Aad::from(scratch.as_slice())
}

impl Cipher for Gmac {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn seal(&self, label: &Label, packet: &mut [u8], scratch: &mut Vec<u8>) {
        packet[..IV].copy_from_slice(&label.number.to_be_bytes());
        let at = packet.len() - ICV;
        let (text, icv) = packet.split_at_mut(at);
        let aad = gather(label, text, scratch);
        let (key, nonce) = (&self.0.key, self.0.nonce(&text[..IV]));
        let sealed = key.seal_in_place_separate_tag(nonce, aad, &mut []);
        icv.copy_from_slice(sealed.expect("a packet is short enough").as_ref());
    }

    fn open(&self, label: &Label, packet: &mut [u8], scratch: &mut Vec<u8>) -> Result<(), Forged> {
        let at = packet.len() - ICV;
        let (text, icv) = packet.split_at_mut(at);
        let aad = gather(label, text, scratch);
        let nonce = self.0.nonce(&text[..IV]);
        let opened = self.0.key.open_in_place(nonce, aad, icv);
        opened.map(drop).map_err(|_| Forged)
    }
}
