//! What an application needs of a network: local ports, and memory near the device.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::connection::PortReservation;
use crate::esp::ProtectionFacts;

use super::peers::Peers;

/// A local address and TCP port that another socket or listener has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InUse {
    /// The address and port.
    pub address: SocketAddr,
    /// Who has it, if that is known.
    pub holder: Option<String>,
}

impl From<SocketAddr> for InUse {
    fn from(address: SocketAddr) -> Self {
        let holder = None;
        Self { address, holder }
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match &self.holder {
            Some(holder) => write!(
                f,
                "{address} is in use by {holder}; choose another port or have that program end (`rnic-ctl lease show`)"
            ),
            None => write!(
                f,
                "{address} is in use; choose another port or end the process that holds it (`ss -tlnp`; what rnic holds is not \
                 there: `rnic-ctl lease show`, `rnic-ctl steer show`)"
            ),
        }
    }
}

/// Why a local port could not be reserved.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Another socket or listener has it.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// All ports of the range for sockets that may have any are in use.
    #[error(
        "all local ports for {0} are in use; close connections, or make the range wider (`sysctl net.ipv4.ip_local_port_range`)"
    )]
    NoPort(IpAddr),
    /// The address is not this host's.
    #[error("{0} is not an address of {1}; `ip addr` lists them")]
    NotLocal(SocketAddr, String),
    /// No route.
    #[error("no route to {0} through {1}; `ip route get` shows the way the kernel would take")]
    NoRoute(SocketAddr, String),
    /// A policy of the host demands protection.
    #[error(
        "the IPsec policy \"{policy}\" of this host does not let what {address} sends or receives \
         go unprotected, and no policy that is rnic's own protects it; give policies and \
         associations the number of `ipsec_if_id` (docs/ipsec.md), use TCP sockets of the kernel \
         (`via`), which it protects, change the policy (`ip xfrm policy`), limit the `peers` of a \
         listener to others, or ignore it (`ignore_ipsec`)"
    )]
    Protected {
        /// The local address, or the peer's.
        address: SocketAddr,
        /// The policy, in the words of `ip xfrm policy`.
        policy: String,
    },
    /// Protection is required, and nothing of this host protects what is sent and received.
    #[error(
        "{address} is not protected by this host, as the application requires: {reason} \
         (docs/ipsec.md)"
    )]
    Unprotected {
        /// The local address, or the peer's.
        address: SocketAddr,
        /// Why not.
        reason: &'static str,
    },
    /// Anything else.
    #[error("cannot use {address}: {reason}")]
    Other {
        /// What was asked for.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
}

/// Makes a listener known as long as it exists.
pub type Known = Box<dyn Any + Send + Sync>;

/// Lets nothing unprotected pass a local port as long as it exists.
pub type ProtectedPort = Box<dyn Any + Send + Sync>;

/// Is told where a listener is.
pub type Found = Box<dyn FnOnce(SocketAddr) + Send>;

/// Address services of a network: reserves local ports and steers them to the engine.
pub trait Net: Send + Sync {
    /// Runs `make`, which allocates memory for the device, so that the memory lies on the device's
    /// NUMA node where that matters.
    fn near_device(&self, make: &mut dyn FnMut()) {
        make();
    }

    /// Reserves a port to listen on; port 0 chooses one.
    fn listen(&self, local: SocketAddr) -> Result<(SocketAddr, PortReservation), NetError> {
        self.listen_to(local, &Peers::all())
    }

    /// Reserves a port to listen on, to which only these peers may connect.
    fn listen_to(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError>;

    /// Makes a listener known by a number that a TCP socket has: peers ask the port mapper of this
    /// host. `local` is where it listens. It is known until what is returned is dropped.
    fn make_known(&self, wanted: SocketAddr, local: SocketAddr) -> Result<Known, NetError> {
        let _ = local;
        Err(NetError::InUse(wanted.into()))
    }

    /// Asks the port mapper of a peer's host where the listener at `remote` really is, and calls
    /// `found` with that: with `remote` itself if there is no mapper, or it does not know the
    /// listener. It is called within some seconds, by any thread, and must not wait. If the network
    /// ends, it is dropped.
    fn find_listener(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        let _ = local;
        found(remote);
    }

    /// Returns whether the host's policy allows a connection that a peer opened.
    fn admits(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        let _ = (local, peer);
        true
    }

    /// Checks whether a connection may be made from a local address and port that are reserved
    /// already.
    fn check(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), NetError> {
        let _ = (local, remote);
        Ok(())
    }

    /// Lets nothing pass a local port that is not protected by the host's IPsec policies, until what
    /// is returned is dropped. Fails if what goes to `peer` is not protected now, or, for a listener,
    /// if this network protects nothing at all.
    fn require_protection(
        &self,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> Result<ProtectedPort, NetError> {
        Err(NetError::Unprotected {
            address: peer.unwrap_or(local),
            reason: "only an interface that the process has for itself, with `ipsec_if_id`, is",
        })
    }

    /// Returns what protects a connection now. `None`: nothing does and nothing has to, or it is the
    /// kernel's to know.
    fn protection(&self, local: SocketAddr, remote: SocketAddr) -> Option<ProtectionFacts> {
        let _ = (local, remote);
        None
    }

    /// Reserves a port to connect from. Without `local` it chooses the address that routes to
    /// `remote`, and a port. Where the network can predict it (RSS), that is a port whose frames
    /// arrive at the engine with this number.
    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError>;
}
