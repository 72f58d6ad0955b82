//! Protection domains.

use rnic_core::ids::PdId;

use crate::device::Device;

/// A handle of a protection domain: queue pairs reach only memory of their own domain. Clones name the same domain.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(crate) device: Device,
    pub(crate) id: PdId,
}

impl Device {
    /// Makes a new protection domain.
    pub fn pd(&self) -> Pd {
        Pd {
            device: self.clone(),
            id: self.inner.new_pd(),
        }
    }
}

impl Pd {
    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
