//! The MAC addresses and VLANs by which frames are this host's: the device's own, and those of VLAN
//! devices on it.
//!
//! The kernel drops frames for another MAC address, or in a VLAN for which the host has no device.
//! The steering program must pass such frames, so this module keeps its table of addresses and
//! VLANs up to date, the one of the local addresses whose frames arrive without the tag of their
//! VLAN, and the one of the addresses that entries for any address are for.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::Prefix;
use rnic_core::wire::ethernet::MacAddr;

use super::host::Host;
use super::layout::{self, AddressOctets, LinkOctets};
use super::load::Maps;
use super::maps::io_error;
use crate::device::netlink::{Link, LinkChange, NetlinkError, RouteSocket, links};
use crate::device::vlans::Untagged;

/// The links of a device, shared by all that follow them.
#[derive(Clone)]
pub(crate) struct SteeredLinks(Arc<Mutex<Links>>);

struct Links {
    map: Array<MapData, LinkOctets>,
    known: Known,
    /// The table in the program's map, where there is something.
    written: BTreeMap<u16, LinkOctets>,
    untagged: HashMap<MapData, AddressOctets, u32>,
    /// Whether there are addresses whose frames arrive without a tag.
    untags: bool,
    host: Host,
}

/// By VLAN, the MAC addresses of its own device and of the one below.
type Table = BTreeMap<u16, [MacAddr; 2]>;

/// The device and the VLANs on it.
#[derive(Debug)]
struct Known {
    device: u32,
    mac: Option<MacAddr>,
    /// By the index of the VLAN device: those that are up.
    vlans: BTreeMap<u32, (u16, MacAddr)>,
}

impl std::fmt::Debug for SteeredLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteeredLinks")
    }
}

impl SteeredLinks {
    /// Makes it for the map of these, which is empty or that of a former process.
    pub(crate) fn new(device: u32, maps: &Maps) -> io::Result<Self> {
        let map: Array<MapData, LinkOctets> = maps.get("steer_links")?;
        let mut written = BTreeMap::new();
        for (vlan, octets) in (0..).zip(map.iter()) {
            let octets = octets.map_err(io_error)?;
            if octets != layout::link(None, false) {
                written.insert(vlan, octets);
            }
        }
        Ok(Self(Arc::new(Mutex::new(Links {
            host: Host::new(maps)?,
            map,
            known: Known::new(device),
            untags: written.get(&0).is_some_and(layout::untags),
            written,
            untagged: maps.get("steer_untagged")?,
        }))))
    }

    /// Reads all links from the kernel, and updates the program's map.
    pub(crate) fn read(&self, socket: &mut RouteSocket) -> Result<io::Result<()>, NetlinkError> {
        let all = links(socket)?;
        Ok(self.change(|known| {
            *known = Known::new(known.device);
            all.iter().for_each(|link| known.update(link));
        }))
    }

    /// Applies a change to the program's map.
    pub(crate) fn follow(&self, change: &LinkChange) -> io::Result<()> {
        self.change(|known| match change {
            LinkChange::Is(link) => known.update(link),
            LinkChange::Gone(index) => known.forget(*index),
        })
    }

    /// Sets which local addresses get their frames without a tag.
    pub(crate) fn set_untagged(&self, vlans: &Untagged) -> io::Result<()> {
        let mut links = self.lock();
        links.untags = !vlans.is_empty();
        links.write()?;
        links.write_untagged(vlans)
    }

    /// Sets which addresses this host has, on whatever device, those first that are looked for
    /// most.
    pub(crate) fn set_locals(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.lock().host.set_locals(addresses)
    }

    /// Sets in which networks the device is, those first that are looked for most.
    pub(crate) fn set_networks(&self, networks: &[Prefix]) -> io::Result<()> {
        self.lock().host.set_networks(networks)
    }

