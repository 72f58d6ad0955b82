//! A device and its ports: who has them, what they have leased, and which next hops they follow.
//! What they have leased is given back when they end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use rnic_core::connection::{AddressPair, NextHop};
use rnic_manager::states::KernelLink;
use rnic_xdp::Mapping;
use rnic_xdp::shared::PoliceCounters;
use rnic_xdp::shared::SharedDevice;
use rnic_xdp::steering::ModeChoice;
use tracing::warn;

use crate::freeing::Remains;
use crate::kept::Kept;
use crate::memory::Memory;
use crate::quota::Charge;
use crate::record::{Record, Records};
use crate::usage::Usage;

/// The key of a client among all that are connected.
pub(crate) type ClientKey = usize;

/// A lease of a port.
pub(crate) struct Lease {
    /// The socket that reserves its TCP port: closed when nothing is steered there any more, and
    /// before that is said.
    pub(crate) reservation: Kept,
    /// Makes a listener known to the port mappers of peers: its port is another's once the
    /// reservation ends.
    pub(crate) _mapping: Option<Mapping>,
    /// Its part of the quota.
    pub(crate) _held: Charge,
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
    pub(crate) held: Vec<Charge>,
    /// The memory of its frames, unless a former rnicd has lost it.
    pub(crate) memory: Option<Memory>,
    /// What it has leased.
    pub(crate) leases: BTreeMap<SocketAddr, Lease>,
    /// The paths that it follows.
    pub(crate) follows: BTreeSet<AddressPair>,
    /// Its client knows of associations.
    pub(crate) protects: bool,
}

impl Port {
    /// Closes the sockets of its leases, which have ended. Returns what counts as long as somebody
    /// has its own socket.
    pub(crate) fn end(self) -> Remains {
        let leases = self.leases.into_values();
        Kept::drop_all(leases.map(|lease| lease.reservation).collect());
        Remains {
            record: self.record,
            _held: self.held,
            memory: self.memory,
        }
    }

    /// Leaves what it holds to the keeper alone.
    pub(crate) fn leave(self) {
        for lease in self.leases.into_values() {
            lease.reservation.leave();
        }
        if let Some(memory) = self.memory {
            memory.leave();
        }
    }

    /// Returns what the keeper holds of it.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Kept> {
        let reservations = self.leases.values().map(|lease| &lease.reservation);
        reservations.chain(self.memory.iter().map(Memory::kept))
    }
}

/// Returns the key under which the socket of a lease is kept.
pub(crate) fn lease_key(netdev: &str, port: u32, local: SocketAddr) -> String {
    format!("lease {netdev} {port} {local}")
}

/// A path that some port follows.
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
    /// The number of the host's associations that clients may have, with which it was opened.
    pub(crate) ipsec_if_id: Option<NonZeroU32>,
    /// What outlives rnicd of its ports.
    pub(crate) records: Records,
    /// What its users have sent and received.
    pub(crate) usage: Usage,
    /// Its ports.
    pub(crate) ports: BTreeMap<u32, Port>,
    /// The paths that its ports follow.
    pub(crate) paths: HashMap<AddressPair, Followed>,
    /// It may have events that the last turn had no room for.
    pub(crate) has_more: bool,
}

impl Shared {
    /// Makes a port follow a path. Returns whether the next hop is known.
    pub(crate) fn follow(&mut self, number: u32, path: AddressPair) -> bool {
        if let Some(port) = self.ports.get_mut(&number) {
            port.follows.insert(path);
        }
        let followed = self.paths.entry(path).or_default();
        followed.ports.insert(number);
        let is_known = matches!(followed.hop, Some(Some(_)));
        if !is_known {
            // If it was unreachable before, that counts no more: the kernel tries again when
            // somebody asks.
            followed.hop = None;
            self.device.follow(path);
        }
        is_known
    }

    /// Makes a port follow a path no more.
    pub(crate) fn forget(&mut self, number: u32, path: AddressPair) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.follows.remove(&path);
        }
        let Some(followed) = self.paths.get_mut(&path) else {
            return;
        };
        followed.ports.remove(&number);
        if followed.ports.is_empty() {
            self.paths.remove(&path);
            self.device.forget(path);
        }
    }

    /// Returns whether the next hop to a host is known, from any address, or it is this host.
    pub(crate) fn knows_way_to(&self, host: IpAddr) -> bool {
        let mut paths = self.paths.iter();
        let is_known = |followed: &Followed| matches!(followed.hop, Some(Some(_)));
        self.device.is_of_this_host(host)
            || paths.any(|(path, followed)| path.remote == host && is_known(followed))
    }

    /// Records a next hop. Returns the ports that follow the path.
    pub(crate) fn set_hop(&mut self, path: AddressPair, hop: Option<NextHop>) -> BTreeSet<u32> {
        let Some(followed) = self.paths.get_mut(&path) else {
            return BTreeSet::new();
        };
        followed.hop = Some(hop);
        followed.ports.clone()
    }

    /// Notes that a lease listens, for the next rnicd, which counts it as that.
    pub(crate) fn note_listener(&mut self, number: u32, local: SocketAddr) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.record.listeners.insert(local);
            self.keep_record(number);
        }
    }

    /// Notes by which number peers know a listener, if by any.
    pub(crate) fn note_mapped(
        &mut self,
        number: u32,
        local: SocketAddr,
        known: Option<(SocketAddr, Mapping)>,
    ) {
        let Some(port) = self.ports.get_mut(&number) else {
            return;
        };
        let Some(lease) = port.leases.get_mut(&local) else {
            return;
        };
        port.record.mapped.remove(&local);
        lease._mapping = known.map(|(wanted, mapping)| {
            // The newest listener of a number counts, also for the next rnicd.
            port.record.mapped.retain(|_, other| *other != wanted);
            port.record.mapped.insert(local, wanted);
            mapping
        });
        self.keep_record(number);
    }

    /// Forgets that a lease listened.
    pub(crate) fn forget_listener(&mut self, number: u32, local: SocketAddr) {
        let port = self.ports.get_mut(&number);
        let forget = |record: &mut Record| {
            record.mapped.remove(&local);
            record.listeners.remove(&local)
        };
        if port.is_some_and(|port| forget(&mut port.record)) {
            self.keep_record(number);
        }
    }

    fn keep_record(&self, number: u32) {
        let kept = self.ports.get(&number);
        let kept = kept.map_or(Ok(()), |port| self.records.keep(&port.record));
        if let Err(error) = kept {
            // The next rnicd counts it as a connection then.
            warn!("{}: {error}", self.device.netdev());
        }
    }

    /// Reads what a port counts: what its client has sent, and its host end, as far as the kernel
    /// has them.
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
        if let Some(uid) = self.ports.get(&number).map(|port| port.record.account()) {
            self.look(number);
            self.usage.end_port(number, uid);
            self.usage.keep();
        }
    }

    /// Forgets a port that has ended. Returns what is known of it.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Port> {
        let port = self.ports.get(&number)?;
        for path in port.follows.clone() {
            self.forget(number, path);
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
