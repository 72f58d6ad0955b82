//! The clients of a shared device, in the maps that the programs read.

use std::collections::BTreeMap;
use std::io;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::xdp::XdpMapError;
use aya::maps::{Array, DevMap, HashMap, MapData, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use rnic_core::engine::{Peers, Prefix};

use super::counters::{CounterWords, PoliceCounters};
use super::error::SharingError;
use super::layout::{self, Client, ClientOctets, PeerOctets};
use super::policy::{ClientPeers, ClientPolicy, check_port};
use crate::device::steering::{Maps, io_error};

/// A client of a shared device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedClient {
    /// The number of its port.
    pub port: u32,
    /// The index of the host's end of its veth pair.
    pub ifindex: u32,
    /// What it may send.
    pub policy: ClientPolicy,
}

/// The maps of clients.
pub(super) struct Clients {
    /// By the index of the device.
    map: HashMap<MapData, u32, ClientOctets>,
    /// With whom they may speak, by port.
    allowed: Array<MapData, u32>,
    peers: LpmTrie<MapData, PeerOctets, u32>,
    /// What the map of peers has of each port: it need not be walked to be found.
    listed: BTreeMap<u32, Vec<Prefix>>,
    devices: DevMap<MapData>,
    counters: PerCpuArray<MapData, CounterWords>,
    /// The index of the device of each port.
    ports: BTreeMap<u32, u32>,
}

impl Clients {
    pub(super) fn new(maps: &Maps) -> io::Result<Self> {
        let map: HashMap<_, u32, ClientOctets> = maps.get("police_clients")?;
        let mut ports = BTreeMap::new();
        for client in map.iter() {
            let (ifindex, client) = client.map_err(io_error)?;
            ports.insert(Client::read(client).port, ifindex);
        }
        let peers: LpmTrie<_, PeerOctets, u32> = maps.get("police_peers")?;
        let mut listed: BTreeMap<u32, Vec<Prefix>> = BTreeMap::new();
        for key in peers.keys() {
            let key = key.map_err(io_error)?;
            let (port, prefix) = layout::prefix(key.prefix_len(), key.data());
            listed.entry(port).or_default().push(prefix);
        }
        Ok(Self {
            map,
            ports,
            allowed: maps.get("steer_clients")?,
            peers,
            listed,
            devices: maps.get("steer_devices")?,
            counters: maps.get("police_counters")?,
        })
    }

    /// Returns an error unless a client has this port.
    pub(super) fn check(&self, port: u32) -> Result<(), SharingError> {
        check_port(port)?;
        let known = self.ports.contains_key(&port);
        known.then_some(()).ok_or(SharingError::NoSuchPort { port })
    }

    /// Adds a client, from which frames then go out, and to which they come.
    pub(super) fn add(
        &mut self,
        port: u32,
        ifindex: u32,
        policy: &ClientPolicy,
    ) -> Result<(), SharingError> {
        check_port(port)?;
        policy.check()?;
        if self.ports.contains_key(&port) {
            return Err(SharingError::PortInUse { port });
        }
        if let Some((&port, _)) = self.ports.iter().find(|(_, device)| **device == ifindex) {
            return Err(SharingError::DeviceInUse { ifindex, port });
        }
        let written = self.write(port, ifindex, policy);
        if written.is_err() {
            // What was written before that; the error says more than that of the removal would.
            let _ = self.remove(port);
        }
        written
    }

    fn write(
        &mut self,
        port: u32,
        ifindex: u32,
        policy: &ClientPolicy,
    ) -> Result<(), SharingError> {
        let failed = SharingError::system("add a client");
        self.ports.insert(port, ifindex);
        self.reset_counters(port).map_err(&failed)?;
        self.allow(port, &policy.peers).map_err(&failed)?;
        self.set_device(port, ifindex)?;
        let client = Client::new(port, policy).octets();
        let written = self.map.insert(ifindex, client, 0);
        written.map_err(io_error).map_err(&failed)
    }

    /// Removes a client as far as it is there: first no frames go out any more, then none come in.
    pub(super) fn remove(&mut self, port: u32) -> Result<(), SharingError> {
        check_port(port)?;
        let failed = SharingError::system("remove a client");
        if let Some(ifindex) = self.ports.remove(&port) {
            absent_is_fine(self.map.remove(&ifindex).map_err(io_error)).map_err(&failed)?;
        }
        self.clear_device(port).map_err(&failed)?;
        self.allow_nobody(port).map_err(&failed)
    }

