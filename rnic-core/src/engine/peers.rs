//! Which peers may connect to a listener.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// A prefix: the addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The bits behind the prefix are zero.
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Makes the prefix of the first `len` bits of an address, or of all its bits if it has fewer.
    pub fn new(address: IpAddr, len: u8) -> Self {
        let len = len.min(bits(address));
        let rest = u32::from(bits(address) - len);
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
        };
        Self { address, len }
    }

    /// Returns the first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Returns whether it is a prefix of IPv4 addresses.
    pub fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// Returns whether an address has this prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        self.is_ipv4() == address.is_ipv4() && Self::new(address, self.len) == self
    }

    /// Returns whether all addresses with the other prefix have this one too.
    pub fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.address)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        if self.len == bits(self.address) {
            return Ok(());
        }
        write!(f, "/{}", self.len)
    }
}

/// The text is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no address or prefix; 192.0.2.1, 192.0.2.0/24 and 2001:db8::/32 are some")]
pub struct NoPrefix;

impl FromStr for Prefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse().map_err(|_| NoPrefix)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoPrefix)?;
        let len = len.unwrap_or(bits(address));
        if len > bits(address) {
            return Err(NoPrefix);
        }
        Ok(Self::new(address, len))
    }
}

/// The peers that may connect to a listener. By default all may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(Option<Arc<[Prefix]>>);

impl Peers {
    /// Returns the set of all peers.
    pub fn all() -> Self {
        Self(None)
    }

    /// Returns the peers that have one of these prefixes.
    pub fn only(prefixes: impl IntoIterator<Item = Prefix>) -> Self {
        Self(Some(prefixes.into_iter().collect()))
    }

    /// Returns the prefixes that they are limited to, if they are.
    pub fn limits(&self) -> Option<&[Prefix]> {
        self.0.as_deref()
    }

    /// Returns whether a peer with this address may connect.
    pub fn contains(&self, address: IpAddr) -> bool {
        let limits = self.limits();
        limits.is_none_or(|limits| limits.iter().any(|prefix| prefix.contains(address)))
    }

    /// Returns the parts of a prefix whose peers may connect.
    pub fn shared_with(&self, range: Prefix) -> Vec<Prefix> {
        let Some(limits) = self.limits() else {
            return vec![range];
        };
        let share = |limit: &Prefix| match limit {
            limit if limit.covers(range) => Some(range),
            limit => range.covers(*limit).then_some(*limit),
        };
        limits.iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_are_read_and_written() {
        for (text, written) in [
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1/32", "192.0.2.1"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::1", "::1"),
        ] {
            assert_eq!(prefix(text).to_string(), written);
        }
        for text in [
            "",
            "192.0.2",
            "192.0.2.0/33",
            "::/129",
            "192.0.2.0/",
            "192.0.2.0/-1",
            "x/8",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(NoPrefix), "{text}");
        }
    }

    #[test]
    fn addresses_belong_to_prefixes_of_their_family() {
        let contains = |text, address: &str| prefix(text).contains(address.parse().unwrap());
        assert!(contains("192.0.2.0/24", "192.0.2.255"));
        assert!(!contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("0.0.0.0/0", "255.1.2.3"));
        assert!(!contains("0.0.0.0/0", "::1") && !contains("::/0", "192.0.2.1"));
        assert!(contains("fd00::/9", "fd7f::1") && !contains("fd00::/9", "fd80::1"));
        assert!(prefix("10.0.0.0/8").covers(prefix("10.1.0.0/16")));
        assert!(!prefix("10.1.0.0/16").covers(prefix("10.0.0.0/8")));
    }

    #[test]
    fn peers_are_all_or_some() {
        let some = Peers::only([prefix("10.0.0.0/8"), prefix("fd00::1")]);
        assert!(some.contains("10.9.9.9".parse().unwrap()));
        assert!(some.contains("fd00::1".parse().unwrap()));
        assert!(!some.contains("fd00::2".parse().unwrap()));
        assert!(!Peers::only([]).contains("10.9.9.9".parse().unwrap()));
        assert!(Peers::all().contains("10.9.9.9".parse().unwrap()));
        assert_eq!(
            some.shared_with(prefix("0.0.0.0/0")),
            [prefix("10.0.0.0/8")]
        );
        assert_eq!(
            some.shared_with(prefix("10.1.0.0/16")),
            [prefix("10.1.0.0/16")]
        );
        assert_eq!(some.shared_with(prefix("11.0.0.0/8")), []);
        assert_eq!(Peers::all().shared_with(prefix("::/0")), [prefix("::/0")]);
    }
}
