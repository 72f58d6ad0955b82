use crate::wire::checksum::sum;
use crate::wire::encapsulation;
use crate::wire::esp::{self, EspHeader};
use crate::wire::icmp::{EspTooBig, Report, TooBig};
use crate::wire::tcp::Seq;
use proptest::prelude::*;

/// The front of a packet of ours: 192.0.2.1:4420 to 198.51.100.2:50000, 1500 octets.
#[rustfmt::skip]
const QUOTED_V4: [u8; 28] = [
    0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2,
    0x11, 0x44, 0xc3, 0x50, 1, 2, 3, 4,
];

fn message_v4(kind: u8, code: u8, mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let check = !sum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    // In a packet with four octets of options, from a router.
    let mut packet = vec![0x46, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0, 203, 0, 113, 9];
    packet.extend([192, 0, 2, 1, 1, 1, 1, 0]);
    packet.extend(message);
    packet
}

fn message_v6(kind: u8, mtu: u32) -> Vec<u8> {
    let mut message = vec![kind, 0, 0xbe, 0xef];
    message.extend(mtu.to_be_bytes());
    message.extend([0x60, 0, 0, 0, 0x05, 0xb4, 6, 64]);
    for host in [1, 2] {
        message.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    message.extend(&QUOTED_V4[20..]);
    message
}

/// Reads a message about a segment.
fn parse_v4(packet: &[u8]) -> Option<TooBig> {
    segment(Report::parse_v4(packet)?)
}

fn parse_v6(message: &[u8]) -> Option<TooBig> {
    segment(Report::parse_v6(message)?)
}

fn segment(report: Report) -> Option<TooBig> {
    match report {
        Report::Segment(segment) => Some(segment),
        Report::Protected(_) => None,
    }
}

#[test]
fn a_packet_of_esp_is_told_by_its_spi_and_number() {
    let mut quoted = QUOTED_V4;
    quoted[9] = esp::PROTOCOL;
    let header = EspHeader {
        spi: 0x1144_c350,
        number: 0x0102_0304,
    };
    let about = |source: &str, destination: &str| {
        Some(Report::Protected(EspTooBig {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            header,
            mtu: 1300,
        }))
    };
    let v4 = message_v4(3, 4, 1300, &quoted);
    assert_eq!(Report::parse_v4(&v4), about("192.0.2.1", "198.51.100.2"));
    let mut v6 = message_v6(2, 1300);
    v6[8 + 6] = esp::PROTOCOL;
    assert_eq!(Report::parse_v6(&v6), about("fd77::1", "fd77::2"));
    for len in 0..v6.len() {
        assert_eq!(Report::parse_v6(&v6[..len]), None);
    }
    for len in 0..v4.len() {
        assert_eq!(Report::parse_v4(&v4[..len]), None);
    }
}

#[test]
fn of_esp_in_udp_a_router_must_quote_more_than_the_least() {
    let [spi, number] = [0x1144_c350_u32, 0x0102_0304].map(u32::to_be_bytes);
    let mut quoted = QUOTED_V4.to_vec();
    quoted[9] = encapsulation::PROTOCOL;
    // What RFC 792 asks for ends with the UDP header.
    assert_eq!(Report::parse_v4(&message_v4(3, 4, 1300, &quoted)), None);
    quoted.extend([spi, number].concat());
    let told = Report::parse_v4(&message_v4(3, 4, 1300, &quoted));
    let Some(Report::Protected(told)) = told else {
        panic!("{told:?}");
    };
    assert_eq!((told.header.spi, told.mtu), (0x1144_c350, 1300));
    assert_eq!(told.header.number, 0x0102_0304);
}

fn found_v4(mtu: u16) -> Option<TooBig> {
    Some(TooBig {
        local: "192.0.2.1:4420".parse().unwrap(),
        remote: "198.51.100.2:50000".parse().unwrap(),
        seq: Seq(0x0102_0304),
        mtu,
    })
}

#[test]
fn fragmentation_needed_tells_the_flow_the_segment_and_the_mtu() {
    let told = parse_v4(&message_v4(3, 4, 1300, &QUOTED_V4));
    assert_eq!(told, found_v4(1300));
    // More of the packet is quoted, and its IP header has options.
    let mut long = QUOTED_V4.to_vec();
    long[0] = 0x46;
    long.splice(20..20, [1, 1, 1, 0]);
    long.extend([7; 100]);
    assert_eq!(parse_v4(&message_v4(3, 4, 1300, &long)), found_v4(1300));
}

#[test]
fn packet_too_big_tells_the_flow_the_segment_and_the_mtu() {
    let expected = TooBig {
        local: "[fd77::1]:4420".parse().unwrap(),
        remote: "[fd77::2]:50000".parse().unwrap(),
        seq: Seq(0x0102_0304),
        mtu: 1300,
    };
    assert_eq!(parse_v6(&message_v6(2, 1300)), Some(expected));
    let huge = parse_v6(&message_v6(2, 1 << 20)).unwrap();
    assert_eq!(huge.mtu, u16::MAX);
}

#[test]
fn a_router_that_tells_no_mtu_means_the_next_common_one() {
    assert_eq!(parse_v4(&message_v4(3, 4, 0, &QUOTED_V4)), found_v4(1492));
    let mut small = QUOTED_V4;
    small[2..4].copy_from_slice(&1492_u16.to_be_bytes());
    assert_eq!(parse_v4(&message_v4(3, 4, 0, &small)), found_v4(1006));
    small[2..4].copy_from_slice(&100_u16.to_be_bytes());
    assert_eq!(parse_v4(&message_v4(3, 4, 0, &small)), found_v4(68));
}

#[test]
fn nothing_else_is_read() {
    for (kind, code) in [(3, 0), (3, 1), (3, 3), (11, 0), (4, 0), (8, 4)] {
        assert_eq!(parse_v4(&message_v4(kind, code, 1300, &QUOTED_V4)), None);
    }
    for kind in [1, 3, 4, 128] {
        assert_eq!(parse_v6(&message_v6(kind, 1300)), None);
    }
}

#[test]
fn a_quoted_packet_that_is_no_beginning_of_a_segment_is_none() {
    let with = |at: usize, value: u8| {
        let mut quoted = QUOTED_V4;
        quoted[at] = value;
        parse_v4(&message_v4(3, 4, 1300, &quoted))
    };
    assert_eq!(with(9, 17), None, "UDP");
    assert_eq!(with(7, 1), None, "a later fragment");
    assert_eq!(with(0, 0x65), None, "IPv6");
    assert_eq!(with(0, 0x44), None, "a header too short");
    assert_eq!(with(0, 0x4f), None, "a header longer than the quotation");
    let mut v6 = message_v6(2, 1300);
    v6[8 + 6] = 17;
    assert_eq!(parse_v6(&v6), None);
}

#[test]
fn a_wrong_checksum_is_not_believed() {
    let mut packet = message_v4(3, 4, 1300, &QUOTED_V4);
    packet[31] ^= 1;
    assert_eq!(parse_v4(&packet), None);
}

#[test]
fn every_truncation_is_refused() {
    let v4 = message_v4(3, 4, 1300, &QUOTED_V4);
    let v6 = message_v6(2, 1300);
    for len in 0..v4.len() {
        assert_eq!(parse_v4(&v4[..len]), None);
    }
    for len in 0..v6.len() {
        assert_eq!(parse_v6(&v6[..len]), None);
    }
}

proptest! {
    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = (parse_v4(&octets), parse_v6(&octets));
    }
}
