//! The state of an engine for an administrator.

use crate::connection::ConnectionFacts;
use crate::counters::{DropCounters, EngineCounters, RdmaCounters, TcpCounters};

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
