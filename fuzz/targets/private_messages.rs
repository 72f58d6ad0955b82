//! What rnics alone say to each other, and port mappers: the private data of queue pairs that programs
//! connect themselves, headers of datagrams, and messages of a port mapper. No panic, and what is
//! read is written as it was.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use rnic_core::wire::datagram::{self, Header};
use rnic_core::wire::hello::{self, Hello};
use rnic_core::wire::port_mapper::{MAX_LEN, Message};

fuzz_target!(|octets: &[u8]| {
    if let Some(hello) = Hello::parse(octets) {
        assert_eq!(Hello::parse(&hello.octets(None)), Some(hello));
    }
    hello::why(octets);
    if let Some((header, payload)) = Header::parse(octets) {
        let again = [&header.octets()[..], payload].concat();
        assert_eq!(Header::parse(&again), Some((header, payload)));
        let ip = |number: u32| SocketAddr::from((number.to_be_bytes(), 0)).ip();
        let (from, to) = (ip(header.from), ip(header.to));
        datagram::grh(from, to, header.traffic_class, payload.len());
    }
    if let Some(message) = Message::parse(octets) {
        let mut again = [0; MAX_LEN];
        let len = message.emit(&mut again);
        assert_eq!(Message::parse(&again[..len]), Some(message));
    }
});
