//! The algorithms that protect packets, behind one trait.

mod aead;
mod algorithm;
mod cbc;
mod choice;
mod hmac;
pub(super) mod transform;

pub use algorithm::{Algorithm, Keys, UnusableKey};
pub(super) use choice::cipher;
pub(super) use transform::{Cipher, Label, Shape};
