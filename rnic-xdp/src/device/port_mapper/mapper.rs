//! The port mapper of a device.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rnic_core::engine::{Found, NetError};
use rnic_core::time::Instant;

use super::mappings::Listening;
use super::state::State;
use crate::device::clock::clock;
use crate::device::error::OpenError;
use crate::device::locals::Locals;
use crate::device::netlink::Link;
use rnic_manager::{Asked, Bell, Watch, bell};

/// The port mapper of a device. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct PortMapper(pub(super) Arc<Inner>);

pub(super) struct Inner {
    state: Mutex<State>,
    locals: Locals,
    /// Readable when there is something to do.
    pub(super) watch: Arc<Watch>,
    pub(super) bell: Bell,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Its thread ends.
        self.bell.ring();
    }
}

/// A listener that the mapper knows until this is dropped.
#[derive(Debug)]
pub struct Mapping {
    mapper: PortMapper,
    id: u64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortMapper").finish_non_exhaustive()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.mapper.lock().unmap(self.id);
    }
}

impl PortMapper {
    /// Makes the mapper of a device, in the network namespace of this thread. With `always` it answers
    /// whether anybody listens or not.
    pub(crate) fn new(link: &Link, always: bool) -> Result<Self, OpenError> {
        let failed = |source| OpenError::System {
            doing: "make a port mapper",
            source,
        };
        let (bell, _) = bell().map_err(failed)?;
        let watch = Arc::new(Watch::new().map_err(failed)?);
        watch.add(&bell).map_err(failed)?;
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(State::new(watch.clone(), always)),
            locals: Locals::new(link, u32::MAX)?,
            watch,
            bell,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a listener known. Listeners of one owner may replace each other. Fails if another one has
    /// the number; and, if the listener has another TCP port than its number, if nobody could be told,
    /// because another program has the mappers' UDP port and is no `iwpmd`.
    pub(crate) fn map(&self, listening: Listening) -> Result<Mapping, NetError> {
        let now = Instant::from_nanos(clock());
        let id = self.lock().map(&self.0.locals, listening, now)?;
        self.0.bell.ring();
        Ok(Mapping {
            mapper: self.clone(),
            id,
        })
    }

    /// Asks the mapper of a host where the listener at an address really is. Says in
    /// [`poll`](Self::poll) what came of it: the address itself if there is no answer within a
    /// second, or nobody knows the listener.
    pub(crate) fn ask(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        let since = Instant::from_nanos(clock());
        let asked = Asked {
            remote,
            local,
            found,
            since,
        };
        let asked = self.lock().questions.ask(asked);
        match asked {
            Ok(()) => self.0.bell.ring(),
            // Not within the lock.
            Err(Asked { remote, found, .. }) => found(remote),
        }
    }

    /// Looks for addresses of the device soon: they have changed.
    pub(crate) fn refresh_soon(&self) {
        self.lock().refresh_soon();
        self.0.bell.ring();
    }

    /// Does what is to be done now.
    pub(crate) fn poll(&self) {
        self.0.bell.silence();
        let now = Instant::from_nanos(clock());
        let answers = self.lock().poll(&self.0.locals, now);
        for (found, remote) in answers {
            found(remote);
        }
    }

    /// Returns how long [`poll`](Self::poll) can wait if the descriptor is not readable.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let now = Instant::from_nanos(clock());
        self.lock().next_timeout().map(|at| at.since(now))
    }
}

impl AsFd for PortMapper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.watch.as_fd()
    }
}
