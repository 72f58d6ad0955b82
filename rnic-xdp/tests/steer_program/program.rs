//! The program in the kernel, run on one frame at a time.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use aya::programs::loaded_programs;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, Program, ProgramInput};
use rnic_core::wire::packet::{Checksums, parse};
use rnic_xdp::steering::skeleton::{SteerSkel, SteerSkelBuilder};
use rnic_xdp::testing::Namespace;
use xsk_rs::config::{LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{Socket, Umem};

use crate::host::{OWN, Steered, VLAN, is_for_us, is_steered, links};
use crate::oracle::{Verdict, oracle};

pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_REDIRECT: u32 = 4;
/// The number of counters.
const VERDICTS: usize = 13;

/// The program in the kernel, with a socket for queue 0.
pub(crate) struct Rig<'obj> {
    pub(crate) skeleton: SteerSkel<'obj>,
    steered: Steered,
}

impl<'obj> Rig<'obj> {
    fn load(
        object: &'obj mut MaybeUninit<libbpf_rs::OpenObject>,
        (shared, esp): (bool, bool),
    ) -> Self {
        let mut open = SteerSkelBuilder::default().open(object).unwrap();
        let constants = open.maps.rodata_data.as_deref_mut().unwrap();
        constants.steer_shared = u32::from(shared);
        constants.steer_esp = u32::from(esp);
        let skeleton = open.load().unwrap();
        for (vlan, macs) in links() {
            let link = [&macs.concat()[..], &1u32.to_ne_bytes()].concat();
            let (links, vlan) = (&skeleton.maps.steer_links, u32::from(vlan));
            let told = links.update(&vlan.to_ne_bytes(), &link, MapFlags::ANY);
            told.unwrap();
        }
        Self {
            skeleton,
            steered: HashSet::new(),
        }
    }

    /// Sets whether an address is this host's own.
    pub(crate) fn own(&mut self, address: &str, is_own: bool) {
        let local = SocketAddr::new(address.parse().unwrap(), 0);
        let octets = key(local, 0);
        let octets = [&octets[..16], &u32::from(octets[18]).to_ne_bytes()].concat();
        let locals = &self.skeleton.maps.steer_locals;
        if is_own {
            let one = 1u32.to_ne_bytes();
            locals.update(&octets, &one, MapFlags::ANY).unwrap();
        } else {
            locals.delete(&octets).unwrap();
        }
    }

    /// Sets which addresses of this host the program compares with: two of IPv4 and two of IPv6.
    pub(crate) fn compare_with(&self, four: [[u8; 4]; 2], six: [[u8; 16]; 2]) {
        let mut host = [0xff; 80];
        host[..8].copy_from_slice(&four.concat());
        host[8..40].copy_from_slice(&six.concat());
        let only = 0u32.to_ne_bytes();
        let map = &self.skeleton.maps.steer_host;
        map.update(&only, &host, MapFlags::ANY).unwrap();
    }

    /// Sets with whom a client may speak: everybody, or those whose IPv4 addresses begin with these
    /// octets.
    pub(crate) fn allow(&self, client: u32, peers: Option<&[u8]>) {
        let maps = &self.skeleton.maps;
        let value = match peers {
            None => 1u32,
            Some(_) => 4,
        };
        let (index, value) = (client.to_ne_bytes(), value.to_ne_bytes());
        maps.steer_clients
            .update(&index, &value, MapFlags::ANY)
            .unwrap();
        if let Some(peers) = peers {
            let bits = 64 + 8 * peers.len() as u32;
            let mut range = [bits, client, 4].map(u32::to_ne_bytes).concat();
            range.extend(peers);
            range.resize(28, 0);
            let one = 1u32.to_ne_bytes();
            maps.police_peers
                .update(&range, &one, MapFlags::ANY)
                .unwrap();
        }
    }

    /// Adds an entry. The first one of a port also goes to the map by port, with which the program
    /// compares.
    pub(crate) fn steer(&mut self, local: &str, vlan: u16) {
        self.steer_to(local, vlan, 0);
    }

    /// Adds an entry for the client with this port.
    pub(crate) fn steer_to(&mut self, local: &str, vlan: u16, client: u32) {
        let local: SocketAddr = local.parse().unwrap();
        let of_port = |other: &&(SocketAddr, u16)| other.0.port() == local.port();
        let before = self.steered.iter().filter(of_port).count() as u32;
        let key = key(local, vlan);
        let map = &self.skeleton.maps.steer_map;
        let target = [1u32, client].map(u32::to_ne_bytes).concat();
        map.update(&key, &target, MapFlags::ANY).unwrap();
        let (ports, number) = (&self.skeleton.maps.steer_ports, u32::from(local.port()));
        let number = number.to_ne_bytes();
        let mut port = ports.lookup(&number, MapFlags::ANY).unwrap().unwrap();
        assert_eq!(port.len(), 28);
        if before == 0 {
            port[..16].copy_from_slice(&key[..16]);
            port[16..18].copy_from_slice(&[key[18], u8::from(local.ip().is_unspecified())]);
            port[18..20].copy_from_slice(&vlan.to_ne_bytes());
            port[24..].copy_from_slice(&client.to_ne_bytes());
        } else {
            port[20..24].copy_from_slice(&before.to_ne_bytes());
        }
        ports.update(&number, &port, MapFlags::ANY).unwrap();
        self.steered.insert((local, vlan));
    }

