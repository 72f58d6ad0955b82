//! Listeners that share their number with a TCP socket: rnicd is the port mapper of its clients.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use rnic_core::wire::port_mapper::{Kind, MAX_LEN, Message};

use crate::client::{ALICE, BOB, Client, Home};
use crate::rig::{NIC, Rig};

const NUMBER: &str = "10.9.0.1:8080";

/// Returns a client on the host that has opened the device.
fn on_host(rig: &Rig, uid: u32) -> Client {
    let mut client = rig.client_in(Home::Host, uid);
    client.must(&format!("open {NIC}"));
    client
}

/// Asks the mapper as the host of a peer does. Returns the TCP port, if it knows the listener.
fn asked(rig: &Rig, listener: &str) -> Option<u16> {
    let acceptor: SocketAddr = listener.parse().unwrap();
    let socket = rig.far.run(|| UdpSocket::bind("10.9.0.2:0")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    socket.connect("10.9.0.1:3935").unwrap();
    let request = Message {
        kind: Kind::Request,
        handle: 77,
        acceptor,
        connector: socket.local_addr().unwrap(),
    };
    let mut octets = [0; MAX_LEN];
    let len = request.emit(&mut octets);
    socket.send(&octets[..len]).unwrap();
    // Nobody has the UDP port.
    let len = socket.recv(&mut octets).ok()?;
    let answer = Message::parse(&octets[..len]).unwrap();
    assert_eq!((answer.handle, answer.acceptor.ip()), (77, acceptor.ip()));
    (answer.kind == Kind::Accept).then_some(answer.acceptor.port())
}

fn tcp_port(address: &str) -> u16 {
    address.parse::<SocketAddr>().unwrap().port()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_shares_its_number_with_a_tcp_socket_and_is_found() {
    let mut rig = Rig::new(1500, "");
    let mut server = on_host(&rig, BOB);
    server.must(&format!("tcp {NUMBER}"));
    let taken = server.ask(&format!("listen {NUMBER}")).unwrap_err();
    assert!(taken.contains("in use"), "{taken}");
    let mapped = server.must(&format!("listen-mapped {NUMBER}"));
    assert_ne!(tcp_port(&mapped), 8080);
    assert_eq!(asked(&rig, NUMBER), Some(tcp_port(&mapped)));
    assert_eq!(asked(&rig, "10.9.0.1:8081"), None);
    // The next rnicd knows it, too.
    rig.kill();
    rig.start();
    assert_eq!(asked(&rig, NUMBER), Some(tcp_port(&mapped)));
    // A client, in a container that has no way to the host, asks by rnicd.
    let mut client = rig.open_client(ALICE);
    assert_eq!(client.must(&format!("find {NUMBER}")), mapped);
    assert_eq!(client.must("find 10.9.0.1:8081"), "10.9.0.1:8081");
    server.must("unlisten");
    rig.until("the listener is not found", || {
        asked(&rig, NUMBER).is_none().then_some(())
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_listener_is_known_to_port_mappers() {
    let rig = Rig::new(1500, "");
    let mut server = rig.open_client(BOB);
    assert_eq!(server.must(&format!("listen {NUMBER}")), NUMBER);
    assert_eq!(asked(&rig, NUMBER), Some(8080));
    let any = server.must("listen 0.0.0.0:8081");
    assert_eq!(asked(&rig, "10.9.0.1:8081"), Some(tcp_port(&any)));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nobody_listens_in_the_place_of_another_user() {
    let rig = Rig::new(1500, "[defaults]\nlisten = [\"8000-9000\"]\n");
    let mut alice = on_host(&rig, ALICE);
    let mut bob = rig.open_client(BOB);
    let mut refused = |line: &str, why: &str| {
        let said = bob.ask(line).unwrap_err();
        assert!(said.contains(why), "{said}");
        assert_eq!(asked(&rig, line.split(' ').next_back().unwrap()), None);
    };
    // A TCP socket of Alice's, and one of root's.
    alice.must(&format!("tcp {NUMBER}"));
    refused(&format!("listen-mapped {NUMBER}"), "another user");
    refused("listen-mapped 0.0.0.0:8080", "another user");
    let _root = rig.host.run(|| TcpListener::bind("10.9.0.1:8082")).unwrap();
    refused("listen-mapped 10.9.0.1:8082", "another user");
    // What is only bound may be for RDMA.
    let _bound = rig.host.run(|| bound("10.9.0.1:8083"));
    refused("listen-mapped 10.9.0.1:8083", "in use");
    refused("listen-mapped 10.9.0.1:7000", "may listen on");
    // A listener for RDMA.
    alice.must("listen 10.9.0.1:8084");
    let said = bob.ask("listen-mapped 10.9.0.1:8084").unwrap_err();
    assert!(said.contains("in use"), "{said}");
    assert_eq!(asked(&rig, "10.9.0.1:8084"), Some(8084));
    // A number that is free may be mapped. It is one's own then, also for who would have its TCP port.
    bob.must("listen-mapped 10.9.0.1:8085");
    for line in [
        "listen-mapped 10.9.0.1:8085",
        "listen 10.9.0.1:8085",
        "listen 0.0.0.0:8085",
    ] {
        let said = alice.ask(line).unwrap_err();
        assert!(said.contains("in use"), "{said}");
    }
    assert_ne!(asked(&rig, "10.9.0.1:8085"), Some(8085));
}

/// Sockets by which one user would have the number of another.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_trick_makes_a_number_of_another_user_ones_own() {
    let rig = Rig::new(1500, "");
    let mut alice = on_host(&rig, ALICE);
    let mut bob = on_host(&rig, BOB);
    // An address of IPv4 in a socket of IPv6, and one of Bob's beside it.
    alice.must("tcp [::ffff:10.9.0.1]:8090");
    bob.must("tcp 127.0.0.1:8090");
    for line in ["listen-mapped 10.9.0.1:8090", "listen-mapped 0.0.0.0:8090"] {
        let said = bob.ask(line).unwrap_err();
        assert!(said.contains("another user"), "{said}");
    }
    // The same is Alice's own.
    alice.must("listen-mapped 10.9.0.1:8090");
    // Bob's server goes, and Alice's comes in its place: nobody is sent to Bob's RDMA any more.
    bob.must("tcp 10.9.0.1:8091");
    let mapped = bob.must("listen-mapped 10.9.0.1:8091");
    assert_eq!(asked(&rig, "10.9.0.1:8091"), Some(tcp_port(&mapped)));
    bob.must("no-tcp");
    alice.must("tcp 10.9.0.1:8091");
    rig.until("Bob's RDMA is not found there", || {
        asked(&rig, "10.9.0.1:8091").is_none().then_some(())
    });
}

/// Connections keep the TCP port of their listener; peers are sent to the listener that is there.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_newest_listener_counts_and_none_that_has_gone() {
    let mut rig = Rig::new(1500, "");
    let mut server = rig.open_client(BOB);
    let first = server.must(&format!("listen-mapped {NUMBER}"));
    // As a connection does.
    server.must(&format!("keep-port {first}"));
    server.must("unlisten");
    rig.until("no listener is found", || {
        asked(&rig, NUMBER).is_none().then_some(())
    });
    assert!(rig.leases().contains(&first), "{:?}", rig.leases());
    for _ in 0..3 {
        let newest = server.must(&format!("listen-mapped {NUMBER}"));
        assert_eq!(asked(&rig, NUMBER), Some(tcp_port(&newest)));
        rig.kill();
        rig.start();
        assert_eq!(asked(&rig, NUMBER), Some(tcp_port(&newest)));
    }
    server.must("unlisten");
    rig.until("no listener is found", || {
        asked(&rig, NUMBER).is_none().then_some(())
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn rnicd_has_the_mappers_port_at_each_address_before_anybody_listens() {
    let rig = Rig::new(1500, "");
    assert_eq!(asked(&rig, NUMBER), None);
    let taken = rig.host.run(|| UdpSocket::bind("0.0.0.0:3935"));
    assert!(taken.is_err());
    // Addresses come and go.
    let before = rig.count_descriptors();
    for last in 10..40 {
        let address = format!("10.9.0.{last}");
        rig.host
            .ip(&format!("addr add {address}/24 dev {NIC}"))
            .unwrap();
        rig.until("the mapper answers at a new address", || {
            let socket = rig.host.run(|| UdpSocket::bind((&*address, 3935)));
            socket.is_err().then_some(())
        });
        rig.host
            .ip(&format!("addr del {address}/24 dev {NIC}"))
            .unwrap();
    }
    rig.until("the sockets of addresses that have gone are closed", || {
        (rig.count_descriptors() <= before).then_some(())
    });
}

/// Returns a TCP socket that is bound and does not listen.
fn bound(address: &str) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};
    use std::os::fd::AsRawFd;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    );
    let socket = socket.unwrap();
    let address: SocketAddr = address.parse().unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    socket
}

/// More than is asked at a time, of a host that does not answer, and then one that leaves.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn who_asks_without_end_holds_up_nobody_else() {
    let rig = Rig::new(1500, "");
    let _silent = rig.far.run(|| UdpSocket::bind("10.9.0.2:3935")).unwrap();
    let mut server = rig.open_client(ALICE);
    server.must(&format!("listen {NUMBER}"));
    let mut bob = rig.open_client(BOB);
    assert_eq!(bob.must("find-often 2000 10.9.0.2:8080"), "2000 8080");
    // It is not known that this one is silent, from the address of nobody else.
    bob.tell("find-often 2000 10.9.0.2:8081");
    let mut alice = rig.open_client(ALICE);
    assert_eq!(alice.must(&format!("find {NUMBER}")), NUMBER);
    drop(bob);
    // Who leaves and comes again, with questions that were never answered.
    for _ in 0..20 {
        let mut bob = rig.open_client(BOB);
        bob.tell("find-often 100 10.9.0.2:8082");
        bob.kill();
    }
    assert_eq!(alice.must(&format!("find {NUMBER}")), NUMBER);
    drop((server, alice));
    rig.wait_until_clean(&[8080]);
}

/// Many questions at once, each of which has an answer a moment later.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn each_of_many_questions_is_answered_by_the_mapper() {
    let rig = Rig::new(1500, "");
    let mapper = rig.far.run(|| UdpSocket::bind("10.9.0.2:3935")).unwrap();
    let mut bob = rig.open_client(BOB);
    bob.tell("find-often 300 10.9.0.2:8080");
    std::thread::spawn(move || {
        let mut octets = [0; MAX_LEN];
        while let Ok((len, from)) = mapper.recv_from(&mut octets) {
            let mut message = Message::parse(&octets[..len]).unwrap();
            if message.kind == Kind::Request {
                message.kind = Kind::Accept;
                message.acceptor.set_port(9999);
                let len = message.emit(&mut octets);
                mapper.send_to(&octets[..len], from).unwrap();
            }
        }
    });
    assert_eq!(bob.answer().unwrap(), "300 9999");
}

/// UDP leaves from addresses of the device alone, and to no host that the kernel would have to look
/// for.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_is_sent_from_foreign_addresses_or_to_unknown_neighbours() {
    let rig = Rig::new(1500, "");
    rig.host.ip("addr add 172.30.0.1/32 dev lo").unwrap();
    let mapper = rig.far.run(|| UdpSocket::bind("10.9.0.2:3935")).unwrap();
    mapper
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut bob = rig.open_client(BOB);
    bob.tell("find-from 172.30.0.1:0 10.9.0.2:8080");
    let mut octets = [0; MAX_LEN];
    let (_, from) = mapper.recv_from(&mut octets).unwrap();
    assert_eq!(from.ip().to_string(), "10.9.0.1");
    assert_eq!(bob.answer().unwrap(), "10.9.0.2:8080");
    for last in 50..250 {
        let nobody = format!("10.9.0.{last}:80");
        assert_eq!(bob.must(&format!("find-unresolved {nobody}")), nobody);
    }
    let neighbours = rig.host.ip("neigh show dev nic").unwrap();
    assert_eq!(neighbours.lines().count(), 1, "{neighbours}");
}
