//! AES-CBC (RFC 3602) with the HMAC of what is encrypted.

use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecryptMut, BlockEncrypt, BlockEncryptMut, InnerIvInit, KeyInit};
use aes::{Aes128, Aes256, Block};
use cbc::{Decryptor, Encryptor};

use super::hmac::Authenticator;
use super::transform::{Cipher, Forged, Label, Shape};

/// Octets of a block, and of the IV.
const BLOCK: usize = 16;

/// AES with either length of keys. The library zeroes them.
enum Aes {
    Short(Box<Aes128>),
    Long(Box<Aes256>),
}

/// AES-CBC, then HMAC.
pub(super) struct Cbc {
    aes: Aes,
    icv: Authenticator,
}

impl Cbc {
    pub(super) fn new(key: &[u8], icv: Authenticator) -> Option<Self> {
        let aes = match key.len() {
            16 => Aes::Short(Box::new(Aes128::new_from_slice(key).ok()?)),
            32 => Aes::Long(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        };
        Some(Self { aes, icv })
    }

    /// Returns an IV that nobody can predict: the number, encrypted (NIST SP 800-38A appendix C).
    fn iv(&self, number: u64) -> Block {
        let mut iv = Block::default();
        iv[..8].copy_from_slice(&number.to_be_bytes());
        match &self.aes {
            Aes::Short(aes) => aes.encrypt_block(&mut iv),
            Aes::Long(aes) => aes.encrypt_block(&mut iv),
        }
        iv
    }
}

impl Cipher for Cbc {
    fn shape(&self) -> Shape {
        Shape {
            iv: BLOCK,
            block: BLOCK,
            icv: self.icv.len(),
        }
    }

    fn seal(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) {
        let iv = self.iv(label.number);
        let end = packet.len() - self.icv.len();
        packet[..BLOCK].copy_from_slice(&iv);
        let (blocks, _) = InOutBuf::from(&mut packet[BLOCK..end]).into_chunks();
        match &self.aes {
            Aes::Short(aes) => {
                Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks_inout_mut(blocks)
            }
            Aes::Long(aes) => {
                Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks_inout_mut(blocks)
            }
        }
        self.icv.write(label, packet);
    }

    fn open(&self, label: &Label, packet: &mut [u8], _: &mut Vec<u8>) -> Result<(), Forged> {
        self.icv.verify(label, packet)?;
        let end = packet.len() - self.icv.len();
        let (iv, text) = packet[..end].split_at_mut(BLOCK);
        let iv = Block::from_slice(iv);
        let (blocks, _) = InOutBuf::from(text).into_chunks();
        match &self.aes {
            Aes::Short(aes) => {
                Decryptor::inner_iv_init(&**aes, iv).decrypt_blocks_inout_mut(blocks)
            }
            Aes::Long(aes) => Decryptor::inner_iv_init(&**aes, iv).decrypt_blocks_inout_mut(blocks),
        }
        Ok(())
    }
}
