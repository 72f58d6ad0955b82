//! A connection as it is shown to an administrator.

use std::net::SocketAddr;

use crate::ids::QpNumber;
use crate::tcp::TcpFacts;

/// What the ends have agreed on in MPA start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaFacts {
    /// The revision of MPA.
    pub revision: u8,
    /// Whether FPDUs have CRCs.
    pub crc: bool,
    /// Whether this side sends markers.
    pub markers: bool,
    /// Whether the peer sends markers.
    pub peer_markers: bool,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// Its local address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// TCP state and protocol phase, in words.
    pub state: String,
    /// The protocol phase alone.
    pub phase: &'static str,
    /// The queue pair, or endpoint, once there is one.
    pub qp: Option<QpNumber>,
    /// What was agreed on when the connection began, while FPDUs flow.
    pub mpa: Option<MpaFacts>,
    /// What `ss -ti` would show.
    pub tcp: TcpFacts,
    /// Octets that arrived and wait in the engine's memory: parts of FPDUs, and the out-of-order
    /// queue.
    pub buffered: usize,
}
