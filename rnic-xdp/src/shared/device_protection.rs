//! The host's associations for the clients of a shared device.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use rnic_core::engine::{NetError, Peers};
use rnic_core::esp::SaId;
use rnic_core::time::Instant;

use super::device::{DeviceEvent, SharedDevice};
use super::protection::{Leases, MayProtect, PortProtection, SharedProtection};
use crate::device::clock::clock;
use crate::device::locals::other;

/// The most TCP ports that are tried for a connection that is to be protected.
const PORT_TRIES: usize = 256;

impl SharedDevice {
    /// Sets what the ports may have protected: all that there are.
    pub fn may_protect_all(&mut self, may: BTreeMap<u32, MayProtect>) {
        if let Some(protection) = &mut self.protection {
            protection.set_all(may);
        }
    }

    /// Sets what a port may have protected that was made now.
    pub fn may_protect(&mut self, port: u32, may: MayProtect) {
        if let Some(protection) = &mut self.protection {
            protection.set(port, may);
        }
    }

    /// Returns whether clients have associations of the host.
    pub fn has_associations(&self) -> bool {
        self.protection.is_some()
    }

    /// Returns whether nothing goes to a lease of a port, which may be one of any address, or comes
    /// from there, unprotected.
    pub fn is_protected(&self, port: u32, local: SocketAddr) -> bool {
        let any: IpAddr = match local {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0; 16].into(),
        };
        let leases = [local, SocketAddr::new(any, local.port())];
        let is_protected = |lease: &SocketAddr| self.steering.is_protected(port, *lease);
        self.protection.is_some() && leases.iter().any(is_protected)
    }

    /// Returns what protects a port, as the last [`DeviceEvent::Protection`] has reported it.
    pub fn protection_of(&self, port: u32) -> PortProtection {
        let protection = self.protection.as_ref();
        protection.map_or_else(PortProtection::default, |protection| protection.of(port))
    }

    /// Takes sequence numbers of an association for a port: from the first one up to the second one,
    /// which is not among them. Fails with the reason if it does not have the association.
    pub fn take_numbers(&mut self, port: u32, id: SaId) -> Result<(u64, u64), String> {
        let protection = self.protection.as_mut();
        let protection = protection.ok_or("clients of this device have no associations")?;
        protection.take_numbers(port, id)
    }

    /// Asks the host's key managers for an association between two hosts in some name (reqid), if a
    /// policy for what a port has leased demands one.
    pub fn acquire(&mut self, port: u32, name: u32, ends: (IpAddr, IpAddr)) {
        if let Some(protection) = &mut self.protection {
            protection.acquire(port, name, ends, Instant::from_nanos(clock()));
        }
    }

    /// Lists the associations that ports have.
    pub fn associations(&self) -> Vec<(SaId, u32)> {
        let protection = self.protection.iter();
        protection
            .flat_map(|protection| protection.given())
            .collect()
    }

    /// Gives associations at once to those who are to have them since a lease has changed.
    pub fn update_protection(&mut self) {
        let due = |protection: &&mut SharedProtection| protection.is_due();
        let Some(protection) = self.protection.as_mut().filter(due) else {
            return;
        };
        let mut ports: BTreeSet<_> = self.ports.values().copied().collect();
        ports.extend(self.queue_ports.iter().map(|(number, _)| number));
        let networks = &self.surroundings.networks;
        let is_on_link = |address: IpAddr| {
            let mut networks = networks.members();
            networks.any(|network| network.contains(address))
        };
        let leases = || self.steering.protected_leases();
        let changed = protection.update(leases, &ports, is_on_link);
        self.events
            .extend(changed.into_iter().map(DeviceEvent::Protection));
    }

    /// Ends the associations of a port that were for a lease which was taken from it: its client has
    /// their keys.
    pub fn end_protection_of(&mut self, port: u32, local: SocketAddr) {
        if let Some(protection) = &mut self.protection {
            protection.end_lease(port, local);
        }
    }

    /// Ends the associations of a port that has ended.
    pub(super) fn end_protection(&mut self, port: u32) {
        if let Some(protection) = &mut self.protection {
            protection.end_port(port);
        }
    }

    pub(super) fn follow_protection(&mut self, now: Instant) {
        if let Some(protection) = &mut self.protection {
            protection.follow(&mut self.requests, now);
        }
        self.update_protection();
    }

    /// Notes that there are other ports now.
    pub(super) fn note_ports(&mut self) {
        if let Some(protection) = &mut self.protection {
            protection.note_ports();
        }
    }

    /// Notes that a port has leased something, or given it back.
    pub(super) fn note_lease(&mut self, port: u32, local: SocketAddr) {
        if let Some(protection) = &mut self.protection {
            protection.note_lease(port, local);
        }
    }

    /// Returns all leases, once somebody asks.
    fn all_leases(&self) -> LazyCell<Leases, impl FnOnce() -> Leases> {
        LazyCell::new(|| self.steering.protected_leases().into_iter().collect())
    }

    /// Fails if a port cannot listen at an address and TCP port: what is protected has a port of
    /// its own, and nothing else may be protected. Returns whether nothing goes there unprotected.
    pub(super) fn check_listener(
        &self,
        port: u32,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<bool, NetError> {
        let is_protected = self.check_lease(port, local)?;
        // What goes unprotected is dropped, whatever other policies say.
        if !is_protected {
            self.locals.check_listener(local, peers)?;
            let unmet = self.locals.check_unprotected_listener(local, peers);
            unmet.map_err(|error| self.without_keys(error))?;
        }
        Ok(is_protected)
    }

    /// Fails if a port cannot connect from an address and TCP port to a peer. Returns whether nothing
    /// goes there unprotected.
    pub(super) fn check_connection_of(
        &self,
        port: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<bool, NetError> {
        let is_protected = self.check_lease(port, local)?;
        match is_protected {
            true => self.locals.check_protected(local, remote)?,
            false => {
                self.locals.check_connection(local, remote)?;
                self.check_unprotected(local, remote)?;
            }
        }
        Ok(is_protected)
    }

    /// Fails if a policy of which clients may have associations protects a connection that is not to
    /// be protected.
    pub(super) fn check_unprotected(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), NetError> {
        let unmet = self.locals.check_unprotected_connection(local, remote);
        unmet.map_err(|error| self.without_keys(error))
    }

    fn check_lease(&self, port: u32, local: SocketAddr) -> Result<bool, NetError> {
        let Some(protection) = &self.protection else {
            return Ok(false);
        };
        let refused = |why| NetError::Protected {
            address: local,
            policy: why,
        };
        protection
            .check(port, local, &self.all_leases())
            .map_err(refused)?;
        let is_protected = protection.protects(port, local.port());
        if is_protected && self.steering.queue_of(port).is_some() {
            let why = "a port that is a hardware queue has no associations; use another port, or a TCP port that is not `protected`";
            return Err(other(local, why));
        }
        Ok(is_protected)
    }

    /// Says in an error that a client does not get keys.
    fn without_keys(&self, error: NetError) -> NetError {
        match error {
            NetError::Protected { address, policy } => NetError::Protected {
                address,
                policy: format!(
                    "{policy}; this user gets no keys for it (`protected` of rnicd.toml)"
                ),
            },
            error => error,
        }
    }

    /// Returns TCP ports from which a port may connect so that it is protected, if a policy says
    /// that it has to be.
    pub(super) fn protected_ports(&self, port: u32, local: IpAddr, remote: SocketAddr) -> Vec<u16> {
        let Some(protection) = &self.protection else {
            return Vec::new();
        };
        protection.ports_to(port, (local, remote), &self.all_leases(), PORT_TRIES)
    }
}
