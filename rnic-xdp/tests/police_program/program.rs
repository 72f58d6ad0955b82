//! The program in the kernel, run on one frame at a time.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use rnic_manager::PoliceVerdict;
use rnic_xdp::shared::police_skeleton::{PoliceSkel, PoliceSkelBuilder};

use crate::answers::answer_to;
use crate::frames::GATEWAY;
use crate::host::{ADDRESSES, BROADCAST, CLIENT, LEASES, LINKS, OTHER};

const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// The device on which the kernel says that the frames of these tests arrive: the loopback's, the
/// first of each namespace.
const DEVICE: u32 = 1;
/// The index of the NIC in the map of devices.
pub(crate) const NIC: u32 = 0;

/// With whom a client may speak.
pub(crate) const EVERYBODY: u32 = 1;
pub(crate) const ON_LINK: u32 = 2;
pub(crate) const LISTED: u32 = 4;

/// What the client may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) mtu: u32,
    pub(crate) all_peers: bool,
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    pub(crate) fill_time: u64,
    /// Billionths of octets.
    pub(crate) tokens: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) refilled: u64,
}

/// Anything, as long as it is right.
pub(crate) const FREE: Policy = Policy {
    mtu: 1500,
    all_peers: true,
    rate: 0,
    burst: 0,
    fill_time: 0,
    tokens: 0,
    refilled: 0,
};

/// The program in the kernel, with its tables.
pub(crate) struct Rig<'obj> {
    pub(crate) skeleton: PoliceSkel<'obj>,
}

