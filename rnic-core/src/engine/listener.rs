//! Where connections are accepted.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::connection::{PortReservation, Refusals};

use super::peers::Peers;

/// A local address that accepts connections.
#[derive(Clone)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) peers: Peers,
    pub(super) reservation: PortReservation,
    pub(super) refusals: Arc<Refusals>,
    /// Requests that wait for the application's decision.
    pub(super) waiting: usize,
}
