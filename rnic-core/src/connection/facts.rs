//! A connection as an administrator sees it.

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
    /// Octets that arrived and wait in memory of the engine's own: parts of FPDUs, and what came ahead of others
    /// and was not recognised.
    pub buffered: usize,
}
