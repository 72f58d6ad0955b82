//! Reading the connection events of all queue pairs of a device in one place.

use rnic_core::ids::QpNumber;

use crate::device::Device;
use crate::events::ConnectionEvent;

/// The connection events of all queue pairs of a device, from the moment that this is made, in the
/// order in which they arrived. What is read here [`Qp::next_event`](crate::Qp::next_event) does
/// not return, and the other way round. Dropping a queue pair drops its events.
#[derive(Debug)]
pub struct ConnectionEvents {
    device: Device,
}

impl Device {
    /// Begins to gather the connection events of all queue pairs. Returns `None` if somebody reads
    /// them already.
    pub fn connection_events(&self) -> Option<ConnectionEvents> {
        let begun = self.inner.router.boxes().begin_noting();
        begun.then(|| ConnectionEvents {
            device: self.clone(),
        })
    }
}

impl ConnectionEvents {
    /// Removes and returns the next event, if one has arrived. Does not wait, and does not drive
    /// the engine.
    pub fn take(&mut self) -> Option<(QpNumber, ConnectionEvent)> {
        self.device.inner.router.boxes().next_connection_event()
    }
}

impl Drop for ConnectionEvents {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        self.device.inner.router.boxes().end_noting();
    }
}