    fn change(&self, change: impl FnOnce(&mut Known)) -> io::Result<()> {
        let mut links = self.lock();
        change(&mut links.known);
        links.write()
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Links {
    /// Writes what differs to the program's map.
    fn write(&mut self) -> io::Result<()> {
        let value = |vlan, macs| layout::link(Some(macs), vlan == 0 && self.untags);
        let known = self.known.table().into_iter();
        let table: BTreeMap<_, _> = known
            .map(|(vlan, macs)| (vlan, value(vlan, macs)))
            .collect();
        let before = std::mem::take(&mut self.written);
        let vlans = before.keys().chain(table.keys());
        let changed: Vec<_> = vlans
            .copied()
            .filter(|vlan| before.get(vlan) != table.get(vlan))
            .collect();
        for vlan in changed {
            let none = layout::link(None, false);
            let octets = table.get(&vlan).copied().unwrap_or(none);
            self.map.set(vlan.into(), octets, 0).map_err(io_error)?;
        }
        self.written = table;
        Ok(())
    }

    /// Makes the map hold these addresses, and no others.
    fn write_untagged(&mut self, vlans: &Untagged) -> io::Result<()> {
        let wanted = vlans.iter();
        let wanted: BTreeMap<_, u32> = wanted
            .map(|(address, vlan)| (layout::address(*address), (*vlan).into()))
            .collect();
        let present = self.untagged.iter().collect::<Result<BTreeMap<_, _>, _>>();
        let present = present.map_err(io_error)?;
        for old in present.keys().filter(|old| !wanted.contains_key(*old)) {
            self.untagged.remove(old).map_err(io_error)?;
        }
        for (address, vlan) in wanted {
            if present.get(&address) != Some(&vlan) {
                self.untagged.insert(address, vlan, 0).map_err(io_error)?;
            }
        }
        Ok(())
    }
}

impl Known {
    fn new(device: u32) -> Self {
        Self {
            device,
            mac: None,
            vlans: BTreeMap::new(),
        }
    }

    fn update(&mut self, link: &Link) {
        if link.index == self.device {
            // If the device is a VLAN itself, its driver adds and removes that tag.
            self.mac = Some(link.mac);
            return;
        }
        let vlan = link.vlan_on(self.device).filter(|_| link.up);
        match vlan {
            Some(vlan) => drop(self.vlans.insert(link.index, (vlan, link.mac))),
            None => drop(self.vlans.remove(&link.index)),
        }
    }

    fn forget(&mut self, index: u32) {
        self.vlans.remove(&index);
        self.mac = self.mac.filter(|_| index != self.device);
    }

    fn table(&self) -> Table {
        let Some(mac) = self.mac else {
            return Table::new();
        };
        let vlans = self.vlans.values();
        let vlans = vlans.map(|(vlan, own)| (*vlan, [*own, mac]));
        std::iter::once((0, [mac, mac])).chain(vlans).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::Vlan;

    const DEVICE: u32 = 3;

    fn link(index: u32, mac: u8, vlan: Option<(u32, u16)>) -> Link {
        Link {
            index,
            mac: mac_of(mac),
            vlan: vlan.map(|(parent, id)| Vlan {
                parent,
                id,
                is_8021q: true,
            }),
            ..Link::for_test()
        }
    }

    fn mac_of(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn the_table_follows_the_device_and_the_vlans_on_it() {
        let mut known = Known::new(DEVICE);
        assert_eq!(known.table(), Table::new());
        known.update(&link(DEVICE, 1, None));
        known.update(&link(7, 1, Some((DEVICE, 42))));
        known.update(&link(8, 8, Some((DEVICE, 43))));
        // Of another device, and no VLAN at all.
        known.update(&link(9, 9, Some((DEVICE + 1, 44))));
        known.update(&link(10, 9, None));
        let own = mac_of(1);
        let all = [(0, [own; 2]), (42, [own; 2]), (43, [mac_of(8), own])];
        assert_eq!(known.table(), Table::from(all));

        // The device gets another address, and a VLAN device keeps its own.
        known.update(&link(DEVICE, 2, None));
        let own = mac_of(2);
        let all = [
            (0, [own; 2]),
            (42, [mac_of(1), own]),
            (43, [mac_of(8), own]),
        ];
        assert_eq!(known.table(), Table::from(all));

        // One goes down, and another goes away.
        known.update(&Link {
            up: false,
            ..link(7, 1, Some((DEVICE, 42)))
        });
        known.forget(8);
        assert_eq!(known.table(), Table::from([(0, [own; 2])]));
        known.forget(DEVICE);
        assert_eq!(known.table(), Table::new());
    }

    #[test]
    fn only_customer_tags_are_understood() {
        let mut known = Known::new(DEVICE);
        known.update(&link(DEVICE, 1, None));
        let mut provider = link(7, 1, Some((DEVICE, 42)));
        provider.vlan = provider.vlan.map(|vlan| Vlan {
            is_8021q: false,
            ..vlan
        });
        known.update(&provider);
        assert_eq!(known.table().len(), 1);
    }
}
