//! The end of a device that nobody manages any more.

use std::path::Path;

use super::device::remove_host_end;
use crate::error::OpenError;
use crate::netlink::{Link, RouteSocket, link_by_index};
use crate::sharing::{SharedClient, SharedSteering, SharingError};
use crate::steering::ModeChoice;

/// Ends what a former process shares of a device, under its pins: programs, maps, and all ports, whoever has them.
pub fn unshare(netdev: &str, pins: &Path) -> Result<(), SharingError> {
    let clients = SharedSteering::clients_left(netdev, pins)?;
    match SharedSteering::open(netdev, ModeChoice::Auto, pins) {
        Ok(steering) => steering.close()?,
        // The program went with the device.
        Err(OpenError::NoSuchDevice { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut requests = RouteSocket::open().map_err(OpenError::from)?;
    for SharedClient { port, ifindex, .. } in clients {
        let found = link_by_index(&mut requests, ifindex).map_err(OpenError::from)?;
        // Another device may have got the index since.
        let is_host_end = |link: &Link| {
            let number = link
                .name
                .strip_prefix("rnic")
                .and_then(|rest| rest.split_once('-'));
            number.is_some_and(|(_, number)| number == port.to_string())
        };
        if found.as_ref().is_some_and(is_host_end) {
            remove_host_end(&mut requests, ifindex);
        }
    }
    Ok(())
}
