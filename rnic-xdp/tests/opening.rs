//! Opening interfaces: what is refused, with which reason, and what a killed process leaves behind.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use aya::programs::loaded_programs;
use common::{eventually, open, open_with, pair};
use rnic_core::engine::Net;
use rnic_xdp::steering::{self, ModeChoice, SteeringError};
use rnic_xdp::testing::Namespace;
use rnic_xdp::{InterfaceConfig, OpenError, XdpInterface, XdpNet, ZeroCopyChoice};

fn has_program(namespace: &Namespace, netdev: &str) -> bool {
    namespace
        .ip(&format!("link show dev {netdev}"))
        .unwrap()
        .contains("prog/xdp")
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn closing_detaches_and_opening_again_works_at_once() {
    let (east, _west) = pair("again", 1);
    for _ in 0..5 {
        let interface = open(&east, "east").unwrap();
        assert!(has_program(&east, "east"));
        drop(interface);
        assert!(!has_program(&east, "east"));
    }
    let error = east.run(|| steering::counters("east")).unwrap_err();
    assert!(matches!(error, SteeringError::NotDriven(_)), "{error}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_is_driven_is_refused() {
    let (east, _west) = pair("driven", 1);
    let _port = open(&east, "east").unwrap();
    for mode in [ModeChoice::Auto, ModeChoice::Native, ModeChoice::Generic] {
        let config = InterfaceConfig {
            mode,
            ..InterfaceConfig::new("east")
        };
        let error = open_with(&east, &config).err().unwrap();
        assert!(matches!(error, OpenError::AlreadyDriven { .. }), "{error}");
        let own = format!(", pid {})", std::process::id());
        let said = error.to_string();
        assert!(said.contains("another rnic process drives east"), "{said}");
        assert!(said.contains(&own), "{said}");
    }
}

/// An XDP program that is not ours, attached in the way of `ip link`.
fn attach_other(namespace: &Namespace, netdev: &str) {
    let instruction = |code, dst, imm| libbpf_rs::libbpf_sys::bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: libbpf_rs::libbpf_sys::bpf_insn::new_bitfield_1(dst, 0),
        off: 0,
        imm,
    };
    // r0 = XDP_PASS; exit
    let program = [instruction(0xb7, 0, 2), instruction(0x95, 0, 0)];
    // SAFETY: the call reads the program and the two strings, which live through it; the descriptor
    // is new.
    #[allow(unsafe_code)]
    let fd = unsafe {
        let fd = libbpf_rs::libbpf_sys::bpf_prog_load(
            libbpf_rs::libbpf_sys::BPF_PROG_TYPE_XDP,
            c"firewall".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            std::ptr::null_mut(),
        );
        assert!(fd >= 0);
        <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    namespace.run(|| {
        let index = nix::net::if_::if_nametoindex(netdev).unwrap();
        let xdp = libbpf_rs::Xdp::new(std::os::fd::AsFd::as_fd(&fd));
        xdp.attach(index as i32, libbpf_rs::XdpFlags::DRV_MODE)
            .unwrap();
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn another_program_is_named_with_its_remedy() {
    let (east, _west) = pair("other", 1);
    attach_other(&east, "east");
    let error = open(&east, "east").err().unwrap().to_string();
    assert!(error.contains("\"firewall\""), "{error}");
    assert!(error.contains("`ip link set dev east xdp off`"), "{error}");
    let error = east.run(|| steering::counters("east")).unwrap_err();
    assert!(
        matches!(error, SteeringError::OtherProgram { .. }),
        "{error}"
    );
    // The remedy works.
    east.ip("link set dev east xdp off").unwrap();
    open(&east, "east").unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_without_native_xdp_gets_generic_and_says_so() {
    let namespace = Namespace::new("skb").unwrap();
    namespace.ip("link add bridge0 type bridge").unwrap();
    namespace.ip("link set dev bridge0 up").unwrap();
    let interface = open(&namespace, "bridge0").unwrap();
    let mode = interface.report().mode.to_string();
    assert!(
        mode.starts_with("generic (its driver refuses native XDP"),
        "{mode}"
    );
    assert!(
        interface.report().to_string().contains("generic"),
        "{}",
        interface.report()
    );
    drop(interface);

    let config = InterfaceConfig {
        mode: ModeChoice::Native,
        ..InterfaceConfig::new("bridge0")
    };
    let error = open_with(&namespace, &config).err().unwrap();
    assert!(matches!(error, OpenError::NoNative { .. }), "{error}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_cannot_be_opened_is_refused_with_a_remedy() {
    let (east, _west) = pair("refuse", 1);
    let error = open(&east, "nosuch0").err().unwrap();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{error}");
    let error = open(&east, "a_name_longer_than_any").err().unwrap();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{error}");

    let require = InterfaceConfig {
        zero_copy: ZeroCopyChoice::Require,
        ..InterfaceConfig::new("east")
    };
    let error = open_with(&east, &require).err().unwrap();
    assert!(matches!(error, OpenError::NoZeroCopy { .. }), "{error}");
    assert!(
        !has_program(&east, "east"),
        "an interface that did not open leaves nothing"
    );

    let odd = InterfaceConfig {
        rx_frames: 100,
        ..InterfaceConfig::new("east")
    };
    assert!(matches!(
        open_with(&east, &odd).err(),
        Some(OpenError::Config { .. })
    ));

    east.ip("link set dev east down").unwrap();
    let error = open(&east, "east").err().unwrap();
    assert!(matches!(error, OpenError::Down { .. }), "{error}");

    // The peer has more transmit queues than we have receive queues.
    east.ip("link add few numrxqueues 1 numtxqueues 1 type veth peer name many numtxqueues 2 numrxqueues 2")
        .unwrap();
    east.ip("link set dev few up").unwrap();
    let native = InterfaceConfig {
        mode: ModeChoice::Native,
        ..InterfaceConfig::new("few")
    };
    let error = open_with(&east, &native).err().unwrap();
    assert!(matches!(error, OpenError::TooFewQueues { .. }), "{error}");
}

/// Set for the child process of [`a_killed_process_leaves_nothing`].
const CHILD: &str = "RNIC_XDP_TEST_CHILD";

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_killed_process_leaves_nothing() {
    if std::env::var_os(CHILD).is_some() {
        hold_a_port();
    }
    let (east, _west) = pair("kill", 2);
    let mut child = east
        .command(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_leaves_nothing", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("READY"));
    assert!(ready.is_some(), "the child opens its interface");
    assert!(has_program(&east, "east"));
    assert_eq!(east.run(|| steering::entries("east")).unwrap().len(), 1);
    let maps = steering_maps(&program_ids(&east, "east"));
    assert!(!maps.is_empty(), "the program has maps");

    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        !has_program(&east, "east"),
        "the program goes with its process"
    );
    eventually("the maps go", || {
        let left = aya::maps::loaded_maps().filter_map(Result::ok);
        !left.into_iter().any(|map| maps.contains(&map.id()))
    });
    open(&east, "east").unwrap();
}

/// The child: opens an interface in two shares, reserves a TCP port, and waits to be killed.
fn hold_a_port() -> ! {
    let shares = XdpInterface::open_shares(&InterfaceConfig::new("east"), 2).unwrap();
    let net = XdpNet::new(&shares[0]).unwrap();
    let _lease = net.listen("10.77.0.1:4420".parse().unwrap()).unwrap();
    println!("READY");
    sleep(Duration::from_secs(60));
    std::process::exit(1)
}

fn program_ids(namespace: &Namespace, netdev: &str) -> Vec<u32> {
    let shown = namespace.ip(&format!("-d link show dev {netdev}")).unwrap();
    let mut words = shown.split_whitespace();
    let mut ids = Vec::new();
    while let Some(word) = words.next() {
        if word == "id" {
            ids.extend(words.next().and_then(|id| id.parse::<u32>().ok()));
        }
    }
    ids
}

fn steering_maps(programs: &[u32]) -> Vec<u32> {
    let found = loaded_programs().filter_map(Result::ok);
    let ours = found.filter(|info| programs.contains(&info.id()));
    ours.flat_map(|info| info.map_ids().unwrap().unwrap_or_default())
        .collect()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_started_program_does_not_inherit_the_queue() {
    let (east, _west) = pair("exec", 1);
    let interface = open(&east, "east").unwrap();
    let mut child = Command::new("sleep").arg("30").spawn().unwrap();
    drop(interface);
    let opened = open(&east, "east");
    child.kill().unwrap();
    child.wait().unwrap();
    opened.unwrap();
}
