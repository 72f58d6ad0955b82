//! The end of a device that nobody manages any more.

use std::path::Path;

use super::host_end::remove_host_end;
use super::programs::{SharedClient, SharedSteering, SharingError};
use super::protection::end_given;
use super::queue_ports::{QueuePort, end_port, has_socket};
use crate::device::error::OpenError;
use crate::device::netlink::{Link, RouteSocket, link_by_index, link_by_name};
use crate::device::steering::ModeChoice;

/// Ends what a former process shares of a device, under its pins: programs, maps, and all ports,
/// whoever has them. Those that are hardware queues are named with their numbers; their clients'
/// processes are ended first, and the rest stays if they cannot be.
pub fn unshare(
    netdev: &str,
    pins: &Path,
    queue_ports: &[(u32, QueuePort)],
) -> Result<(), SharingError> {
    // It may have got another name since.
    let now = SharedSteering::device_of(netdev, pins)?;
    let netdev = now.as_deref().unwrap_or(netdev);
    let clients = SharedSteering::clients_left(netdev, pins)?;
    match SharedSteering::open(netdev, ModeChoice::Auto, pins) {
        Ok(mut steering) => {
            let link = link_by_name(&mut RouteSocket::open().map_err(OpenError::from)?, netdev);
            if let Some(link) = link.map_err(OpenError::from)? {
                for (number, port) in queue_ports {
                    if has_socket(&mut steering, port.queue)? {
                        steering.adopt_queue(*number, port.queue)?;
                        end_port(&link, &mut steering, *number, port)?;
                    }
                }
            }
            end_given(&steering)?;
            steering.close()?;
        }
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
