//! What who asks port mappers needs of a device.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// The ways to peers' hosts.
pub trait Ways {
    /// Returns the address to ask from, with the scope that it needs, if there is a way: `local` if
    /// that may be. Its port means nothing.
    fn source(&self, remote: SocketAddr, local: Option<SocketAddr>) -> Option<SocketAddr>;

    /// Makes a UDP socket at an address that [`source`](Self::source) has returned. Its calls do not
    /// wait. Says why there can be none.
    fn datagram(&self, at: SocketAddr) -> Result<OwnedFd, String>;
}
