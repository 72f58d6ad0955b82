//! Ports on real veth pairs: opening, refusals, frames, steering, and what is left behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aya::programs::loaded_programs;
use rnic_core::engine::{Net, NetError};
use rnic_core::memory::frames::TxFrames;
use rnic_xdp::steering::{self, Mode, ModeChoice, SteeringError};
use rnic_xdp::testing::{Namespace, VethEnd, disable_offloads, is_root, veth_pair};
use rnic_xdp::{OpenError, PortConfig, XdpNet, XdpPort, ZeroCopyChoice};

const SOON: Duration = Duration::from_secs(5);

fn pair(name: &str, queues: u32) -> (Namespace, Namespace) {
    let (one, other) = (Namespace::new(name).unwrap(), Namespace::new(name).unwrap());
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&one, "east", "10.77.0.1/24 fd77::1/64"),
        end(&other, "west", "10.77.0.2/24 fd77::2/64"),
        queues,
    )
    .unwrap();
    (one, other)
}

fn open(namespace: &Namespace, netdev: &str) -> Result<XdpPort, OpenError> {
    open_with(namespace, &PortConfig::new(netdev))
}

/// A port with its address services.
fn open_net(namespace: &Namespace, config: PortConfig) -> (XdpPort, XdpNet) {
    namespace.run(|| {
        let port = XdpPort::open(&config).unwrap();
        let net = XdpNet::new(&port).unwrap();
        (port, net)
    })
}

fn open_with(namespace: &Namespace, config: &PortConfig) -> Result<XdpPort, OpenError> {
    namespace.run(|| XdpPort::open(config))
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        sleep(Duration::from_millis(1));
    }
}

fn has_program(namespace: &Namespace, netdev: &str) -> bool {
    namespace
        .ip(&format!("link show dev {netdev}"))
        .unwrap()
        .contains("prog/xdp")
}

/// An Ethernet frame with a TCP segment for 10.77.0.2:`port`, checksums left out, the payload counting up.
fn frame(port: u16, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = (40 + payload) as u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend(40000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| at as u8));
    frame
}

fn send(port: &mut XdpPort, octets: &[u8]) {
    let id = port.tx.allocate().unwrap();
    port.tx.bytes_mut(id)[..octets.len()].copy_from_slice(octets);
    eventually("room to transmit", || {
        if !port.tx.can_transmit() {
            port.tx.kick();
        }
        port.tx.can_transmit()
    });
    port.tx.transmit(id, octets.len());
    assert!(port.tx.busy(id));
    port.tx.release(id);
}

/// Receives `count` frames.
fn receive(port: &mut XdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    eventually("frames arrive", || {
        for queue in port.rx.queues_mut() {
            let found = queue.receive();
            frames.extend((0..found).map(|index| queue.frame(index).to_vec()));
        }
        frames.len() >= count
    });
    frames
}

#[test]
fn frames_cross_between_two_ports() {
    if !is_root("frames_cross_between_two_ports") {
        return;
    }
    let (east, west) = pair("cross", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, net) = open_net(&west, PortConfig::new("west"));
    assert_eq!(one.report().mode, Mode::Native);
    assert!(!one.report().zero_copy);
    assert_eq!((one.report().mtu, one.report().frame_size), (1500, 2048));
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    // Many more than there are frames, so that each is used again and again.
    let rounds = 400;
    for round in 0..rounds {
        let sent: Vec<_> = (0..50)
            .map(|at| frame(local.port(), (round + at * 29) % 1461))
            .collect();
        for octets in &sent {
            send(&mut one, octets);
        }
        one.tx.kick();
        assert_eq!(receive(&mut other, sent.len()), sent);
    }
    eventually("all frames are free again", || {
        one.tx.kick();
        one.tx.available() == PortConfig::new("").tx_frames as usize
    });
    let counters = other.steering_counters().unwrap();
    assert_eq!(counters.redirected, 50 * rounds as u64);
    assert_eq!(west.run(|| steering::counters("west")).unwrap(), counters);
    assert_eq!(west.run(|| steering::entries("west")).unwrap(), [local]);
}

