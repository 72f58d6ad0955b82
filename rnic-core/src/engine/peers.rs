//! Which peers may connect to a listener.

use std::net::IpAddr;
use std::sync::Arc;

pub use crate::wire::prefix::{NoPrefix, Prefix};

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
