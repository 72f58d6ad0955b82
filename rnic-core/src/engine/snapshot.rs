//! The state of an engine for an administrator.

use std::net::SocketAddr;

use crate::counters::{DropCounters, EngineCounters, RdmaCounters, TcpCounters};
use crate::tcp::TcpFacts;

/// One connection.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// Its local address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// TCP state and protocol phase, in words.
    pub state: String,
    /// What `ss -ti` would show.
    pub tcp: TcpFacts,
    /// Octets that arrived and wait in memory of the engine's own: parts of FPDUs, and what came ahead of others
    /// and was not recognised.
    pub buffered: usize,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Frames.
    pub engine: EngineCounters,
    /// Frames that were dropped, by the reason.
    pub drops: DropCounters,
    /// TCP, summed.
    pub tcp: TcpCounters,
    /// MPA, DDP and RDMAP, summed.
    pub rdma: RdmaCounters,
    /// Each connection.
    pub connections: Vec<ConnectionFacts>,
}

impl Snapshot {
    /// Adds that of another engine of the device.
    pub fn add(&mut self, other: Self) {
        self.engine.add(&other.engine);
        self.drops.add(&other.drops);
        self.tcp.add(&other.tcp);
        self.rdma.add(&other.rdma);
        self.connections.extend(other.connections);
    }
}
