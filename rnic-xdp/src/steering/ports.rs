//! The local addresses and ports whose segments come to this process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::Peers;

use super::layout::{
    self, ALL_PEERS, Entry, KeyOctets, PeerOctets, PortEntries, PortOctets, SOME_PEERS, key,
};
use super::maps::io_error;

/// Adds an entry only if there is none yet (`BPF_NOEXIST`), because the entries of a port are counted. There is one if two
/// links have the address, as a device and a VLAN on it can have the same link-local one, and both have it untagged.
const NEW: u64 = 1;

/// The steered ports of a device, shared by all that add to them.
#[derive(Clone)]
pub(crate) struct SteeredPorts(Arc<Mutex<Maps>>);

struct Maps {
    entries: HashMap<MapData, KeyOctets, u32>,
    /// The map by port, which the program reads before the map of entries.
    ports: Array<MapData, PortOctets>,
    /// The peers to which entries are limited.
    peers: LpmTrie<MapData, PeerOctets, u32>,
}

impl std::fmt::Debug for SteeredPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteeredPorts")
    }
}

impl SteeredPorts {
    pub(super) fn new(
        entries: HashMap<MapData, KeyOctets, u32>,
        ports: Array<MapData, PortOctets>,
        peers: LpmTrie<MapData, PeerOctets, u32>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Maps {
            entries,
            ports,
            peers,
        })))
    }

    /// Steers segments of these peers to an entry.
    pub(crate) fn add(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        let mut maps = self.lock();
        let value = match peers.limits() {
            None => ALL_PEERS,
            Some(_) => SOME_PEERS,
        };
        let entries = &mut maps.entries;
        entries.insert(key(entry), value, NEW).map_err(io_error)?;
        let written = maps.add_peers(entry, peers);
        let written = written.and_then(|()| maps.add_to_port(entry, value));
        if written.is_err() {
            // It may be tried again.
            maps.remove_peers(entry, peers);
            let _ = maps.entries.remove(&key(entry));
        }
        written
    }

    /// Removes an entry that was added with these peers.
    pub(crate) fn remove(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        let mut maps = self.lock();
        let written = maps.remove_from_port(entry);
        let removed = maps.entries.remove(&key(entry)).map_err(io_error);
        maps.remove_peers(entry, peers);
        written.and(removed)
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keys_of(entry: &Entry, peers: &Peers) -> impl Iterator<Item = (u32, PeerOctets)> {
    let limits = peers.limits().unwrap_or_default().iter();
    limits.filter_map(|prefix| layout::peers(entry, *prefix))
}

impl Maps {
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

    /// Adds an entry to the value of its port.
    fn add_to_port(&mut self, entry: &Entry, value: u32) -> io::Result<()> {
        let before = self.port(entry)?;
        if value != ALL_PEERS {
            return self.set_port(entry, before.with_limited());
        }
        let after = before.with(entry);
        if before.is_hidden() {
            // The program may read a value that is half written, so the address changes only while it is hidden.
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
