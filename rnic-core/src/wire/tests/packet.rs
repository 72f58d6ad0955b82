use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{
    checksum::{pseudo_header_v4, pseudo_header_v6, sum},
    error::PacketError,
    ethernet::{EthernetHeader, MacAddr},
    packet::{Checksums, Packet, addresses as addresses_ahead, parse, parse_with_partial},
    tcp::{self, Flags, Seq, TcpHeader, TcpOptions, Timestamps},
    template::NetHeader,
};
use proptest::prelude::*;

/// A SYN of Linux's, as it was on the wire.
#[rustfmt::skip]
pub(super) const SYN: [u8; 74] = [
    0x52, 0x54, 0x00, 0x77, 0x26, 0x2d, 0x52, 0x54, 0x00, 0x77, 0x79, 0xfe, 0x08, 0x00,
    0x45, 0x00, 0x00, 0x3c, 0xe9, 0x4a, 0x40, 0x00, 0x40, 0x06, 0x3c, 0xd5,
    0x0a, 0x4d, 0x00, 0x01, 0x0a, 0x4d, 0x00, 0x02,
    0xc5, 0x8f, 0x1c, 0x06, 0xc0, 0x64, 0x03, 0xac, 0x00, 0x00, 0x00, 0x00,
    0xa0, 0x02, 0xfa, 0xf0, 0x08, 0xc9, 0x00, 0x00,
    0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x30, 0x38, 0x59, 0xcc, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x03, 0x03, 0x06,
];

pub(super) const SOURCE_MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x77, 0x79, 0xfe]);
pub(super) const DESTINATION_MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x77, 0x26, 0x2d]);
pub(super) const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

pub(super) fn syn_header() -> TcpHeader {
    TcpHeader {
        source_port: 0xc58f,
        destination_port: 7174,
        seq: Seq(0xc064_03ac),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 64240,
        urgent: 0,
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(6),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 0x3038_59cc,
                echo: 0,
            }),
            ..Default::default()
        },
    }
}

pub(super) fn net_header(source: IpAddr, destination: IpAddr) -> NetHeader {
    NetHeader {
        source_mac: SOURCE_MAC,
        destination_mac: DESTINATION_MAC,
        vlan: None,
        source,
        destination,
        hop_limit: 64,
        traffic_class: 0,
    }
}

/// A frame with `payload` behind `header`.
pub(super) fn build(net: &NetHeader, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let at = net.len() + header.len();
    let mut frame = vec![0xee; at];
    frame.extend(payload);
    assert_eq!(
        net.write(&mut frame, header, payload.len(), sum(payload)),
        frame.len()
    );
    frame
}

fn v6_frame() -> Vec<u8> {
    let source = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    let destination = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    build(
        &net_header(source.into(), destination.into()),
        &syn_header(),
        b"odd",
    )
}

/// Sets the IPv4 header's checksum right after a change.
pub(super) fn fix_ipv4_checksum(frame: &mut [u8], header_len: usize) {
    frame[24..26].copy_from_slice(&[0, 0]);
    let checksum = !sum(&frame[14..14 + header_len]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn a_frame_of_linux_is_read() {
    let packet = parse(&SYN, Checksums::None).unwrap();
    assert_eq!(packet.source_mac, SOURCE_MAC);
    assert_eq!(packet.destination_mac, DESTINATION_MAC);
    assert_eq!(packet.vlan, None);
    assert_eq!(packet.source, SocketAddr::new(SOURCE.into(), 0xc58f));
    assert_eq!(
        packet.destination,
        SocketAddr::new(DESTINATION.into(), 7174)
    );
    assert_eq!(packet.segment.header, syn_header());
    assert_eq!(packet.segment.payload, b"");
    assert_eq!(packet.ecn, 0);
}

#[test]
fn every_truncation_is_refused() {
    for frame in [SYN.to_vec(), v6_frame()] {
        for len in 0..frame.len() {
            let result = parse(&frame[..len], Checksums::Unnecessary);
            assert!(
                matches!(result, Err(PacketError::Truncated(_))),
                "{len} octets: {result:?}"
            );
        }
    }
}

#[test]
fn ethernet_padding_is_cut_off() {
    for mut frame in [SYN.to_vec(), v6_frame()] {
        let unpadded = frame.clone();
        frame.extend([0x55; 13]);
        assert_eq!(
            parse(&frame, Checksums::None),
            parse(&unpadded, Checksums::None)
        );
        assert!(parse(&frame, Checksums::None).is_ok());
    }
}

#[test]
fn each_damaged_octet_under_a_checksum_is_noticed() {
    let frame = build(
        &net_header(SOURCE.into(), DESTINATION.into()),
        &syn_header(),
        b"seven o",
    );
    for at in 14..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x04;
        let result = parse(&damaged, Checksums::None);
        assert!(result.is_err(), "octet {at}");
    }
    let frame = v6_frame();
    // The IPv6 header has no checksum of its own: TCP's covers the addresses.
    for at in 22..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x04;
        let result = parse(&damaged, Checksums::None);
        assert!(
            matches!(result, Err(PacketError::Checksum(_))),
            "octet {at}"
        );
    }
}

