//! The associations of ESP whose packets the steering program takes, and those that clients of a
//! shared device send with.

use std::io;
use std::net::IpAddr;

use aya::maps::{HashMap, MapData};
use rnic_core::esp::SaId;
use rnic_core::wire::encapsulation::UdpPorts;

use super::layout::{
    AssociationOctets, OWN_SOCKETS, UseOctets, UsedAssociation, association, association_of,
};
use super::maps::io_error;

/// Who has an association.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    /// The port of a client.
    pub(crate) port: u32,
    /// A fingerprint of the key.
    pub(crate) print: u32,
    /// The sender. What comes from others is not counted, and is not sent.
    pub(crate) source: Option<IpAddr>,
    /// The ports of UDP, if its packets are in UDP.
    pub(crate) udp: Option<UdpPorts>,
    /// It sends with it, and does not receive.
    pub(crate) sends: bool,
}

impl Holder {
    fn used(&self) -> UsedAssociation {
        let used = UsedAssociation::new(self.port, self.print, self.source);
        match self.sends {
            true => used.between(self.udp),
            // A translator may have given the sender another one.
            false => used.in_udp(self.udp.map(|ports| ports.destination)),
        }
    }
}

/// A map of associations, with who has them.
pub(crate) struct SteeredAssociations(pub(super) HashMap<MapData, AssociationOctets, UseOctets>);

impl SteeredAssociations {
    /// Takes over a map.
    pub(crate) fn new(map: HashMap<MapData, AssociationOctets, UseOctets>) -> Self {
        Self(map)
    }

    /// Steers the packets of an association to the sockets of this process. `port`: that of UDP, if
    /// they are in UDP.
    pub(crate) fn add(&mut self, id: SaId, port: Option<u16>) -> io::Result<()> {
        let used = UsedAssociation::new(OWN_SOCKETS, 0, None);
        self.insert(id, used.in_udp(port))
    }

    /// Gives an association to a client.
    pub(crate) fn add_for(&mut self, holder: Holder, id: SaId) -> io::Result<()> {
        self.insert(id, holder.used())
    }

    /// Changes the holder of an association that is in the map.
    pub(crate) fn hand_to(&mut self, port: u32, print: u32, id: SaId) -> io::Result<()> {
        let octets = self.0.get(&association(id), 0).map_err(io_error)?;
        self.insert(id, UsedAssociation::read(octets).for_other(port, print))
    }

    fn insert(&mut self, id: SaId, used: UsedAssociation) -> io::Result<()> {
        let octets = used.octets();
        self.0.insert(association(id), octets, 0).map_err(io_error)
    }

    /// Leaves the packets of an association to the kernel, or takes it from its client.
    pub(crate) fn remove(&mut self, id: SaId) -> io::Result<()> {
        self.0.remove(&association(id)).map_err(io_error)
    }

    /// Returns what was done with an association: packets, and octets of their frames.
    pub(crate) fn used(&self, id: SaId) -> io::Result<(u64, u64)> {
        let octets = self.0.get(&association(id), 0).map_err(io_error)?;
        let used = UsedAssociation::read(octets);
        Ok((used.packets, used.octets))
    }

    /// Lists all.
    pub(crate) fn list(&self) -> io::Result<Vec<(SaId, UsedAssociation)>> {
        let mut found = Vec::new();
        for each in self.0.iter() {
            let (key, octets) = each.map_err(io_error)?;
            if let Some(id) = association_of(&key) {
                found.push((id, UsedAssociation::read(octets)));
            }
        }
        Ok(found)
    }
}
