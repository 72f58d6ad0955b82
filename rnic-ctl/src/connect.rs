//! Connecting to a server, interruptible by Ctrl-C.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use rnic_verbs::{ConnectError, ConnectionEvent, ConnectionOptions, Device, Established, Qp};

use crate::device::with_flags;
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;

/// How long data or keepalive probes may stay unacknowledged before the other side counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the options that all commands share: timeouts that detect a side that has gone.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions::with_patience(PATIENCE)
}

/// Resolves the address of a host, in the family of the local one.
pub(crate) fn resolve(host: &str, port: u16, local: Option<SocketAddr>) -> Outcome<SocketAddr> {
    let what = || format!("find the host {host}");
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|why| Failure::operation(what(), why))?;
    let fits =
        |address: &SocketAddr| local.is_none_or(|local| local.is_ipv4() == address.is_ipv4());
    addresses
        .into_iter()
        .find(fits)
        .ok_or_else(|| Failure::operation(what(), "it has no address of that family"))
}

/// Reads a local address, without a port. A link-local one may have its scope (`fe80::1%eth1`),
/// which must be an interface.
pub(crate) fn local_address(text: &str) -> Result<SocketAddr, String> {
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|why| format!("{why}"))?;
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let mut local = SocketAddr::new(address, 0);
    if let Some(scope) = scope {
        if !is_link_local {
            return Err("only link-local addresses (fe80::) have a scope".into());
        }
        let index = if_nametoindex(scope).map_err(|_| format!("there is no interface {scope}"))?;
        if let SocketAddr::V6(local) = &mut local {
            local.set_scope_id(index);
        }
    }
    Ok(local)
}

/// Returns a local address with its port, as a device is told it. Over AF_XDP the link of a
/// link-local address is --netdev, or a VLAN on it that has the address.
pub(crate) fn local_on(device: &Device, mut local: SocketAddr, port: u16) -> SocketAddr {
    local.set_port(port);
    match device.kernel() {
        Some(_) => local,
        None => SocketAddr::new(local.ip(), port),
    }
}

/// How often to look for Ctrl-C.
const NAP: Duration = Duration::from_millis(100);

/// Connects, and waits for the outcome. `rejected` makes a failure of the private data of a
/// rejection.
pub(crate) fn connect(
    qp: &mut Qp,
    server: SocketAddr,
    local: Option<SocketAddr>,
    options: ConnectionOptions,
    interrupt: &Interrupt,
    rejected: impl FnOnce(&[u8]) -> Failure,
) -> Outcome<Established> {
    let what = format!("connect to {server}");
    // The engine ends the attempt itself; this is in case it does not run.
    let timeout = options.connect_timeout + Duration::from_secs(1);
    let until = Instant::now() + timeout;
    qp.connect(server, local, options)
        .map_err(with_flags)
        .doing(&what)?;
    loop {
        interrupt.check()?;
        let failed = match qp.next_event(NAP).doing(&what)? {
            Some(ConnectionEvent::Established(established)) => return Ok(established),
            Some(ConnectionEvent::Rejected { private_data, .. }) => {
                return Err(rejected(&private_data));
            }
            Some(
                ConnectionEvent::Failed(reason)
                | ConnectionEvent::Disconnected(reason)
                | ConnectionEvent::PeerLeft(reason),
            ) => ConnectError::Failed(reason),
            None if Instant::now() >= until => ConnectError::TimedOut(timeout),
            None => continue,
        };
        return Err(Failure::operation(what, failed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_address_may_have_a_scope_if_it_is_link_local() {
        let read = |text: &str| local_address(text).map(|address| address.to_string());
        assert_eq!(read("192.0.2.1").as_deref(), Ok("192.0.2.1:0"));
        assert_eq!(read("fe80::1").as_deref(), Ok("[fe80::1]:0"));
        assert_eq!(read("fe80::1%lo").as_deref(), Ok("[fe80::1%1]:0"));
        for wrong in [
            "fe80::1%",
            "fe80::1%nosuch0",
            "fd00::1%lo",
            "192.0.2.1%lo",
            "host",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
