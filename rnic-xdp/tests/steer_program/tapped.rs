//! Which frames the programs show to somebody who captures, and what they say of them. `police` and
//! those of `ebpf/capture.bpf.c` have this from the same file (`ebpf/wanted.h`).
//!
//! The programs of `ebpf/capture.bpf.c` stand at functions of the kernel. BPF_PROG_TEST_RUN runs
//! such a program only at the kernel's own test functions (`bpf_fentry_test1` and those behind it),
//! which have other arguments: neither a frame of an AF_XDP socket nor a pool of descriptors can be
//! passed to it. So they are only loaded here, which has the kernel's verifier look at each path of
//! them; `rnic-ctl/tests/capture.rs` has frames pass through them.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::rc::Rc;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, PerfBufferBuilder};
use nix::unistd::{SysconfVar, sysconf};
use rnic_xdp::capture::skeleton::CaptureSkelBuilder;

use crate::frames::{PLAIN, ipv4, ipv6};
use crate::program::{Rig, XDP_PASS, XDP_REDIRECT, with_rig, with_shared_rig};

const RECEIVED: u32 = 1;
const SENT: u32 = 2;
/// The octets of the record ahead of a frame.
const RECORD: usize = 32;
const NOT_JUDGED: u8 = 255;

/// `struct capture_wanted`.
#[derive(Clone, Copy)]
struct Wanted {
    kinds: u32,
    snap: u32,
    port: u32,
    tcp_port: u32,
    family: u32,
    peer: [u8; 16],
    mask: [u8; 16],
}

const ALL: Wanted = Wanted {
    kinds: RECEIVED | SENT,
    snap: 65_280,
    port: 0,
    tcp_port: 0,
    family: 0,
    peer: [0; 16],
    mask: [0; 16],
};

impl Wanted {
    fn octets(&self) -> Vec<u8> {
        let words = [self.kinds, self.snap, self.port, self.tcp_port, self.family];
        let words = words.map(u32::to_ne_bytes).concat();
        [&words[..], &self.peer, &self.mask].concat()
    }
}

/// From the peers whose addresses begin with these octets.
fn from(family: u32, prefix: &[u8]) -> Wanted {
    let mut wanted = Wanted { family, ..ALL };
    wanted.peer[..prefix.len()].copy_from_slice(prefix);
    wanted.mask[..prefix.len()].fill(255);
    wanted
}

/// Sets what is wanted.
fn tell(rig: &Rig<'_>, wanted: &[u8]) {
    let mut maps = rig.skeleton.object().maps();
    let map = maps.find(|map| map.name() == ".data.capture").unwrap();
    let key = 0_u32.to_ne_bytes();
    map.update(&key, wanted, MapFlags::ANY).unwrap();
}

/// Returns what is wanted now: the program itself ends a capture.
fn kinds(rig: &Rig<'_>) -> u32 {
    let mut maps = rig.skeleton.object().maps();
    let map = maps.find(|map| map.name() == ".data.capture").unwrap();
    let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
    u32::from_ne_bytes(value.unwrap().unwrap()[..4].try_into().unwrap())
}

/// Frames that were lost: those for which the ring had no room, and others.
fn lost(rig: &Rig<'_>) -> [u64; 2] {
    [0_u32, 1].map(|why| {
        let lost = &rig.skeleton.maps.capture_lost;
        let values = lost.lookup_percpu(&why.to_ne_bytes(), MapFlags::ANY);
        let values = values.unwrap().unwrap();
        let count = |value: &Vec<u8>| u64::from_ne_bytes(value[..].try_into().unwrap());
        values.iter().map(count).sum()
    })
}

/// Runs the program on a frame while somebody captures what is wanted. Returns its record with
/// octets of it, if it is shown.
fn shown(rig: &Rig<'_>, wanted: Wanted, frame: &[u8]) -> Option<Vec<u8>> {
    let basket = Rc::new(RefCell::new(Vec::new()));
    let into = Rc::clone(&basket);
    let rings = PerfBufferBuilder::new(&rig.skeleton.maps.capture_frames)
        .pages(8)
        .sample_cb(move |_, entry: &[u8]| into.borrow_mut().push(entry.to_vec()))
        .build()
        .unwrap();
    tell(rig, &wanted.octets());
    let before = lost(rig);
    rig.run(frame);
    rings.consume().unwrap();
    assert_eq!(lost(rig), before);
    let mut shown = basket.borrow_mut();
    assert!(shown.len() <= 1, "{shown:02x?}");
    shown.pop()
}

