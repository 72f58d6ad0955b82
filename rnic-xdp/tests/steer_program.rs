//! The steering program in the kernel, frame by frame, against an oracle in Rust.

use std::collections::{BTreeMap, HashSet};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rnic_core::wire::packet::{Checksums, parse};
use rnic_xdp::skeleton::{SteerSkel, SteerSkelBuilder};
use rnic_xdp::testing::{Namespace, is_root};
use xsk_rs::config::{LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{Socket, Umem};

const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Redirected = 0,
    NotSteered = 2,
    Fragment = 3,
    NotTcp = 4,
    Truncated = 5,
    OtherHost = 6,
}

const VERDICTS: usize = 8;

/// Our device's, a VLAN device's on it, and another host's.
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VLANS: [u8; 6] = [2, 0, 0, 0, 1, 1];
const OTHERS: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// The VLAN that we have, with an address of its own, and another, where we have none.
const VLAN: u16 = 100;
const PLAIN_VLAN: u16 = 4095;

/// The MAC addresses that frames of each VLAN are for us with.
fn links() -> BTreeMap<u16, [[u8; 6]; 2]> {
    BTreeMap::from([
        (0, [OURS, OURS]),
        (VLAN, [VLANS, OURS]),
        (PLAIN_VLAN, [OURS, OURS]),
    ])
}

/// Addresses and ports, each with its VLAN.
type Steered = HashSet<(SocketAddr, u16)>;

/// Whether a destination is among them, in this VLAN or as any address.
fn is_steered(steered: &Steered, local: SocketAddr, vlan: u16) -> bool {
    let any: IpAddr = match local {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let any = SocketAddr::new(any, local.port());
    steered.contains(&(local, vlan)) || steered.contains(&(any, 0))
}

/// Whether the kernel takes a frame with this address in this VLAN.
fn is_for_us(mac: [u8; 6], vlan: u16) -> bool {
    links().get(&vlan).is_some_and(|macs| macs.contains(&mac))
}

/// What the program is to do with a frame, written anew from its description.
fn oracle(frame: &[u8], steered: &Steered) -> Verdict {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut vlan = 0;
    let mut classify = || -> Option<Result<SocketAddr, Verdict>> {
        let mut ethertype = word(12)?;
        let mut ip = 14;
        if ethertype == 0x8100 {
            vlan = word(ip)? & 0xfff;
            ethertype = word(ip + 2)?;
            ip += 4;
        }
        let header = frame.get(ip..)?;
        let (address, tcp): (IpAddr, usize) = match ethertype {
            0x0800 => {
                let header: &[u8; 20] = header.first_chunk()?;
                let header_len = usize::from(header[0] & 15) * 4;
                if header[0] >> 4 != 4 || header_len < 20 {
                    return None;
                }
                // More fragments, or not the first: all but the "don't fragment" and the reserved bit.
                if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
                    return Some(Err(Verdict::Fragment));
                }
                if header[9] != 6 {
                    return Some(Err(Verdict::NotTcp));
                }
                let address: [u8; 4] = header[16..20].try_into().ok()?;
                (Ipv4Addr::from(address).into(), ip + header_len)
            }
            0x86dd => {
                let header: &[u8; 40] = header.first_chunk()?;
                if header[0] >> 4 != 6 {
                    return None;
                }
                match header[6] {
                    6 => {}
                    44 => return Some(Err(Verdict::Fragment)),
                    _ => return Some(Err(Verdict::NotTcp)),
                }
                let address: [u8; 16] = header[24..40].try_into().ok()?;
                (Ipv6Addr::from(address).into(), ip + 40)
            }
            0 => return None,
            _ => return Some(Err(Verdict::NotTcp)),
        };
        Some(Ok(SocketAddr::new(
            address,
            word(tcp + 2).filter(|_| frame.len() >= tcp + 4)?,
        )))
    };
    match classify() {
        None => Verdict::Truncated,
        Some(Err(verdict)) => verdict,
        Some(Ok(local)) => {
            let mac = *frame.first_chunk().expect("a whole header");
            match is_steered(steered, local, vlan) {
                true if is_for_us(mac, vlan) => Verdict::Redirected,
                true => Verdict::OtherHost,
                false => Verdict::NotSteered,
            }
        }
    }
}

