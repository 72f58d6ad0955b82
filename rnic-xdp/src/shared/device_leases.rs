//! Leases of local ports of a shared device: TCP ports are reserved in the kernel, steered, and
//! given back. rnicd decides who gets one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rnic_core::engine::{Found, NetError, Peers};

use super::device::SharedDevice;
use super::programs::SharingError;
use super::queue_ports::end_rules;
use super::reservation::disarm;
use crate::device::locals::other;
use crate::device::port_mapper::{Listening, Mapping};
use crate::device::steering::Entry;

/// The most peers that all leases of a device together are limited to: `STEER_MAX_PEERS` of the
/// programs.
pub const MAX_LISTED_PEERS: usize = 65_536;

impl SharedDevice {
    /// Reserves a local port to listen on for a port, and steers it there. TCP port 0 chooses one.
    pub fn listen(
        &mut self,
        port: u32,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, OwnedFd), NetError> {
        let vlans = match local.ip().is_loopback() {
            true => BTreeSet::from([0]),
            false => self.locals.vlans_of_listener(local)?,
        };
        let (socket, local) = self.locals.bind(local)?;
        let is_protected = self.check_listener(port, local, peers)?;
        let leased = self.steer(port, (local, socket, is_protected), &vlans, peers)?;
        self.place_listener(port, local)?;
        Ok(leased)
    }

    /// Fails unless a user may listen under a number that its listener does not get: that is free, or
    /// what listens there are the user's TCP sockets. To root all are as its own.
    pub fn check_number(&self, wanted: SocketAddr, user: u32) -> Result<(), NetError> {
        self.locals
            .check_number(wanted, Some(user).filter(|user| *user != 0))
    }

    /// Tells the port mappers of peers, until what is returned is dropped, that the listener which a
    /// port wanted at an address has this TCP port. With a `user`, it ends when a TCP socket of another
    /// user listens there; root's listeners need none.
    pub fn map(
        &self,
        owner: u32,
        user: Option<u32>,
        local: SocketAddr,
        mapped: u16,
    ) -> Result<Mapping, NetError> {
        self.mapper.map(Listening {
            owner,
            user: user.filter(|user| *user != 0),
            local,
            mapped,
        })
    }

    /// Asks the port mapper of a peer's host where the listener at an address really is. That is
    /// said within [`poll`](Self::poll), within some seconds: the address itself if nobody knows.
    pub fn locate(&self, remote: SocketAddr, local: Option<SocketAddr>, found: Found) {
        self.mapper.ask(remote, local, found);
    }

