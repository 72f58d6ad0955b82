//! Connections with peers that use the standard library's sockets.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use common::{Host, listening_peer, loopback, pair, until};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::connection::{Ready, Received, Socket, Sockets};
use rnic_core::engine::Net;
use rnic_core::tcp::{CongestionAlgorithm, State, TcpFailure};
use rnic_sockets::KernelSocket;

/// Sends until the kernel takes no more. Returns how many octets it took.
fn send_until_full(socket: &mut KernelSocket) -> usize {
    let piece = [0x5a; 60_000];
    let mut taken = 0;
    loop {
        match socket.send(&piece).unwrap() {
            0 => return taken,
            octets => taken += octets,
        }
    }
}

#[test]
fn octets_go_both_ways_on_a_connection_that_this_side_opens() {
    for at in loopback() {
        let mut host = Host::new();
        let (listener, address) = listening_peer(at);
        let mut socket = host.connect(address).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(socket.send(b"from here").unwrap(), 9);
        let mut got = [0; 9];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"from here");
        assert_eq!(socket.receive(&mut [0; 8]).unwrap(), Received::Nothing);
        peer.write_all(b"from there").unwrap();
        assert_eq!(host.receive(&mut socket, 10), b"from there");
    }
}

#[test]
fn octets_go_both_ways_on_a_connection_that_a_peer_opens() {
    for at in loopback() {
        let mut host = Host::new();
        let (mut socket, mut peer) = pair(&mut host, at);
        assert_eq!(socket.is_connected(), Ok(true));
        peer.write_all(&[7; 100_000]).unwrap();
        assert_eq!(host.receive(&mut socket, 100_000), [7; 100_000]);
        assert_eq!(socket.send(b"answer").unwrap(), 6);
        let mut got = [0; 6];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"answer");
    }
}

#[test]
fn a_full_socket_becomes_writable_when_the_peer_has_received() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    let mut ready = Vec::new();
    host.sockets.poll(&mut ready);
    let taken = send_until_full(&mut socket);
    assert!(socket.unacknowledged() > 0);
    peer.read_exact(&mut vec![0; taken]).unwrap();
    let ready = host.sleep();
    let writable =
        |ready: &Ready| matches!(ready, Ready::Connection { index: 0, writable, .. } if *writable);
    assert!(ready.iter().any(writable), "{ready:?}");
    assert!(socket.send(b"more").unwrap() == 4);
    peer.read_exact(&mut [0; 4]).unwrap();
    until(|| (socket.unacknowledged() == 0).then_some(()));
}

#[test]
fn what_is_ready_before_it_is_watched_is_reported() {
    let mut host = Host::new();
    let (local, _reservation) = host.listen(loopback()[0]);
    let mut peer = TcpStream::connect(local).unwrap();
    peer.write_all(b"early").unwrap();
    let mut socket = host.accept().socket;
    // The octets are here before the socket is watched.
    until(|| (socket.facts().received == 5).then_some(()));
    host.sockets.watch(&socket, 3).unwrap();
    let ready = host.sleep();
    let (readable, writable) = (true, true);
    let index = 3;
    let all = Ready::Connection {
        index,
        readable,
        writable,
        ended: false,
    };
    assert_eq!(ready, [all]);
    // It is reported once, though the octets are still there.
    assert!(host.sleeps());
    assert_eq!(host.receive(&mut socket, 5), b"early");
}

#[test]
fn the_end_of_the_stream_is_not_an_octet() {
    let mut host = Host::new();
    let (mut socket, peer) = pair(&mut host, loopback()[0]);
    let taken = send_until_full(&mut socket) as u64;
    let all_counted = |socket: &KernelSocket| {
        let outstanding = socket.unacknowledged() + socket.facts().acked;
        (outstanding == taken).then_some(())
    };
    until(|| all_counted(&socket));
    // The FIN waits behind what the peer's window has no room for.
    socket.close();
    until(|| all_counted(&socket));
    assert!(socket.unacknowledged() > 0);
    drop(peer);
}

#[test]
fn a_peer_may_close_its_stream_first() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    peer.write_all(b"last").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(host.receive(&mut socket, 4), b"last");
    assert_eq!(host.receive_end(&mut socket), Ok(()));
    assert_eq!(socket.facts().state, State::CloseWait);
    assert_eq!(socket.send(b"still open").unwrap(), 10);
    socket.close();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"still open");
}

#[test]
fn this_side_may_close_its_stream_first() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    assert_eq!(socket.send(b"last").unwrap(), 4);
    socket.close();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last");
    assert_eq!(socket.receive(&mut [0; 8]).unwrap(), Received::Nothing);
    until(|| (socket.unacknowledged() == 0).then_some(()));
    until(|| (socket.facts().state == State::FinWait2).then_some(()));
    peer.write_all(b"still open").unwrap();
    assert_eq!(host.receive(&mut socket, 10), b"still open");
    drop(peer);
    assert_eq!(host.receive_end(&mut socket), Ok(()));
}

#[test]
fn dropping_a_connection_sends_what_the_kernel_has_taken() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    let taken = send_until_full(&mut socket);
    drop(socket);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), taken);
}

#[test]
fn a_peer_is_reset() {
    for at in loopback() {
        let mut host = Host::new();
        let (mut socket, mut peer) = pair(&mut host, at);
        socket.reset();
        let error = peer.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(socket.receive(&mut [0; 8]), Err(TcpFailure::Aborted));
        assert_eq!(socket.send(b"late"), Err(TcpFailure::Aborted));
        assert_eq!(socket.is_connected(), Err(TcpFailure::Aborted));
        assert_eq!(socket.unacknowledged(), 0);
        socket.close();
        socket.reset();
    }
}

