//! Ports of a shared device that are hardware queues of it: making them, bringing their segments to
//! their queues, and noticing their end.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use nix::libc::EOPNOTSUPP;
use nix::sys::stat::fstat;
use rnic_core::engine::NetError;
use rnic_core::time::Instant;
use tracing::{info, warn};

use super::device::{SharedDevice, sharing};
use super::programs::{ClientPeers, SharingError};
use super::queue_ports::{QueuePort, end_leases, end_port, has_socket};
use crate::device::error::OpenError;
use crate::device::interface::{InterfaceConfig, MadeQueue, ZeroCopy};
use crate::device::locals::other;
use crate::device::queue_choice::{Queue, never_will};

/// How many local ports to try for one whose segments come to the queue.
const PORT_TRIES: u32 = 8192;

/// A reserved local port, and the socket that reserves it.
type Leased = (SocketAddr, OwnedFd);

impl SharedDevice {
    /// Makes a port of a hardware queue of the device, for processes of this user. What its client
    /// sends is not looked at.
    pub fn make_queue_port(
        &mut self,
        number: u32,
        queue: u32,
        uid: u32,
        config: &InterfaceConfig,
        peers: &ClientPeers,
    ) -> Result<(MadeQueue, QueuePort), OpenError> {
        let netdev = || self.link.name.clone();
        if has_socket(&mut self.steering, queue).map_err(sharing)? {
            let netdev = netdev();
            return Err(OpenError::QueueBusy { netdev, queue });
        }
        let made = MadeQueue::make(&self.link, self.steering.mode(), queue, config)?;
        let status = fstat(&made.socket).map_err(|error| OpenError::System {
            doing: "look at an AF_XDP socket",
            source: error.into(),
        })?;
        let copied = match &made.zero_copy {
            ZeroCopy::On => None,
            ZeroCopy::Off(why) => Some(why.clone()),
        };
        let added = self.steering.add_queue(number, queue, &made.socket, peers);
        added.map_err(sharing)?;
        let netdev = netdev();
        info!(
            "{netdev}: queue {queue} is port {number}: {}",
            made.zero_copy
        );
        let port = QueuePort {
            queue,
            inode: status.st_ino,
            uid,
            copied,
        };
        self.queue_ports.insert(number, port.clone());
        Ok((made, port))
    }

    /// Forgets such a port, whose socket no client has got.
    pub fn forget_queue_port(&mut self, number: u32) -> Result<(), SharingError> {
        self.queue_ports.remove(number);
        self.steering.remove_client(number)
    }

    /// Takes over such a port from a former process. Returns whether it still exists; else nothing
    /// of it is left.
    pub fn adopt_queue_port(
        &mut self,
        number: u32,
        port: &QueuePort,
    ) -> Result<bool, SharingError> {
        let is_there = has_socket(&mut self.steering, port.queue)?;
        if is_there {
            self.steering.adopt_queue(number, port.queue)?;
            self.queue_ports.insert(number, port.clone());
            // Its client is not connected yet.
            self.watch_port(number, true);
        } else {
            end_leases(&self.link, &mut self.steering, number, port.queue)?;
        }
        Ok(is_there)
    }

    /// Sets whether a port is watched: whether it may end at any time, because its client is not
    /// connected. The end of a port that is no hardware queue is noticed anyway.
    pub fn watch_port(&mut self, number: u32, is_watched: bool) {
        self.queue_ports.watch(number, is_watched);
    }

    /// Ends all such ports.
    pub(super) fn end_queue_ports(&mut self) -> Result<(), SharingError> {
        self.queue_ports
            .iter()
            .try_for_each(|(number, port)| end_port(&self.link, &mut self.steering, number, port))
    }

    /// Ends the ports whose sockets nobody has any more.
    pub(super) fn look_for_queue_ports(&mut self, now: Instant) {
        for number in self.queue_ports.ended(now, &mut self.steering) {
            let queue = self.queue_ports.get(number).map(|port| port.queue);
            let swept = queue.map_or(Ok(()), |queue| {
                end_leases(&self.link, &mut self.steering, number, queue)
            });
            let swept = swept.and_then(|()| self.steering.remove_client(number));
            if let Err(error) = swept {
                let netdev = &self.link.name;
                warn!("{netdev}: entries of port {number} stay in the maps: {error}");
            }
            self.queue_ports.remove(number);
            self.say_ended(number);
        }
    }

    /// Brings the segments of all peers for a lease to the queue of its port, if that is one. If
    /// that cannot be, the lease ends.
    pub(super) fn place_listener(&mut self, port: u32, local: SocketAddr) -> Result<(), NetError> {
        let Some(queue) = self.steering.queue_of(port) else {
            return Ok(());
        };
        let Err(rule) = self.rule(queue, local, None) else {
            return Ok(());
        };
        let all = self.queue(queue).check_all(local.ip(), &rule);
        all.map_err(|why| {
            self.give_up(port, local);
            other(local, why)
        })
    }

    /// Brings the segments of a peer to the queue of a port, if that is one: to the lease, or to
    /// another one of the same address if any local port will do. If that cannot be, the lease
    /// ends.
    pub(super) fn place_connection(
        &mut self,
        port: u32,
        remote: SocketAddr,
        (wanted, leased): (SocketAddr, Leased),
        vlans: &BTreeSet<u16>,
    ) -> Result<Leased, NetError> {
        let Some(queue) = self.steering.queue_of(port) else {
            return Ok(leased);
        };
        let Err(rule) = self.rule(queue, leased.0, Some(remote)) else {
            return Ok(leased);
        };
        let suits = self.queue(queue).suits(remote, &rule);
        if suits.as_ref().is_ok_and(|suits| suits(leased.0)) {
            return Ok(leased);
        }
        self.give_up(port, leased.0);
        drop(leased);
        let suits = suits.map_err(|why| other(remote, why))?;
        let domain = self.locals.domain(wanted)?;
        for _ in 0..if wanted.port() == 0 { PORT_TRIES } else { 0 } {
            let bound = self.locals.bind_in(&domain, wanted)?;
            if suits(bound.1) {
                return self.connect_from(port, remote, bound, vlans);
            }
        }
        let why = "RSS brings them elsewhere for the local ports that could be had";
        Err(other(remote, self.queue(queue).unplaced(&rule, why)))
    }

    fn queue(&self, number: u32) -> Queue<'_> {
        Queue {
            link: &self.link,
            number,
        }
    }

    /// Makes the device bring segments for a local port to a queue. It need not if it has no other.
    fn rule(
        &mut self,
        queue: u32,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> io::Result<()> {
        let device = self.queue(queue);
        if device.is_only() {
            return Ok(());
        }
        if self.takes_no_rules {
            return Err(io::Error::from_raw_os_error(EOPNOTSUPP));
        }
        let inserted = device.insert_rule(local, remote);
        self.takes_no_rules = inserted.as_ref().is_err_and(never_will);
        inserted
    }

    /// Ends a lease that is of no use.
    fn give_up(&mut self, port: u32, local: SocketAddr) {
        if let Err(error) = self.release(port, local) {
            // It goes with the port.
            warn!("{}: {error}", self.link.name);
        }
    }
}