impl Rig<'_> {
    pub(crate) fn set_client(&self, policy: Policy) {
        let words = [CLIENT, policy.mtu];
        let Policy {
            rate,
            burst,
            fill_time,
            tokens,
            refilled,
            ..
        } = policy;
        let long = [rate, burst, fill_time, tokens, refilled].map(u64::to_ne_bytes);
        let value = [words.map(u32::to_ne_bytes).concat(), long.concat()].concat();
        let clients = &self.skeleton.maps.police_clients;
        let key = DEVICE.to_ne_bytes();
        clients.update(&key, &value, MapFlags::ANY).unwrap();
        self.allow(CLIENT, if policy.all_peers { EVERYBODY } else { LISTED });
    }

    /// Sets with whom a client may speak.
    pub(crate) fn allow(&self, client: u32, peers: u32) {
        let clients = &self.skeleton.maps.steer_clients;
        let key = client.to_ne_bytes();
        let value = peers.to_ne_bytes();
        clients.update(&key, &value, MapFlags::ANY).unwrap();
    }

    /// Sets the first network of IPv4: its address, and its mask.
    pub(crate) fn set_network(&self, network: [u8; 4], mask: [u8; 4]) {
        let mut host = [0xff; 80];
        host[40..44].copy_from_slice(&network);
        host[44..48].copy_from_slice(&mask);
        let only = 0u32.to_ne_bytes();
        let map = &self.skeleton.maps.steer_host;
        map.update(&only, &host, MapFlags::ANY).unwrap();
    }

    /// Adds a neighbour: the one of its slot, which may have others, or one of the others.
    pub(crate) fn add_neighbour(&self, mac: [u8; 6], others: Option<u16>) {
        let key = |others: u16| [&mac[..], &others.to_ne_bytes()].concat();
        let maps = &self.skeleton.maps;
        let slot = u32::from(u16::from_be_bytes([mac[4], mac[5]]) % 1024).to_ne_bytes();
        let one = 1u32.to_ne_bytes();
        let added = match others {
            Some(others) => maps
                .police_neighbours
                .update(&slot, &key(others), MapFlags::ANY),
            None => maps
                .police_more_neighbours
                .update(&key(0), &one, MapFlags::ANY),
        };
        added.unwrap();
    }

    /// Returns the tokens of the client, and when they were counted.
    pub(crate) fn tokens(&self) -> (u64, u64) {
        let clients = &self.skeleton.maps.police_clients;
        let value = clients.lookup(&DEVICE.to_ne_bytes(), MapFlags::ANY);
        let value = value.unwrap().unwrap();
        let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        (word(32), word(40))
    }

    /// Leases an address and port to a client, for all peers or for those whose addresses begin
    /// with these octets.
    pub(crate) fn lease(&self, client: u32, local: &str, vlan: u16, peers: Option<&[&[u8]]>) {
        let local: SocketAddr = local.parse().unwrap();
        let (address, family) = octets(local.ip());
        let number = local.port().to_be_bytes();
        let vlan = u32::from(vlan).to_ne_bytes();
        let key = [&address[..], &number, &[family, 0], &vlan].concat();
        let maps = &self.skeleton.maps;
        for peer in peers.unwrap_or_default() {
            let bits = 24 * 8 + 8 * peer.len() as u32;
            let mut range = [&bits.to_ne_bytes()[..], &key, peer].concat();
            range.resize(44, 0);
            let one = 1u32.to_ne_bytes();
            maps.steer_peers
                .update(&range, &one, MapFlags::ANY)
                .unwrap();
        }
        let which = if peers.is_some() { 2 } else { 1 };
        let target = [which, client].map(u32::to_ne_bytes).concat();
        maps.steer_map.update(&key, &target, MapFlags::ANY).unwrap();
        // The map by port says that there are others, so that the program looks into the map of
        // entries.
        let mut port = [0; 28];
        port[20] = 1;
        let number = u32::from(local.port()).to_ne_bytes();
        maps.steer_ports
            .update(&number, &port, MapFlags::ANY)
            .unwrap();
    }

    /// Lets the client send to addresses that begin with these octets.
    pub(crate) fn permit(&self, client: u32, is_ipv4: bool, prefix: &[u8]) {
        let bits = 64 + 8 * prefix.len() as u32;
        let family = if is_ipv4 { 4 } else { 6 };
        let mut key = [bits, client, family].map(u32::to_ne_bytes).concat();
        key.extend(prefix);
        key.resize(28, 0);
        let peers = &self.skeleton.maps.police_peers;
        let one = 1u32.to_ne_bytes();
        peers.update(&key, &one, MapFlags::ANY).unwrap();
    }

    /// Connects an index of the map of devices to a device, or to none.
    pub(crate) fn connect(&self, index: u32, connected: bool) {
        let device = [u32::from(connected), 0].map(u32::to_ne_bytes).concat();
        let devices = &self.skeleton.maps.steer_devices;
        let key = index.to_ne_bytes();
        devices.update(&key, &device, MapFlags::ANY).unwrap();
    }

    /// Adds an address of this host, or a broadcast address.
    pub(crate) fn add_address(&self, address: &str, vlan: u16, kind: u32) {
        let (address, family) = octets(address.parse().unwrap());
        let words = [u32::from(family), u32::from(vlan)].map(u32::to_ne_bytes);
        let key = [&address[..], &words.concat()].concat();
        let addresses = &self.skeleton.maps.police_addresses;
        let kind = kind.to_ne_bytes();
        addresses.update(&key, &kind, MapFlags::ANY).unwrap();
    }

    fn add_link(&self, vlan: u16, macs: [[u8; 6]; 2]) {
        let link = [&macs.concat()[..], &1u32.to_ne_bytes()].concat();
        let links = &self.skeleton.maps.steer_links;
        let key = u32::from(vlan).to_ne_bytes();
        links.update(&key, &link, MapFlags::ANY).unwrap();
    }

    /// Returns the counts of a port: frames and octets by verdict.
    fn counters(&self, port: u32) -> Vec<u64> {
        let counters = &self.skeleton.maps.police_counters;
        let values = counters.lookup_percpu(&port.to_ne_bytes(), MapFlags::ANY);
        let mut sums = vec![0; 2 * PoliceVerdict::ALL.len()];
        for value in values.unwrap().unwrap() {
            for (sum, word) in sums.iter_mut().zip(value.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(word.try_into().unwrap());
            }
        }
        sums
    }

    /// Runs the program on a frame, of which the first buffer has `linear` octets if stated.
    /// Returns the verdict, as counted for the client, or for none if it is unknown.
    pub(crate) fn run(&self, frame: &[u8], linear: Option<usize>) -> PoliceVerdict {
        let before = [0, CLIENT].map(|port| self.counters(port));
        // data and data_end of struct xdp_md, from 0 on; the rest is zero.
        let mut context = [0; 24];
        let len = linear.unwrap_or(0) as u32;
        context[4..8].copy_from_slice(&len.to_ne_bytes());
        let mut out = vec![0; frame.len() + 64];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: linear.is_none().then_some(&mut out[..]),
            context_in: linear.map(|_| &mut context[..]),
            ..Default::default()
        };
        let output = self.skeleton.progs.rnic_police.test_run(input).unwrap();
        let after = [0, CLIENT].map(|port| self.counters(port));
        let mut found = None;
        for verdict in PoliceVerdict::ALL {
            let at = 2 * verdict as usize;
            let grown = |port: usize, at: usize| after[port][at] - before[port][at];
            let owner = usize::from(verdict != PoliceVerdict::Unknown);
            assert_eq!((grown(1 - owner, at), grown(1 - owner, at + 1)), (0, 0));
            match (grown(owner, at), grown(owner, at + 1)) {
                (0, 0) => {}
                (1, octets) if octets == frame.len() as u64 && found.is_none() => {
                    found = Some(verdict);
                }
                other => panic!("{verdict:?} counts {other:?} for one frame"),
            }
        }
        let verdict = found.expect("each frame is counted");
        let answer = answer_to(frame, verdict);
        let action = match verdict {
            PoliceVerdict::ToNic | PoliceVerdict::ToPort => XDP_REDIRECT,
            _ if answer.is_some() => XDP_TX,
            _ => XDP_DROP,
        };
        assert_eq!(output.return_value, action, "{verdict:?}");
        if let Some(data) = output.data {
            let expected = answer.as_deref().unwrap_or(frame);
            assert!(data == expected, "{data:02x?} in place of {expected:02x?}");
        }
        verdict
    }

    /// Runs the program on a frame, and compares the verdict.
    pub(crate) fn expect(&self, frame: &[u8], verdict: PoliceVerdict) {
        let head = &frame[..frame.len().min(100)];
        assert_eq!(self.run(frame, None), verdict, "{head:02x?}");
    }
}

