//! A device and its ports: who has them, what they have leased, and which next hops they follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use rnic_core::connection::NextHop;
use rnic_xdp::manager::SharedDevice;
use rnic_xdp::manager::states::KernelLink;
use rnic_xdp::sharing::PoliceCounters;
use rnic_xdp::steering::ModeChoice;
use tracing::warn;

use crate::quota::Taken;
use crate::record::{Record, Records};
use crate::usage::Usage;

/// The key of a client among all that are connected.
pub(crate) type ClientKey = usize;

/// A lease of a port.
pub(crate) struct Lease {
    /// Its part of the quota.
    pub(crate) _held: Taken,
    /// When it was leased, in seconds since 1970-01-01 UTC, unless a former rnicd did it.
    pub(crate) since: Option<u64>,
}

/// A port.
pub(crate) struct Port {
    /// Whose it is.
    pub(crate) record: Record,
    /// Its client, unless that is not connected now.
    pub(crate) client: Option<ClientKey>,
    /// What it has of its user's quota.
    pub(crate) _held: Vec<Taken>,
    /// What it has leased.
    pub(crate) leases: BTreeMap<SocketAddr, Lease>,
    /// The destinations that it follows.
    pub(crate) follows: BTreeSet<IpAddr>,
}

/// A destination that some port follows.
#[derive(Default)]
pub(crate) struct Followed {
    /// The ports.
    pub(crate) ports: BTreeSet<u32>,
    /// The next hop as last reported; `Some(None)`: it is unreachable.
    pub(crate) hop: Option<Option<NextHop>>,
}

/// A device that is shared, and its ports by their numbers.
pub(crate) struct Shared {
    /// The device.
    pub(crate) device: SharedDevice,
    /// The XDP mode that it was to be opened in.
    pub(crate) choice: ModeChoice,
    /// What outlives rnicd of its ports.
    pub(crate) records: Records,
    /// What its users have sent and received.
    pub(crate) usage: Usage,
    /// Its ports.
    pub(crate) ports: BTreeMap<u32, Port>,
    /// The destinations that its ports follow.
    pub(crate) destinations: HashMap<IpAddr, Followed>,
}

impl Shared {
    /// Makes a port follow a destination. Returns whether the next hop is known.
    pub(crate) fn follow(&mut self, number: u32, destination: IpAddr) -> bool {
        if let Some(port) = self.ports.get_mut(&number) {
            port.follows.insert(destination);
        }
        let followed = self.destinations.entry(destination).or_default();
        followed.ports.insert(number);
        let is_known = matches!(followed.hop, Some(Some(_)));
        if !is_known {
            // If it was unreachable before, that counts no more: the kernel tries again when somebody asks.
            followed.hop = None;
            self.device.follow(destination);
        }
        is_known
    }

    /// Makes a port follow a destination no more.
    pub(crate) fn forget(&mut self, number: u32, destination: IpAddr) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.follows.remove(&destination);
        }
        let Some(followed) = self.destinations.get_mut(&destination) else {
            return;
        };
        followed.ports.remove(&number);
        if followed.ports.is_empty() {
            self.destinations.remove(&destination);
            self.device.forget(destination);
        }
    }

    /// Takes in a next hop. Returns the ports that follow the destination.
    pub(crate) fn set_hop(&mut self, destination: IpAddr, hop: Option<NextHop>) -> BTreeSet<u32> {
        let Some(followed) = self.destinations.get_mut(&destination) else {
            return BTreeSet::new();
        };
        followed.hop = Some(hop);
        followed.ports.clone()
    }

    /// Reads what a port counts: what its client has sent, and its host end, as far as the kernel has them.
    pub(crate) fn look(&mut self, number: u32) -> (Option<PoliceCounters>, Option<KernelLink>) {
        // What a hardware queue sends and receives comes by no program that counts it.
        let port = self.ports.get(&number);
        if port.is_some_and(|port| port.record.queue.is_some()) {
            return (None, None);
        }
        let device = &mut self.device;
        let sent = found(device.netdev(), device.port_counters(number));
        let host_end = device.kernel_host_end(number);
        let host_end = found(device.netdev(), host_end).flatten();
        self.usage
            .see_port(number, sent.as_ref(), host_end.as_ref());
        (sent, host_end)
    }

    /// Counts what a port had for its user, before or after its end.
    pub(crate) fn close_books(&mut self, number: u32) {
        if let Some(uid) = self.ports.get(&number).map(|port| port.record.uid) {
            self.look(number);
            self.usage.end_port(number, uid);
            self.usage.keep();
        }
    }

    /// Forgets a port that has ended. Returns what is known of it.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Port> {
        let port = self.ports.get(&number)?;
        for destination in port.follows.clone() {
            self.forget(number, destination);
        }
        self.close_books(number);
        self.records.forget(number);
        self.ports.remove(&number)
    }

    /// Returns the port that has leased a local address and TCP port.
    pub(crate) fn lessee(&self, local: SocketAddr) -> Option<u32> {
        let any: IpAddr = match local {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0; 16].into(),
        };
        let entries = [local, SocketAddr::new(any, local.port())];
        let has = |port: &Port| entries.iter().any(|entry| port.leases.contains_key(entry));
        let found = self.ports.iter().find(|(_, port)| has(port));
        found.map(|(number, _)| *number)
    }
}

/// Returns what the kernel was asked for; notes an error: the rest is shown without it.
pub(crate) fn found<T, E: std::fmt::Display>(netdev: &str, read: Result<T, E>) -> Option<T> {
    read.inspect_err(|error| warn!("{netdev}: {error}")).ok()
}
