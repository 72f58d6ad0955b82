//! The local addresses and ports whose segments come to this process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::Peers;

use super::io_error;
use super::layout::{
    self, ALL_PEERS, Entry, KeyOctets, PeerOctets, PortEntries, PortOctets, SOME_PEERS, key,
};

/// Only if there is no such entry yet (`BPF_NOEXIST`): those of a port are counted. There is one if the address is that of
/// two links, as a link-local one can be of a device and of a VLAN on it, and the other has it untagged too.
const NEW: u64 = 1;

/// The steered ports of a device, for all who add to them.
#[derive(Clone)]
pub(crate) struct SteeredPorts(Arc<Mutex<Maps>>);

struct Maps {
    entries: HashMap<MapData, KeyOctets, u32>,
    /// What the program compares with before it looks among the entries.
    ports: Array<MapData, PortOctets>,
    /// Whom entries are limited to.
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

    /// Steers what these peers send to an entry.
    pub(crate) fn add(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        let mut maps = self.lock();
        let value = match peers.limits() {
            None => ALL_PEERS,
            Some(_) => SOME_PEERS,
        };
        let entries = &mut maps.entries;
        entries.insert(key(entry), value, NEW).map_err(io_error)?;
        let told = maps.let_in(entry, peers);
        let told = told.and_then(|()| maps.tell_with(entry, value));
        if told.is_err() {
            // It may be tried again.
            maps.shut_out(entry, peers);
            let _ = maps.entries.remove(&key(entry));
        }
        told
    }

    /// Takes back what was added with the same peers.
    pub(crate) fn remove(&self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        let mut maps = self.lock();
        let told = maps.tell_without(entry);
        let removed = maps.entries.remove(&key(entry)).map_err(io_error);
        maps.shut_out(entry, peers);
        told.and(removed)
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
    /// Tells the program whom an entry is limited to.
    fn let_in(&mut self, entry: &Entry, peers: &Peers) -> io::Result<()> {
        for (bits, octets) in keys_of(entry, peers) {
            let key = Key::new(bits, octets);
            self.peers.insert(&key, 1, 0).map_err(io_error)?;
        }
        Ok(())
    }

    /// Has it forget them, as far as it knows of them.
    fn shut_out(&mut self, entry: &Entry, peers: &Peers) {
        for (bits, octets) in keys_of(entry, peers) {
            let _ = self.peers.remove(&Key::new(bits, octets));
        }
    }

    /// Tells the program of one more entry.
    fn tell_with(&mut self, entry: &Entry, value: u32) -> io::Result<()> {
        let before = self.port(entry)?;
        if value != ALL_PEERS {
            return self.set_port(entry, before.with_limited());
        }
        let after = before.with(entry);
        if before.is_hidden() {
            // The program may read what is half written: the address changes while it does not count.
            self.set_port(entry, after.hidden())?;
        }
        self.set_port(entry, after)
    }

    /// Tells it of one less.
    fn tell_without(&mut self, entry: &Entry) -> io::Result<()> {
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
