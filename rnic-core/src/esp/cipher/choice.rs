//! The cipher of each algorithm.

use super::aead::{Aead, Gmac};
use super::algorithm::{Algorithm, Keys, UnusableKey};
use super::cbc::Cbc;
use super::hmac::{Authenticator, Null};
use super::transform::Cipher;

/// Makes the cipher of an algorithm.
pub(in crate::esp) fn cipher(
    algorithm: Algorithm,
    keys: &Keys,
) -> Result<Box<dyn Cipher>, UnusableKey> {
    let Keys {
        encryption,
        integrity,
    } = keys;
    let made: Option<Box<dyn Cipher>> = match algorithm {
        // rfc: 7146-15
        Algorithm::AesGcm => Aead::aes_gcm(encryption).map(boxed),
        Algorithm::ChaCha20Poly1305 => Aead::chacha20_poly1305(encryption).map(boxed),
        // rfc: 7146-9
        Algorithm::AesGmac => Gmac::new(encryption).map(boxed),
        // rfc: 7146-3, 7146-13, 7146-14, 7146-28
        Algorithm::AesCbcHmacSha256 => {
            let authenticator = Authenticator::sha256(integrity);
            authenticator.and_then(|icv| Cbc::new(encryption, icv).map(boxed))
        }
        Algorithm::AesCbcHmacSha1 => {
            let authenticator = Authenticator::sha1(integrity);
            authenticator.and_then(|icv| Cbc::new(encryption, icv).map(boxed))
        }
        // rfc: 7146-11, 7146-16
        Algorithm::NullHmacSha256 => Authenticator::sha256(integrity).map(|icv| boxed(Null(icv))),
        // rfc: 7146-7
        Algorithm::NullHmacSha1 => Authenticator::sha1(integrity).map(|icv| boxed(Null(icv))),
    };
    made.ok_or(UnusableKey {
        algorithm,
        bits: encryption.len().max(integrity.len()) * 8,
    })
}

fn boxed(cipher: impl Cipher + 'static) -> Box<dyn Cipher> {
    Box::new(cipher)
}
