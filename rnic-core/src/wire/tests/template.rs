//! Writing the headers of a frame.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::wire::{
    checksum::sum,
    ethernet::{EthernetHeader, MacAddr},
    packet::{Checksums, parse},
    tcp::{DataHeader, Flags, Seq, TcpHeader, Timestamps},
    template::{HeaderTemplate, NetHeader},
};
use proptest::prelude::*;

use super::packet::{
    DESTINATION, DESTINATION_MAC, SOURCE, SOURCE_MAC, SYN, any_addresses, build, fix_ipv4_checksum,
    net_header, syn_header,
};
use super::tcp::any_header;

#[test]
fn the_same_frame_is_written_but_for_the_ip_identification() {
    let frame = build(
        &net_header(SOURCE.into(), DESTINATION.into()),
        &syn_header(),
        &[],
    );
    let mut expected = SYN;
    expected[18..20].copy_from_slice(&[0, 0]);
    fix_ipv4_checksum(&mut expected, 20);
    assert_eq!(frame, expected);
}

#[test]
fn a_partial_checksum_completed_is_the_whole_one() {
    let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
    for (source, destination) in [(SOURCE.into(), DESTINATION.into()), (v6, v6)] {
        for payload in [&b""[..], b"odd", b"even", &[0xff; 1000]] {
            let net = net_header(source, destination);
            let header = syn_header();
            let whole = build(&net, &header, payload);
            let mut partial = whole.clone();
            let template = HeaderTemplate::new(&net);
            let len = template.write_partial(&mut partial, 0, &header, payload.len());
            assert_eq!(len, whole.len());
            assert_ne!(partial, whole);
            let tcp = &mut partial[net.len()..];
            let checksum = !sum(tcp);
            tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!(partial, whole);
        }
    }
}

#[test]
fn the_headers_of_a_run_are_those_of_its_segments() {
    let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
    let stamps = Timestamps {
        value: 0xffff_fffe,
        echo: 7,
    };
    for ((source, destination), vlan, timestamps, ecn) in [
        ((SOURCE.into(), DESTINATION.into()), None, Some(stamps), 0),
        ((SOURCE.into(), DESTINATION.into()), None, None, 2),
        (
            (SOURCE.into(), DESTINATION.into()),
            Some(5),
            Some(stamps),
            2,
        ),
        ((v6, v6), None, Some(stamps), 2),
        ((v6, v6), Some(5), None, 0),
        ((v6, v6), Some(5), Some(stamps), 2),
    ] {
        let mut net = net_header(source, destination);
        net.vlan = vlan;
        let mut template = HeaderTemplate::new(&net);
        let mut header = DataHeader {
            source_port: 0xfff1,
            destination_port: 7174,
            seq: Seq(0xffff_ffff),
            ack: Seq(0x8000_0001),
            flags: Flags::ACK,
            window: 0xfffe,
            timestamps,
        };
        for (flags, payload) in [
            (Flags::ACK, &[0xff; 1000][..]),
            (Flags::ACK | Flags::CWR, b"odd"),
            (Flags::ACK | Flags::PSH, b"even"),
        ] {
            let len = payload.len();
            let expected = TcpHeader {
                flags,
                ..header.into()
            };
            let at = net.len() + expected.len();
            let mut frames = [(); 4].map(|()| [&vec![0xee; at], payload].concat());
            let [one, run, partial, expected_partial] = &mut frames;
            let fresh = HeaderTemplate::new(&net);
            let frame_len = fresh.write(one, ecn, &expected, len, sum(payload));
            fresh.write_partial(expected_partial, ecn, &expected, len);
            let headers = template.begin_burst(ecn, &header);
            header.flags = flags;
            let lengths = [
                headers.write(run, &header, len as u16, sum(payload)),
                headers.write_partial(partial, &header, len as u16),
            ];
            assert_eq!(lengths, [frame_len; 2]);
            assert_eq!(run, one);
            assert_eq!(partial, expected_partial);
            // Whatever comes next is as if there had been no run.
            template.write(run, ecn, &expected, len, sum(payload));
            assert_eq!(run, one);
            header.seq += 1000;
            header.ack += 1;
        }
    }
}

#[test]
fn a_reply_goes_where_the_packet_came_from() {
    let mut net = net_header(SOURCE.into(), DESTINATION.into());
    net.vlan = Some(5);
    let frame = build(&net, &syn_header(), &[]);
    let reply = NetHeader::reply_to(&parse(&frame, Checksums::None).unwrap());
    let back = net_header(DESTINATION.into(), SOURCE.into());
    let expected = NetHeader {
        source_mac: DESTINATION_MAC,
        destination_mac: SOURCE_MAC,
        vlan: Some(5),
        ..back
    };
    assert_eq!(reply, expected);
}

#[test]
fn traffic_class_and_hop_limit_are_written() {
    let mut net = net_header(SOURCE.into(), DESTINATION.into());
    (net.traffic_class, net.hop_limit) = (0xb9, 17);
    let frame = build(&net, &syn_header(), &[]);
    assert_eq!((frame[15], frame[22]), (0xb9, 17));
    assert_eq!(
        frame[18..22],
        [0, 0, 0x40, 0],
        "identification zero, don't fragment"
    );
    assert_eq!(parse(&frame, Checksums::None).unwrap().ecn, 1);

    net.source = Ipv6Addr::LOCALHOST.into();
    net.destination = Ipv6Addr::LOCALHOST.into();
    let frame = build(&net, &syn_header(), &[]);
    assert_eq!((&frame[14..18], frame[21]), (&[0x6b, 0x90, 0, 0][..], 17));
    assert_eq!(parse(&frame, Checksums::None).unwrap().ecn, 1);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        header in any_header(),
        (source, destination) in any_addresses(),
        macs: ([u8; 6], [u8; 6]),
        vlan in proptest::option::of(1..4096_u16),
        (hop_limit, traffic_class) in any::<(u8, u8)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (source_mac, mut destination_mac) = (MacAddr(macs.0), MacAddr(macs.1));
        destination_mac.0[0] &= 0xfe;
        let net =
            NetHeader { source_mac, destination_mac, vlan, source, destination, hop_limit, traffic_class };
        let frame = build(&net, &header, &payload);
        let (link, _) = EthernetHeader::parse(&frame).unwrap();
        prop_assert_eq!((link.source, link.destination, link.vlan), (source_mac, destination_mac, vlan));
        let packet = parse(&frame, Checksums::None).unwrap();
        prop_assert_eq!(packet.source_mac, source_mac);
        prop_assert_eq!(packet.source, SocketAddr::new(source, header.source_port));
        prop_assert_eq!(packet.destination, SocketAddr::new(destination, header.destination_port));
        prop_assert_eq!(packet.segment.header, header);
        prop_assert_eq!(packet.segment.payload, &payload[..]);
        prop_assert_eq!(packet.ecn, traffic_class & 3);
    }
}