/// Has a peer send a RST: it closes with octets that it has not received.
fn reset_by(socket: &mut KernelSocket, peer: TcpStream) {
    assert_eq!(socket.send(b"unread").unwrap(), 6);
    let mut polled = [PollFd::new(peer.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::NONE).unwrap(), 1);
    drop(peer);
}

#[test]
fn a_peer_resets() {
    let mut host = Host::new();
    let (mut socket, peer) = pair(&mut host, loopback()[0]);
    reset_by(&mut socket, peer);
    assert_eq!(host.receive_end(&mut socket), Err(TcpFailure::Reset));
    // The kernel tells it once; it stays so.
    assert_eq!(socket.receive(&mut [0; 8]), Err(TcpFailure::Reset));
    assert_eq!(socket.send(b"late"), Err(TcpFailure::Reset));
    assert_eq!(socket.is_connected(), Err(TcpFailure::Reset));
}

#[test]
fn what_is_outstanding_at_a_reset_stays_so() {
    let mut host = Host::new();
    let (mut socket, peer) = pair(&mut host, loopback()[0]);
    send_until_full(&mut socket);
    drop(peer);
    until(|| (socket.facts().state == State::Closed).then_some(()));
    assert!(socket.unacknowledged() > 0);
    assert_eq!(host.receive_end(&mut socket), Err(TcpFailure::Reset));
    assert!(socket.unacknowledged() > 0);
}

#[test]
fn what_came_before_a_reset_is_received_even_if_sending_has_failed() {
    let mut host = Host::new();
    let (mut socket, mut peer) = pair(&mut host, loopback()[0]);
    peer.write_all(b"farewell").unwrap();
    reset_by(&mut socket, peer);
    until(|| (socket.facts().state == State::Closed).then_some(()));
    assert_eq!(socket.send(b"late"), Err(TcpFailure::Reset));
    assert_eq!(host.receive(&mut socket, 8), b"farewell");
    assert_eq!(host.receive_end(&mut socket), Err(TcpFailure::Reset));
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    for at in loopback() {
        let mut host = Host::new();
        // Bound by a connection that goes nowhere, so that nobody else can have it.
        let (closed, _reserved) = host.net.active(at, None, 0).unwrap();
        assert_eq!(host.connect(closed).unwrap_err(), TcpFailure::Refused);
    }
}

#[test]
fn facts_are_those_of_the_connection() {
    for (at, ip_header) in loopback().into_iter().zip([20, 40]) {
        let mut host = Host::new();
        let (mut socket, mut peer) = pair(&mut host, at);
        let before = socket.facts();
        assert_eq!(before.state, State::Established);
        assert_eq!(
            (before.last_sent, before.acked, before.received),
            (None, 0, 0)
        );
        peer.write_all(&[1; 3000]).unwrap();
        host.receive(&mut socket, 3000);
        assert_eq!(socket.send(&[2; 2000]).unwrap(), 2000);
        peer.read_exact(&mut [0; 2000]).unwrap();
        until(|| (socket.unacknowledged() == 0).then_some(()));
        let facts = socket.facts();
        assert_eq!((facts.acked, facts.received), (2000, 3000));
        assert_eq!((facts.unacked, facts.in_flight, facts.lost), (0, 0, 0));
        assert!(
            facts.last_sent.is_some() && facts.rtt.is_some(),
            "{facts:?}"
        );
        assert!(facts.rto >= Duration::from_millis(1) && facts.cwnd >= u64::from(facts.mss));
        assert_eq!((facts.ssthresh, facts.timer), (None, None));
        let mtu = u32::from(facts.path_mss) + ip_header + 20;
        let lo = rnic_sockets::KernelInterface::open(Some("lo")).unwrap();
        assert_eq!(mtu.min(65535), lo.mtu.min(65535), "{facts:?}");
        let payload = socket.max_payload();
        assert!(
            payload % 4 == 0 && payload <= usize::from(facts.mss),
            "{payload}"
        );
        assert!(payload > usize::from(facts.mss) - 4, "{payload}");
        let counters = facts.counters;
        assert_eq!(
            (counters.octets_sent, counters.octets_received),
            (2000, 3000)
        );
        assert!(counters.segments_sent > 1 && counters.segments_received > 1);
        assert_eq!(counters.retransmits, 0);
    }
}

#[test]
fn the_congestion_window_is_steered_as_wanted_where_the_kernel_permits() {
    let permitted = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let permitted = permitted.unwrap();
    for wanted in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
        let mut host = Host::new();
        let interface = rnic_sockets::KernelInterface::open(None).unwrap();
        host.net = rnic_sockets::KernelNet::new(&interface, rnic_sockets::Protocol::Tcp, wanted);
        let is_permitted = permitted
            .split_whitespace()
            .any(|name| name == wanted.to_string());
        let (socket, peer) = pair(&mut host, loopback()[0]);
        let (_listener, address) = listening_peer(loopback()[0]);
        let active = host.connect(address).unwrap();
        for socket in [&socket, &active] {
            if is_permitted {
                assert_eq!(socket.facts().congestion, wanted.name());
            }
        }
        drop(peer);
    }
}

#[test]
fn before_a_connection_is_there_its_payload_is_the_least_that_all_take() {
    let mut host = Host::new();
    let (listener, address) = listening_peer(loopback()[0]);
    let (_, reservation) = host.net.active(address, None, 0).unwrap();
    let mut socket = host.sockets.connect(&reservation, address).unwrap();
    assert_eq!(socket.max_payload(), 536);
    host.sockets.watch(&socket, 0).unwrap();
    host.when_ready(|| socket.is_connected().unwrap().then_some(()));
    assert!(socket.max_payload() > 536);
    drop(listener);
}
