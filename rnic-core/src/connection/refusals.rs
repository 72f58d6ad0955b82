//! What the owner of a listener hears of peers that did not get as far as to ask.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::event::EndReason;

/// Peers that connected to a listener and failed before they had asked for anything: the last few, and how many there
/// were. Anybody can cause such failures, so what is kept of them does not grow.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    count: u64,
    last: VecDeque<Refusal>,
}

/// Why a connection to a listener ended before its peer had asked for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The peer.
    pub peer: SocketAddr,
    /// What was wrong.
    pub reason: EndReason,
}

impl Refusals {
    /// How many are kept until they are [taken](Self::take). Of more, the last ones are.
    pub const KEPT: usize = 16;

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.log().count
    }

    /// Takes the oldest one that is kept.
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
        // Whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