#[test]
fn a_frame_stays_its_owners_until_released() {
    if !is_root("a_frame_stays_its_owners_until_released") {
        return;
    }
    let (east, west) = pair("own", 1);
    let mut one = open(&east, "east").unwrap();
    let (mut other, net) = open_net(&west, PortConfig::new("west"));
    let (local, _lease) = west
        .run(|| net.listen("0.0.0.0:0".parse().unwrap()))
        .unwrap();
    assert_ne!(local.port(), 0);

    let free = one.tx.available();
    let octets = frame(local.port(), 700);
    let id = one.tx.allocate().unwrap();
    one.tx.bytes_mut(id)[..octets.len()].copy_from_slice(&octets);
    for _ in 0..3 {
        one.tx.transmit(id, octets.len());
        one.tx.kick();
        assert_eq!(receive(&mut other, 1), [&octets[..]]);
        eventually("the device is done with it", || {
            one.tx.kick();
            !one.tx.busy(id)
        });
        assert_eq!(one.tx.available(), free - 1);
        assert_eq!(one.tx.bytes(id)[..octets.len()], octets);
    }
    one.tx.release(id);
    assert_eq!(one.tx.available(), free);
    assert_eq!(
        one.tx.allocate(),
        Some(id),
        "the frame last freed is used first"
    );
}

#[test]
fn every_queue_receives() {
    if !is_root("every_queue_receives") {
        return;
    }
    let (east, west) = pair("queues", 2);
    let (mut other, net) = open_net(&west, PortConfig::new("west"));
    assert_eq!(other.report().queues, 2);
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    // The kernel spreads its SYNs over the transmit queues, each of which leads to one receive queue.
    let mut received = [0; 2];
    eventually("both queues receive", || {
        east.run(|| TcpStream::connect_timeout(&local, Duration::from_millis(1)))
            .unwrap_err();
        for (queue, count) in other.rx.queues_mut().zip(&mut received) {
            *count += queue.receive();
        }
        received.iter().all(|count| *count > 0)
    });
    assert_eq!(other.steering_counters().unwrap().no_socket, 0);
}

#[test]
fn other_traffic_reaches_the_kernel() {
    if !is_root("other_traffic_reaches_the_kernel") {
        return;
    }
    let (east, west) = pair("pass", 1);
    let _one = open(&east, "east").unwrap();
    let (other, net) = open_net(&west, PortConfig::new("west"));
    let (ours, lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();

    for address in ["10.77.0.2:80", "[fd77::2]:80"] {
        let address: SocketAddr = address.parse().unwrap();
        let listener = west.run(|| TcpListener::bind(address)).unwrap();
        let mut client = east
            .run(|| TcpStream::connect_timeout(&address, SOON))
            .unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 100_000]).unwrap();
        drop(client);
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert_eq!(received, [7; 100_000]);
    }
    let before = other.steering_counters().unwrap();
    assert_eq!(before.redirected, 0);
    assert!(before.not_steered > 10);

    // Our port: the kernel sees nothing of it, neither accepts nor refuses.
    let connect = || TcpStream::connect_timeout(&ours, Duration::from_millis(200));
    let error = east.run(connect).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(other.steering_counters().unwrap().redirected > 0);
    // Given up, the kernel answers again.
    drop(lease);
    let error = east.run(connect).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn closing_detaches_and_opening_again_works_at_once() {
    if !is_root("closing_detaches_and_opening_again_works_at_once") {
        return;
    }
    let (east, _west) = pair("again", 1);
    for _ in 0..5 {
        let port = open(&east, "east").unwrap();
        assert!(has_program(&east, "east"));
        drop(port);
        assert!(!has_program(&east, "east"));
    }
    let error = east.run(|| steering::counters("east")).unwrap_err();
    assert!(matches!(error, SteeringError::NotDriven(_)), "{error}");
}

