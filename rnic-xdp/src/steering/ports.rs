//! The local addresses and ports whose segments come to this process.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, HashMap, MapData};

use super::io_error;
use super::layout::{KeyOctets, PortEntries, PortOctets, key};

/// The value of every entry: the key says it all.
const STEERED: u32 = 1;
/// Only if there is no such entry yet (`BPF_NOEXIST`): those of a port are counted.
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

    pub(crate) fn add(&self, local: SocketAddr) -> io::Result<()> {
        let mut maps = self.lock();
        let entries = &mut maps.entries;
        entries.insert(key(local), STEERED, NEW).map_err(io_error)?;
        let before = maps.port(local)?;
        let after = before.with(local);
        if before.is_hidden() {
            // The program may read what is half written: the address changes while it does not count.
            maps.set_port(local, after.hidden())?;
        }
        maps.set_port(local, after)
    }

    pub(crate) fn remove(&self, local: SocketAddr) -> io::Result<()> {
        let mut maps = self.lock();
        maps.entries.remove(&key(local)).map_err(io_error)?;
        let after = maps.port(local)?.without(local);
        maps.set_port(local, after)
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    fn port(&self, local: SocketAddr) -> io::Result<PortEntries> {
        let octets = self.ports.get(&local.port().into(), 0).map_err(io_error)?;
        Ok(PortEntries::read(&octets))
    }

    fn set_port(&mut self, local: SocketAddr, entries: PortEntries) -> io::Result<()> {
        self.ports
            .set(local.port().into(), entries.octets(), 0)
            .map_err(io_error)
    }
}
