//! Reading the asynchronous events of a device.

use std::time::Duration;

use crate::async_event::AsyncEvent;
use crate::device::Device;
use crate::error::Error;

/// The asynchronous events of a device, from the moment that this is made. Events that are not read
/// wait in memory. Dropping a queue pair drops its events.
#[derive(Debug)]
pub struct AsyncEvents {
    device: Device,
    reported_fatal: bool,
}

impl Device {
    /// Begins to gather asynchronous events. Fails if another reader has them.
    pub fn async_events(&self) -> Result<AsyncEvents, Error> {
        if !self.inner.router.boxes().begin_gathering() {
            return Err(Error::AsyncEventsTaken);
        }
        Ok(AsyncEvents {
            device: self.clone(),
            reported_fatal: false,
        })
    }
}

impl AsyncEvents {
    /// Returns the next event. Waits for it, `timeout` at most, and returns `None` after that. When
    /// the device or its worker is gone, this returns [`AsyncEvent::DeviceFatal`] once and fails
    /// from then on.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        let device = &self.device.inner;
        let next = device.wait(timeout, |boxes| boxes.next_async_event());
        match next {
            Err(Error::WorkerGone(_) | Error::DeviceGone) if !self.reported_fatal => {
                self.reported_fatal = true;
                Ok(Some(AsyncEvent::DeviceFatal))
            }
            next => next,
        }
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        self.device.inner.router.boxes().end_gathering();
    }
}
