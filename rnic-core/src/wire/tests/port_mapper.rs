use crate::wire::port_mapper::{Kind, MAX_LEN, Message};
use proptest::prelude::*;

/// A Request as iwpmd sends it, for 192.0.2.9:7174 from 192.0.2.1:50000, mapped to port 50001.
#[rustfmt::skip]
const REQUEST: [u8; 64] = [
    0x04, 0, 0xc3, 0x51, 0x1c, 0x06, 0xc3, 0x50, 1, 2, 3, 4, 5, 6, 7, 8,
    192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    192, 0, 2, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn request() -> Message {
    Message {
        kind: Kind::Request,
        handle: 0x0102_0304_0506_0708,
        acceptor: "192.0.2.9:7174".parse().unwrap(),
        connector: "192.0.2.1:50000".parse().unwrap(),
    }
}

#[test]
fn a_request_is_read_and_written() {
    assert_eq!(Message::parse(&REQUEST), Some(request()));
    let mut octets = [0xff; MAX_LEN];
    assert_eq!(request().emit(&mut octets), 64);
    // The side that connects is mapped to itself.
    let mut expected = REQUEST;
    expected[3] = 0x50;
    assert_eq!(octets, expected);
}

#[test]
fn an_answer_is_shorter_and_has_no_mapped_port() {
    let accept = Message {
        kind: Kind::Accept,
        ..request()
    };
    let mut octets = [0xff; MAX_LEN];
    assert_eq!(accept.emit(&mut octets), 48);
    assert_eq!(octets[..4], [0x14, 0, 0, 0]);
    assert_eq!(octets[4..48], REQUEST[4..48]);
}

#[test]
fn addresses_of_ipv6_take_all_octets() {
    let message = Message {
        kind: Kind::Reject,
        acceptor: "[2001:db8::9]:7174".parse().unwrap(),
        connector: "[2001:db8::1]:0".parse().unwrap(),
        ..request()
    };
    let mut octets = [0; MAX_LEN];
    let len = message.emit(&mut octets);
    assert_eq!(octets[0], 0x36);
    assert_eq!(Message::parse(&octets[..len]), Some(message));
}

#[test]
fn what_is_no_message_is_not_read() {
    for len in 0..REQUEST.len() {
        let read = Message::parse(&REQUEST[..len]);
        assert_eq!(read.is_some(), len == 48, "{len} octets");
    }
    assert_eq!(Message::parse(&[&REQUEST[..], &[0]].concat()), None);
    // Versions 1 to 3, and families that there are none of.
    for first in [0x44, 0x84, 0xc4, 0x00, 0x05, 0x0f] {
        let mut octets = REQUEST;
        octets[0] = first;
        assert_eq!(Message::parse(&octets), None, "{first:#x}");
    }
}

proptest! {
    #[test]
    fn any_octets_are_read_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Some(message) = Message::parse(&octets) {
            let mut again = [0; MAX_LEN];
            let len = message.emit(&mut again);
            prop_assert_eq!(Message::parse(&again[..len]), Some(message));
        }
    }
}
