//! Addresses of this host.

use std::net::IpAddr;

use rnic_core::engine::Prefix;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::message::{Builder, Message};
use super::socket::{ReplyMode, RouteSocket};

const NEW_ADDRESS: u16 = 20;
const DELETED_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// `struct ifaddrmsg`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AddressInfo {
    family: u8,
    prefix_len: u8,
    flags: u8,
    scope: u8,
    index: u32,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) index: u32,
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
}

impl Address {
    /// Reads the message of an address that there is.
    pub(crate) fn from_message(message: &Message) -> Option<Self> {
        if message.kind != NEW_ADDRESS {
            return None;
        }
        let (info, attributes) = message.split::<AddressInfo>()?;
        // On a point-to-point link IFA_ADDRESS is the peer's.
        let address = attributes
            .address(IFA_LOCAL)
            .or(attributes.address(IFA_ADDRESS))?;
        Some(Self {
            index: info.index,
            address,
            prefix_len: info.prefix_len,
        })
    }

    /// Returns whether a message is about addresses.
    pub(crate) fn is_address_message(message: &Message) -> bool {
        matches!(message.kind, NEW_ADDRESS | DELETED_ADDRESS)
    }

    /// Returns whether another address lies in the network of this one.
    pub(crate) fn shares_network_with(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32u32.saturating_sub(self.prefix_len.into());
                (own.to_bits() ^ other.to_bits())
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128u32.saturating_sub(self.prefix_len.into());
                (own.to_bits() ^ other.to_bits())
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

impl Address {
    /// Returns its network.
    pub(crate) fn network(&self) -> Prefix {
        Prefix::new(self.address, self.prefix_len)
    }
}

/// Lists all addresses of this host.
pub(crate) fn addresses(socket: &mut RouteSocket) -> Result<Vec<Address>, NetlinkError> {
    let messages = socket
        .0
        .request("list the addresses", ReplyMode::Dump, |flags| {
            Builder::new(GET_ADDRESS, flags, &AddressInfo::default())
        })?;
    Ok(messages.iter().filter_map(Address::from_message).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_by_prefix() {
        let own = |address: &str, prefix_len| Address {
            index: 1,
            address: address.parse().unwrap(),
            prefix_len,
        };
        let net = own("10.1.2.3", 24);
        assert!(net.shares_network_with("10.1.2.250".parse().unwrap()));
        assert!(!net.shares_network_with("10.1.3.3".parse().unwrap()));
        assert!(!net.shares_network_with("::1".parse().unwrap()));
        assert!(own("10.1.2.3", 0).shares_network_with("1.1.1.1".parse().unwrap()));
        assert!(!own("10.1.2.3", 32).shares_network_with("10.1.2.2".parse().unwrap()));
        assert!(own("fd00::1", 64).shares_network_with("fd00::2".parse().unwrap()));
        assert!(!own("fd00::1", 64).shares_network_with("fd00:0:0:1::2".parse().unwrap()));
    }
}
