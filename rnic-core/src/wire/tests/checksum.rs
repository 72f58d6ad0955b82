use crate::wire::checksum::{
    combine, join_and_sum, pseudo_header_v4, pseudo_header_v6, sum, sum_of_header, without,
};
use proptest::prelude::*;

/// The definition, word by word.
fn plain(octets: &[u8]) -> u16 {
    octets.chunks(2).fold(0, |total, word| {
        let low = word.get(1).copied().unwrap_or(0);
        combine(total, u16::from_be_bytes([word[0], low]))
    })
}

#[test]
fn known_vectors() {
    // RFC 1071 section 3.
    assert_eq!(
        sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
        0xddf2
    );
    // An IPv4 header with checksum 0xb861 taken out.
    let header = [
        0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7,
    ];
    assert_eq!(!sum(&header), 0xb861);
    assert_eq!(sum(&[]), 0);
    assert_eq!(sum(&[0xff; 64]), 0xffff);
}

#[test]
fn an_odd_last_octet_is_the_high_half_of_a_word() {
    assert_eq!(sum(&[0xab]), 0xab00);
    assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    assert_eq!(sum(&[0xff, 0xff, 0x01]), 0x0100);
}

#[test]
fn carries_go_around() {
    assert_eq!(combine(0xffff, 1), 1);
    assert_eq!(combine(0x8000, 0x8001), 2);
    assert_eq!(combine(0x1234, 0x1111), 0x2345);
}

proptest! {
    #[test]
    fn joined_octets_are_the_same_and_have_the_same_sum(
        octets in prop::collection::vec(any::<u8>(), 0..2000), run in 1..900_usize, more in 0..20_usize,
    ) {
        let mut copy = vec![0xa5; octets.len() + more];
        prop_assert_eq!(join_and_sum(octets.chunks(run), &mut copy), sum(&octets));
        prop_assert_eq!(&copy[..octets.len()], &octets[..]);
        prop_assert!(copy[octets.len()..].iter().all(|octet| *octet == 0xa5));
    }

    #[test]
    fn a_header_has_the_sum_of_any_octets(words in prop::collection::vec(any::<[u8; 4]>(), 0..30)) {
        let octets = words.as_flattened();
        prop_assert_eq!(sum_of_header(octets), plain(octets));
    }

    #[test]
    fn a_part_can_be_taken_out_of_a_sum(
        octets in prop::collection::vec(any::<u8>(), 2..700), at: prop::sample::Index,
    ) {
        let (part, rest) = octets.split_at(at.index(octets.len() / 2) * 2);
        let left = without(sum(&octets), sum(part));
        prop_assert_eq!(left % 0xffff, sum(rest) % 0xffff);
    }
}

#[test]
fn pseudo_headers_sum_addresses_protocol_and_length() {
    let (a, b) = ([10, 77, 0, 1], [10, 77, 0, 2]);
    let by_hand = [10, 77, 0, 1, 10, 77, 0, 2, 0, 6, 0x01, 0x02];
    assert_eq!(
        pseudo_header_v4(a.into(), b.into(), 6, 0x0102),
        plain(&by_hand)
    );

    let (a, b) = ([0xfe; 16], [0x1d; 16]);
    let by_hand: Vec<u8> = [&a[..], &b, &[0, 0, 0x05, 0x06, 0, 0, 0, 6]].concat();
    assert_eq!(
        pseudo_header_v6(a.into(), b.into(), 6, 0x0506),
        plain(&by_hand)
    );
}

proptest! {
    #[test]
    fn every_length_agrees_with_the_definition(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(sum(&octets), plain(&octets));
    }

    #[test]
    fn parts_of_even_length_combine(
        octets in proptest::collection::vec(any::<u8>(), 0..300), cut: proptest::sample::Index,
    ) {
        let (front, back) = octets.split_at(cut.index(octets.len() + 1) & !1);
        // Zero has two forms in ones-complement arithmetic, and nothing that follows tells them
        // apart.
        let one_zero = |sum: u16| if sum == 0xffff { 0 } else { sum };
        prop_assert_eq!(one_zero(combine(sum(front), sum(back))), one_zero(sum(&octets)));
    }
}
