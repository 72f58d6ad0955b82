//! The local addresses and ports whose segments come to this process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError};
use rnic_core::engine::Peers;

use super::layout::{
    self, ALL_PEERS, Entry, KeyOctets, OWN_SOCKETS, PeerOctets, PortEntries, PortOctets,
    SOME_PEERS, TargetWords, key, port_in,
};
use super::load::Maps;
use super::maps::io_error;

/// Adds an entry only if there is none yet (`BPF_NOEXIST`), because the entries of a port are counted. There is one if two
/// links have the address, as a device and a VLAN on it can have the same link-local one, and both have it untagged.
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
}

impl std::fmt::Debug for SteeredPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteeredPorts")
    }
}

impl SteeredPorts {
    pub(crate) fn new(maps: &Maps) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Tables {
            entries: maps.get("steer_map")?,
            ports: maps.get("steer_ports")?,
            peers: maps.get("steer_peers")?,
        }))))
    }

    /// Steers segments of these peers to an entry, and from there to the sockets of this process.
    pub(crate) fn add(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        self.add_for(OWN_SOCKETS, entry, peers)
    }

    /// Steers segments of these peers to an entry, and from there to this [recipient](layout::recipient).
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

    /// Removes an entry whose peers are not known here.
    pub(crate) fn remove_with_peers(&self, entry: &Entry) -> io::Result<()> {
        let mut maps = self.lock();
        let written = maps.remove_from_port(entry);
        let key = key(entry);
        let limited = maps.entries.get(&key, 0).map_err(io_error)?[0] == SOME_PEERS;
        let removed = maps.entries.remove(&key).map_err(io_error);
        let swept = match limited {
            true => maps.sweep_peers(&key),
            false => Ok(()),
        };
        written.and(removed).and(swept)
    }

    /// Returns all entries, each with the port of the client that has it.
    pub(crate) fn list(&self) -> io::Result<Vec<(u32, Entry)>> {
        let maps = self.lock();
        let mut found = Vec::new();
        for each in maps.entries.iter() {
            let (key, [_, recipient]) = each.map_err(io_error)?;
            found.extend(layout::entry(&key).map(|entry| (port_in(recipient), entry)));
        }
        Ok(found)
    }

    /// Returns the port of the client that has an entry, if there is such an entry.
    pub(crate) fn port_of(&self, entry: &Entry) -> io::Result<Option<u32>> {
        match self.lock().entries.get(&key(entry), 0) {
            Ok([_, recipient]) => Ok(Some(port_in(recipient))),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(io_error(error)),
        }
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

    /// Removes all peers of the entry with this key.
    fn sweep_peers(&mut self, key: &KeyOctets) -> io::Result<()> {
        let mut of_entry = Vec::new();
        for peer in self.peers.keys() {
            let peer = peer.map_err(io_error)?;
            of_entry.extend((layout::entry_of(&peer.data()) == *key).then_some(peer));
        }
        for peer in of_entry {
            self.peers.remove(&peer).map_err(io_error)?;
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
