//! A record, for the owner of a listener, of peers that failed before their MPA Request was
//! complete.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::event::EndReason;

/// Peers that connected to a listener and failed before their MPA Request was complete: the last
/// few, and how many there were. Anybody can cause such failures, so the memory for them is
/// bounded.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    count: u64,
    last: VecDeque<Refusal>,
}

/// Why a connection to a listener ended before its peer's MPA Request was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The peer.
    pub peer: SocketAddr,
    /// Why it ended.
    pub reason: EndReason,
}

impl Refusals {
    /// How many are kept until they are [taken](Self::take): the last ones.
    pub const KEPT: usize = 16;

    /// Returns how many there were.
    pub fn count(&self) -> u64 {
        self.log().count
    }

    /// Removes and returns the oldest refusal that is kept, or `None` if there is none.
    pub fn take(&self) -> Option<Refusal> {
        self.log().last.pop_front()
    }

    // rfc: 5044-52, 5044-66, 5044-68, 5044-78 a Request that is refused is reported locally
    pub(crate) fn tell(&self, peer: SocketAddr, reason: EndReason) {
        tracing::debug!("{peer} connected to a listener and is refused: {reason}");
        let mut log = self.log();
        log.count += 1;
        if log.last.len() == Self::KEPT {
            log.last.pop_front();
        }
        log.last.push_back(Refusal { peer, reason });
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic of another thread leaves it consistent: it is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
