//! What rnicd says to this user: of which interfaces it may have a port, and whether ports are
//! about to go.

use std::path::Path;

use rnic_manager::Administrator;
use rnic_xdp::client::Manager;

/// Returns the interfaces of which the rnicd that listens at a path gives this user ports: none if
/// no rnicd does.
pub fn offered(socket: &Path) -> Vec<String> {
    Manager::connect(socket).map_or_else(|_| Vec::new(), |manager| manager.devices().to_vec())
}

/// Returns whether a port that the rnicd at a path has given this user is about to go: it has
/// ended, or its process has left. A moment later its TCP ports are free.
pub fn are_ports_ending(socket: &Path) -> bool {
    let ports = Administrator::connect(socket).and_then(|mut rnicd| rnicd.all_ports());
    ports.is_ok_and(|ports| ports.iter().any(|port| port.ending || !port.connected))
}
