//! The local addresses and ports whose segments come to this process.

use std::collections::{BTreeMap, HashMap as Known};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::{Peers, Prefix};

use super::layout::{
    self, ALL_PEERS, Entry, KeyOctets, OWN_SOCKETS, PeerOctets, PortEntries, PortOctets,
    SOME_PEERS, TargetWords, is_protected, key, port_in,
};
use super::load::Maps;
use super::maps::io_error;

/// Adds an entry only if there is none yet (`BPF_NOEXIST`), because the entries of a port are
/// counted. There is one if two links have the address, as a device and a VLAN on it can have the
/// same link-local one, and both have it untagged.
const NEW: u64 = 1;

/// The steered ports of a device, shared by all that add to them.
#[derive(Clone)]
pub(crate) struct SteeredPorts(Arc<Mutex<Tables>>);

struct Tables {
    entries: HashMap<MapData, KeyOctets, TargetWords>,
    /// The map by port, which the program reads before the map of entries.
    ports: Array<MapData, PortOctets>,
    /// The peers to which entries are limited.
    peers: LpmTrie<MapData, PeerOctets, u32>,
    /// What the maps have: nobody else writes to them, and to walk them takes the longer the more
    /// all clients have.
    known: BTreeMap<Entry, Steered>,
}

/// An entry of the maps.
struct Steered {
    recipient: u32,
    peers: Peers,
}

impl std::fmt::Debug for SteeredPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteeredPorts")
    }
}

impl SteeredPorts {
    /// Opens the maps, which may have the entries of a former process.
    pub(crate) fn new(maps: &Maps) -> io::Result<Self> {
        let mut tables = Tables {
            entries: maps.get("steer_map")?,
            ports: maps.get("steer_ports")?,
            peers: maps.get("steer_peers")?,
            known: BTreeMap::new(),
        };
        tables.read()?;
        Ok(Self(Arc::new(Mutex::new(tables))))
    }

    /// Steers segments of these peers to an entry, and from there to the sockets of this process.
    pub(crate) fn add(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        self.add_for(OWN_SOCKETS, entry, peers)
    }

    /// Steers segments of these peers to an entry, and from there to this
    /// [recipient](layout::recipient).
    pub(crate) fn add_for(&self, recipient: u32, entry: &Entry, peers: &Peers) -> io::Result<()> {
        let mut maps = self.lock();
        let which = match peers.limits() {
            None => ALL_PEERS,
            Some(_) => SOME_PEERS,
        };
        let entries = &mut maps.entries;
        let value = [which, recipient];
        entries.insert(key(entry), value, NEW).map_err(io_error)?;
        let written = maps.add_peers(entry, peers);
        let written = written.and_then(|()| maps.add_to_port(entry, value));
        if written.is_err() {
            // It may be tried again.
            maps.remove_peers(entry, peers);
            let _ = maps.entries.remove(&key(entry));
            return written;
        }
        let peers = peers.clone();
        maps.known.insert(*entry, Steered { recipient, peers });
        Ok(())
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, entry: &Entry) -> io::Result<()> {
        let mut maps = self.lock();
        let Some(steered) = maps.known.remove(entry) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let written = maps.remove_from_port(entry);
        let removed = maps.entries.remove(&key(entry)).map_err(io_error);
        maps.remove_peers(entry, &steered.peers);
        written.and(removed)
    }

    /// Returns all entries, each with the port of the client that has it.
    pub(crate) fn list(&self) -> Vec<(u32, Entry)> {
        let maps = self.lock();
        let each = |(entry, steered): (&Entry, &Steered)| (port_in(steered.recipient), *entry);
        maps.known.iter().map(each).collect()
    }

    /// Lists all entries at an address and port once, each with the port of the client that has it,
    /// and whether nothing goes there unprotected.
    pub(crate) fn list_protected(&self) -> Vec<(u32, SocketAddr, bool)> {
        let maps = self.lock();
        let each = |(entry, steered): (&Entry, &Steered)| {
            let recipient = steered.recipient;
            (port_in(recipient), entry.local, is_protected(recipient))
        };
        let mut all: Vec<_> = maps.known.iter().map(each).collect();
        all.dedup();
        all
    }

