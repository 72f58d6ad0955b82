//! What all users share beside their quotas: however many users there are, one that comes later has
//! some of it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rnic_core::engine::NetError;
use rnic_manager::protocol::{Reason, Refused};
use rnic_xdp::shared::MAX_LISTED_PEERS;

use crate::server::Server;
use crate::shared::Port;

/// A user gets more only while it has at most this part of what is left.
const PART_OF_REST: usize = 3;

/// Returns whether a user that has so much gets more, where all together have so much of the most
/// that there is.
fn has_share(own: usize, all: usize, most: usize) -> bool {
    own.saturating_mul(PART_OF_REST) <= most.saturating_sub(all)
}

impl Server {
    /// Fails if the user of a port has too many entries of the table of listeners' peers.
    pub(crate) fn check_listed_peers(&self, number: u32) -> Result<(), Refused> {
        let account = self.account_of(number);
        let (mut own, mut all) = (0, 0);
        let mut devices = self.devices.iter();
        let Some(shared) = devices.find(|shared| shared.ports.contains_key(&number)) else {
            return Ok(());
        };
        for (port, peers) in shared.device.listed_peers() {
            all += peers;
            if self.account_of(port) == account {
                own += peers;
            }
        }
        if has_share(own, all, MAX_LISTED_PEERS) {
            return Ok(());
        }
        let left = MAX_LISTED_PEERS.saturating_sub(all);
        let why = format!(
            "the listeners of this user name {own} prefixes of peers, and there is room for {left} of all users: nobody gets more who has \
             over a third of that; name fewer"
        );
        Err(Refused::new(Reason::Quota, why))
    }

    /// Refuses and releases a TCP port that was chosen for a port, if its user has too many.
    pub(crate) fn check_chosen(
        &mut self,
        number: u32,
        chosen: &Result<(SocketAddr, OwnedFd), NetError>,
    ) -> Result<(), Refused> {
        let Ok((local, _)) = chosen else {
            return Ok(());
        };
        let range = self.settings.config.automatic_ports.value.clone();
        let account = self.account_of(number);
        let place = |port: u16| port.checked_sub(*range.start()).map(usize::from);
        // A lease of any address has its TCP port at each.
        let overlaps = |of: &SocketAddr| {
            let is_any = of.ip().is_unspecified() || local.ip().is_unspecified();
            let meets = of.ip() == local.ip() || (is_any && of.is_ipv4() == local.is_ipv4());
            meets && range.contains(&of.port())
        };
        let (mut own, mut all) = (vec![false; range.len()], vec![false; range.len()]);
        for port in self.devices.iter().flat_map(|shared| shared.ports.values()) {
            let is_own = Some(port.record.account()) == account;
            for at in port.leases.keys().filter(|of| overlaps(of)) {
                if let Some(at) = place(at.port()) {
                    own[at] |= is_own;
                    all[at] = true;
                }
            }
        }
        let [own, all] = [own, all].map(|taken| taken.into_iter().filter(|taken| *taken).count());
        if has_share(own, all, range.len()) {
            return Ok(());
        }
        let mut devices = self.devices.iter_mut();
        if let Some(shared) = devices.find(|shared| shared.ports.contains_key(&number)) {
            let released = shared.device.release(number, *local);
            released.map_err(|error| Refused::new(Reason::Other, error.to_string()))?;
        }
        let (ip, left) = (local.ip(), range.len().saturating_sub(all));
        let (first, last) = (range.start(), range.end());
        let why = format!(
            "this user has {own} of the TCP ports {first} to {last} at {ip}, and {left} are left for all users: nobody gets more who has \
             over a third of that; end connections, choose TCP ports of `listen`, or ask the administrator for more `automatic_ports`"
        );
        Err(Refused::new(Reason::Quota, why))
    }

    /// Returns the user as whom the client of a port counts.
    fn account_of(&self, number: u32) -> Option<u32> {
        let mut devices = self.devices.iter();
        let port = devices.find_map(|shared| shared.ports.get(&number));
        port.map(|Port { record, .. }| record.account())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_take_what_they_get_leave_some_for_others() {
        // Those of automatic_ports, with the default of connections.
        let (most, quota) = (4535, 1024);
        let mut all = 0;
        let mut got = Vec::new();
        for _ in 0..12 {
            let own = (0..quota).find(|own| !has_share(*own, all + own, most));
            let own = own.unwrap_or(quota);
            all += own;
            got.push(own);
        }
        // Nobody who is alone is kept from having what its quota gives.
        assert_eq!(got[0], quota);
        assert!(got.iter().all(|got| *got > 10), "{got:?}");
        assert!(all < most);
    }
}
