//! Local ports that speak protected or not at all, whatever the host's policies say.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Local TCP ports from which nothing may be sent unprotected, and at which nothing that came
/// unprotected is received. The policies of a host may change at any time: what an application has
/// asked for holds nevertheless.
#[derive(Clone)]
pub struct RequiredPorts {
    /// By how many listeners and connections it is asked for.
    asked: Arc<[AtomicU32]>,
    all: bool,
}

impl RequiredPorts {
    /// No port yet.
    pub fn none() -> Self {
        Self::new(false)
    }

    /// All ports, for ever.
    pub fn all() -> Self {
        Self::new(true)
    }

    fn new(all: bool) -> Self {
        let asked = (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect();
        Self { asked, all }
    }

    /// Returns whether it is all ports.
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// Adds a port, until what is returned is dropped. Threads that are told of the listener or
    /// connection afterwards heed it.
    pub fn require(&self, port: u16) -> Required {
        let ports = self.clone();
        // Relaxed: a worker learns of the listener or connection by a channel, which orders the two.
        ports.asked[usize::from(port)].fetch_add(1, Ordering::Relaxed);
        Required { ports, port }
    }

    /// Returns whether this is one of the ports.
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        self.all || self.asked[usize::from(port)].load(Ordering::Relaxed) > 0
    }
}

impl Default for RequiredPorts {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Debug for RequiredPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = (0..=u16::MAX).filter(|port| self.contains(*port));
        match self.all {
            true => f.write_str("all"),
            false => f.debug_set().entries(asked).finish(),
        }
    }
}

/// A port that is required as long as this lives.
#[derive(Debug)]
pub struct Required {
    ports: RequiredPorts,
    port: u16,
}

impl Drop for Required {
    fn drop(&mut self) {
        self.ports.asked[usize::from(self.port)].fetch_sub(1, Ordering::Relaxed);
    }
}
