//! The thread of a port mapper, where no loop of another kind drives it.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::mapper::{Inner, PortMapper};
use crate::device::error::OpenError;
use crate::device::netlink::Link;
use rnic_manager::{Bell, Watch, without_signals};

impl PortMapper {
    /// Makes the mapper of a device, in the network namespace of this thread, with a thread of its
    /// own, which ends with it.
    pub(crate) fn start(link: &Link) -> Result<Self, OpenError> {
        let mapper = Self::new(link, false)?;
        let inner = Arc::downgrade(&mapper.0);
        let (watch, bell) = (mapper.0.watch.clone(), mapper.0.bell.clone());
        let thread = thread::Builder::new().name("rnic-mapper".to_owned());
        let started = without_signals(|| thread.spawn(move || serve(&inner, &watch, &bell)));
        started.map_err(|source| OpenError::System {
            doing: "start a thread",
            source,
        })?;
        Ok(mapper)
    }
}

/// Serves until nobody has the mapper. Its bell rings then, which is there as long as this runs.
fn serve(mapper: &Weak<Inner>, watch: &Watch, _bell: &Bell) {
    let mut timeout = Some(Duration::ZERO);
    loop {
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        // A signal wakes it too.
        let _ = ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None);
        let Some(mapper) = mapper.upgrade().map(PortMapper) else {
            return;
        };
        mapper.poll();
        timeout = mapper.timeout();
    }
}