/// The program in the kernel, with a socket for queue 0.
struct Rig<'obj> {
    skeleton: SteerSkel<'obj>,
    steered: Steered,
}

impl<'obj> Rig<'obj> {
    fn load(object: &'obj mut MaybeUninit<libbpf_rs::OpenObject>) -> Self {
        let open = SteerSkelBuilder::default().open(object).unwrap();
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

    /// Adds an entry; the first of a port is also what the program compares with.
    fn steer(&mut self, local: &str, vlan: u16) {
        let local: SocketAddr = local.parse().unwrap();
        let of_port = |other: &&(SocketAddr, u16)| other.0.port() == local.port();
        let before = self.steered.iter().filter(of_port).count() as u32;
        let mut key = [0; 24];
        match local.ip() {
            IpAddr::V4(address) => key[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => key[..16].copy_from_slice(&address.octets()),
        }
        key[16..18].copy_from_slice(&local.port().to_be_bytes());
        key[18] = if local.is_ipv4() { 4 } else { 6 };
        key[20..].copy_from_slice(&u32::from(vlan).to_ne_bytes());
        let map = &self.skeleton.maps.steer_map;
        map.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY)
            .unwrap();
        let (ports, number) = (&self.skeleton.maps.steer_ports, u32::from(local.port()));
        let number = number.to_ne_bytes();
        let mut port = ports.lookup(&number, MapFlags::ANY).unwrap().unwrap();
        assert_eq!(port.len(), 24);
        if before == 0 {
            port[..16].copy_from_slice(&key[..16]);
            port[16..18].copy_from_slice(&[key[18], u8::from(local.ip().is_unspecified())]);
            port[18..20].copy_from_slice(&vlan.to_ne_bytes());
        } else {
            port[20..].copy_from_slice(&before.to_ne_bytes());
        }
        ports.update(&number, &port, MapFlags::ANY).unwrap();
        self.steered.insert((local, vlan));
    }

    /// Adds an entry without a VLAN for some peers only: those whose addresses begin with these octets.
    fn steer_for(&mut self, local: &str, peers: &[&[u8]]) {
        let local: SocketAddr = local.parse().unwrap();
        let mut key = [0; 24];
        match local.ip() {
            IpAddr::V4(address) => key[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => key[..16].copy_from_slice(&address.octets()),
        }
        key[16..18].copy_from_slice(&local.port().to_be_bytes());
        key[18] = if local.is_ipv4() { 4 } else { 6 };
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
        let value = 2u32.to_ne_bytes();
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
    fn run(&self, frame: &[u8]) -> (u32, usize) {
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

    fn check(&self, frame: &[u8]) -> Verdict {
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

    /// A frame that the engine would take must have been classified by the destination that the engine reads.
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
}

impl Rig<'_> {
    /// Runs the program on a frame in several buffers, of which the first one has `linear` octets. Says what it did, or
    /// nothing where the kernel cannot be asked to cut frames so (before Linux 6.18).
    fn run_in_pieces(&self, frame: &[u8], linear: usize) -> Option<u32> {
        // data and data_end of struct xdp_md, from 0 on; the rest is nought.
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(linear as u32).to_ne_bytes());
        let input = ProgramInput {
            data_in: Some(frame),
            context_in: Some(&mut context),
            ..Default::default()
        };
        let output = self.skeleton.progs.rnic_steer.test_run(input);
        match output {
            Ok(output) => Some(output.return_value),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::InvalidInput => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a test with the loaded program and a socket in its map.
fn with_rig(test: &str, body: impl FnOnce(&mut Rig<'_>) + Send) {
    if !is_root(test) {
        return;
    }
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
        let mut rig = Rig::load(&mut object);
        let fd = rx.fd().as_raw_fd();
        let sockets = &rig.skeleton.maps.steer_sockets;
        let slot = 0u32.to_ne_bytes();
        sockets
            .update(&slot, &fd.to_ne_bytes(), MapFlags::ANY)
            .unwrap();
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
            // Compared with, and looked up.
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

fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let mut frame = OURS.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2]);
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend(VLAN.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame
}

struct Ipv4 {
    options: usize,
    fragment: u16,
    protocol: u8,
    destination: [u8; 4],
}

const PLAIN: Ipv4 = Ipv4 {
    options: 0,
    fragment: 0x4000,
    protocol: 6,
    destination: [10, 1, 2, 3],
};

const ON_VLAN: Ipv4 = Ipv4 {
    destination: [10, 1, 100, 3],
    ..PLAIN
};

fn ipv4(tags: &[u16], ip: &Ipv4, port: u16, payload: usize) -> Vec<u8> {
    let mut frame = ethernet(tags, 0x0800);
    let header_len = 20 + ip.options * 4;
    let total = (header_len + 20 + payload) as u16;
    frame.extend([0x40 | (header_len / 4) as u8, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(ip.fragment.to_be_bytes());
    frame.extend([64, ip.protocol, 0, 0, 10, 9, 9, 9]);
    frame.extend(ip.destination);
    frame.extend(std::iter::repeat_n(1, ip.options * 4));
    frame.extend(tcp(port));
    frame.resize(frame.len() + payload, 0xaa);
    frame
}

fn ipv6(tags: &[u16], next_header: u8, destination: &str, port: u16, payload: usize) -> Vec<u8> {
    let mut frame = ethernet(tags, 0x86dd);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((20 + payload as u16).to_be_bytes());
    frame.extend([next_header, 64]);
    frame.extend("fd00::99".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(tcp(port));
    frame.resize(frame.len() + payload, 0xaa);
    frame
}

fn tcp(port: u16) -> [u8; 20] {
    let mut header = [0; 20];
    header[0..2].copy_from_slice(&50000u16.to_be_bytes());
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header[12] = 0x50;
    header[13] = 0x10;
    header
}

#[test]
fn frames_of_every_kind_get_their_verdict() {
    with_rig("frames_of_every_kind_get_their_verdict", |rig| {
        for (tags, v4, v6) in [
            (&[][..], PLAIN, "fd00::1"),
            (&[0x8100], ON_VLAN, "fd00:100::1"),
        ] {
            let to = |port| ipv4(tags, &v4, port, 100);
            assert_eq!(rig.check(&to(4420)), Verdict::Redirected);
            assert_eq!(rig.check(&to(7)), Verdict::Redirected);
            assert_eq!(rig.check(&to(9)), Verdict::NotSteered);
            let to = |ip, port| ipv6(tags, 6, ip, port, 100);
            assert_eq!(rig.check(&to(v6, 4420)), Verdict::Redirected);
            assert_eq!(rig.check(&to("fd00::2", 9)), Verdict::Redirected);
            assert_eq!(rig.check(&to("fd00::2", 7)), Verdict::NotSteered);
            assert_eq!(rig.check(&ethernet(tags, 0x0806)), Verdict::NotTcp);
        }
        // A provider's tag, and VLANs inside of VLANs.
        for tags in [&[0x88a8][..], &[0x88a8, 0x8100], &[0x8100; 2], &[0x8100; 3]] {
            for ip in [PLAIN, ON_VLAN] {
                assert_eq!(rig.check(&ipv4(tags, &ip, 4420, 0)), Verdict::NotTcp);
            }
        }
        for options in 1..=10 {
            let ip = Ipv4 { options, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::Redirected);
        }
        for fragment in [0x2000, 0x0001, 0x3fff, 0x1fff] {
            let ip = Ipv4 { fragment, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::Fragment);
        }
        for protocol in [1, 17, 132] {
            let ip = Ipv4 { protocol, ..PLAIN };
            assert_eq!(rig.check(&ipv4(&[], &ip, 4420, 10)), Verdict::NotTcp);
        }
        for next_header in [0, 43, 60, 58, 17, 51] {
            let frame = ipv6(&[], next_header, "fd00::1", 4420, 10);
            assert_eq!(rig.check(&frame), Verdict::NotTcp);
        }
        assert_eq!(
            rig.check(&ipv6(&[], 44, "fd00::1", 4420, 10)),
            Verdict::Fragment
        );
    });
}

/// A tagged frame belongs to the VLAN device that has the address, whichever entry of the port is the first.
#[test]
fn an_address_is_steered_in_its_vlan_only() {
    with_rig("an_address_is_steered_in_its_vlan_only", |rig| {
        let untagged = [ipv4(&[], &PLAIN, 14, 9), ipv6(&[], 6, "fd00::1", 15, 9)];
        let of_vlan = [
            ipv4(&[0x8100], &ON_VLAN, 14, 9),
            ipv6(&[0x8100], 6, "fd00:100::1", 15, 9),
        ];
        for frame in untagged.iter().chain(&of_vlan) {
            assert_eq!(rig.check(frame), Verdict::Redirected);
        }
        let crossed = [
            ipv4(&[0x8100], &PLAIN, 14, 9),
            ipv6(&[0x8100], 6, "fd00::1", 15, 9),
            ipv4(&[], &ON_VLAN, 14, 9),
            ipv6(&[], 6, "fd00:100::1", 15, 9),
        ];
        for frame in crossed {
            assert_eq!(rig.check(&frame), Verdict::NotSteered);
        }
        for mut frame in of_vlan {
            // Priority and drop eligibility do not matter.
            frame[14] |= 0xf0;
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            for other in [1, VLAN + 1, PLAIN_VLAN] {
                frame[14..16].copy_from_slice(&other.to_be_bytes());
                assert_eq!(rig.check(&frame), Verdict::NotSteered);
            }
        }
        // A tag that names no VLAN is none.
        for control in [0u16, 0xe000] {
            let mut frame = ipv4(&[0x8100], &PLAIN, 14, 9);
            frame[14..16].copy_from_slice(&control.to_be_bytes());
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            let mut frame = ipv4(&[0x8100], &ON_VLAN, 14, 9);
            frame[14..16].copy_from_slice(&control.to_be_bytes());
            assert_eq!(rig.check(&frame), Verdict::NotSteered);
        }
    });
}

/// A listener at any address is one in the VLANs that the host has a part in, and in no other.
#[test]
fn any_address_is_one_of_ours_in_a_vlan_of_ours() {
    with_rig("any_address_is_one_of_ours_in_a_vlan_of_ours", |rig| {
        // The first of its port, and looked up.
        for port in [7, 12] {
            let mut frame = ipv4(&[0x8100], &PLAIN, port, 9);
            for (vlan, verdict) in [
                (VLAN, Verdict::Redirected),
                (PLAIN_VLAN, Verdict::Redirected),
                (0, Verdict::Redirected),
                (VLAN + 1, Verdict::OtherHost),
                (1, Verdict::OtherHost),
            ] {
                frame[14..16].copy_from_slice(&vlan.to_be_bytes());
                assert_eq!(rig.check(&frame), verdict, "{vlan}");
            }
        }
    });
}

/// What a promiscuous device lets in is not for us: the kernel drops it.
#[test]
fn frames_for_another_mac_address_pass() {
    with_rig("frames_for_another_mac_address_pass", |rig| {
        let broadcast = [0xff; 6];
        let groups = [broadcast, [0x33, 0x33, 0, 0, 0, 1], [3, 0, 0, 0, 0, 1]];
        let strangers = [OTHERS, VLANS, [0; 6]].into_iter().chain(groups);
        // Each octet counts.
        let near = (0..6).map(|at| {
            let mut mac = OURS;
            mac[at] ^= 0x80;
            mac
        });
        let strangers: Vec<_> = strangers.chain(near).collect();
        for port in [4420, 7, 12] {
            let mut frame = ipv4(&[], &PLAIN, port, 9);
            assert_eq!(rig.check(&frame), Verdict::Redirected);
            for mac in &strangers {
                frame[..6].copy_from_slice(mac);
                assert_eq!(rig.check(&frame), Verdict::OtherHost, "{mac:02x?}");
            }
        }
        let mut frame = ipv4(&[0x8100], &ON_VLAN, 4420, 9);
        for (mac, verdict) in [
            (OURS, Verdict::Redirected),
            (VLANS, Verdict::Redirected),
            (OTHERS, Verdict::OtherHost),
            (broadcast, Verdict::OtherHost),
        ] {
            frame[..6].copy_from_slice(&mac);
            assert_eq!(rig.check(&frame), verdict, "{mac:02x?}");
        }
        // Where no VLAN is, no address is known: not even that of nobody.
        let mut frame = ipv4(&[0x8100], &PLAIN, 7, 9);
        frame[..6].copy_from_slice(&[0; 6]);
        frame[14..16].copy_from_slice(&(VLAN + 1).to_be_bytes());
        assert_eq!(rig.check(&frame), Verdict::OtherHost);
    });
}

#[test]
fn every_entry_of_a_port_counts() {
    with_rig("every_entry_of_a_port_counts", |rig| {
        let to = |octet| Ipv4 {
            destination: [10, 1, 2, octet],
            ..PLAIN
        };
        for (port, steered) in [(11, [true, true, false]), (12, [true; 3]), (13, [false; 3])] {
            for (octet, steered) in [3, 4, 5].into_iter().zip(steered) {
                let verdict = rig.check(&ipv4(&[], &to(octet), port, 10));
                assert_eq!(verdict == Verdict::Redirected, steered, "{port}, {octet}");
            }
            let verdict = rig.check(&ipv6(&[], 6, "fd00::5", port, 10));
            assert_eq!(verdict == Verdict::Redirected, port != 13, "{port}");
        }
    });
}

#[test]
fn a_queue_without_socket_passes_and_counts() {
    with_rig("a_queue_without_socket_passes_and_counts", |rig| {
        let slot = 0u32.to_ne_bytes();
        rig.skeleton.maps.steer_sockets.delete(&slot).unwrap();
        let (action, counter) = rig.run(&ipv4(&[], &PLAIN, 4420, 0));
        assert_eq!((action, counter), (XDP_PASS, 1));
    });
}

#[test]
fn frames_cut_anywhere_pass_as_truncated() {
    with_rig("frames_cut_anywhere_pass_as_truncated", |rig| {
        let options = Ipv4 {
            options: 3,
            ..ON_VLAN
        };
        let whole = [
            ipv4(&[0x8100], &options, 4420, 8),
            ipv6(&[0x8100], 6, "fd00:100::1", 4420, 8),
        ];
        for frame in whole {
            // The kernel does not run the program on less than an Ethernet header.
            for len in 14..frame.len() {
                rig.check(&frame[..len]);
            }
            assert_eq!(rig.check(&frame), Verdict::Redirected);
        }
    });
}

/// A driver may leave any number of octets in the first buffer of a frame that has several.
#[test]
fn headers_beyond_the_first_buffer_are_read() {
    with_rig("headers_beyond_the_first_buffer_are_read", |rig| {
        let options = Ipv4 {
            options: 10,
            ..ON_VLAN
        };
        for (frame, action) in [
            (ipv4(&[], &PLAIN, 4420, 8000), XDP_REDIRECT),
            (ipv4(&[0x8100], &options, 4420, 8000), XDP_REDIRECT),
            (ipv6(&[0x8100], 6, "fd00:100::1", 4420, 8000), XDP_REDIRECT),
            (ipv4(&[0x8100], &PLAIN, 9, 8000), XDP_PASS),
            (ipv6(&[], 6, "fd00::1", 80, 8000), XDP_PASS),
        ] {
            for linear in (14..120).chain([1000, 3000]) {
                let Some(found) = rig.run_in_pieces(&frame, linear) else {
                    eprintln!("SKIPPED: this kernel cannot cut a frame at {linear}");
                    return;
                };
                assert_eq!(found, action, "{linear} octets of {:02x?}", &frame[..100]);
            }
        }
    });
}

/// Frames that are mostly right, with a few octets changed and a cut.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(prop::sample::select(vec![0x8100u16, 0x88a8]), 0..4);
    let port = prop::sample::select(vec![4420u16, 7, 9, 11, 12, 14, 15, 0, 80, 65535]);
    let v4 = (
        prop::sample::select(vec![[10, 1, 2, 3], [10, 1, 2, 4], [10, 1, 100, 3], [0; 4]]),
        0usize..=10,
        prop::sample::select(vec![0u16, 0x4000, 0x8000, 0x2000, 0x00ff]),
        prop::sample::select(vec![6u8, 6, 6, 17]),
    );
    let v6 = (
        prop::sample::select(vec!["fd00::1", "fd00::2", "fd00:100::1", "::"]),
        prop::sample::select(vec![6u8, 6, 6, 0, 44, 17]),
    );
    let frame = (tags, port, v4, v6, any::<bool>(), 0usize..80).prop_map(
        |(tags, port, v4, v6, is_v4, payload)| {
            let (destination, options, fragment, protocol) = v4;
            let ip = Ipv4 {
                options,
                fragment,
                protocol,
                destination,
            };
            match is_v4 {
                true => ipv4(&tags, &ip, port, payload),
                false => ipv6(&tags, v6.1, v6.0, port, payload),
            }
        },
    );
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let mac = prop::sample::select(vec![OURS, OURS, OURS, VLANS, OTHERS]);
    let frame = (frame, mac).prop_map(|(mut frame, mac)| {
        frame[..6].copy_from_slice(&mac);
        frame
    });
    (frame, changes, any::<bool>(), any::<prop::sample::Index>()).prop_map(
        |(mut frame, changes, cut, at)| {
            for (index, octet) in changes {
                let at = index.index(frame.len());
                frame[at] = octet;
            }
            if cut {
                frame.truncate(14 + at.index(frame.len() - 14));
            }
            frame
        },
    )
}

#[test]
fn random_frames_agree_with_the_oracle() {
    with_rig("random_frames_agree_with_the_oracle", |rig| {
        let mut runner = TestRunner::new(Config {
            cases: 20_000,
            failure_persistence: None,
            ..Config::default()
        });
        let test = |frame: Vec<u8>| {
            rig.check(&frame);
            Ok(())
        };
        runner.run(&any_frame(), test).unwrap();
    });
}

#[test]
fn frames_of_several_buffers_are_steered_by_their_first() {
    with_rig(
        "frames_of_several_buffers_are_steered_by_their_first",
        |rig| {
            assert_eq!(
                rig.check(&ipv4(&[], &PLAIN, 4420, 9000)),
                Verdict::Redirected
            );
            assert_eq!(
                rig.check(&ipv6(&[], 6, "fd00::3", 80, 9000)),
                Verdict::NotSteered
            );
        },
    );
}

#[test]
fn strangers_are_left_to_the_kernel() {
    const REDIRECTED: (u32, usize) = (XDP_REDIRECT, 0);
    const STRANGER: (u32, usize) = (XDP_PASS, 7);
    with_rig("strangers_are_left_to_the_kernel", |rig| {
        // All frames come from 10.9.9.9 or fd00::99.
        rig.steer_for("10.1.2.3:5000", &[&[10, 8], &[10, 9]]);
        rig.steer_for("10.1.2.3:5001", &[&[10, 8], &[10, 9, 8], &[10, 9, 9, 8]]);
        rig.steer_for("0.0.0.0:5002", &[&[10, 9, 9, 9]]);
        rig.steer_for("0.0.0.0:5003", &[]);
        rig.steer_for("0.0.0.0:5004", &[&[]]);
        rig.steer_for("[fd00::1]:5000", &[&[0xfd]]);
        rig.steer_for("[fd00::1]:5001", &[&[0xfc], &[0xfe, 0x80]]);
        rig.steer_for("[::]:5002", &[&[0xfd, 0]]);
        rig.steer_for("[::]:5003", &[&[0xfd, 1]]);
        rig.steer_for("[::]:5004", &[&[]]);
        for (port, expected) in [
            (5000, REDIRECTED),
            (5001, STRANGER),
            (5002, REDIRECTED),
            (5003, STRANGER),
            (5004, REDIRECTED),
        ] {
            assert_eq!(rig.run(&ipv4(&[], &PLAIN, port, 9)), expected, "{port}");
            let frame = ipv6(&[], 6, "fd00::1", port, 9);
            assert_eq!(rig.run(&frame), expected, "{port}");
        }
        // At another address nobody is let in.
        let elsewhere = ipv6(&[], 6, "fd00::2", 5000, 9);
        assert_eq!(rig.run(&elsewhere), (XDP_PASS, 2));
    });
}
