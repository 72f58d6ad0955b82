//! A connection as it is shown to an administrator.

use std::net::SocketAddr;

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
    /// Octets that arrived and wait in the engine's memory: parts of FPDUs, and the out-of-order queue.
    pub buffered: usize,
}