pub(crate) fn octets(address: IpAddr) -> ([u8; 16], u8) {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (octets, 4)
        }
        IpAddr::V6(address) => (address.octets(), 6),
    }
}

/// Runs a test with the loaded program, a host with addresses, and two clients with leases and
/// devices.
pub(crate) fn with_rig(body: impl FnOnce(&Rig<'_>)) {
    with_program(false, body);
}

/// The same, where clients may have associations of ESP.
pub(crate) fn with_esp_rig(body: impl FnOnce(&Rig<'_>)) {
    with_program(true, body);
}

fn with_program(esp: bool, body: impl FnOnce(&Rig<'_>)) {
    let mut object = MaybeUninit::uninit();
    let mut open = PoliceSkelBuilder::default().open(&mut object).unwrap();
    open.maps.rodata_data.as_deref_mut().unwrap().police_esp = esp.into();
    let rig = Rig {
        skeleton: open.load().unwrap(),
    };
    for (vlan, macs) in LINKS {
        rig.add_link(vlan, macs);
    }
    for (address, vlan) in ADDRESSES {
        rig.add_address(address, vlan, 1);
    }
    for (client, local, vlan) in LEASES {
        rig.lease(client, local, vlan, None);
    }
    rig.add_address(BROADCAST, 0, 2);
    rig.add_neighbour(GATEWAY, Some(0));
    rig.set_client(FREE);
    rig.allow(OTHER, EVERYBODY);
    for index in [NIC, CLIENT, OTHER] {
        rig.connect(index, true);
    }
    body(&rig);
}
