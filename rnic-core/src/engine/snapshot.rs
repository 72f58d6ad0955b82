//! The state of an engine for an administrator.

use std::net::SocketAddr;

use crate::counters::{EngineCounters, RdmaCounters, TcpCounters};

/// One connection.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// Its local address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// TCP state and protocol phase, in words.
    pub state: String,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Frames.
    pub engine: EngineCounters,
    /// TCP, summed.
    pub tcp: TcpCounters,
    /// MPA, DDP and RDMAP, summed.
    pub rdma: RdmaCounters,
    /// Each connection.
    pub connections: Vec<ConnectionFacts>,
}
