//! What a client of a shared device may do.

use std::net::IpAddr;

use rnic_core::engine::Peers;

use super::error::SharingError;

/// The most entries of the map of devices: the device itself, and its clients.
const MAX_DEVICES: u32 = 1024;

/// The octets of an Ethernet wire that a frame takes beside its IP packet: header with a VLAN tag,
/// frame check sequence, preamble and gap.
const ETHERNET: u64 = 18 + 4 + 8 + 12;

/// The most octets a second, and in a burst, with which the program can compute.
const MAX_RATE: u64 = 1 << 40;
const MAX_BURST: u64 = 1 << 32;

/// With whom a client of a shared device may speak: to whom it may send, and from whom anything
/// comes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPeers {
    /// The hosts in the networks of the device, as they are now, and this host.
    pub on_link: bool,
    /// Others, or all.
    pub listed: Peers,
}

impl ClientPeers {
    /// Returns whether an address is one of them, of which it is known whether it is on the link.
    pub fn contain(&self, address: IpAddr, is_on_link: bool) -> bool {
        (self.on_link && is_on_link) || self.listed.contains(address)
    }
}

impl From<Peers> for ClientPeers {
    fn from(listed: Peers) -> Self {
        let on_link = false;
        Self { on_link, listed }
    }
}

/// What a client of a shared device may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPolicy {
    /// The most octets behind the Ethernet header.
    pub mtu: u32,
    /// The most octets of an Ethernet wire a second: each frame takes 64 at least, with its check
    /// sequence, and 20 for preamble and gap. Without a rate there is no limit.
    pub rate: Option<u64>,
    /// With a rate: the octets of the wire that it may send at once after a pause.
    pub burst: u64,
    /// With whom it may speak.
    pub peers: ClientPeers,
}

impl ClientPolicy {
    /// Returns an error for values with which the client could send nothing, or that the program
    /// cannot compute with.
    pub(super) fn check(&self) -> Result<(), SharingError> {
        let Some(rate) = self.rate else {
            return Ok(());
        };
        let least = u64::from(self.mtu) + ETHERNET;
        if !(1..=MAX_RATE).contains(&rate) {
            return Err(SharingError::Rate {
                rate,
                most: MAX_RATE,
            });
        }
        if !(least..=MAX_BURST).contains(&self.burst) {
            return Err(SharingError::Burst {
                burst: self.burst,
                least,
                most: MAX_BURST,
            });
        }
        Ok(())
    }
}

/// Returns an error for a number that no port can have.
pub(super) fn check_port(port: u32) -> Result<(), SharingError> {
    let most = MAX_DEVICES - 1;
    match port {
        port if (1..=most).contains(&port) => Ok(()),
        _ => Err(SharingError::PortNumber { port, most }),
    }
}
