//! Interfaces of other kinds than the loopback one, each test in a network namespace of its own.

mod common;

use std::net::{SocketAddr, SocketAddrV6, TcpStream};
use std::process::Command;

use common::{Host, LISTENER};
use nix::sched::{CloneFlags, unshare};
use rnic_core::connection::{Socket, Sockets};
use rnic_core::engine::{Net, NetError};
use rnic_sockets::{InterfaceError, KernelInterface};

/// Runs a command in the namespaces of this thread.
fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap();
    let status = Command::new(program).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Moves this thread to namespaces of its own.
fn enter(commands: &[&str]) {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    run("mount --make-rprivate /");
    run("mount -t sysfs sysfs /sys");
    run("ip link set lo up");
    for command in commands {
        run(command);
    }
}

/// Waits until the kernel counts an interface's addresses as its own: it learns of the link later.
fn settle(name: &str) {
    common::until(|| {
        let mut ip = Command::new("ip");
        let shown = ip
            .args(["addr", "show", "dev", name, "tentative"])
            .output()
            .unwrap();
        (shown.status.success() && shown.stdout.is_empty()).then_some(())
    });
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Connects the host to its own listener, from an address if one is wanted. Returns both ends.
fn connect_to_itself(
    host: &mut Host,
    remote: SocketAddr,
    local: Option<SocketAddr>,
) -> [SocketAddr; 2] {
    let (from, reservation) = host.net.active(remote, local, 0).unwrap();
    let mut socket = host.sockets.connect(&reservation, remote).unwrap();
    let accepted = host.accept();
    assert_eq!(accepted.remote.ip(), from.ip());
    assert_eq!(socket.is_connected(), Ok(true));
    assert_eq!(socket.send(b"octets").unwrap(), 6);
    let mut peer = accepted.socket;
    host.sockets.watch(&peer, 0).unwrap();
    assert_eq!(host.receive(&mut peer, 6), b"octets");
    [accepted.local, accepted.remote]
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn interfaces_are_read() {
    enter(&[
        "ip link add d0 type veth peer name e0",
        "ip link set d0 address 02:00:00:00:00:05 mtu 9000",
    ]);
    let open = || KernelInterface::open(Some("d0"));
    assert!(matches!(open(), Err(InterfaceError::Down(name)) if name == "d0"));
    run("ip link set d0 addrgenmode none");
    run("ip link set d0 up");
    assert!(matches!(open(), Err(InterfaceError::NoAddress(name)) if name == "d0"));
    // The label is no interface.
    run("ip addr add 10.7.0.1/24 dev d0 label d0:first");
    run("ip addr add fd07::1/64 dev d0 nodad");
    let d0 = open().unwrap();
    assert_eq!((d0.mtu, d0.up, d0.vrf), (9000, true, None));
    assert_eq!(d0.mac, Some([2, 0, 0, 0, 0, 5]));
    let own = ["10.7.0.1:0", "[fd07::1]:0"].map(|own| address(own).ip());
    assert_eq!(d0.addresses, own);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn a_named_interface_has_its_addresses_alone() {
    enter(&[
        "ip link add d0 type veth peer name e0",
        "ip link add d1 type veth peer name e1",
        "ip addr add 10.7.0.1/24 dev d0",
        "ip addr add 10.7.0.2/24 dev d0",
        "ip addr add 10.8.0.1/24 dev d1",
        "ip link set d0 up",
        "ip link set d1 up",
        "ip link set e0 up",
        "ip link set e1 up",
    ]);
    let mut host = Host::on(Some("d0"));
    let (local, _reservation) = host.listen(address("0.0.0.0:0"));
    for (ip, has) in [("10.7.0.1", true), ("10.7.0.2", true), ("10.8.0.1", false)] {
        let to = SocketAddr::new(ip.parse().unwrap(), local.port());
        assert_eq!(TcpStream::connect(to).is_ok(), has, "{ip}");
    }
    // The kernel would connect from 10.8.0.1.
    let remote = address("10.8.0.9:80");
    let (from, _) = host.net.active(remote, None, 0).unwrap();
    assert!(from.to_string().starts_with("10.7.0."), "{from}");
    let foreign = Some(address("10.8.0.1:0"));
    let error = host.net.active(remote, foreign, 0).unwrap_err();
    assert!(matches!(error, NetError::NotLocal(..)), "{error}");
    let error = host.net.listen(address("10.8.0.1:0")).unwrap_err();
    assert!(
        matches!(&error, NetError::NotLocal(_, name) if name == "d0"),
        "{error}"
    );
    // There is no way at all.
    for remote in ["192.0.2.1:80", "[2001:db8::1]:80"] {
        for net in [common::network(None), common::network(Some("d0"))] {
            let error = net.active(address(remote), None, 0).unwrap_err();
            assert!(matches!(error, NetError::NoRoute(..)), "{error}");
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn link_local_addresses_belong_to_the_interface() {
    enter(&[
        "ip link add va type veth peer name vb",
        "ip link set va addrgenmode none",
        "ip link set vb addrgenmode none",
        "ip addr add fe80::a/64 dev va nodad",
        "ip addr add fd07::a/64 dev va nodad",
        "ip link set va up",
        "ip link set vb up",
    ]);
    settle("va");
    let index = KernelInterface::open(Some("va")).unwrap().index;
    let scoped = |text: &str, port| SocketAddrV6::new(text.parse().unwrap(), port, 0, index);
    let mut host = Host::on(Some("va"));
    let (local, _reservation) = host.listen(address("[fe80::a]:0"));
    assert_eq!(local, scoped("fe80::a", local.port()).into());
    // As flows have it: without the scope.
    let remote = SocketAddr::new("fe80::a".parse().unwrap(), local.port());
    let [at, from] = connect_to_itself(&mut host, remote, None);
    assert_eq!((at, from.ip()), (local, remote.ip()));
    let [at, _] = connect_to_itself(&mut host, remote, Some(address("[fd07::a]:0")));
    assert_eq!(at, local);
    // An address of the same scope is chosen for another host.
    let (from, _) = host.net.active(address("[fe80::77]:80"), None, 0).unwrap();
    assert_eq!(from, scoped("fe80::a", from.port()).into());
    let (from, _) = host.net.active(address("[fd07::77]:80"), None, 0).unwrap();
    assert_eq!(from.ip(), address("[fd07::a]:0").ip());
    // A listener of any address has those too.
    host.sockets.unlisten(LISTENER);
    let (any, _reservation) = host.listen(address("[::]:0"));
    for own in ["fe80::a", "fd07::a"] {
        let remote = SocketAddr::new(own.parse().unwrap(), any.port());
        let [at, _] = connect_to_itself(&mut host, remote, None);
        assert_eq!(at.ip(), remote.ip());
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
#[cfg_attr(all(root, not(vrf)), ignore = "needs a kernel with VRFs")]
fn ports_of_a_vrf_are_bound_to_it() {
    enter(&[
        "ip link add d0 type veth peer name e0",
        "ip addr add 10.7.0.1/24 dev d0",
        "ip link set d0 up",
        "ip link set e0 up",
    ]);
    run("ip link add blue type vrf table 10");
    run("ip link set blue up");
    run("ip link set d0 master blue");
    for name in ["d0", "blue"] {
        let interface = KernelInterface::open(Some(name)).unwrap();
        assert_eq!(interface.vrf.as_deref(), Some("blue"));
        let mut host = Host::on(Some(name));
        let (local, reservation) = host.listen(address("10.7.0.1:0"));
        let ends = connect_to_itself(&mut host, local, None);
        assert_eq!(ends.map(|end| end.ip()), [local.ip(); 2]);
        // The same port is free outside.
        common::network(None)
            .listen(SocketAddr::new([0; 4].into(), local.port()))
            .unwrap();
        drop(reservation);
    }
}
