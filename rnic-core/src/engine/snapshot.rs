//! The state of an engine for an administrator.

use crate::connection::ConnectionFacts;
use crate::counters::{DropCounters, EngineCounters, RdmaCounters, TcpCounters};

/// The counters of an engine and the facts of its connections, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's own: frames, timers and SYN cookies.
    pub engine: EngineCounters,
    /// Dropped frames, by reason.
    pub drops: DropCounters,
    /// TCP, summed over all connections.
    pub tcp: TcpCounters,
    /// MPA, DDP and RDMAP, summed over all connections.
    pub rdma: RdmaCounters,
    /// The facts of each connection.
    pub connections: Vec<ConnectionFacts>,
}

impl Snapshot {
    /// Adds the snapshot of another engine of the device.
    pub fn add(&mut self, other: Self) {
        self.engine.add(&other.engine);
        self.drops.add(&other.drops);
        self.tcp.add(&other.tcp);
        self.rdma.add(&other.rdma);
        self.connections.extend(other.connections);
    }
}
