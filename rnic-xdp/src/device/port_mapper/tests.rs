//! Two hosts, and a program on one that speaks the protocol as it likes.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crossbeam_channel::bounded;
use rnic_core::engine::NetError;
use rnic_core::wire::port_mapper::{Kind, MAX_LEN, Message};

use super::{Listening, Mapping, PortMapper};
use crate::device::netlink::{RouteSocket, link_by_name};
use crate::testing::{Namespace, VethEnd, veth_pair};

/// Longer than any answer takes.
const SOON: Duration = Duration::from_secs(20);

const LISTENER: &str = "10.77.0.2:7174";
const MAPPERS: &str = "10.77.0.2:3935";

struct Hosts {
    near: Namespace,
    far: Namespace,
}

impl Hosts {
    fn new() -> Self {
        let (near, far) = (
            Namespace::new("near").unwrap(),
            Namespace::new("far").unwrap(),
        );
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        let ends = [
            end(&near, "one", "10.77.0.1/24"),
            end(&far, "other", "10.77.0.2/24"),
        ];
        let [one, other] = ends;
        veth_pair(one, other, 1).unwrap();
        Self { near, far }
    }

    fn near(&self) -> PortMapper {
        self.near.run(|| mapper("one"))
    }

    fn far(&self) -> PortMapper {
        self.far.run(|| mapper("other"))
    }

