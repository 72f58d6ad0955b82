//! The associations of ESP whose packets come to this process.

use std::io;

use aya::maps::{HashMap, MapData};
use rnic_core::esp::SaId;

use super::layout::{AssociationOctets, association};
use super::maps::io_error;

/// The steered associations of a device.
pub(crate) struct SteeredAssociations(pub(super) HashMap<MapData, AssociationOctets, u32>);

impl SteeredAssociations {
    /// Steers the packets of an association here.
    pub(crate) fn add(&mut self, id: SaId) -> io::Result<()> {
        self.0.insert(association(id), 1, 0).map_err(io_error)
    }

    /// Leaves the packets of an association to the kernel.
    pub(crate) fn remove(&mut self, id: SaId) -> io::Result<()> {
        self.0.remove(&association(id)).map_err(io_error)
    }
}
