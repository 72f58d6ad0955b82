//! Connecting to a server, interruptible by Ctrl-C.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use rnic_verbs::{ConnectError, ConnectionEvent, ConnectionOptions, Established, Qp};

use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;

/// How long data or keepalive probes may stay unacknowledged before the other side counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the options that all commands share: timeouts that detect a side that has gone.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions::with_patience(PATIENCE)
}

/// Resolves the address of a host, in the family of the local one.
pub(crate) fn resolve(host: &str, port: u16, local: Option<IpAddr>) -> Outcome<SocketAddr> {
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

/// How often to look for Ctrl-C.
const NAP: Duration = Duration::from_millis(100);

/// Connects, and waits for the outcome. `rejected` makes a failure of the private data of a rejection.
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
    qp.connect(server, local, options).doing(&what)?;
    loop {
        interrupt.check()?;
        let failed = match qp.next_event(NAP).doing(&what)? {
            Some(ConnectionEvent::Established(established)) => return Ok(established),
            Some(ConnectionEvent::Rejected { private_data, .. }) => {
                return Err(rejected(&private_data));
            }
            Some(ConnectionEvent::Failed(reason) | ConnectionEvent::Disconnected(reason)) => {
                ConnectError::Failed(reason)
            }
            None if Instant::now() >= until => ConnectError::TimedOut(timeout),
            None => continue,
        };
        return Err(Failure::operation(what, failed));
    }
}