#[test]
fn a_device_that_is_driven_is_refused() {
    if !is_root("a_device_that_is_driven_is_refused") {
        return;
    }
    let (east, _west) = pair("driven", 1);
    let _port = open(&east, "east").unwrap();
    for mode in [ModeChoice::Auto, ModeChoice::Native, ModeChoice::Generic] {
        let config = PortConfig {
            mode,
            ..PortConfig::new("east")
        };
        let error = open_with(&east, &config).err().unwrap();
        assert!(matches!(error, OpenError::AlreadyDriven { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("another rnic process drives east"),
            "{error}"
        );
    }
}

/// An XDP program that is not ours, attached the way that `ip link` does it.
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
    // SAFETY: the call reads the program and the two strings, which live through it; the descriptor is new.
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
fn another_program_is_named_with_its_remedy() {
    if !is_root("another_program_is_named_with_its_remedy") {
        return;
    }
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
fn a_device_without_native_xdp_gets_generic_and_says_so() {
    if !is_root("a_device_without_native_xdp_gets_generic_and_says_so") {
        return;
    }
    let namespace = Namespace::new("skb").unwrap();
    namespace.ip("link add bridge0 type bridge").unwrap();
    namespace.ip("link set dev bridge0 up").unwrap();
    let port = open(&namespace, "bridge0").unwrap();
    let mode = port.report().mode.to_string();
    assert!(
        mode.starts_with("generic (its driver has no native XDP"),
        "{mode}"
    );
    assert!(
        port.report().to_string().contains("generic"),
        "{}",
        port.report()
    );
    drop(port);

    let config = PortConfig {
        mode: ModeChoice::Native,
        ..PortConfig::new("bridge0")
    };
    let error = open_with(&namespace, &config).err().unwrap();
    assert!(matches!(error, OpenError::NoNative { .. }), "{error}");
}

#[test]
fn generic_mode_carries_frames_too() {
    if !is_root("generic_mode_carries_frames_too") {
        return;
    }
    let (east, west) = pair("generic", 1);
    let generic = |netdev| PortConfig {
        mode: ModeChoice::Generic,
        ..PortConfig::new(netdev)
    };
    let mut one = open_with(&east, &generic("east")).unwrap();
    let (mut other, net) = open_net(&west, generic("west"));
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();
    let sent: Vec<_> = (0..40).map(|at| frame(local.port(), at * 30)).collect();
    for octets in &sent {
        send(&mut one, octets);
    }
    one.tx.kick();
    assert_eq!(receive(&mut other, sent.len()), sent);
}

#[test]
fn what_cannot_be_opened_is_refused_with_a_remedy() {
    if !is_root("what_cannot_be_opened_is_refused_with_a_remedy") {
        return;
    }
    let (east, _west) = pair("refuse", 1);
    let error = open(&east, "nosuch0").err().unwrap();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{error}");
    let error = open(&east, "a_name_longer_than_any").err().unwrap();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{error}");

    let require = PortConfig {
        zero_copy: ZeroCopyChoice::Require,
        ..PortConfig::new("east")
    };
    let error = open_with(&east, &require).err().unwrap();
    assert!(matches!(error, OpenError::NoZeroCopy { .. }), "{error}");
    assert!(
        !has_program(&east, "east"),
        "a port that did not open leaves nothing"
    );

    let odd = PortConfig {
        rx_frames: 100,
        ..PortConfig::new("east")
    };
    assert!(matches!(
        open_with(&east, &odd).err(),
        Some(OpenError::Config { .. })
    ));

    east.ip("link set dev east down").unwrap();
    let error = open(&east, "east").err().unwrap();
    assert!(matches!(error, OpenError::Down { .. }), "{error}");

    // A peer that transmits on more queues than we receive on.
    east.ip("link add few numrxqueues 1 numtxqueues 1 type veth peer name many numtxqueues 2 numrxqueues 2")
        .unwrap();
    east.ip("link set dev few up").unwrap();
    let native = PortConfig {
        mode: ModeChoice::Native,
        ..PortConfig::new("few")
    };
    let error = open_with(&east, &native).err().unwrap();
    assert!(matches!(error, OpenError::TooFewQueues { .. }), "{error}");
}

#[test]
fn a_large_mtu_is_used_as_far_as_frames_go() {
    if !is_root("a_large_mtu_is_used_as_far_as_frames_go") {
        return;
    }
    let (east, west) = pair("mtu", 1);
    east.ip("link set dev east mtu 9000").unwrap();
    west.ip("link set dev west mtu 9000").unwrap();
    let mut one = open(&east, "east").unwrap();
    let (mut other, net) = open_net(&west, PortConfig::new("west"));
    let report = one.report().clone();
    assert_eq!(
        (report.link_mtu, report.mtu, report.frame_size),
        (9000, 3818, 4096)
    );
    assert_eq!(report.mode, Mode::Native);
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();
    let sent: Vec<_> = [3818 - 40, 3000, 1]
        .map(|payload| frame(local.port(), payload))
        .into();
    for octets in &sent {
        send(&mut one, octets);
    }
    one.tx.kick();
    assert_eq!(receive(&mut other, sent.len()), sent);

    // The kernel's own large frames pass.
    disable_offloads(&east, "east").unwrap();
    let listener = west.run(|| TcpListener::bind("10.77.0.2:80")).unwrap();
    let mut client = east.run(|| TcpStream::connect("10.77.0.2:80")).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&[5; 100_000]).unwrap();
    drop(client);
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 100_000);
}

#[test]
fn ports_are_reserved_in_the_kernel_too() {
    if !is_root("ports_are_reserved_in_the_kernel_too") {
        return;
    }
    let (east, west) = pair("reserve", 1);
    let (_port, net) = open_net(&east, PortConfig::new("east"));
    east.run(|| {
        let wanted: SocketAddr = "10.77.0.1:4420".parse().unwrap();
        let (local, lease) = net.listen(wanted).unwrap();
        assert_eq!(local, wanted);
        assert!(TcpListener::bind(wanted).is_err());
        let error = net.listen(wanted).err().unwrap();
        assert!(matches!(error, NetError::InUse(_)), "{error}");
        let error = net.listen("10.99.0.1:1".parse().unwrap()).err().unwrap();
        assert!(matches!(error, NetError::NotLocal(..)), "{error}");
        let error = net.listen("127.0.0.1:4421".parse().unwrap()).err().unwrap();
        assert!(matches!(error, NetError::NotLocal(..)), "{error}");
        assert_eq!(steering::entries("east").unwrap(), [wanted]);
        drop(lease);
        assert_eq!(steering::entries("east").unwrap(), []);
        TcpListener::bind(wanted).unwrap();

        for (remote, source) in [("10.77.0.2:1", "10.77.0.1"), ("[fd77::2]:1", "fd77::1")] {
            let (local, lease) = net.active(remote.parse().unwrap(), None).unwrap();
            assert_eq!(local.ip().to_string(), source);
            assert!(local.port() > 1024);
            assert_eq!(steering::entries("east").unwrap(), [local]);
            drop(lease);
        }
        let link_local = |namespace: &Namespace, netdev| {
            let shown = namespace
                .ip(&format!("-o -6 addr show dev {netdev} scope link"))
                .unwrap();
            let address = shown
                .split_whitespace()
                .skip_while(|word| *word != "inet6")
                .nth(1)
                .unwrap();
            let address = address.split('/').next().unwrap().to_string();
            SocketAddr::new(address.parse().unwrap(), 1)
        };
        eventually("link-local addresses can be used", || {
            let shown = east.ip("-6 addr show dev east tentative").unwrap();
            shown.trim().is_empty()
        });
        let (local, lease) = net.active(link_local(&west, "west"), None).unwrap();
        assert_eq!(local.ip(), link_local(&east, "east").ip());
        drop(lease);
        let stated: SocketAddr = "10.77.0.1:5000".parse().unwrap();
        let (local, _lease) = net
            .active("10.77.0.2:1".parse().unwrap(), Some(stated))
            .unwrap();
        assert_eq!(local, stated);
        for unreachable in [
            "192.0.2.1:1",
            "10.77.0.1:1",
            "127.0.0.1:1",
            "[2001:db8::1]:1",
        ] {
            let error = net
                .active(unreachable.parse().unwrap(), None)
                .err()
                .unwrap();
            assert!(
                matches!(error, NetError::NoRoute(..)),
                "{unreachable}: {error}"
            );
        }
    });
}

/// Set for the child process of [`a_killed_process_leaves_nothing`].
const CHILD: &str = "RNIC_XDP_TEST_CHILD";

#[test]
fn a_killed_process_leaves_nothing() {
    if std::env::var_os(CHILD).is_some() {
        hold_a_port();
    }
    if !is_root("a_killed_process_leaves_nothing") {
        return;
    }
    let (east, _west) = pair("kill", 1);
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
    assert!(ready.is_some(), "the child opens its port");
    assert!(has_program(&east, "east"));
    assert_eq!(east.run(|| steering::entries("east")).unwrap().len(), 1);
    let maps = steering_maps(&program_ids(&east, "east"));
    assert_eq!(maps.len(), 3);

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

/// The child: opens a port, reserves a TCP port, and waits to be killed.
fn hold_a_port() -> ! {
    let port = XdpPort::open(&PortConfig::new("east")).unwrap();
    let net = XdpNet::new(&port).unwrap();
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
fn a_started_program_does_not_inherit_the_queue() {
    if !is_root("a_started_program_does_not_inherit_the_queue") {
        return;
    }
    let (east, _west) = pair("exec", 1);
    let port = open(&east, "east").unwrap();
    let mut child = Command::new("sleep").arg("30").spawn().unwrap();
    drop(port);
    let opened = open(&east, "east");
    child.kill().unwrap();
    child.wait().unwrap();
    opened.unwrap();
}
