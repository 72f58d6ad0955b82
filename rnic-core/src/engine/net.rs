//! What an application needs of a network: local ports, and memory near the device.

use std::net::SocketAddr;

use super::link::PortLease;

/// Why a local port could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Somebody has it.
    #[error("{0} is in use; choose another port or end the process that holds it (`ss -tlnp`)")]
    InUse(SocketAddr),
    /// The address is not this host's.
    #[error("{0} is not an address of {1}; `ip addr show dev {1}` lists them")]
    NotLocal(SocketAddr, String),
    /// No route.
    #[error("no route to {0} through {1}; `ip route get` shows the way the kernel would take")]
    NoRoute(SocketAddr, String),
    /// Anything else.
    #[error("cannot reserve {address}: {reason}")]
    Other {
        /// What was asked for.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
}

/// Address services of a network: reserves local ports and steers them to the engine.
pub trait Net: Send + Sync {
    /// Runs what makes memory that the device shall use, so that it lies near the device where that matters.
    fn near_device(&self, make: &mut dyn FnMut()) {
        make();
    }

    /// Reserves a port to listen on; port 0 chooses one.
    fn listen(&self, local: SocketAddr) -> Result<(SocketAddr, PortLease), NetError>;

    /// Reserves a port to connect from. Without `local`, the address that routes to `remote`, and any port: if the network
    /// can tell, one whose answers come to the engine with this number.
    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        engine: u16,
    ) -> Result<(SocketAddr, PortLease), NetError>;
}