    /// Returns whether nothing goes unprotected to what a client has at an address and port.
    pub(crate) fn is_protected(&self, port: u32, local: SocketAddr) -> bool {
        let maps = self.lock();
        let [first, last] = [0, u16::MAX].map(|vlan| Entry { local, vlan });
        let mut there = maps.known.range(first..=last);
        there.any(|(_, steered)| {
            port_in(steered.recipient) == port && is_protected(steered.recipient)
        })
    }

    /// Returns how many peers entries are limited to, each with the port of the client that has it.
    pub(crate) fn listed_peers(&self) -> Vec<(u32, usize)> {
        let maps = self.lock();
        let known = maps.known.values();
        let limited = known.filter_map(|steered| {
            let listed = steered.peers.limits()?.len();
            Some((port_in(steered.recipient), listed))
        });
        limited.collect()
    }

    /// Returns the entries at an address and port: one for each VLAN.
    pub(crate) fn at(&self, local: SocketAddr) -> Vec<(u32, Entry)> {
        let maps = self.lock();
        let [first, last] = [0, u16::MAX].map(|vlan| Entry { local, vlan });
        let each = |(entry, steered): (&Entry, &Steered)| (port_in(steered.recipient), *entry);
        maps.known.range(first..=last).map(each).collect()
    }

    /// Returns the port of the client that has an entry, if there is such an entry.
    pub(crate) fn port_of(&self, entry: &Entry) -> Option<u32> {
        let maps = self.lock();
        let found = maps.known.get(entry);
        found.map(|steered| port_in(steered.recipient))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keys_of(entry: &Entry, peers: &Peers) -> impl Iterator<Item = (u32, PeerOctets)> {
    let limits = peers.limits().unwrap_or_default().iter();
    limits.filter_map(|prefix| layout::peers(entry, *prefix))
}

impl Tables {
    /// Writes the peers to which an entry is limited.
    fn add_peers(&mut self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        for (bits, octets) in keys_of(entry, peers) {
            let key = Key::new(bits, octets);
            self.peers.insert(&key, 1, 0).map_err(io_error)?;
        }
        Ok(())
    }

    /// Removes the peers of an entry, as far as they are there.
    fn remove_peers(&mut self, entry: &Entry, peers: &Peers) {
        for (bits, octets) in keys_of(entry, peers) {
            let _ = self.peers.remove(&Key::new(bits, octets));
        }
    }

    /// Reads what a former process has left in the maps.
    fn read(&mut self) -> io::Result<()> {
        let mut limits: Known<KeyOctets, Vec<Prefix>> = Known::new();
        for peer in self.peers.keys() {
            let peer = peer.map_err(io_error)?;
            let octets = peer.data();
            if let Some(prefix) = layout::peer_of(peer.prefix_len(), &octets) {
                let of_entry = limits.entry(layout::entry_of(&octets));
                of_entry.or_default().push(prefix);
            }
        }
        for each in self.entries.iter() {
            let (key, [which, recipient]) = each.map_err(io_error)?;
            let limited = limits.remove(&key).unwrap_or_default();
            let peers = match which {
                ALL_PEERS => Peers::all(),
                _ => Peers::only(limited),
            };
            if let Some(entry) = layout::entry(&key) {
                self.known.insert(entry, Steered { recipient, peers });
            }
        }
        Ok(())
    }

    /// Adds an entry to the value of its port.
    fn add_to_port(&mut self, entry: &Entry, [which, port]: TargetWords) -> io::Result<()> {
        let before = self.port(entry)?;
        if which != ALL_PEERS {
            return self.set_port(entry, before.with_limited());
        }
        let after = before.with(entry, port);
        if before.is_hidden() {
            // The program may read a value that is half written, so the address changes only while
            // it is hidden.
            self.set_port(entry, after.hidden())?;
        }
        self.set_port(entry, after)
    }

    /// Removes an entry from the value of its port.
    fn remove_from_port(&mut self, entry: &Entry) -> io::Result<()> {
        let after = self.port(entry)?.without(entry);
        self.set_port(entry, after)
    }

    fn port(&self, entry: &Entry) -> io::Result<PortEntries> {
        let octets = self
            .ports
            .get(&entry.local.port().into(), 0)
            .map_err(io_error)?;
        Ok(PortEntries::read(&octets))
    }

    fn set_port(&mut self, entry: &Entry, entries: PortEntries) -> io::Result<()> {
        self.ports
            .set(entry.local.port().into(), entries.octets(), 0)
            .map_err(io_error)
    }
}