/// A checksum that the device computed over the frame leads to the same result as one computed over
/// the segment.
#[test]
fn a_known_sum_is_as_good() {
    let frame = build(
        &net_header(SOURCE.into(), DESTINATION.into()),
        &syn_header(),
        b"seven o",
    );
    let padded = [&frame[..], &[0x55; 13]].concat();
    for frame in [frame, padded, SYN.to_vec(), v6_frame()] {
        let with_sum = |frame: &[u8]| parse(frame, Checksums::Complete(sum(frame))).map(|_| ());
        assert_eq!(with_sum(&frame), Ok(()));
        for at in 0..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x04;
            let computed = parse(&damaged, Checksums::None).map(|_| ());
            assert_eq!(with_sum(&damaged), computed, "octet {at}");
        }
        for wrong in [0, 1, 0xffff, !sum(&frame)] {
            if wrong % 0xffff != sum(&frame) % 0xffff && frame.len() == frame_len(&frame) {
                let result = parse(&frame, Checksums::Complete(wrong));
                assert_eq!(result, Err(PacketError::Checksum("TCP")), "{wrong:#x}");
            }
        }
    }
}

/// Octets of a frame without padding: only then is its sum that of the segment too.
fn frame_len(frame: &[u8]) -> usize {
    let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    match frame[14] >> 4 {
        4 => 14 + length(16),
        _ => 14 + 40 + length(18),
    }
}

#[test]
fn unnecessary_checksums_are_not_verified() {
    let mut frame = SYN;
    frame[24] ^= 1;
    assert_eq!(
        parse(&frame, Checksums::None),
        Err(PacketError::Checksum("IPv4"))
    );
    let mut other = SYN;
    other[50] ^= 1;
    assert_eq!(
        parse(&other, Checksums::None),
        Err(PacketError::Checksum("TCP"))
    );
    for frame in [frame, other] {
        assert_eq!(
            parse(&frame, Checksums::Unnecessary),
            parse(&SYN, Checksums::None)
        );
    }
}

/// A kernel leaves TCP's checksum to the device, and begins it with the sum of the pseudo-header.
#[test]
fn a_partial_checksum_is_good_where_that_is_expected() {
    let v6 = |last| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
    for (source, destination) in [(SOURCE.into(), DESTINATION.into()), (v6(1), v6(2))] {
        for payload in [&b""[..], b"x", b"some octets of the stream"] {
            let net = net_header(source, destination);
            let whole = build(&net, &syn_header(), payload);
            let parsed = parse(&whole, Checksums::None).unwrap();
            assert_eq!(
                parse_with_partial(&whole, Checksums::None),
                Ok(parsed.clone())
            );

            let len = (whole.len() - net.len()) as u16;
            let pseudo_sum = match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    pseudo_header_v4(source, destination, tcp::PROTOCOL, len)
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    pseudo_header_v6(source, destination, tcp::PROTOCOL, len)
                }
                _ => unreachable!(),
            };
            let mut partial = whole.clone();
            let field = net.len() + tcp::CHECKSUM_AT;
            partial[field..][..2].copy_from_slice(&pseudo_sum.to_be_bytes());
            let wrong = Err(PacketError::Checksum("TCP"));
            for checksums in [Checksums::None, Checksums::Complete(sum(&partial))] {
                assert_eq!(parse(&partial, checksums), wrong);
                assert_eq!(parse_with_partial(&partial, checksums), Ok(parsed.clone()));
            }
            for bit in 0..16 {
                let mut other = partial.clone();
                let changed = pseudo_sum ^ 1 << bit;
                other[field..][..2].copy_from_slice(&changed.to_be_bytes());
                assert_eq!(parse_with_partial(&other, Checksums::None), wrong);
            }
        }
    }
}

