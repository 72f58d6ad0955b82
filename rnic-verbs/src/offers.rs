//! Which interfaces this user may have a port of.

use std::path::Path;

use rnic_xdp::manager::Manager;

/// Returns the interfaces of which the rnicd that listens at a path gives this user ports: none if no rnicd does.
pub fn offered(socket: &Path) -> Vec<String> {
    Manager::connect(socket).map_or_else(|_| Vec::new(), |manager| manager.devices().to_vec())
}
