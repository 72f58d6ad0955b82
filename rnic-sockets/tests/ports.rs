//! Ports: reserved, shared, given back, and refused.

mod common;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};

use common::{Host, LISTENER, listening_peer, loopback, network, pair};
use rnic_core::connection::{EndReason, Ready, Socket, Sockets};
use rnic_core::engine::{Net, NetError};
use rnic_core::ids::ListenerId;
use rnic_sockets::KernelSockets;

fn with_port(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Returns whether a peer that connects there is refused.
fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[test]
fn a_port_in_use_is_told_when_it_is_reserved() {
    for at in loopback() {
        let net = network(None);
        let (listener, taken) = listening_peer(at);
        let error = net.listen(taken).unwrap_err();
        assert!(
            matches!(&error, NetError::InUse(in_use) if in_use.address == taken),
            "{error}"
        );
        drop(listener);
        let (local, reservation) = net.listen(taken).unwrap();
        assert_eq!(local, taken);
        assert!(matches!(net.listen(taken), Err(NetError::InUse(_))));
        assert_eq!(
            TcpListener::bind(taken).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        drop(reservation);
        TcpListener::bind(taken).unwrap();
    }
}

#[test]
fn a_port_where_somebody_listens_is_not_one_to_connect_from() {
    let net = network(None);
    let [at, _] = loopback();
    let (_listener, taken) = listening_peer(at);
    let error = net.active(at, Some(taken), 0).unwrap_err();
    assert!(
        matches!(&error, NetError::InUse(in_use) if in_use.address == taken),
        "{error}"
    );
}

#[test]
fn addresses_of_other_hosts_are_not_local() {
    let not_local = |error: NetError| assert!(matches!(error, NetError::NotLocal(..)), "{error}");
    let foreign = with_port("192.0.2.77", 0);
    for name in [None, Some("lo")] {
        let net = network(name);
        not_local(net.listen(foreign).unwrap_err());
        let remote = with_port("127.0.0.1", 9);
        not_local(net.active(remote, Some(foreign), 0).unwrap_err());
    }
}

/// Root may have all ports: then nothing is tested here.
#[test]
fn low_ports_are_refused_with_the_remedy() {
    let start = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let low = start.trim().parse::<u16>().unwrap().saturating_sub(1);
    if nix::unistd::geteuid().is_root() || low == 0 {
        return;
    }
    let error = network(None)
        .listen(with_port("127.0.0.1", low))
        .unwrap_err();
    let remedy = format!("sysctl net.ipv4.ip_unprivileged_port_start={low}");
    assert!(error.to_string().contains(&remedy), "{error}");
}

#[test]
fn link_local_addresses_need_an_interface() {
    let net = network(None);
    let remote = with_port("fe80::77", 9999);
    for error in [
        net.listen(remote).unwrap_err(),
        net.active(remote, None, 0).unwrap_err(),
    ] {
        assert!(error.to_string().contains("%eth0"), "{error}");
    }
}

#[test]
fn a_listener_of_any_address_has_them_all() {
    for (any, own) in [
        ("0.0.0.0", ["127.0.0.1", "127.8.9.1"]),
        ("::", ["::1", "::1"]),
    ] {
        let mut host = Host::new();
        let (local, _reservation) = host.listen(with_port(any, 0));
        assert_eq!(local.ip(), any.parse::<std::net::IpAddr>().unwrap());
        for own in own {
            let to = with_port(own, local.port());
            let peer = TcpStream::connect(to).unwrap();
            let accepted = host.accept();
            assert_eq!(
                (accepted.local, accepted.remote),
                (to, peer.local_addr().unwrap())
            );
        }
        // The other family's port is free.
        let other = if local.is_ipv4() { "::" } else { "0.0.0.0" };
        host.net.listen(with_port(other, local.port())).unwrap();
    }
}

#[test]
fn a_listener_of_any_address_of_an_interface_has_only_those() {
    let mut host = Host::on(Some("lo"));
    let (local, _reservation) = host.listen(with_port("0.0.0.0", 0));
    assert_eq!(local.ip(), with_port("0.0.0.0", 0).ip());
    // 127.0.0.2 is local, but not in the list of addresses.
    assert!(refuses(with_port("127.0.0.2", local.port())));
    let to = with_port("127.0.0.1", local.port());
    let _peer = TcpStream::connect(to).unwrap();
    assert_eq!(host.accept().local, to);
    let error = host.net.listen(local).unwrap_err();
    assert!(matches!(error, NetError::InUse(_)), "{error}");
}

#[test]
fn a_listener_that_ends_refuses_while_its_connections_and_its_reservation_live() {
    let mut host = Host::new();
    let (local, reservation) = host.listen(loopback()[0]);
    let first = TcpStream::connect(local).unwrap();
    let socket = host.accept().socket;
    let mut waits = TcpStream::connect(local).unwrap();
    host.sockets.unlisten(LISTENER);
    assert!(refuses(local));
    // Who was not accepted is reset.
    let error = waits.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // A new listener shares the reservation.
    host.sockets.listen(ListenerId(8), &reservation).unwrap();
    let _second = TcpStream::connect(local).unwrap();
    assert!(host.sleep().contains(&Ready::Listener(ListenerId(8))));
    assert!(host.sockets.accept(LISTENER).is_none());
    assert!(host.sockets.accept(ListenerId(8)).is_some());
    drop((socket, first));
}

#[test]
fn a_listener_ends_when_nobody_has_it() {
    let mut host = Host::new();
    let (local, reservation) = host.listen(loopback()[0]);
    drop(reservation);
    assert!(!refuses(local));
    host.sockets.unlisten(LISTENER);
    assert!(refuses(local));
}

#[test]
fn listeners_of_one_reservation_share_its_socket() {
    let mut host = Host::new();
    let (local, reservation) = host.listen(loopback()[0]);
    host.sockets.listen(ListenerId(8), &reservation).unwrap();
    let _peer = TcpStream::connect(local).unwrap();
    let ready = host.sleep();
    assert_eq!(ready, [LISTENER, ListenerId(8)].map(Ready::Listener));
    assert!(host.sockets.accept(ListenerId(8)).is_some());
    assert!(host.sockets.accept(LISTENER).is_none());
    host.sockets.unlisten(LISTENER);
    let _peer = TcpStream::connect(local).unwrap();
    assert_eq!(host.sleep(), [Ready::Listener(ListenerId(8))]);
    assert!(host.sockets.accept(ListenerId(8)).is_some());
}

#[test]
fn engines_share_a_listener_until_the_last_ends_it() {
    let mut host = Host::new();
    let mut other = KernelSockets::new().unwrap();
    let (local, reservation) = host.listen(loopback()[0]);
    other.listen(LISTENER, &reservation).unwrap();
    host.sockets.unlisten(LISTENER);
    let _peer = TcpStream::connect(local).unwrap();
    assert!(host.sleeps());
    assert!(other.accept(LISTENER).is_some());
    drop(other);
    assert!(refuses(local));
}

#[test]
fn connections_from_one_port_go_to_several_peers() {
    for at in loopback() {
        let mut host = Host::new();
        let (one, first) = listening_peer(at);
        let (two, second) = listening_peer(at);
        let (local, reservation) = host.net.active(first, None, 0).unwrap();
        assert_ne!(local.port(), 0);
        let sockets = [first, second].map(|remote| host.sockets.connect(&reservation, remote));
        for (at, socket) in sockets.into_iter().enumerate() {
            let mut socket = socket.unwrap();
            host.sockets.watch(&socket, at).unwrap();
            host.when_ready(|| socket.is_connected().unwrap().then_some(()));
            let (_, peer) = [&one, &two][at].accept().unwrap();
            assert_eq!(peer, local);
            // The same again is not possible.
            let again = host.sockets.connect(&reservation, [first, second][at]);
            assert_eq!(again.unwrap_err(), EndReason::InUse);
        }
    }
}

#[test]
fn connections_leave_from_the_address_and_port_that_are_wanted() {
    for name in [None, Some("lo")] {
        let mut host = Host::on(name);
        let (listener, remote) = listening_peer(loopback()[0]);
        let source = |local| host.net.active(remote, local, 0).unwrap();
        // A port that is free: it was chosen a moment ago.
        let port = source(None).0.port();
        for (wanted, ip) in [
            (with_port("127.0.0.3", port), "127.0.0.3"),
            (with_port("0.0.0.0", port), "127.0.0.1"),
        ] {
            let (local, reservation) = source(Some(wanted));
            assert_eq!(local, with_port(ip, port));
            let _socket = host.sockets.connect(&reservation, remote).unwrap();
            assert_eq!(listener.accept().unwrap().1, local);
        }
    }
}

/// Returns whether the kernel keeps a connection of a local port in TIME-WAIT.
fn in_time_wait(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().unwrap();
        local.ends_with(&suffix) && fields.nth(1) == Some("06")
    })
}

#[test]
fn a_listener_restarts_while_its_last_connections_are_in_time_wait() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    let local = peer.peer_addr().unwrap();
    socket.close();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    drop(peer);
    host.receive_end(&mut socket).unwrap();
    drop(socket);
    assert!(in_time_wait(local.port()));
    let (again, _reservation) = host.listen(local);
    assert_eq!(again, local);
    let _peer = TcpStream::connect(local).unwrap();
    assert_eq!(host.accept().local, local);
}
