//! Where datagrams go.

use std::net::SocketAddr;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The address that the program has chosen, with port 0.
    pub(crate) local: SocketAddr,
    /// The address of the process that is to get it, with the port in the number.
    pub(crate) remote: SocketAddr,
    pub(crate) traffic_class: u8,
    /// The number of the queue pair that is to get it.
    pub(crate) number: u32,
    /// The address is one of this host.
    pub(crate) is_here: bool,
}
