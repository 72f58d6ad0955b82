//! The listeners of an adapter at the ports in its numbers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rnic_verbs::{ConnectRequest, Device, Listener};
use tracing::debug;

use crate::adapter::Adapter;
use crate::errno::{Errno, ToErrno, lock};
use crate::rendezvous::waiting::Waiting;

/// How long a worker of the device may take to listen.
const LONGEST_LISTEN: Duration = Duration::from_secs(1);

/// The most ports that are tried until one is free for both families.
const MAX_PORTS_TRIED: usize = 16;

/// The listeners, and what waits.
pub(super) struct Listeners {
    adapter: usize,
    process: u32,
    at: Mutex<Vec<Listener>>,
    pub(super) waiting: Waiting,
}

/// Those of this process.
static LISTENERS: Mutex<Vec<Arc<Listeners>>> = Mutex::new(Vec::new());

/// Returns the lock of the list, which a child makes new.
pub(crate) fn renewed() -> &'static Mutex<impl Default> {
    &LISTENERS
}

fn find(all: &[Arc<Listeners>], adapter: &Adapter) -> Option<Arc<Listeners>> {
    let process = std::process::id();
    let is_this = |one: &&Arc<Listeners>| one.adapter == adapter.index && one.process == process;
    all.iter().find(is_this).cloned()
}

impl Listeners {
    /// Returns those of an adapter, if it has any.
    pub(super) fn known(adapter: &Adapter) -> Option<Arc<Self>> {
        find(&lock(&LISTENERS), adapter)
    }

    /// Returns those of an adapter, and opens its device.
    pub(super) fn of(adapter: &'static Adapter) -> Result<Arc<Self>, Errno> {
        adapter.device()?;
        let mut all = lock(&LISTENERS);
        if let Some(known) = find(&all, adapter) {
            return Ok(known);
        }
        let new = Arc::new(Self {
            adapter: adapter.index,
            process: std::process::id(),
            at: Mutex::default(),
            waiting: Waiting::default(),
        });
        all.push(new.clone());
        Ok(new)
    }

    /// Listens at a free port for both families, if the device has both, and returns it.
    pub(super) fn listen(&self, adapter: &'static Adapter) -> Result<u16, Errno> {
        let device = adapter.device()?;
        let new = at_free_port(&device)?;
        let port = new[0].local_address().port();
        // Peers may come once the program has the number: workers carry out commands in their
        // order, so that this one's answer comes when they listen.
        device.barrier(LONGEST_LISTEN).map_err(|why| why.errno())?;
        lock(&self.at).extend(new);
        Ok(port)
    }

    /// Listens at a port no more. Peers are refused there, and ask again, as those that ask for a
    /// queue pair which is gone.
    pub(super) fn close(&self, adapter: &'static Adapter, port: u16) {
        let at_port = |listener: &mut Listener| listener.local_address().port() == port;
        let closed: Vec<_> = lock(&self.at).extract_if(.., at_port).collect();
        drop(closed);
        // Once the workers have carried that out, the sockets are closed: programs count them.
        if let Ok(device) = adapter.device() {
            let _ = device.barrier(LONGEST_LISTEN);
        }
    }

    /// Returns the next request.
    pub(super) fn next_request(&self, adapter: &Adapter) -> Option<ConnectRequest> {
        let mut ended = Vec::new();
        let request = next_of(&mut lock(&self.at), &mut ended);
        // Whoever gives out numbers has locked these before he listens.
        for listener in ended {
            adapter.numbers.retire(listener.local_address().port());
        }
        request
    }
}

/// Listens at a port that is free for each family which the device has.
fn at_free_port(device: &Device) -> Result<Vec<Listener>, Errno> {
    let at = |local| device.listen(local).map_err(|why| why.errno());
    let v6_at = |port| at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    for _ in 0..MAX_PORTS_TRIED {
        let v4 = match at(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))) {
            Ok(v4) => v4,
            Err(errno) => return v6_at(0).map(|v6| vec![v6]).map_err(|_| errno),
        };
        let port = v4.local_address().port();
        match v6_at(port) {
            Ok(v6) => return Ok(vec![v4, v6]),
            Err(Errno::EADDRINUSE) => debug!("port {port} is free for IPv4 alone"),
            Err(errno) => {
                debug!("no peer can ask by IPv6 at port {port}: {errno}");
                return Ok(vec![v4]);
            }
        }
    }
    Err(Errno::EADDRINUSE)
}

/// Returns the next request to any of these listeners. Those that have ended are moved to `ended`.
fn next_of(listeners: &mut Vec<Listener>, ended: &mut Vec<Listener>) -> Option<ConnectRequest> {
    let mut request = None;
    let has_ended = |listener: &mut Listener| {
        if request.is_some() {
            return false;
        }
        match listener.next_request(Duration::ZERO) {
            Ok(next) => request = next,
            Err(why) => {
                let port = listener.local_address().port();
                debug!("the listener at port {port} has ended: {why}");
                return true;
            }
        }
        false
    };
    ended.extend(listeners.extract_if(.., has_ended));
    request
}
