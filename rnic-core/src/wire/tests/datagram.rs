use core::net::{Ipv4Addr, Ipv6Addr};

use crate::wire::datagram::{Header, LEN, MOST, grh};
use proptest::prelude::*;

const HEADER: Header = Header {
    traffic_class: 0x20,
    to: 0x00c0_de01,
    from: 0x00ab_cd02,
    qkey: 0x1111_1111,
    immediate: Some([1, 2, 3, 4]),
    solicited: true,
};

#[test]
fn a_datagram_is_read_as_it_was_written() {
    for header in [
        HEADER,
        Header {
            immediate: None,
            solicited: false,
            ..HEADER
        },
    ] {
        let octets = [&header.octets()[..], b"payload"].concat();
        assert_eq!(Header::parse(&octets), Some((header, &b"payload"[..])));
    }
}

#[test]
fn what_is_no_datagram_is_not_taken_for_one() {
    let octets = HEADER.octets();
    for short in 0..LEN {
        assert_eq!(Header::parse(&octets[..short]), None);
    }
    let mut other = octets;
    other[0] = 2;
    assert_eq!(Header::parse(&other), None);
    let longest = [&octets[..], &[0; MOST]].concat();
    assert!(Header::parse(&longest).is_some());
    let too_long = [&longest[..], &[0]].concat();
    assert_eq!(Header::parse(&too_long), None);
}

/// The checksum is that of the example in RFC 1071's successors: the sum of all words is all
/// ones.
#[test]
fn the_header_of_ipv4_stands_in_the_last_octets() {
    let (from, to) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(10, 1, 2, 4));
    let grh = grh(from.into(), to.into(), 0x20, 100);
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20..24], [0x45, 0x20, 0, 152]);
    assert_eq!(grh[32..40], [10, 1, 2, 3, 10, 1, 2, 4]);
    let words = grh[20..].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn the_header_of_ipv6_has_both_gids() {
    let from: Ipv6Addr = "fe80::1".parse().unwrap();
    let to: Ipv6Addr = "fe80::2".parse().unwrap();
    let grh = grh(from.into(), to.into(), 0xff, 0);
    assert_eq!(grh[..8], [0x6f, 0xf0, 0, 0, 0, 32, 17, 64]);
    assert_eq!(grh[8..24], from.octets());
    assert_eq!(grh[24..], to.octets());
}

proptest! {
    #[test]
    fn any_octets_are_read_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Some((header, payload)) = Header::parse(&octets) {
            let again = [&header.octets()[..], payload].concat();
            prop_assert_eq!(Header::parse(&again), Some((header, payload)));
        }
    }
}
