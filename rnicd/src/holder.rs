//! Who has a local address and TCP port that somebody else wants.

use std::net::SocketAddr;

use rnic_core::engine::{InUse, NetError};

use crate::listeners::Role;
use crate::record::Record;
use crate::server::Server;
use crate::shared::Port;

impl Server {
    /// Adds to an error who has the address and TCP port that the client of a port wants.
    /// Administrators may know each client, and others their own.
    pub(crate) fn name_holder(&self, error: NetError, number: u32) -> NetError {
        let NetError::InUse(InUse { address, .. }) = error else {
            return error;
        };
        let ports = || self.devices.iter().flat_map(|shared| &shared.ports);
        let wants = ports().find(|(port, _)| **port == number);
        let client = wants.and_then(|(_, port)| self.clients.get(port.client?));
        let has = |port: &Port| port.leases.keys().any(|lease| overlap(*lease, address));
        let holder = ports().find(|(_, port)| has(port));
        let holder = holder.map(|(holder, port)| {
            let Record { program, pid, .. } = &port.record;
            let may_know = client.is_some_and(|client| {
                client.role == Role::Administrator || client.is_user_of(&port.record)
            });
            match may_know {
                true => format!("port {holder} of rnicd ({program}, pid {pid})"),
                false => "another user's client of rnicd".to_owned(),
            }
        });
        InUse { address, holder }.into()
    }
}

/// Returns whether the kernel gives only one of two local addresses and TCP ports to a socket.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |one: SocketAddr, other: SocketAddr| one.ip() == other.ip() || one.ip().is_unspecified();
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (covers(one, other) || covers(other, one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_overlaps_itself_and_any() {
        let both = |one: &str, other: &str| overlap(one.parse().unwrap(), other.parse().unwrap());
        assert!(both("192.0.2.1:7", "192.0.2.1:7"));
        assert!(both("0.0.0.0:7", "192.0.2.1:7") && both("192.0.2.1:7", "0.0.0.0:7"));
        assert!(!both("192.0.2.1:7", "192.0.2.2:7") && !both("192.0.2.1:7", "192.0.2.1:8"));
        assert!(!both("[::]:7", "192.0.2.1:7"));
    }
}
