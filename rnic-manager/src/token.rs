//! The secret by which a client shows that a port is its own.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use subtle::ConstantTimeEq;

/// 128 random bits that rnicd gives with a port, and that the client shows when it comes back. JSON
/// has them as 32 hexadecimal digits; `Debug` does not show them, so that no log has them.
///
/// Comparing two takes the same time wherever they differ.
#[derive(Clone, Copy)]
pub struct Token([u8; 16]);

impl Token {
    /// Makes one of the kernel's random numbers. Fails if the kernel has none yet.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut octets = [0; 16];
        getrandom::fill(&mut octets)?;
        Ok(Self(octets))
    }

    fn from_hex(text: &str) -> Option<Self> {
        let digits_only = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        if text.len() != 32 || !digits_only {
            return None;
        }
        let bits = u128::from_str_radix(text, 16).ok()?;
        Some(Self(bits.to_be_bytes()))
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error does not repeat the text: it is secret but for one digit, perhaps.
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| D::Error::custom("a token has 32 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_written_and_read() {
        let token = Token::random().unwrap();
        let text = serde_json::to_string(&token).unwrap();
        assert_eq!(text.len(), 34);
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), token);
        assert_eq!(
            serde_json::to_string(&Token([0; 16])).unwrap(),
            format!("\"{}\"", "0".repeat(32))
        );
    }

    #[test]
    fn tokens_differ_in_any_bit() {
        let token = Token::random().unwrap();
        for bit in 0..128 {
            let mut other = token;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(token, other, "bit {bit}");
        }
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
    }

    #[test]
    fn a_token_is_not_shown() {
        let secret = "00112233445566778899aabbccddeeff";
        let token = Token::from_hex(secret).unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
        for wrong in [
            "",
            "00112233445566778899aabbccddeef",
            "00112233445566778899aabbccddeeff0",
            "+0112233445566778899aabbccddeeff",
            "0x112233445566778899aabbccddeeff",
            "0011223344556677 899aabbccddeeff",
            "00112233445566778899aabbccddeefé",
        ] {
            let error = serde_json::from_value::<Token>(wrong.into()).unwrap_err();
            assert_eq!(error.to_string(), "a token has 32 hexadecimal digits");
        }
    }
}