    /// Adds an entry without a VLAN for some peers only: those whose addresses begin with these
    /// octets.
    pub(crate) fn steer_for(&mut self, local: &str, peers: &[&[u8]]) {
        self.steer_to_for(local, 0, peers);
    }

    /// Adds such an entry for the client with this port.
    pub(crate) fn steer_to_for(&mut self, local: &str, client: u32, peers: &[&[u8]]) {
        let local: SocketAddr = local.parse().unwrap();
        let key = key(local, 0);
        let maps = &self.skeleton.maps;
        for peer in peers {
            let bits = 24 * 8 + 8 * peer.len() as u32;
            let mut range = [&bits.to_ne_bytes()[..], &key, peer].concat();
            range.resize(44, 0);
            let value = 1u32.to_ne_bytes();
            maps.steer_peers
                .update(&range, &value, MapFlags::ANY)
                .unwrap();
        }
        let value = [2u32, client].map(u32::to_ne_bytes).concat();
        maps.steer_map.update(&key, &value, MapFlags::ANY).unwrap();
        let number = u32::from(local.port()).to_ne_bytes();
        let mut port = maps
            .steer_ports
            .lookup(&number, MapFlags::ANY)
            .unwrap()
            .unwrap();
        port[20] += 1;
        maps.steer_ports
            .update(&number, &port, MapFlags::ANY)
            .unwrap();
    }

    /// Sets that the device removes tags, and the VLANs of addresses whose frames it removes them
    /// from. Without any, it leaves them.
    pub(crate) fn remove_tags(&mut self, of: &[(&str, u16)]) {
        let maps = &self.skeleton.maps;
        let untagged = |address: &str| {
            let local = SocketAddr::new(address.parse().unwrap(), 0);
            let key = key(local, 0);
            [&key[..16], &u32::from(key[18]).to_ne_bytes()].concat()
        };
        for (address, vlan) in of {
            let vlan = u32::from(*vlan).to_ne_bytes();
            let told = maps
                .steer_untagged
                .update(&untagged(address), &vlan, MapFlags::ANY);
            told.unwrap();
        }
        let none = 0u32.to_ne_bytes();
        let mut link = maps
            .steer_links
            .lookup(&none, MapFlags::ANY)
            .unwrap()
            .unwrap();
        let known: u32 = if of.is_empty() { 1 } else { 2 };
        link[12..].copy_from_slice(&known.to_ne_bytes());
        maps.steer_links
            .update(&none, &link, MapFlags::ANY)
            .unwrap();
    }

    /// Returns the number of instructions that the verifier has left of the program.
    pub(crate) fn translated(&self) -> u32 {
        let program = self.skeleton.progs.rnic_steer.as_fd();
        let id = Program::id_from_fd(program).unwrap();
        let mut all = loaded_programs().map(Result::unwrap);
        let info = all.find(|info| info.id() == id).unwrap();
        info.size_translated().unwrap() / 8
    }

    fn counters(&self) -> Vec<u64> {
        let counter = |index: u32| {
            let map = &self.skeleton.maps.steer_counters;
            let values = map
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
                .unwrap()
                .unwrap();
            let value = |octets: &Vec<u8>| u64::from_ne_bytes(octets[..8].try_into().unwrap());
            values.iter().map(value).sum()
        };
        (0..VERDICTS as u32).map(counter).collect()
    }

