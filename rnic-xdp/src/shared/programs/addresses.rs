//! What the program that polices clients must know of the host: its addresses, and its neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::Prefix;
use rnic_core::wire::ethernet::MacAddr;

use super::layout::{self, AddressOctets, BROADCAST, NeighbourOctets, OWN};
use crate::device::steering::{Maps, io_error};

/// The longest prefix of a network that has a broadcast address (RFC 3021).
const LONGEST_WITH_BROADCAST: u8 = 30;

/// The slots of the map of neighbours.
const SLOTS: u16 = 1024;

/// The maps of addresses and neighbours.
pub(super) struct Addresses {
    addresses: HashMap<MapData, AddressOctets, u32>,
    /// One neighbour for each slot, with which the program compares, and the others.
    neighbours: Array<MapData, NeighbourOctets>,
    more: HashMap<MapData, NeighbourOctets, u32>,
    /// What these have, by slot; what a former process has left is not known.
    known: BTreeMap<u16, BTreeSet<MacAddr>>,
}

impl Addresses {
    pub(super) fn new(maps: &Maps) -> io::Result<Self> {
        let neighbours: Array<_, NeighbourOctets> = maps.get("police_neighbours")?;
        let more: HashMap<_, NeighbourOctets, u32> = maps.get("police_more_neighbours")?;
        let mut known: BTreeMap<u16, BTreeSet<MacAddr>> = BTreeMap::new();
        let mut know = |mac: MacAddr| known.entry(slot(mac)).or_default().insert(mac);
        for key in more.keys() {
            know(layout::mac(key.map_err(io_error)?));
        }
        for value in neighbours.iter() {
            let value = value.map_err(io_error)?;
            if value != layout::NO_NEIGHBOUR {
                know(layout::mac(value));
            }
        }
        Ok(Self {
            addresses: maps.get("police_addresses")?,
            known,
            neighbours,
            more,
        })
    }

    /// Makes the map hold these addresses of this host, each with its VLAN, the broadcast addresses
    /// of these networks, and no others.
    pub(super) fn set(
        &mut self,
        own: &[(IpAddr, u16)],
        networks: &[(Prefix, u16)],
    ) -> io::Result<()> {
        let broadcast = networks.iter().flat_map(|(network, vlan)| {
            let ends = ends(*network).into_iter().flatten();
            ends.map(|end| (layout::address(end.into(), *vlan), BROADCAST))
        });
        // An address of this host counts, whatever its network is.
        let own = own.iter();
        let own = own.map(|(ip, vlan)| (layout::address(*ip, *vlan), OWN));
        let wanted: BTreeMap<_, _> = broadcast.chain(own).collect();
        let present = self.addresses.iter().collect::<Result<BTreeMap<_, _>, _>>();
        let present = present.map_err(io_error)?;
        for (key, value) in &wanted {
            if present.get(key) != Some(value) {
                self.addresses.insert(key, value, 0).map_err(io_error)?;
            }
        }
        for old in present.keys().filter(|key| !wanted.contains_key(*key)) {
            self.addresses.remove(old).map_err(io_error)?;
        }
        Ok(())
    }

    /// Makes the maps hold the MAC addresses of these neighbours, and no others.
    pub(super) fn set_neighbours<'a>(
        &mut self,
        macs: impl Iterator<Item = &'a MacAddr>,
    ) -> io::Result<()> {
        let mut wanted: BTreeMap<u16, BTreeSet<MacAddr>> = BTreeMap::new();
        for &mac in macs.filter(|mac| !mac.is_group()) {
            wanted.entry(slot(mac)).or_default().insert(mac);
        }
        let slots: BTreeSet<_> = self.known.keys().chain(wanted.keys()).copied().collect();
        for slot in slots {
            let macs = wanted.remove(&slot).unwrap_or_default();
            self.set_slot(slot, macs)?;
        }
        Ok(())
    }

    fn set_slot(&mut self, slot: u16, macs: BTreeSet<MacAddr>) -> io::Result<()> {
        let known = self.known.entry(slot).or_default();
        if *known == macs {
            return Ok(());
        }
        let mut all = macs.iter();
        let first = all.next();
        let others = all.len().try_into().unwrap_or(u16::MAX);
        let value = first.map_or(layout::NO_NEIGHBOUR, |mac| layout::neighbour(*mac, others));
        for mac in all {
            let key = layout::neighbour(*mac, 0);
            self.more.insert(key, 1, 0).map_err(io_error)?;
        }
        self.neighbours
            .set(slot.into(), value, 0)
            .map_err(io_error)?;
        let stays = |mac: &MacAddr| macs.contains(mac) && Some(mac) != first;
        for old in known.iter().filter(|mac| !stays(mac)) {
            let removed = self.more.remove(&layout::neighbour(*old, 0));
            match removed.map_err(io_error) {
                // The one with which the program compared is not there.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *known = macs;
        Ok(())
    }
}

/// Returns the slot of a neighbour.
fn slot(mac: MacAddr) -> u16 {
    let [.., high, low] = mac.0;
    u16::from_be_bytes([high, low]) % SLOTS
}

/// Returns the first and the last address of a network, which are no host's: that of the network,
/// and the broadcast address.
fn ends(network: Prefix) -> Option<[Ipv4Addr; 2]> {
    let IpAddr::V4(first) = network.address() else {
        return None;
    };
    let rest = u32::MAX.checked_shr(network.bits().into()).unwrap_or(0);
    let has_them = network.bits() <= LONGEST_WITH_BROADCAST;
    has_them.then(|| [first, (first.to_bits() | rest).into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_end_with_addresses_of_no_host() {
        let ends = |network: &str| {
            let ends = ends(network.parse().unwrap());
            ends.map(|ends| ends.map(|end| end.to_string()))
        };
        let two = |first: &str, last: &str| Some([first.to_owned(), last.to_owned()]);
        assert_eq!(ends("192.0.2.0/24"), two("192.0.2.0", "192.0.2.255"));
        assert_eq!(ends("192.0.2.4/30"), two("192.0.2.4", "192.0.2.7"));
        assert_eq!(ends("10.0.0.0/8"), two("10.0.0.0", "10.255.255.255"));
        assert_eq!(ends("192.0.2.4/31"), None);
        assert_eq!(ends("192.0.2.4/32"), None);
        assert_eq!(ends("2001:db8::/64"), None);
    }
}
