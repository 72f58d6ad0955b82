//! Waiting for clients, on one address or on all of both families.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rnic_core::engine::NetError;
use rnic_verbs::{ConnectRequest, Device, Listener, Peers};

use crate::connect::local_on;
use crate::device::with_flags;
use crate::failure::{Doing, Outcome};
use crate::out;

/// Where a server listens.
pub(crate) struct Listening {
    device: Device,
    /// At least one.
    listeners: Vec<Listener>,
}

impl Listening {
    /// Listens on a port of an address, or of all addresses: of IPv4, and of IPv6 if the host has
    /// it. Only these peers may connect.
    pub(crate) fn on(
        device: &Device,
        address: Option<SocketAddr>,
        port: u16,
        peers: &Peers,
    ) -> Outcome<Self> {
        let listen = |address| device.listen_to(address, peers.clone());
        let what = |address| format!("listen on {address}");
        let first = address.map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), |address| {
            local_on(device, address, port)
        });
        let mut listeners = vec![listen(first).map_err(with_flags).doing(what(first))?];
        if address.is_none() {
            let second = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
            match listen(second) {
                Ok(listener) => listeners.push(listener),
                // Another process would get the clients that come by IPv6.
                Err(taken @ rnic_verbs::Error::Net(NetError::InUse(_))) => {
                    return Err(taken).doing(what(second));
                }
                Err(why) => out::note(format_args!("rnic-ctl: IPv4 alone: {}", with_flags(why))),
            }
        }
        Ok(Self {
            device: device.clone(),
            listeners,
        })
    }

    /// Returns the next connection request. Waits for `timeout` at most.
    pub(crate) fn next_request(
        &self,
        timeout: Duration,
    ) -> Result<Option<ConnectRequest>, rnic_verbs::Error> {
        self.device.next_request(&self.listeners, timeout)
    }

    /// Returns the first of its addresses.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.listeners[0].local_address()
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, listener) in self.listeners.iter().enumerate() {
            let and = if at > 0 { " and " } else { "" };
            write!(f, "{and}{}", listener.local_address())?;
        }
        Ok(())
    }
}
