//! Who asks port mappers where no loop of another kind does: a thread.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant as Clock};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_core::engine::Found;
use rnic_core::time::Instant;

use super::asking::{Asked, Questions};
use super::watch::Watch;
use super::ways::Ways;
use crate::bell::{Bell, bell};
use crate::signals::without_signals;

/// The most questions that are asked at a time. Each has a descriptor of the program meanwhile.
const MAX_QUERIES: usize = 16;

/// Asks the port mappers of peers' hosts.
pub struct Asker(Arc<Inner>);

struct Inner {
    questions: Mutex<Questions>,
    bell: Bell,
    started: Clock,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Its thread ends.
        self.bell.ring();
    }
}

impl Asker {
    /// Starts the thread, in the network namespace of this one. It ends with what is returned.
    pub fn start(ways: impl Ways + Send + 'static) -> io::Result<Self> {
        let (bell, _) = bell()?;
        let watch = Arc::new(Watch::new()?);
        watch.add(&bell)?;
        let inner = Arc::new(Inner {
            questions: Mutex::new(Questions::new(watch.clone(), MAX_QUERIES)),
            bell: bell.clone(),
            started: Clock::now(),
        });
        let weak = Arc::downgrade(&inner);
        let thread = thread::Builder::new().name("rnic-mapper".to_owned());
        without_signals(|| thread.spawn(move || serve(&weak, &ways, &watch, &bell)))?;
        Ok(Self(inner))
    }

    /// Asks the mapper of a host where the listener at an address really is, and calls `found` with
    /// that, within some seconds: with the address itself if there is no answer, or nobody knows the
    /// listener.
    pub fn ask(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        let asked = Asked {
            remote,
            local,
            found,
            since: self.0.now(),
        };
        let asked = self.0.questions().ask(asked);
        match asked {
            Ok(()) => self.0.bell.ring(),
            // Not within the lock.
            Err(Asked { remote, found, .. }) => found(remote),
        }
    }
}

impl Inner {
    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is to be done, and returns how long it can wait for the next.
    fn poll(&self, ways: &impl Ways) -> Option<Duration> {
        self.bell.silence();
        let answers = self.questions().poll(ways, self.now());
        for (found, remote) in answers {
            found(remote);
        }
        let next = self.questions().next_timeout();
        next.map(|at| at.since(self.now()))
    }
}

/// Asks until nobody has the asker. Its bell rings then, which is there as long as this runs.
fn serve(asker: &Weak<Inner>, ways: &impl Ways, watch: &Watch, _bell: &Bell) {
    let mut timeout = Some(Duration::ZERO);
    loop {
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        // What ends it early does no harm.
        let _ = ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None);
        let Some(asker) = asker.upgrade() else {
            return;
        };
        timeout = asker.poll(ways);
    }
}
