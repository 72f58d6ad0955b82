//! Algorithms and their keys.

use core::fmt;
use core::hash::BuildHasher;

use ring::digest::{SHA256, digest};
use zeroize::Zeroizing;

/// What protects packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// AES-GCM with an ICV of 16 octets (RFC 4106). Keys of 128 or 256 bits.
    AesGcm,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-GMAC (RFC 4543): not encrypted.
    AesGmac,
    /// AES-CBC (RFC 3602) with HMAC-SHA2-256-128 (RFC 4868). Keys of 128 or 256 bits.
    AesCbcHmacSha256,
    /// AES-CBC with HMAC-SHA1-96 (RFC 2404). Keys of 128 or 256 bits.
    AesCbcHmacSha1,
    /// Not encrypted (RFC 2410), with HMAC-SHA2-256-128.
    NullHmacSha256,
    /// Not encrypted, with HMAC-SHA1-96.
    NullHmacSha1,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AesGcm,
        Self::ChaCha20Poly1305,
        Self::AesGmac,
        Self::AesCbcHmacSha256,
        Self::AesCbcHmacSha1,
        Self::NullHmacSha256,
        Self::NullHmacSha1,
    ];

    /// Returns the one with a name, as [`name`](Self::name) has it.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Returns its name, of the kernel's names.
    pub fn name(self) -> &'static str {
        match self {
            Self::AesGcm => "rfc4106(gcm(aes))",
            Self::ChaCha20Poly1305 => "rfc7539esp(chacha20,poly1305)",
            Self::AesGmac => "rfc4543(gcm(aes))",
            Self::AesCbcHmacSha256 => "cbc(aes) hmac(sha256)",
            Self::AesCbcHmacSha1 => "cbc(aes) hmac(sha1)",
            Self::NullHmacSha256 => "ecb(cipher_null) hmac(sha256)",
            Self::NullHmacSha1 => "ecb(cipher_null) hmac(sha1)",
        }
    }

    /// Returns whether a nonce that is used twice under one key breaks it, and the nonces are
    /// sequence numbers.
    pub fn counts_nonces(self) -> bool {
        matches!(self, Self::AesGcm | Self::ChaCha20Poly1305 | Self::AesGmac)
    }
}

impl fmt::Display for Algorithm {
    /// Formats it by the kernel's names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The keys of an association. They are zeroed when this is dropped, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// For encryption; with an AEAD, the salt of four octets is behind it.
    pub(super) encryption: Zeroizing<Vec<u8>>,
    /// For the ICV, where that has a key of its own.
    pub(super) integrity: Zeroizing<Vec<u8>>,
}

impl Keys {
    /// Takes over keys. `encryption` is empty where nothing is encrypted, and ends with the salt of
    /// an AEAD. `integrity` is empty with an AEAD.
    pub fn new(encryption: Vec<u8>, integrity: Vec<u8>) -> Self {
        Self {
            encryption: Zeroizing::new(encryption),
            integrity: Zeroizing::new(integrity),
        }
    }

    /// Returns both keys, for the process of who may have them.
    pub fn octets(&self) -> (&[u8], &[u8]) {
        (&self.encryption, &self.integrity)
    }

    /// Returns whether all octets of a key are zero, which no key manager negotiates: the kernel
    /// hides keys so in its lockdown for confidentiality.
    pub fn are_hidden(&self) -> bool {
        let hidden = |key: &[u8]| !key.is_empty() && key.iter().all(|octet| *octet == 0);
        hidden(&self.encryption) || hidden(&self.integrity)
    }

    /// Returns a fingerprint of the key that numbers are used under.
    pub fn fingerprint(&self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one(self.of_numbers())
    }

    /// Returns a fingerprint of it that is the same in each process. It says so little of the key
    /// that root may see it.
    pub fn print(&self) -> u32 {
        let digest = digest(&SHA256, self.of_numbers());
        let first = digest.as_ref().first_chunk();
        first.map_or(0, |octets| u32::from_be_bytes(*octets))
    }

    /// Returns the key that numbers are used under.
    fn of_numbers(&self) -> &[u8] {
        match self.encryption.is_empty() {
            true => &self.integrity,
            false => &self.encryption,
        }
    }

    /// Returns whether both have a key in common.
    pub fn share_with(&self, other: &Self) -> bool {
        let same = |one: &[u8], other: &[u8]| !one.is_empty() && one == other;
        same(&self.encryption, &other.encryption) || same(&self.integrity, &other.integrity)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

/// A key does not fit its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {bits} bits does not fit {algorithm}")]
pub struct UnusableKey {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bits of the key, with the salt of an AEAD.
    pub bits: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_keys_apart_in_each_process() {
        let keys = |encryption: &[u8], integrity: &[u8]| {
            Keys::new(encryption.to_vec(), integrity.to_vec()).print()
        };
        // The first octets of SHA-256 of "abc" (FIPS 180-2, appendix B.1).
        assert_eq!(keys(b"abc", b""), 0xba78_16bf);
        assert_eq!(keys(b"", b"abc"), 0xba78_16bf);
        assert_eq!(keys(b"abc", b"other"), 0xba78_16bf);
        assert_ne!(keys(b"abd", b""), 0xba78_16bf);
    }
}
