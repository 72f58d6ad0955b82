//! Local ports of a granted port: rnicd reserves them, and has them steered here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rnic_core::connection::PortReservation;
use rnic_core::engine::{Found, Known, Net, NetError, Peers, ProtectedPort};
use rnic_core::esp::{ProtectionFacts, RequiredPorts};
use rnic_manager::protocol::{Ask, Refused};

use super::session::Errand;
use crate::device::interface::ControlHandle;
use rnic_manager::Maker;

/// How long to wait for rnicd, which may be about to start again, or wait for the kernel on an
/// overloaded host.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait before a peer is let in: connections that are driven by the same thread wait as
/// well.
const PATIENCE_OF_PEERS: Duration = Duration::from_secs(1);

/// The address services of a granted port.
#[derive(Clone)]
pub struct ManagedNet {
    pub(super) netdev: String,
    pub(super) port: u32,
    pub(super) errands: Sender<Errand>,
    pub(super) control: ControlHandle,
    /// The local ports that speak protected or not at all, if anything is protected here.
    pub(super) required: Option<RequiredPorts>,
}

/// A local port. It is given back when this is dropped.
struct Lease {
    net: ManagedNet,
    local: SocketAddr,
    maker: Maker,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.maker.is_forked() {
            self.net.send(Errand::Release(self.local));
        }
    }
}

/// A listener that peers know by another number. They do not any more when this is dropped.
struct Mapped {
    net: ManagedNet,
    local: SocketAddr,
    maker: Maker,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.maker.is_forked() {
            self.net.send(Errand::Unmap(self.local));
        }
    }
}

impl ManagedNet {
    fn send(&self, errand: Errand) {
        // If the thread has ended, the port has, and its leases with it.
        if self.errands.send(errand).is_ok() {
            self.control.wake();
        }
    }

    fn reserve(
        &self,
        address: SocketAddr,
        ask: Ask,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let (reply, answer) = bounded(1);
        self.send(Errand::Reserve(ask, reply));
        let (local, is_protected) = self.answered(address, &answer)?;
        let lease = Lease {
            net: self.clone(),
            local,
            maker: Maker::this(),
        };
        let is_all = self.required.as_ref().is_some_and(RequiredPorts::is_all);
        if is_all && !is_protected {
            return Err(unprotected(address));
        }
        Ok((local, Arc::new(lease)))
    }

    /// Has rnicd do something.
    fn done(&self, address: SocketAddr, ask: Ask) -> Result<(), NetError> {
        let (reply, answer) = bounded(1);
        self.send(Errand::Do(ask, reply));
        self.answered(address, &answer)
    }

    fn answered<T>(
        &self,
        address: SocketAddr,
        answer: &Receiver<Result<T, Refused>>,
    ) -> Result<T, NetError> {
        let silent = |_| NetError::Other {
            address,
            reason: "rnicd does not answer; `systemctl status rnicd` shows its state".into(),
        };
        let answer = answer.recv_timeout(PATIENCE).map_err(silent)?;
        answer.map_err(|refused| refused.net_error(address, &self.netdev))
    }
}

fn unprotected(address: SocketAddr) -> NetError {
    NetError::Unprotected {
        address,
        reason: "rnicd protects the TCP ports that are `protected` for this user (rnicd.toml), and a policy must select them",
    }
}

impl Net for ManagedNet {
    fn listen_to(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let ask = Ask::Listen {
            port: self.port,
            local,
            peers: peers.clone(),
        };
        self.reserve(local, ask)
    }

    fn make_known(&self, wanted: SocketAddr, local: SocketAddr) -> Result<Known, NetError> {
        let ask = Ask::Map {
            port: self.port,
            local,
            wanted,
        };
        self.done(wanted, ask)?;
        Ok(Box::new(Mapped {
            net: self.clone(),
            local,
            maker: Maker::this(),
        }))
    }

    fn find_listener(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        let ask = Ask::Locate {
            port: self.port,
            remote,
            local,
        };
        self.send(Errand::Locate(ask, (remote, found)));
    }

    /// Asks rnicd, because who has no rights cannot see the policies. While rnicd does not answer,
    /// nobody is let in whom a policy might keep out.
    fn admits(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        let ask = Ask::Admit {
            port: self.port,
            local,
            remote: peer,
        };
        let (reply, answer) = bounded(1);
        self.send(Errand::Do(ask, reply));
        matches!(answer.recv_timeout(PATIENCE_OF_PEERS), Ok(Ok(())))
    }

    fn check(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), NetError> {
        if self.admits(local, remote) {
            return Ok(());
        }
        Err(NetError::Protected {
            address: remote,
            policy: format!("of {}, which rnicd knows", self.netdev),
        })
    }

    fn require_protection(
        &self,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> Result<ProtectedPort, NetError> {
        let required = self.required.as_ref();
        // rnicd lets nothing unprotected out of these, whatever this process does.
        match required.filter(|required| required.contains(local.port())) {
            Some(required) => Ok(Box::new(required.require(local.port()))),
            None => Err(unprotected(peer.unwrap_or(local))),
        }
    }

    fn protection(&self, local: SocketAddr, remote: SocketAddr) -> Option<ProtectionFacts> {
        let required = self.required.as_ref()?.contains(local.port());
        self.control.protection().facts(local, remote, required)
    }

    fn active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        _engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let ask = Ask::Connect {
            port: self.port,
            remote,
            local,
        };
        self.reserve(remote, ask)
    }
}
