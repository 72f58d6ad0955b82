//! Prefixes of IP addresses, as policies and administrators name ranges of hosts.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

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
