//! The addresses of this host, in the map by which the program tells what is local.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use aya::maps::{HashMap, MapData};

use super::layout::{self, AddressOctets};
use crate::steering::{Maps, io_error};

/// The map of addresses.
pub(super) struct Addresses(HashMap<MapData, AddressOctets, u32>);

impl Addresses {
    pub(super) fn new(maps: &Maps) -> io::Result<Self> {
        maps.get("police_addresses").map(Self)
    }

    /// Makes the map hold these addresses, each with its VLAN, and no others.
    pub(super) fn set(&mut self, addresses: &[(IpAddr, u16)]) -> io::Result<()> {
        let keys = addresses.iter();
        let wanted: BTreeSet<_> = keys.map(|(ip, vlan)| layout::address(*ip, *vlan)).collect();
        let present = self.0.keys().collect::<Result<BTreeSet<_>, _>>();
        let present = present.map_err(io_error)?;
        for new in wanted.difference(&present) {
            self.0.insert(new, 1, 0).map_err(io_error)?;
        }
        for old in present.difference(&wanted) {
            self.0.remove(old).map_err(io_error)?;
        }
        Ok(())
    }
}