    /// Runs the program on a frame. Returns its action, and the counter that it moved.
    pub(crate) fn run(&self, frame: &[u8]) -> (u32, usize) {
        let before = self.counters();
        let mut out = vec![0; frame.len() + 64];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Default::default()
        };
        let output = self.skeleton.progs.rnic_steer.test_run(input).unwrap();
        assert_eq!(
            output.data.as_deref(),
            Some(frame),
            "the program edits no frame"
        );
        let action = output.return_value;
        let after = self.counters();
        let moved: Vec<_> = (0..VERDICTS)
            .filter(|&index| after[index] != before[index])
            .collect();
        assert_eq!(moved.len(), 1, "one counter each");
        (action, moved[0])
    }

    /// Runs the program on a frame, and compares what it does with the oracle and the engine.
    /// Returns the verdict.
    pub(crate) fn check(&self, frame: &[u8]) -> Verdict {
        let expected = oracle(frame, &self.steered);
        let (action, counter) = self.run(frame);
        assert_eq!(counter, expected as usize, "{frame:02x?}");
        let expected_action = match expected {
            Verdict::Redirected => XDP_REDIRECT,
            _ => XDP_PASS,
        };
        assert_eq!(action, expected_action, "{frame:02x?}");
        self.check_against_engine(frame, expected);
        expected
    }

    /// Compares the verdict on a frame that the engine would take with the destination that the
    /// engine reads.
    fn check_against_engine(&self, frame: &[u8], verdict: Verdict) {
        let Ok(packet) = parse(frame, Checksums::Unnecessary) else {
            return;
        };
        let vlan = packet.vlan.unwrap_or(0);
        let is_ours = is_steered(&self.steered, packet.destination, vlan);
        let expected = match is_ours {
            true if is_for_us(packet.destination_mac.0, vlan) => Verdict::Redirected,
            true => Verdict::OtherHost,
            false => Verdict::NotSteered,
        };
        assert_eq!(verdict, expected, "{frame:02x?}");
    }

    /// Runs the program on a frame in several buffers, of which the first one has `linear` octets,
    /// and returns its action. Linux cuts frames so since 6.18.
    pub(crate) fn run_in_pieces(&self, frame: &[u8], linear: usize) -> u32 {
        // data and data_end of struct xdp_md, from 0 on; the rest is zero.
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(linear as u32).to_ne_bytes());
        let input = ProgramInput {
            data_in: Some(frame),
            context_in: Some(&mut context),
            ..Default::default()
        };
        let output = self.skeleton.progs.rnic_steer.test_run(input);
        output.unwrap().return_value
    }
}

/// Returns the key of an entry in the map of entries.
fn key(local: SocketAddr, vlan: u16) -> [u8; 24] {
    let mut key = [0; 24];
    match local.ip() {
        IpAddr::V4(address) => key[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => key[..16].copy_from_slice(&address.octets()),
    }
    key[16..18].copy_from_slice(&local.port().to_be_bytes());
    key[18] = if local.is_ipv4() { 4 } else { 6 };
    key[20..].copy_from_slice(&u32::from(vlan).to_ne_bytes());
    key
}

/// Runs a test with the loaded program for one process, and a socket in its map.
pub(crate) fn with_rig(body: impl FnOnce(&mut Rig<'_>) + Send) {
    with_program((false, false), body);
}

/// Runs a test with the loaded program for many clients, and a socket in its map.
pub(crate) fn with_shared_rig(body: impl FnOnce(&mut Rig<'_>) + Send) {
    with_program((true, false), body);
}

/// Runs a test with the loaded program for one process or many clients with associations of ESP,
/// and a socket in its map.
pub(crate) fn with_esp_rig(shared: bool, body: impl FnOnce(&mut Rig<'_>) + Send) {
    with_program((shared, true), body);
}

fn with_program(program: (bool, bool), body: impl FnOnce(&mut Rig<'_>) + Send) {
    let namespace = Namespace::new("prog").unwrap();
    namespace.run(|| {
        let (umem, _) = Umem::new(UmemConfig::default(), 16.try_into().unwrap(), false).unwrap();
        let config = SocketConfig::builder()
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .build();
        let interface = "lo".parse().unwrap();
        // SAFETY: the first socket of this UMEM.
        #[allow(unsafe_code)]
        let (_tx, rx, _rings) = unsafe { Socket::new(config, &umem, &interface, 0) }.unwrap();
        let mut object = MaybeUninit::uninit();
        let mut rig = Rig::load(&mut object, program);
        let fd = rx.fd().as_raw_fd();
        let sockets = &rig.skeleton.maps.steer_sockets;
        let slot = 0u32.to_ne_bytes();
        sockets
            .update(&slot, &fd.to_ne_bytes(), MapFlags::ANY)
            .unwrap();
        for address in OWN {
            rig.own(address, true);
        }
        for local in [
            "10.1.2.3:4420",
            "0.0.0.0:7",
            "[fd00::1]:4420",
            "[::]:9",
            "10.1.2.3:0",
            "10.1.2.4:11",
            "[::]:11",
            "10.1.2.3:11",
            "0.0.0.0:12",
            "[::]:12",
        ] {
            rig.steer(local, 0);
        }
        for (local, vlan) in [
            ("10.1.100.3:4420", VLAN),
            ("[fd00:100::1]:4420", VLAN),
            // The first entry of a port is compared with, the second is looked up.
            ("10.1.100.3:14", VLAN),
            ("10.1.2.3:14", 0),
            ("[fd00:100::1]:15", VLAN),
            ("[fd00::1]:15", 0),
        ] {
            rig.steer(local, vlan);
        }
        body(&mut rig);
    });
}
