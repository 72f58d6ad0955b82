//! What a test can see only of the descriptors.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rnic_core::connection::{PortReservation, Socket, Sockets};
use rnic_core::engine::Net;
use rnic_core::ids::ListenerId;
use rnic_core::tcp::{CongestionAlgorithm, Keepalive};
use rustix::net::sockopt as of_rustix;

use crate::port::Port;
use crate::{KernelInterface, KernelNet, KernelSocket, KernelSockets, Protocol};

const LISTENER: ListenerId = ListenerId(1);

fn net() -> KernelNet {
    let interface = KernelInterface::open(None).unwrap();
    KernelNet::new(&interface, Protocol::Tcp, CongestionAlgorithm::Cubic)
}

fn loopback(is_ipv4: bool) -> SocketAddr {
    let text = if is_ipv4 { "127.0.0.1:0" } else { "[::1]:0" };
    text.parse().unwrap()
}

/// Returns a connection that this side opened, one that the peer opened, and their peers.
fn connections(is_ipv4: bool) -> [(KernelSocket, TcpStream); 2] {
    let mut sockets = KernelSockets::new().unwrap();
    let listener = TcpListener::bind(loopback(is_ipv4)).unwrap();
    let remote = listener.local_addr().unwrap();
    let (_, port) = net().active(remote, None, 0).unwrap();
    let mut active = sockets.connect(&port, remote).unwrap();
    let (first, _) = listener.accept().unwrap();
    // On the loopback interface the handshake is done once the peer has accepted.
    assert_eq!(active.is_connected(), Ok(true));
    let (local, port) = net().listen(loopback(is_ipv4)).unwrap();
    sockets.listen(LISTENER, &port).unwrap();
    let second = TcpStream::connect(local).unwrap();
    let passive = sockets.accept(LISTENER).unwrap().socket;
    [(active, first), (passive, second)]
}

#[test]
fn connections_have_the_options_that_are_asked_for() {
    for is_ipv4 in [true, false] {
        for (mut socket, _peer) in connections(is_ipv4) {
            let fd = || socket.fd().unwrap();
            assert!(of_rustix::tcp_nodelay(fd()).unwrap());
            assert!(of_rustix::socket_reuseaddr(fd()).unwrap());
            assert!(!of_rustix::socket_keepalive(fd()).unwrap());
            socket.set_keepalive(Some(Keepalive {
                idle: Duration::from_secs(1_000_000),
                interval: Duration::from_millis(2500),
                count: 255,
            }));
            socket.set_user_timeout(Some(Duration::from_millis(1234)));
            socket.set_traffic_class(0x48);
            let fd = || socket.fd().unwrap();
            assert!(of_rustix::socket_keepalive(fd()).unwrap());
            assert_eq!(of_rustix::tcp_keepidle(fd()).unwrap().as_secs(), 32767);
            assert_eq!(of_rustix::tcp_keepintvl(fd()).unwrap().as_secs(), 3);
            assert_eq!(of_rustix::tcp_keepcnt(fd()).unwrap(), 127);
            assert_eq!(of_rustix::tcp_user_timeout(fd()).unwrap(), 1234);
            let class = match is_ipv4 {
                true => of_rustix::ip_tos(fd()).unwrap().into(),
                false => of_rustix::ipv6_tclass(fd()).unwrap(),
            };
            assert_eq!(class, 0x48);
            socket.set_keepalive(None);
            socket.set_user_timeout(None);
            assert!(!of_rustix::socket_keepalive(socket.fd().unwrap()).unwrap());
            assert_eq!(
                of_rustix::tcp_user_timeout(socket.fd().unwrap()).unwrap(),
                0
            );
            // Long ones are as long as the kernel takes them.
            socket.set_user_timeout(Some(Duration::MAX));
            let longest = of_rustix::tcp_user_timeout(socket.fd().unwrap()).unwrap();
            assert_eq!(longest, i32::MAX as u32);
        }
    }
}

/// Copies a descriptor, as a forked process has it.
fn copied(fd: impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn a_forked_process_keeps_no_connection_open() {
    for ends_by_reset in [false, true] {
        for (mut socket, mut peer) in connections(true) {
            let _copy = copied(socket.fd().unwrap());
            peer.set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            if ends_by_reset {
                socket.reset();
                let error = peer.read(&mut [0]).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            } else {
                drop(socket);
                assert_eq!(peer.read(&mut [0]).unwrap(), 0);
            }
        }
    }
}

#[test]
fn a_forked_process_keeps_no_listener_open() {
    let mut sockets = KernelSockets::new().unwrap();
    let (local, reservation): (_, PortReservation) = net().listen(loopback(true)).unwrap();
    sockets.listen(LISTENER, &reservation).unwrap();
    let port: std::sync::Arc<Port> = reservation.clone().downcast().unwrap();
    let _copy = copied(&port.listening().unwrap().sockets[0]);
    sockets.unlisten(LISTENER);
    TcpStream::connect(local).unwrap_err();
    // Its parent can listen again.
    sockets.listen(LISTENER, &reservation).unwrap();
    TcpStream::connect(local).unwrap();
    drop((sockets, port, reservation));
    net().listen(local).unwrap();
}

#[test]
fn descriptors_are_closed_on_exec() {
    use rustix::io::{FdFlags, fcntl_getfd};
    let sockets = KernelSockets::new().unwrap();
    assert!(fcntl_getfd(&sockets).unwrap().contains(FdFlags::CLOEXEC));
    for (socket, _peer) in connections(true) {
        let flags = fcntl_getfd(socket.fd().unwrap()).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
    }
}

#[test]
fn a_listener_has_no_other_number_than_its_port() {
    let (local, _port) = net().listen(loopback(true)).unwrap();
    let why = net().make_known(loopback(true), local).err().unwrap();
    let why = why.to_string();
    assert!(
        why.contains("no port mapper") && why.contains("RNIC_VIA=xdp"),
        "{why}"
    );
}
