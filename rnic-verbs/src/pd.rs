//! Protection domains.

use std::fmt;
use std::sync::Arc;

use rnic_core::ids::PdId;

use crate::device::{Device, Inner};

/// A handle of a protection domain: queue pairs reach only memory of their own domain. Clones name
/// the same domain.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(crate) device: Device,
    pub(crate) id: PdId,
    _listed: Arc<Listed>,
}

/// Lists a protection domain until its last handle is dropped.
struct Listed {
    device: Arc<Inner>,
    id: PdId,
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if self.device.is_forked() {
            return self.device.forget();
        }
        self.device.objects.lock().pds.remove(&self.id);
    }
}

impl Device {
    /// Makes a new protection domain.
    pub fn pd(&self) -> Pd {
        let id = self.inner.new_pd();
        self.inner.objects.lock().pds.insert(id);
        let device = self.inner.clone();
        Pd {
            device: self.clone(),
            id,
            _listed: Arc::new(Listed { device, id }),
        }
    }
}

impl Pd {
    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