#[test]
fn a_vlan_tag_says_which_vlan_it_is() {
    let tag =
        |ethertype: u16, control: u16| [ethertype.to_be_bytes(), control.to_be_bytes()].concat();
    let tagged = |tags: &[(u16, u16)]| {
        let tags: Vec<_> = tags.iter().flat_map(|(kind, id)| tag(*kind, *id)).collect();
        [&SYN[..12], &tags, &SYN[12..]].concat()
    };
    let plain = parse(&SYN, Checksums::None).unwrap();
    // Priority and drop eligibility are not a part of it, and with no identifier it is none
    // (802.1p).
    for (control, vlan) in [
        (5, Some(5)),
        (0xf005, Some(5)),
        (0xfffe, Some(0xffe)),
        (0xe000, None),
    ] {
        let frame = tagged(&[(0x8100, control)]);
        let expected = Packet {
            vlan,
            ..plain.clone()
        };
        assert_eq!(parse(&frame, Checksums::None), Ok(expected));
        let (header, _) = EthernetHeader::parse(&frame).unwrap();
        assert_eq!((header.vlan, header.ethertype), (vlan, 0x0800));
        for len in 0..frame.len() {
            let cut = parse(&frame[..len], Checksums::Unnecessary);
            assert!(cut.is_err(), "{len} octets");
        }
    }
}

#[test]
fn frames_of_a_vlan_inside_another_are_none_of_ours() {
    for (outer, inner, kind) in [
        (0x88a8_u16, 0x8100_u16, 0x88a8),
        (0x8100, 0x8100, 0x8100),
        (0x8100, 0x88a8, 0x88a8),
    ] {
        let tags = [outer.to_be_bytes(), [0, 7], inner.to_be_bytes(), [0, 8]].concat();
        let frame = [&SYN[..12], &tags, &SYN[12..]].concat();
        let found = parse(&frame, Checksums::None);
        assert_eq!(found, Err(PacketError::NotIp(kind)));
    }
}

#[test]
fn ipv4_options_are_skipped() {
    let mut frame = [&SYN[..34], &[1, 1, 1, 0, 0x94, 4, 0, 0], &SYN[34..]].concat();
    frame[14] = 0x47;
    frame[16..18].copy_from_slice(&68u16.to_be_bytes());
    fix_ipv4_checksum(&mut frame, 28);
    assert_eq!(parse(&frame, Checksums::None), parse(&SYN, Checksums::None));
    // A header length beyond the datagram.
    frame[14] = 0x4f;
    frame[16..18].copy_from_slice(&40u16.to_be_bytes());
    assert_eq!(
        parse(&frame, Checksums::Unnecessary),
        Err(PacketError::Malformed("IPv4 length"))
    );
}

#[test]
fn fragments_are_refused() {
    // More fragments; an offset; both. "Don't fragment" and the reserved bit mean nothing here.
    for (field, refused) in [
        (0x2000u16, true),
        (1, true),
        (0x3fff, true),
        (0x4000, false),
        (0xc000, false),
    ] {
        let mut frame = SYN;
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        fix_ipv4_checksum(&mut frame, 20);
        let result = parse(&frame, Checksums::None);
        assert_eq!(
            result == Err(PacketError::Fragment),
            refused,
            "{field:#x}: {result:?}"
        );
    }
    let mut frame = v6_frame();
    frame[20] = 44;
    assert_eq!(parse(&frame, Checksums::None), Err(PacketError::Fragment));
}

#[test]
fn other_protocols_are_refused() {
    let mut arp = SYN;
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(
        parse(&arp, Checksums::None),
        Err(PacketError::NotIp(0x0806))
    );
    let mut udp = SYN;
    udp[23] = 17;
    fix_ipv4_checksum(&mut udp, 20);
    assert_eq!(parse(&udp, Checksums::None), Err(PacketError::NotTcp(17)));
    let mut hop_by_hop = v6_frame();
    hop_by_hop[20] = 0;
    assert_eq!(
        parse(&hop_by_hop, Checksums::None),
        Err(PacketError::NotTcp(0))
    );
}