    /// Sets with whom the client with a port may speak.
    pub(super) fn allow(&mut self, port: u32, peers: &ClientPeers) -> io::Result<()> {
        self.list_for(port, peers.listed.limits().unwrap_or_default())?;
        let value = layout::client_peers(peers);
        self.allowed.set(port, value, 0).map_err(io_error)
    }

    /// Ends all that the client with a port sends and receives.
    fn allow_nobody(&mut self, port: u32) -> io::Result<()> {
        self.allowed.set(port, 0, 0).map_err(io_error)?;
        self.list_for(port, &[])
    }

    /// Makes the map of peers have these prefixes for a port, and no others. Those of port 0 are
    /// the networks of the device.
    pub(super) fn list_for(&mut self, port: u32, prefixes: &[Prefix]) -> io::Result<()> {
        let before = self.listed.remove(&port).unwrap_or_default();
        let mut there = before.clone();
        let key = |prefix: &Prefix| {
            let (bits, octets) = layout::peer(port, *prefix);
            Key::new(bits, octets)
        };
        let mut write = || -> io::Result<()> {
            for prefix in prefixes.iter().filter(|prefix| !before.contains(prefix)) {
                self.peers.insert(&key(prefix), 1, 0).map_err(io_error)?;
                there.push(*prefix);
            }
            for prefix in before.iter().filter(|prefix| !prefixes.contains(prefix)) {
                absent_is_fine(self.peers.remove(&key(prefix)).map_err(io_error))?;
                there.retain(|known| known != prefix);
            }
            Ok(())
        };
        let written = write();
        if !there.is_empty() {
            self.listed.insert(port, there);
        }
        written
    }

    /// Lists the clients, by port.
    pub(super) fn list(&self) -> io::Result<Vec<SharedClient>> {
        let mut found = Vec::new();
        for (&port, &ifindex) in &self.ports {
            let client = Client::read(self.map.get(&ifindex, 0).map_err(io_error)?);
            let value = self.allowed.get(&port, 0).map_err(io_error)?;
            let (is_everybody, on_link) = layout::are_peers(value);
            let listed = self.listed.get(&port).cloned().unwrap_or_default();
            let listed = match is_everybody {
                true => Peers::all(),
                false => Peers::only(listed),
            };
            let policy = ClientPolicy {
                mtu: client.mtu,
                rate: (client.rate > 0).then_some(client.rate),
                burst: client.burst,
                peers: ClientPeers { on_link, listed },
            };
            found.push(SharedClient {
                port,
                ifindex,
                policy,
            });
        }
        Ok(found)
    }

    /// Returns what became of the frames that the client with this port sent; port 0 has those of
    /// devices without a client.
    pub(super) fn counters(&self, port: u32) -> Result<PoliceCounters, SharingError> {
        if port > 0 {
            check_port(port)?;
        }
        let read = self.counters.get(&port, 0).map_err(io_error);
        let cpus = read.map_err(SharingError::system("read the counters of a client"))?;
        Ok(PoliceCounters::of(&cpus))
    }

    /// Makes redirects to an index go to a device: that of a client, or, for index 0, the shared
    /// one.
    pub(super) fn set_device(&mut self, index: u32, ifindex: u32) -> Result<(), SharingError> {
        let set = self
            .devices
            .set(index, ifindex, None, 0)
            .map_err(device_error);
        set.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => SharingError::NoSuchDevice { ifindex },
            _ => SharingError::system("redirect to a device")(source),
        })
    }

    /// Ends redirects to an index.
    pub(super) fn clear_device(&mut self, index: u32) -> io::Result<()> {
        // The kernel's way to remove an entry.
        const NONE: u32 = 0;
        self.devices.set(index, NONE, None, 0).map_err(device_error)
    }

    fn reset_counters(&mut self, port: u32) -> io::Result<()> {
        let cpus = nr_cpus().map_err(|(_, error)| error)?;
        let zero: CounterWords = [0; size_of::<CounterWords>() / size_of::<u64>()];
        let zeroes = PerCpuValues::try_from(vec![zero; cpus])?;
        self.counters.set(port, zeroes, 0).map_err(io_error)
    }
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn device_error(error: XdpMapError) -> io::Error {
    match error {
        XdpMapError::MapError(error) => io_error(error),
        other => io::Error::other(other),
    }
}
