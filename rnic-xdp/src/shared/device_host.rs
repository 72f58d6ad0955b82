//! What the programs of a shared device must know of this host, kept current: its addresses there,
//! the networks and the neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rnic_core::time::Instant;
use rnic_manager::states::DeviceNews;
use tracing::warn;

use super::device::{SharedDevice, sharing};
use crate::device::clock::clock;
use crate::device::error::OpenError;
use crate::device::netlink::{Address, Link, Message, Neighbour, addresses, links, neighbours};
use crate::device::vlans::places;

impl SharedDevice {
    /// Returns whether an address is this host's, or in a network of the device: whether a client
    /// that may speak with hosts on the link may speak with it.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        let mut networks = self.surroundings.networks.members();
        address.is_loopback() || networks.any(|network| network.contains(address))
    }

    /// Follows addresses and neighbours.
    pub(super) fn follow_surroundings(&mut self, messages: &[Message]) {
        if messages.iter().any(concerns_addresses) {
            self.read_addresses();
            self.mapper.refresh_soon();
        }
        let mut last = false;
        for neighbour in messages.iter().filter_map(Neighbour::from_message) {
            last |= self.surroundings.take(&neighbour);
        }
        if last {
            self.tell_neighbours();
        }
    }

    /// Removes networks and neighbours that have been gone for long enough.
    pub(super) fn expire_surroundings(&mut self, now: Instant) {
        if self.surroundings.networks.expire(now) {
            self.tell_networks();
        }
        if self.surroundings.macs.expire(now) {
            self.tell_neighbours();
        }
    }

    /// Reads what notifications would have told.
    pub(super) fn read_surroundings(&mut self) {
        match neighbours(&mut self.requests) {
            Ok(all) => {
                self.surroundings.known.clear();
                for neighbour in &all {
                    self.surroundings.take(neighbour);
                }
            }
            Err(error) => warn!("{}: cannot list the neighbours: {error}", self.link.name),
        }
        // On which links they are.
        self.read_addresses();
        self.tell_neighbours();
    }

    /// Tells the programs the addresses of this host.
    fn read_addresses(&mut self) {
        let told = self.tell_addresses();
        if let Err(error) = told {
            warn!(
                "{}: cannot follow the addresses of this host: {error}",
                self.link.name
            );
        }
    }

    fn tell_addresses(&mut self) -> Result<(), OpenError> {
        let links = links(&mut self.requests)?;
        let addresses = addresses(&mut self.requests)?;
        let places = places(self.link.index, &links, &addresses);
        self.report_addresses(places.keys().copied().collect());
        let each = |(address, vlans): (IpAddr, BTreeSet<u16>)| {
            vlans.into_iter().map(move |vlan| (address, vlan))
        };
        let own: Vec<_> = places.into_iter().flat_map(each).collect();
        let vlans = vlans(self.link.index, &links);
        let network = |own: &Address| Some((own.network(), *vlans.get(&own.index)?));
        let networks: Vec<_> = addresses.iter().filter_map(network).collect();
        self.steering
            .set_addresses(&own, &networks)
            .map_err(sharing)?;
        let now = Instant::from_nanos(clock());
        let networks = networks.into_iter().map(|(network, _)| network);
        self.surroundings.networks.set(now, networks.collect());
        self.tell_networks();
        let ours: BTreeSet<_> = vlans.into_keys().collect();
        if ours != self.surroundings.links {
            self.surroundings.links = ours;
            self.tell_neighbours();
        }
        Ok(())
    }

    fn tell_networks(&mut self) {
        let mut networks: Vec<_> = self.surroundings.networks.members().copied().collect();
        // Link-local ones are the least used.
        networks.sort_by_key(|network| is_link_local(network.address()));
        if let Err(error) = self.steering.set_on_link(&networks) {
            warn!("{}: {error}", self.link.name);
        }
    }

    fn tell_neighbours(&mut self) {
        let now = Instant::from_nanos(clock());
        let present = self.surroundings.on_links();
        let macs = &mut self.surroundings.macs;
        macs.set(now, present);
        if let Err(error) = self.steering.set_neighbours(macs.members()) {
            warn!("{}: {error}", self.link.name);
        }
    }

    /// Reports which addresses were added and removed since the device was opened.
    fn report_addresses(&mut self, now: BTreeSet<IpAddr>) {
        let Some(before) = self.surroundings.addresses.replace(now.clone()) else {
            return;
        };
        for &address in before.difference(&now) {
            self.report(DeviceNews::AddressRemoved { address });
        }
        for &address in now.difference(&before) {
            self.report(DeviceNews::AddressAdded { address });
        }
    }
}

/// Returns the VLANs of a device by the indices of their links; 0 is the device itself.
fn vlans(device: u32, links: &[Link]) -> BTreeMap<u32, u16> {
    let vlan = |link: &Link| match link.index == device {
        true => Some((device, 0)),
        false => Some((link.index, link.vlan_on(device)?)),
    };
    links.iter().filter_map(vlan).collect()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn concerns_addresses(message: &Message) -> bool {
    Address::is_address_message(message) || Link::is_link_message(message)
}