#[test]
fn wrong_versions_and_lengths_are_refused() {
    let changed = |frame: &[u8], at: usize, to: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + to.len()].copy_from_slice(to);
        parse(&frame, Checksums::Unnecessary).map(|_| ())
    };
    assert_eq!(
        changed(&SYN, 14, &[0x65]),
        Err(PacketError::Malformed("IPv4 version"))
    );
    assert_eq!(
        changed(&SYN, 14, &[0x44]),
        Err(PacketError::Malformed("IPv4 length"))
    );
    assert_eq!(
        changed(&SYN, 16, &[0, 19]),
        Err(PacketError::Malformed("IPv4 length"))
    );
    assert_eq!(
        changed(&SYN, 16, &[0, 61]),
        Err(PacketError::Truncated("IPv4"))
    );
    assert_eq!(
        changed(&SYN, 16, &[0, 59]),
        Err(PacketError::Truncated("TCP"))
    );
    assert_eq!(
        changed(&v6_frame(), 14, &[0x40]),
        Err(PacketError::Malformed("IPv6 version"))
    );
    assert_eq!(
        changed(&v6_frame(), 18, &[0, 44]),
        Err(PacketError::Truncated("IPv6"))
    );
    assert_eq!(
        changed(&v6_frame(), 18, &[0, 39]),
        Err(PacketError::Truncated("TCP"))
    );
}

#[test]
fn groups_are_no_peers() {
    let mut frame = SYN;
    frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    let refused = Err(PacketError::NotUnicast("destination MAC"));
    assert_eq!(parse(&frame, Checksums::Unnecessary), refused);
    for (at, which) in [(26, "source IP"), (30, "destination IP")] {
        for address in [[224, 0, 0, 1], [255; 4], [0; 4]] {
            let mut frame = SYN;
            frame[at..at + 4].copy_from_slice(&address);
            assert_eq!(
                parse(&frame, Checksums::Unnecessary),
                Err(PacketError::NotUnicast(which))
            );
        }
    }
    for (at, which) in [(22, "source IP"), (38, "destination IP")] {
        let mut frame = v6_frame();
        frame[at] = 0xff;
        assert_eq!(
            parse(&frame, Checksums::Unnecessary),
            Err(PacketError::NotUnicast(which))
        );
        frame[at..at + 16].fill(0);
        assert_eq!(
            parse(&frame, Checksums::Unnecessary),
            Err(PacketError::NotUnicast(which))
        );
    }
}

/// What is read ahead of time, unchecked, is what is read in its turn.
#[test]
fn addresses_are_the_same_ahead_of_time() {
    let v6 = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    let ends: [(IpAddr, IpAddr); 2] = [
        (SOURCE.into(), DESTINATION.into()),
        (v6(1).into(), v6(2).into()),
    ];
    for (source, destination) in ends {
        for vlan in [None, Some(7)] {
            let mut net = net_header(source, destination);
            net.vlan = vlan;
            let mut frame = [0; 256];
            let len = net.write(&mut frame, &syn_header(), 0, 0);
            let frame = &frame[..len];
            let packet = parse(frame, Checksums::None).unwrap();
            let addresses = (packet.source, packet.destination);
            assert_eq!(addresses_ahead(frame), Some(addresses));
            for len in 0..len {
                let cut = addresses_ahead(&frame[..len]);
                assert!(cut.is_none_or(|cut| cut == addresses));
            }
        }
    }
    assert_eq!(addresses_ahead(&[0; 100]), None);
}

#[test]
fn addresses_are_shown_as_everywhere() {
    assert_eq!(SOURCE_MAC.to_string(), "52:54:00:77:79:fe");
    assert_eq!(
        PacketError::NotIp(0x0806).to_string(),
        "EtherType 0x0806 is not IP"
    );
}

pub(super) fn any_addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    let v4 = (1u8..=223, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| IpAddr::from([a, b, c, d]));
    let v6 = (1u8..=0xfe, any::<[u8; 15]>()).prop_map(|(first, rest)| {
        let mut octets = [first; 16];
        octets[1..].copy_from_slice(&rest);
        IpAddr::from(octets)
    });
    prop_oneof![(v4.clone(), v4), (v6.clone(), v6)]
}

proptest! {
    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&octets, Checksums::None);
        let _ = parse(&octets, Checksums::Unnecessary);
    }

    #[test]
    fn a_frame_changed_anywhere_does_no_harm(
        v6: bool, changes in proptest::collection::vec(any::<(proptest::sample::Index, u8)>(), 1..6),
    ) {
        let mut frame = if v6 { v6_frame() } else { SYN.to_vec() };
        for (at, to) in changes {
            let at = at.index(frame.len());
            frame[at] = to;
        }
        let _ = parse(&frame, Checksums::Unnecessary);
    }
}