    /// Reserves a local port to connect from for a port, and steers it there.
    pub fn connect(
        &mut self,
        port: u32,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<(SocketAddr, OwnedFd), NetError> {
        let is_local = self.is_of_this_host(remote.ip());
        if is_local && self.steering.queue_of(port).is_some() {
            return Err(other(
                remote,
                "the frames of a port that is a hardware queue leave this host; use another port to reach programs on it",
            ));
        }
        let wanted = match is_local {
            // As the kernel does, from the same address.
            true => local
                .filter(|local| !local.ip().is_unspecified())
                .unwrap_or_else(|| {
                    SocketAddr::new(remote.ip(), local.map_or(0, |local| local.port()))
                }),
            false => self.locals.source_for(remote, local)?,
        };
        let vlans = match wanted.ip().is_loopback() {
            true => BTreeSet::from([0]),
            false => self.locals.vlans_of_connection(wanted)?,
        };
        let bound = self.bind_to_connect(port, remote, wanted, is_local)?;
        let leased = self.connect_from(port, remote, bound, &vlans)?;
        self.place_connection(port, remote, (wanted, leased), &vlans)
    }

    /// Binds a TCP port to connect from: one for what is protected, if a policy says that the
    /// connection has to be.
    fn bind_to_connect(
        &self,
        port: u32,
        remote: SocketAddr,
        wanted: SocketAddr,
        is_local: bool,
    ) -> Result<(OwnedFd, SocketAddr), NetError> {
        let ports = match wanted.port() == 0 && !is_local {
            true => self.protected_ports(port, wanted.ip(), remote),
            false => Vec::new(),
        };
        if ports.is_empty() {
            return self.locals.bind(wanted);
        }
        for number in ports {
            match self.locals.bind(SocketAddr::new(wanted.ip(), number)) {
                Err(NetError::InUse(_)) => {}
                bound => return bound,
            }
        }
        Err(other(
            remote,
            "all TCP ports are in use from which an IPsec policy lets this be protected",
        ))
    }

    /// Leases a port that is bound to connect from.
    pub(super) fn connect_from(
        &mut self,
        port: u32,
        remote: SocketAddr,
        (socket, local): (OwnedFd, SocketAddr),
        vlans: &BTreeSet<u16>,
    ) -> Result<(SocketAddr, OwnedFd), NetError> {
        let is_protected = self.check_connection_of(port, local, remote)?;
        if is_protected && self.is_of_this_host(remote.ip()) {
            return Err(other(
                remote,
                "what goes to this host is not protected; choose a TCP port that is not `protected` (rnicd.toml)",
            ));
        }
        self.steer(port, (local, socket, is_protected), vlans, &Peers::all())
    }

    /// Fails if an IPsec policy of the host protects a connection of a port, and nothing does that.
    pub fn check_connection(
        &self,
        port: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), NetError> {
        if self.is_protected(port, local) {
            // What is not protected does not come this far.
            return Ok(());
        }
        self.locals.check_connection(local, remote)?;
        self.check_unprotected(local, remote)
    }

    /// Returns how many peers leases are limited to, each with the port that has it:
    /// [`MAX_LISTED_PEERS`] together at most.
    pub fn listed_peers(&self) -> Vec<(u32, usize)> {
        self.steering.listed_peers()
    }

    /// Steers a reserved local port to a port.
    fn steer(
        &mut self,
        port: u32,
        (local, socket, is_protected): (SocketAddr, OwnedFd, bool),
        vlans: &BTreeSet<u16>,
        peers: &Peers,
    ) -> Result<(SocketAddr, OwnedFd), NetError> {
        disarm_reservation(&socket, local)?;
        for (done, &vlan) in vlans.iter().enumerate() {
            let entry = Entry { local, vlan };
            let added = self
                .steering
                .add_lease_for(port, &entry, peers, is_protected);
            let Err(error) = added else {
                continue;
            };
            for &vlan in vlans.iter().take(done) {
                // What remains goes with the port.
                let _ = self.steering.remove_lease(port, &Entry { local, vlan });
            }
            return Err(match error {
                SharingError::LeaseTaken { .. } => NetError::InUse(local.into()),
                error => other(local, error),
            });
        }
        self.note_lease(port, local);
        Ok((local, socket))
    }

    /// Reserves again what is leased already, where the socket that did so is lost.
    pub fn reserve_again(&self, local: SocketAddr) -> Result<OwnedFd, NetError> {
        let (socket, local) = self.locals.bind(local)?;
        disarm_reservation(&socket, local)?;
        Ok(socket)
    }

    /// Ends a lease: nothing more is steered there when this returns. Only then may its socket be
    /// closed.
    pub fn release(&mut self, port: u32, local: SocketAddr) -> Result<(), SharingError> {
        if let Some(queue) = self.steering.queue_of(port) {
            end_rules(&self.link, queue, local);
        }
        let leases = self.steering.leases_at(local).into_iter();
        for (_, entry) in leases.filter(|(of, _)| *of == port) {
            self.steering.remove_lease(port, &entry)?;
        }
        self.note_lease(port, local);
        Ok(())
    }
}

fn disarm_reservation(socket: &OwnedFd, local: SocketAddr) -> Result<(), NetError> {
    let disarmed = disarm(socket);
    disarmed.map_err(|error| other(local, format!("cannot disarm its socket: {error}")))
}
