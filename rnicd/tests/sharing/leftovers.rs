//! What is left of clients that are gone.

use std::fs;
use std::net::TcpListener;

use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{DevMap, HashMap, Map, MapData, PerCpuArray};
use rnic_manager::PoliceVerdict;
use rnic_xdp::shared::LAYOUT;
use rnic_xdp::steering;

use crate::rig::{NIC, Rig};

/// The most ports of a device, and octets of what the programs' maps hold (`ebpf/police.h`,
/// `ebpf/steer.h`).
const MAX_PORTS: u32 = 1023;
type ClientOctets = [u8; 48];
type PolicePeer = [u8; 24];
type SteerPeer = [u8; 40];
/// Frames and octets of each verdict.
type CounterWords = [u64; 2 * PoliceVerdict::ALL.len()];

impl Rig {
    /// Waits until nothing is left of the clients that were there, and these local TCP ports can be
    /// had again.
    pub(crate) fn wait_until_clean(&self, leases: &[u16]) {
        let mut left = Vec::new();
        let deadline = std::time::Instant::now() + crate::exchange::SOON;
        while std::time::Instant::now() < deadline {
            left = self.leftovers(leases);
            if left.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("this is left: {left:#?}; rnicd:\n{}", self.log());
    }

    /// Returns what is left, in words.
    pub(crate) fn leftovers(&self, leases: &[u16]) -> Vec<String> {
        let mut left = self.devices();
        left.extend(self.map_entries());
        left.extend(self.files());
        left.extend(self.held_by_rnicd());
        left.extend(self.host.run(|| taken(leases)));
        left
    }

    /// The veth pairs of ports. Their other ends, and the network namespaces of these, exist as
    /// long as they do.
    pub(crate) fn devices(&self) -> Vec<String> {
        let links = self.host.ip("-o link show type veth").unwrap();
        let ports = links.lines().filter(|line| line.contains(": rnic"));
        ports.map(str::to_owned).collect()
    }

    /// What is leased, as the steering program sees it.
    pub(crate) fn leases(&self) -> Vec<String> {
        let leases = self.host.run(|| steering::entries(NIC).unwrap());
        leases.iter().map(ToString::to_string).collect()
    }

    /// What became of the frames that a port sent: those verdicts that there were, with their
    /// numbers.
    pub(crate) fn verdicts(&self, port: u32) -> Vec<(PoliceVerdict, u64)> {
        let map: PerCpuArray<_, CounterWords> = self.map("police_counters", Map::PerCpuArray);
        let cpus = map.get(&port, 0).unwrap();
        let frames = |verdict: &PoliceVerdict| {
            let of_cpu = |words: &CounterWords| words[2 * *verdict as usize];
            (*verdict, cpus.iter().map(of_cpu).sum::<u64>())
        };
        let counts = PoliceVerdict::ALL.iter().map(frames);
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// How many frames of ports were dropped because their source is no address of the host.
    pub(crate) fn dropped_for_source(&self) -> u64 {
        let verdicts = (1..=MAX_PORTS).flat_map(|port| self.verdicts(port));
        let dropped = verdicts.filter(|(verdict, _)| *verdict == PoliceVerdict::Source);
        dropped.map(|(_, count)| count).sum()
    }

    fn map_entries(&self) -> Vec<String> {
        let mut left = Vec::new();
        let clients: HashMap<_, u32, ClientOctets> = self.map("police_clients", Map::HashMap);
        left.extend(clients.keys().map(|key| format!("the client {key:?}")));
        let peers: LpmTrie<_, PolicePeer, u32> = self.map("police_peers", Map::LpmTrie);
        // Those of port 0 are the networks of the device.
        let of_clients = peers.keys().filter(|key| {
            let owner = key.as_ref().map(|key| key.data());
            owner.is_ok_and(|owner| owner[..4] != [0; 4])
        });
        left.extend(of_clients.map(|_| "a peer of a client".to_owned()));
        let peers: LpmTrie<_, SteerPeer, u32> = self.map("steer_peers", Map::LpmTrie);
        left.extend(peers.keys().map(|_| "a peer of a lease".to_owned()));
        let devices: DevMap<_> = self.map("steer_devices", Map::DevMap);
        let used = (1..=MAX_PORTS).filter(|port| devices.get(*port, 0).is_ok());
        left.extend(used.map(|port| format!("the device of port {port}")));
        let leases = self.leases().into_iter();
        left.extend(leases.map(|lease| format!("the lease of {lease}")));
        left
    }

    fn map<M: TryFrom<Map>>(&self, name: &str, kind: impl FnOnce(MapData) -> Map) -> M
    where
        M::Error: std::fmt::Debug,
    {
        let path = self.pins().join(LAYOUT).join(name);
        M::try_from(kind(MapData::from_pin(path).unwrap())).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let records = fs::read_dir(self.records()).unwrap();
        let paths = records.map(|record| record.unwrap().path());
        paths.map(|path| path.display().to_string()).collect()
    }

    /// Descriptors, and memory of ports, hugepages or others.
    fn held_by_rnicd(&self) -> Vec<String> {
        let mut left = Vec::new();
        let open = self.count_descriptors();
        if open > self.descriptors {
            let before = self.descriptors;
            left.push(format!("{open} descriptors of rnicd, which were {before}"));
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let umems = maps.lines().filter(|line| line.contains("rnic-umem"));
        left.extend(umems.map(|line| format!("a UMEM in rnicd: {line}")));
        left
    }
}

/// Returns those that cannot be had, in the network namespace of this thread.
fn taken(ports: &[u16]) -> Vec<String> {
    let bound = |port: u16| TcpListener::bind(("10.9.0.1", port));
    let taken = ports.iter().filter_map(|port| {
        let error = bound(*port).err()?;
        Some(format!("TCP port {port}: {error}"))
    });
    taken.collect()
}
