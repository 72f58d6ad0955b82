//! The ports of a shared device that are hardware queues of it.
//!
//! Their clients' sockets are bound to the device itself. Whether somebody still has one is asked
//! of the map of sockets, because no device goes with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_core::time::Instant as Time;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::holders::end_holders;
use super::programs::{SharedSteering, SharingError};
use crate::device::interface::{MadeQueue, unbound_socket};
use crate::device::netlink::Link;
use crate::device::queue_choice::Queue;

/// How often to look whether a client that is not connected still has its socket.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long processes may take to end, and the driver to let go of their memory.
const END_WITHIN: Duration = Duration::from_secs(5);
const END_EVERY: Duration = Duration::from_millis(2);

/// What must be known of such a port when the next process takes it over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePort {
    /// The queue.
    pub queue: u32,
    /// The inode of its socket.
    pub inode: u64,
    /// The user whose processes have the socket.
    pub uid: u32,
    /// Why frames are copied; without it, they are not.
    pub copied: Option<String>,
}

/// Those of a device, by their numbers.
#[derive(Debug, Default)]
pub(super) struct QueuePorts {
    ports: BTreeMap<u32, QueuePort>,
    /// Those whose sockets may go at any time, and their queues.
    watched: BTreeMap<u32, u32>,
    /// When to look for these.
    look_at: Option<Time>,
}

impl QueuePorts {
    pub(super) fn insert(&mut self, number: u32, port: QueuePort) {
        self.ports.insert(number, port);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.ports.remove(&number);
        self.watched.remove(&number);
    }

    pub(super) fn get(&self, number: u32) -> Option<&QueuePort> {
        self.ports.get(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &QueuePort)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// Looks again and again whether somebody still has the socket of a port, or does so no more.
    pub(super) fn watch(&mut self, number: u32, is_watched: bool) {
        match self.ports.get(&number).filter(|_| is_watched) {
            Some(port) => {
                self.watched.insert(number, port.queue);
                self.look_at = Some(Time::ZERO);
            }
            None => drop(self.watched.remove(&number)),
        }
    }

    /// Returns when to look.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.look_at.filter(|_| !self.watched.is_empty())
    }

    /// Returns the ports whose sockets nobody has any more, if it is time to look.
    pub(super) fn ended(&mut self, now: Time, steering: &mut SharedSteering) -> Vec<u32> {
        if self.look_at().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.look_at = Some(now + LOOK_EVERY);
        let mut is_gone = |queue: u32| {
            let there = has_socket(steering, queue);
            there
                .inspect_err(|error| warn!("{error}"))
                .is_ok_and(|there| !there)
        };
        let watched = self.watched.iter();
        let gone = watched.filter(|(_, queue)| is_gone(**queue));
        gone.map(|(number, _)| *number).collect()
    }
}

/// Returns whether somebody still has the socket of a port.
pub(super) fn has_socket(steering: &mut SharedSteering, queue: u32) -> Result<bool, SharingError> {
    let another = unbound_socket().map_err(|source| SharingError::System {
        doing: "open an AF_XDP socket",
        source,
    })?;
    steering.queue_has_socket(queue, another)
}

/// Ends the leases of such a port, and removes the rules that bring their segments to its queue.
pub(super) fn end_leases(
    link: &Link,
    steering: &mut SharedSteering,
    number: u32,
    queue: u32,
) -> Result<(), SharingError> {
    let leases = steering.leases().into_iter();
    for (_, entry) in leases.filter(|(of, _)| *of == number) {
        // The lease says where the rule is: it goes last.
        end_rules(link, queue, entry.local);
        steering.remove_lease(number, &entry)?;
    }
    Ok(())
}

/// Removes the rules for a local port.
pub(super) fn end_rules(link: &Link, queue: u32, local: SocketAddr) {
    let device = Queue {
        link,
        number: queue,
    };
    if let Err(error) = device.remove_rules(local) {
        let netdev = &link.name;
        warn!("a rule for {local} may stay in {netdev} (`ethtool -n {netdev}`): {error}");
    }
}

/// Revokes a client's queue. First nothing arrives there any more. Then the client's processes are
/// ended, because nobody can take a bound socket away. When this returns, the socket is gone, and
/// the driver has let go of its memory.
pub(super) fn end_port(
    link: &Link,
    steering: &mut SharedSteering,
    number: u32,
    port: &QueuePort,
) -> Result<(), SharingError> {
    end_leases(link, steering, number, port.queue)?;
    let deadline = Instant::now() + END_WITHIN;
    while has_socket(steering, port.queue)? {
        // Again and again: they may have started others meanwhile.
        let ended = end_holders(port.inode, port.uid);
        ended.map_err(|source| SharingError::System {
            doing: "look for the processes that have a socket",
            source,
        })?;
        if Instant::now() > deadline {
            let (uid, inode) = (port.uid, port.inode);
            return Err(SharingError::StillOpen {
                port: number,
                uid,
                inode,
            });
        }
        sleep(END_EVERY);
    }
    while !MadeQueue::is_free(link, port.queue) && Instant::now() < deadline {
        sleep(END_EVERY);
    }
    steering.remove_client(number)
}
