//! What was decided for the packets between two ends, so that policies are not searched for each.

use core::net::SocketAddr;
use std::collections::HashMap;

/// The most ends that are remembered. Anybody can send from as many, so all are forgotten then.
const MOST: usize = 4096;

/// Decisions, until the policies change.
#[derive(Debug)]
pub(super) struct Decisions<T>(HashMap<(SocketAddr, SocketAddr), T>);

impl<T> Default for Decisions<T> {
    fn default() -> Self {
        // No frame waits for memory.
        Self(HashMap::with_capacity(MOST))
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
        if let Some(found) = self.0.get(&(local, remote)) {
            return *found;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let decision = decide();
        self.0.insert((local, remote), decision);
        decision
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