fn word(entry: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap())
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_is_shown_to_those_who_want_it() {
    with_rig(|rig| {
        // From 10.9.9.9:50000 and [fd00::99]:50000.
        let four = ipv4(&[], &PLAIN, 4420, 60);
        let six = ipv6(&[], 6, "fd00::1", 4420, 60);
        for frame in [&four, &six] {
            let entry = shown(rig, ALL, frame).unwrap();
            let len = frame.len() as u32;
            assert_eq!([8, 12, 16, 20].map(|at| word(&entry, at)), [len, len, 0, 0]);
            let said = [RECEIVED as u8, XDP_REDIRECT as u8, NOT_JUDGED];
            assert_eq!(entry[24..27], said);
            assert_eq!(entry[RECORD..][..frame.len()], frame[..]);
        }
        let seen = |wanted: Wanted, frame: &[u8]| shown(rig, wanted, frame).is_some();
        for (kinds, is_shown) in [(RECEIVED, true), (SENT, false), (0, false)] {
            assert_eq!(seen(Wanted { kinds, ..ALL }, &four), is_shown, "{kinds}");
        }
        for (tcp_port, is_shown) in [(4420, true), (50_000, true), (4421, false)] {
            let wanted = Wanted { tcp_port, ..ALL };
            assert_eq!(seen(wanted, &four), is_shown, "{tcp_port}");
            assert_eq!(seen(wanted, &six), is_shown, "{tcp_port}");
        }
        // No client has this device.
        assert!(!seen(Wanted { port: 5, ..ALL }, &four));
        for (wanted, is_four, is_six) in [
            (from(4, &[10, 9]), true, false),
            (from(4, &[10, 9, 9, 9]), true, false),
            (from(4, &[10, 9, 9, 8]), false, false),
            // The address of this host is no peer's.
            (from(4, &[10, 1, 2, 3]), false, false),
            (from(6, &[0xfd, 0]), false, true),
            (from(6, &[0xfd, 1]), false, false),
            (from(6, &[]), false, true),
        ] {
            assert_eq!((seen(wanted, &four), seen(wanted, &six)), (is_four, is_six));
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn as_much_of_a_frame_is_shown_as_is_wanted() {
    with_rig(|rig| {
        let frame = ipv4(&[], &PLAIN, 4420, 200);
        let len = frame.len() as u32;
        for (snap, captured) in [(0, 0), (1, 1), (96, 96), (len, len), (u32::MAX, len)] {
            let entry = shown(rig, Wanted { snap, ..ALL }, &frame).unwrap();
            assert_eq!((word(&entry, 8), word(&entry, 12)), (len, captured));
            let octets = captured as usize;
            assert_eq!(entry[RECORD..][..octets], frame[..octets]);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_the_kernel_gets_is_not_shown() {
    with_rig(|rig| {
        let frame = ipv4(&[], &PLAIN, 4421, 0);
        assert_eq!(rig.run(&frame).0, XDP_PASS);
        assert_eq!(shown(rig, ALL, &frame), None);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_a_client_are_shown_with_its_port() {
    with_shared_rig(|rig| {
        // A client with the hardware queue 0.
        rig.allow(5, None);
        rig.steer_to("10.1.2.3:6000", 0, 5 | 1 << 16);
        let frame = ipv4(&[], &PLAIN, 6000, 0);
        let entry = shown(rig, Wanted { port: 5, ..ALL }, &frame).unwrap();
        assert_eq!(word(&entry, 16), 5);
        assert_eq!(shown(rig, Wanted { port: 6, ..ALL }, &frame), None);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_is_lost_where_nobody_has_a_ring_and_the_capture_ends() {
    with_rig(|rig| {
        let frame = ipv4(&[], &PLAIN, 4420, 0);
        tell(rig, &ALL.octets());
        assert_eq!(rig.run(&frame).0, XDP_REDIRECT);
        assert_eq!((lost(rig), kinds(rig)), ([0, 1], 0));
        rig.run(&frame);
        assert_eq!(lost(rig), [0, 1]);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_frame_is_lost_where_the_ring_is_full_and_the_capture_goes_on() {
    with_rig(|rig| {
        let rings = PerfBufferBuilder::new(&rig.skeleton.maps.capture_frames)
            .pages(1)
            .build()
            .unwrap();
        tell(rig, &ALL.octets());
        // On one CPU or several: more than all rings have room for.
        let frame = ipv4(&[], &PLAIN, 4420, 1400);
        let cpus = std::thread::available_parallelism().unwrap().get();
        let page = sysconf(SysconfVar::PAGE_SIZE).unwrap().unwrap() as usize;
        for _ in 0..page / 1024 * cpus {
            assert_eq!(rig.run(&frame).0, XDP_REDIRECT);
        }
        let [full, unreadable] = lost(rig);
        assert!(full > 0 && unreadable == 0, "{full} {unreadable}");
        assert_eq!(kinds(rig), ALL.kinds);
        drop(rings);
    });
}

/// Loads the programs at functions of the kernel, where it can have any.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_verifier_takes_the_programs_at_functions_of_the_kernel() {
    for name in [
        "capture_copied",
        "capture_descriptor_taken",
        "capture_batch_begins",
        "capture_batch_taken",
    ] {
        let mut object = MaybeUninit::uninit();
        let mut open = CaptureSkelBuilder::default().open(&mut object).unwrap();
        for mut program in open.open_object_mut().progs_mut() {
            let is_this = program.name() == name;
            program.set_autoload(is_this);
        }
        if let Err(why) = open.load() {
            let why = why.to_string();
            // EACCES, EINVAL and E2BIG are the verifier's. With others a kernel says that it has no
            // programs at its functions.
            let is_refused = ["13", "22", "7"].map(|error| format!("(os error {error})"));
            assert!(
                !is_refused.iter().any(|of| why.contains(of)),
                "{name}: {why}"
            );
            eprintln!(
                "{name} is not looked at: this kernel has no program at that function ({why})"
            );
        }
    }
}
