//! The local addresses and ports whose segments come to this process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, HashMap, MapData};

use super::io_error;
use super::layout::{Entry, KeyOctets, PortEntries, PortOctets, key};

/// The value of every entry: the key says it all.
const STEERED: u32 = 1;
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
    ) -> Self {
        Self(Arc::new(Mutex::new(Maps { entries, ports })))
    }

    pub(crate) fn add(&self, entry: &Entry) -> io::Result<()> {
        let mut maps = self.lock();
        let entries = &mut maps.entries;
        entries.insert(key(entry), STEERED, NEW).map_err(io_error)?;
        let told = maps.tell_with(entry);
        if told.is_err() {
            // It may be tried again.
            let _ = maps.entries.remove(&key(entry));
        }
        told
    }

    pub(crate) fn remove(&self, entry: &Entry) -> io::Result<()> {
        let mut maps = self.lock();
        let told = maps.tell_without(entry);
        let removed = maps.entries.remove(&key(entry)).map_err(io_error);
        told.and(removed)
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    /// Tells the program of one more entry.
    fn tell_with(&mut self, entry: &Entry) -> io::Result<()> {
        let before = self.port(entry)?;
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
