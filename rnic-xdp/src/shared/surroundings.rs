//! What is known of the host of a shared device: its addresses there, the networks and the
//! neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rnic_core::engine::Prefix;
use rnic_core::time::Instant;
use rnic_core::wire::ethernet::MacAddr;

use crate::device::lingering::Lingering;
use crate::device::netlink::Neighbour;

/// What is known of this host.
#[derive(Default)]
pub(super) struct Surroundings {
    /// The device and the VLANs on it.
    pub(super) links: BTreeSet<u32>,
    /// The addresses of this host on the device and its VLANs, once they were read.
    pub(super) addresses: Option<BTreeSet<IpAddr>>,
    /// The networks of the device and its VLANs.
    pub(super) networks: Lingering<Prefix>,
    /// The neighbours that the kernel knows, by device and address, and their MAC addresses.
    pub(super) known: BTreeMap<(u32, IpAddr), MacAddr>,
    pub(super) macs: Lingering<MacAddr>,
}

impl Surroundings {
    /// Returns when to look at what is gone.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ends = [self.networks.next_timeout(), self.macs.next_timeout()];
        ends.into_iter().flatten().min()
    }

    /// Records what the kernel says of a neighbour. Returns whether its MAC address has changed.
    pub(super) fn take(&mut self, neighbour: &Neighbour) -> bool {
        let key = (neighbour.link, neighbour.address);
        match neighbour.mac {
            Some(mac) => self.known.insert(key, mac) != Some(mac),
            None => self.known.remove(&key).is_some(),
        }
    }

    /// Returns the MAC addresses of the neighbours on the device and its VLANs.
    pub(super) fn on_links(&self) -> BTreeSet<MacAddr> {
        let known = self.known.iter();
        let ours = known.filter(|((link, _), _)| self.links.contains(link));
        ours.map(|(_, mac)| *mac).collect()
    }
}
