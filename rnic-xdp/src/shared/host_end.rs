//! The host end of a port's veth pair, and its end.

use serde::{Deserialize, Serialize};
use tracing::info;

use crate::device::netlink::{RouteSocket, remove_link, stop_link};

/// The host end of a port. The kernel gives its index to another device when it is gone, but not
/// its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostEnd {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
}

/// Stops the host end of a port whose client may still have its socket, so that what is sent there
/// costs nothing more.
pub(super) fn stop_host_end(requests: &mut RouteSocket, host_end: u32) {
    if let Err(error) = stop_link(requests, host_end) {
        // The program on it drops all.
        info!("the veth pair {host_end} cannot be stopped now: {error}");
    }
}

/// Removes the veth pair of a port whose client may still have its socket.
pub(super) fn remove_host_end(requests: &mut RouteSocket, host_end: u32) {
    if let Err(error) = remove_link(requests, host_end) {
        // It goes with the client.
        info!("the veth pair {host_end} cannot be removed now: {error}");
    }
}
