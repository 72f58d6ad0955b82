//! A mapper that the test speaks for, at addresses of the loopback.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use rnic_core::wire::port_mapper::{Kind, MAX_LEN, Message, PORT};

use super::asker::Asker;
use super::ways::Ways;

/// Longer than any answer takes.
const SOON: Duration = Duration::from_secs(20);

struct Loopback;

impl Ways for Loopback {
    fn source(&self, _: SocketAddr, local: Option<SocketAddr>) -> Option<SocketAddr> {
        local
    }

    fn datagram(&self, at: SocketAddr) -> Result<OwnedFd, String> {
        let socket = UdpSocket::bind(at).map_err(|error| error.to_string())?;
        socket
            .set_nonblocking(true)
            .map_err(|error| error.to_string())?;
        Ok(socket.into())
    }
}

/// Asks for a listener from an address, and does something before the answer.
fn found(
    asker: &Asker,
    remote: SocketAddr,
    from: Option<&str>,
    meanwhile: impl FnOnce(),
) -> SocketAddr {
    let (reply, answer) = mpsc::channel();
    let from = from.map(|from| SocketAddr::new(from.parse().unwrap(), 0));
    asker.ask(
        remote,
        from,
        Box::new(move |found| reply.send(found).unwrap()),
    );
    meanwhile();
    answer.recv_timeout(SOON).unwrap()
}

#[test]
fn who_asks_is_sent_where_the_mapper_says() {
    let asker = Asker::start(Loopback).unwrap();
    let listener = SocketAddr::from(([127, 80, 0, 1], 7174));
    let mapper = UdpSocket::bind((listener.ip(), PORT)).unwrap();
    mapper.set_read_timeout(Some(SOON)).unwrap();
    let asked = found(&asker, listener, Some("127.80.0.2"), || {
        let mut octets = [0; 100];
        let (len, from) = mapper.recv_from(&mut octets).unwrap();
        let request = Message::parse(&octets[..len]).unwrap();
        assert_eq!((request.kind, request.acceptor), (Kind::Request, listener));
        assert_eq!(from.ip(), "127.80.0.2".parse::<IpAddr>().unwrap());
        let accept = Message {
            kind: Kind::Accept,
            acceptor: SocketAddr::new(listener.ip(), 40_000),
            ..request
        };
        let mut octets = [0; MAX_LEN];
        let len = accept.emit(&mut octets);
        mapper.send_to(&octets[..len], from).unwrap();
    });
    assert_eq!(asked, SocketAddr::new(listener.ip(), 40_000));
    // Without a way, and without a mapper, the address itself is taken.
    assert_eq!(found(&asker, listener, None, || ()), listener);
    drop(mapper);
    assert_eq!(found(&asker, listener, Some("127.80.0.2"), || ()), listener);
}
