//! What the environment says of IPsec, for programs that know nothing of it.

use std::env;
use std::num::NonZeroU32;
use std::sync::OnceLock;

use rnic_xdp::InterfaceConfig;

/// What the environment says of IPsec (docs/ipsec.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipsec {
    /// [`InterfaceConfig::ipsec_if_id`].
    pub if_id: Option<NonZeroU32>,
    /// [`InterfaceConfig::require_protection`].
    pub required: bool,
}

impl Ipsec {
    /// The variable that has the number of policies and associations.
    pub const IF_ID: &str = "RNIC_IPSEC_IF_ID";
    /// The variable that requires protection (1).
    pub const REQUIRED: &str = "RNIC_REQUIRE_PROTECTION";

    /// Returns what the environment said when this process asked first: a program that cleans its
    /// environment afterwards is to be protected nevertheless. Fails if a value is not valid: the
    /// error names the variable and what it must be. A program that asks for protection must not run
    /// without it.
    pub fn of_environment() -> Result<Self, String> {
        static FIRST: OnceLock<Result<Ipsec, String>> = OnceLock::new();
        FIRST.get_or_init(Self::read).clone()
    }

    fn read() -> Result<Self, String> {
        let value = |name| match env::var(name) {
            Err(env::VarError::NotPresent) => Ok(String::new()),
            Err(why) => Err(format!("{name}: {why}")),
            Ok(text) => Ok(text),
        };
        Self::parse(&value(Self::IF_ID)?, &value(Self::REQUIRED)?)
    }

    fn parse(number: &str, required: &str) -> Result<Self, String> {
        let if_id = match number {
            "" => None,
            text => Some(if_id(text).map_err(|why| format!("{}: {why}", Self::IF_ID))?),
        };
        let required = match required {
            "" | "0" => false,
            "1" => true,
            _ => return Err(format!("{}: 0 or 1 is needed", Self::REQUIRED)),
        };
        Ok(Self { if_id, required })
    }

    /// Returns a combination that no device accepts. It stands for an environment that is not valid:
    /// that may have asked for protection.
    pub(crate) fn refused() -> Self {
        Self {
            if_id: None,
            required: true,
        }
    }

    /// Sets it for an interface.
    pub(crate) fn apply(self, interface: &mut InterfaceConfig) {
        interface.ipsec_if_id = self.if_id;
        interface.require_protection = self.required;
    }
}

/// Reads the number of an xfrm interface, as `ip xfrm` takes it. Fails with what it must be.
pub fn if_id(text: &str) -> Result<NonZeroU32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let number = number.and_then(NonZeroU32::new);
    number.ok_or_else(|| "a number from 1 to 0xffffffff is needed, such as 0x524e".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let of = |if_id, required| Ok(Ipsec { if_id, required });
        assert_eq!(Ipsec::parse("", ""), of(None, false));
        let number = NonZeroU32::new(0x524e);
        assert_eq!(Ipsec::parse("0x524e", "1"), of(number, true));
        assert_eq!(Ipsec::parse("21070", "0"), of(number, false));
        // Required without a number: opening the device fails, and says what is missing.
        assert_eq!(Ipsec::parse("", "1"), of(None, true));
        for (number, required) in [("0", ""), ("x", ""), ("0x", "1"), ("1", "yes"), ("-1", "")] {
            assert!(
                Ipsec::parse(number, required).is_err(),
                "{number} {required}"
            );
        }
    }
}
