//! What was decided for the packets between two ends, so that policies are not searched for each.

use core::net::SocketAddr;
use std::collections::HashMap;

/// The most ends that are remembered. Anybody can send from as many, so all are forgotten then.
const MOST: usize = 4096;

type Ends = (SocketAddr, SocketAddr);

/// Decisions, until the policies change.
#[derive(Debug)]
pub(super) struct Decisions<T> {
    all: HashMap<Ends, T>,
    /// The last one that was found: packets come in runs, and the hash takes as long as the rest.
    last: Option<(Ends, T)>,
}

impl<T> Default for Decisions<T> {
    fn default() -> Self {
        Self {
            // No frame waits for memory.
            all: HashMap::with_capacity(MOST),
            last: None,
        }
    }
}

impl<T: Copy> Decisions<T> {
    /// Returns the decision for two ends, which `decide` makes for the first packet.
    pub(super) fn find(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        decide: impl FnOnce() -> T,
    ) -> T {
        let ends = (local, remote);
        match self.last {
            Some((of, decision)) if of == ends => decision,
            _ => {
                let decision = self.find_or_decide(ends, decide);
                self.last = Some((ends, decision));
                decision
            }
        }
    }

    fn find_or_decide(&mut self, ends: Ends, decide: impl FnOnce() -> T) -> T {
        if let Some(found) = self.all.get(&ends) {
            return *found;
        }
        if self.all.len() >= MOST {
            self.all.clear();
        }
        let decision = decide();
        self.all.insert(ends, decision);
        decision
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.last = None;
    }
}