    /// Returns a socket of the far host.
    fn socket(&self, at: &str) -> UdpSocket {
        let socket = self.far.run(|| UdpSocket::bind(at)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    }
}

fn mapper(netdev: &str) -> PortMapper {
    let link = link_by_name(&mut RouteSocket::open().unwrap(), netdev);
    PortMapper::start(&link.unwrap().unwrap()).unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Makes a listener known, on its host.
fn listens(
    host: &Namespace,
    mapper: &PortMapper,
    owner: u32,
    local: &str,
    mapped: u16,
) -> Result<Mapping, NetError> {
    let listening = Listening {
        owner,
        user: None,
        local: at(local),
        mapped,
    };
    host.run(|| mapper.map(listening))
}

/// Asks, and does something before the answer.
fn found(mapper: &PortMapper, remote: &str, meanwhile: impl FnOnce()) -> SocketAddr {
    let (reply, answer) = bounded(1);
    let found = Box::new(move |found| reply.send(found).unwrap());
    mapper.ask(at(remote), None, found);
    meanwhile();
    answer.recv_timeout(SOON).unwrap()
}

fn receive(socket: &UdpSocket) -> (Message, SocketAddr) {
    let mut octets = [0; 100];
    let (len, from) = socket.recv_from(&mut octets).unwrap();
    (Message::parse(&octets[..len]).unwrap(), from)
}

fn send(socket: &UdpSocket, message: Message, to: SocketAddr) {
    let mut octets = [0; MAX_LEN];
    let len = message.emit(&mut octets);
    socket.send_to(&octets[..len], to).unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_is_sent_to_the_mapped_port_as_long_as_somebody_listens() {
    let hosts = Hosts::new();
    let (near, far) = (hosts.near(), hosts.far());
    let listener = listens(&hosts.far, &far, 1, LISTENER, 40_000).unwrap();
    let any = listens(&hosts.far, &far, 1, "0.0.0.0:80", 40_001).unwrap();
    assert_eq!(found(&near, LISTENER, || ()), at("10.77.0.2:40000"));
    assert_eq!(found(&near, "10.77.0.2:80", || ()), at("10.77.0.2:40001"));
    // Nobody listens there; nor is there a mapper at last.
    assert_eq!(found(&near, "10.77.0.2:7175", || ()), at("10.77.0.2:7175"));
    drop(listener);
    assert_eq!(found(&near, LISTENER, || ()), at(LISTENER));
    drop(any);
    assert_eq!(found(&near, LISTENER, || ()), at(LISTENER));
    hosts.socket(MAPPERS);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn only_the_answer_of_the_mapper_that_was_asked_counts() {
    let hosts = Hosts::new();
    let near = hosts.near();
    let (mapper, stranger) = (hosts.socket(MAPPERS), hosts.socket("10.77.0.2:0"));
    let asked = found(&near, LISTENER, || {
        let (request, from) = receive(&mapper);
        assert_eq!(request.kind, Kind::Request);
        assert_eq!(request.acceptor, at(LISTENER));
        let accept = |handle, acceptor| Message {
            kind: Kind::Accept,
            handle,
            acceptor: at(acceptor),
            ..request
        };
        send(&stranger, accept(request.handle, "10.77.0.2:1"), from);
        send(&mapper, accept(request.handle ^ 1, "10.77.0.2:2"), from);
        mapper.send_to(&[0x14; 47], from).unwrap();
        send(&mapper, request, from);
        send(&mapper, accept(request.handle, "10.77.0.2:3"), from);
        let acknowledgment = loop {
            let (message, _) = receive(&mapper);
            if message.kind != Kind::Request {
                break message;
            }
        };
        assert_eq!(acknowledgment.kind, Kind::Acknowledgment);
        assert_eq!(acknowledgment.acceptor, at("10.77.0.2:3"));
    });
    assert_eq!(asked, at("10.77.0.2:3"));
    // To another host, or to no port, nobody is sent.
    for elsewhere in ["10.77.0.3:7174", "10.77.0.2:0"] {
        let asked = found(&near, LISTENER, || {
            let (request, from) = receive(&mapper);
            let acceptor = at(elsewhere);
            let accept = Message {
                kind: Kind::Accept,
                acceptor,
                ..request
            };
            send(&mapper, accept, from);
            receive(&mapper);
        });
        assert_eq!(asked, at(LISTENER));
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_host_that_is_silent_is_asked_four_times_and_then_let_alone() {
    let hosts = Hosts::new();
    let near = hosts.near();
    let mapper = hosts.socket(MAPPERS);
    assert_eq!(found(&near, LISTENER, || ()), at(LISTENER));
    for _ in 0..4 {
        assert_eq!(receive(&mapper).0.kind, Kind::Request);
    }
    assert_eq!(found(&near, "10.77.0.2:80", || ()), at("10.77.0.2:80"));
    mapper.set_nonblocking(true).unwrap();
    assert!(mapper.recv_from(&mut [0; 100]).is_err());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn questions_are_answered_and_nothing_else_is() {
    let hosts = Hosts::new();
    let near = hosts.near();
    let _listener = listens(&hosts.near, &near, 1, "10.77.0.1:80", 40_000).unwrap();
    let socket = hosts.socket("10.77.0.2:0");
    socket.connect("10.77.0.1:3935").unwrap();
    let request = Message {
        kind: Kind::Request,
        handle: 5,
        acceptor: at("10.77.0.1:80"),
        connector: at("10.77.0.2:5"),
    };
    for kind in [Kind::Accept, Kind::Acknowledgment, Kind::Reject] {
        send_connected(&socket, Message { kind, ..request });
    }
    for len in [0, 1, 47, 49, 63, 65, 1400] {
        socket.send(&vec![4; len]).unwrap();
    }
    // One that is sent again has the same answer; of another host's address nothing is known.
    let elsewhere = Message {
        acceptor: at("10.77.0.9:80"),
        ..request
    };
    for (asked, kind) in [
        (request, Kind::Accept),
        (request, Kind::Accept),
        (elsewhere, Kind::Reject),
    ] {
        send_connected(&socket, asked);
        let (answer, _) = receive(&socket);
        assert_eq!((answer.kind, answer.handle), (kind, 5));
    }
}

fn send_connected(socket: &UdpSocket, message: Message) {
    let mut octets = [0; MAX_LEN];
    let len = message.emit(&mut octets);
    socket.send(&octets[..len]).unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_that_nobody_could_find_is_refused() {
    let hosts = Hosts::new();
    let far = hosts.far();
    let first = listens(&hosts.far, &far, 1, LISTENER, 40_000).unwrap();
    let taken = listens(&hosts.far, &far, 2, LISTENER, 40_001).unwrap_err();
    assert!(taken.to_string().contains("in use"), "{taken}");
    drop(first);
    let _other_program = hosts.socket("0.0.0.0:3935");
    let refused = listens(&hosts.far, &far, 1, LISTENER, 40_000).unwrap_err();
    assert!(refused.to_string().contains("UDP port 3935"), "{refused}");
}
