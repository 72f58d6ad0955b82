//! What the program answers to what no client of this host accepts.

use rnic_manager::PoliceVerdict::{NoDevice, Nobody, Peer, Rate, Stranger, ToNic, ToPort};

use crate::answers::{ACK, ECN, FIN, RST, SYN, answer_to, word};
use crate::frames::{Segment, VLAN, VLANS, segment};
use crate::host::{CLIENT, OTHER};
use crate::program::{FREE, Policy, Rig, with_rig};

/// A SYN from one address and port to another.
fn syn(source: &str, destination: &str) -> Segment {
    Segment {
        flags: SYN,
        payload: 0,
        ..segment(source, destination)
    }
}

/// SYNs for nobody, one of each kind.
fn for_nobody() -> [Segment; 5] {
    [
        syn("10.1.2.3:4420", "10.1.2.3:80"),
        syn("[fd00::1]:4420", "[fd00::1]:80"),
        syn("127.0.0.1:9000", "127.0.0.1:80"),
        Segment {
            vlan: Some(VLAN),
            source_mac: VLANS,
            ..syn("10.1.100.3:4420", "10.1.100.3:80")
        },
        Segment {
            flags: SYN | ECN,
            tcp_options: 10,
            ..syn("10.1.2.3:4420", "127.0.0.1:81")
        },
    ]
}

/// Sets the numbers of a segment for nobody, and its checksum. Checks that its answer has this
/// checksum's equal, and returns the answer's numbers and flags.
fn numbers_in_answer(rig: &Rig<'_>, segment: Segment, numbers: [u32; 2]) -> ([u32; 2], u8) {
    let mut frame = segment.octets();
    let ip = segment.ip_at();
    let tcp = ip + if segment.source.is_ipv4() { 20 } else { 40 };
    frame[tcp + 4..tcp + 8].copy_from_slice(&numbers[0].to_be_bytes());
    frame[tcp + 8..tcp + 12].copy_from_slice(&numbers[1].to_be_bytes());
    let sum = sum_of(&frame, ip, tcp);
    frame[tcp + 16..tcp + 18].copy_from_slice(&(!sum).to_be_bytes());
    rig.expect(&frame, Nobody);
    let answer = answer_to(&frame, Nobody).unwrap();
    assert_eq!(sum_of(&answer, ip, tcp), 0xffff, "its checksum holds");
    let ports = [segment.destination.port(), segment.source.port()].map(u16::to_be_bytes);
    assert_eq!(answer[tcp..tcp + 4], ports.concat());
    // In buffers of any length, and with what fills a frame up.
    for linear in 14..frame.len() {
        assert_eq!(rig.run(&frame, Some(linear)), Nobody, "{linear}");
    }
    frame.resize(frame.len().max(60), 0);
    rig.expect(&frame, Nobody);
    let number = |at: usize| u32::from_be_bytes(answer[tcp + at..tcp + at + 4].try_into().unwrap());
    ([number(4), number(8)], answer[tcp + 13])
}

/// What the rig compares is written anew here; this test has it from RFC 9293 section 3.10.7.1: the
/// answer is an acceptable RST.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_for_nobody_is_answered_with_a_valid_reset() {
    with_rig(|rig| {
        for segment in for_nobody() {
            let answer = |flags, payload, numbers| {
                let segment = Segment {
                    flags,
                    payload,
                    ..segment
                };
                numbers_in_answer(rig, segment, numbers)
            };
            let first = [u32::MAX, 0];
            assert_eq!(answer(segment.flags, 0, first), ([0, 0], RST | ACK));
            assert_eq!(answer(SYN, 5, first), ([0, 5], RST | ACK));
            assert_eq!(answer(FIN, 5, first), ([0, 5], RST | ACK));
            assert_eq!(answer(0, 5, first), ([0, 4], RST | ACK));
            let later = [7, 0xfedc_ba98];
            for flags in [ACK, FIN | ACK, SYN | ACK] {
                assert_eq!(answer(flags, 0, later), ([later[1], 0], RST));
                assert_eq!(answer(flags, 101, later), ([later[1], 0], RST));
            }
        }
    });
}

/// Returns the sum of a TCP segment and its pseudo-header.
fn sum_of(frame: &[u8], ip: usize, tcp: usize) -> u16 {
    let addresses = &frame[if tcp - ip == 20 { ip + 12 } else { ip + 8 }..tcp];
    let len = (frame.len() - tcp) as u16;
    let mut pseudo = [addresses, &[0, 6], &len.to_be_bytes(), &frame[tcp..]].concat();
    pseudo.resize(pseudo.len().next_multiple_of(2), 0);
    let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(word(pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A stranger may have a connection from a time when it was none.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_syn_of_a_stranger_is_answered_and_nothing_else() {
    with_rig(|rig| {
        rig.lease(OTHER, "10.1.2.3:6001", 0, Some(&[&[10, 8]]));
        let syn = syn("10.1.2.3:4420", "10.1.2.3:6001");
        rig.expect(&syn.octets(), Stranger);
        assert!(answer_to(&syn.octets(), Stranger).is_some());
        for flags in [0, ACK, RST, FIN, FIN | ACK, RST | ACK, SYN | ACK] {
            let frame = Segment { flags, ..syn }.octets();
            rig.expect(&frame, Stranger);
            assert_eq!(answer_to(&frame, Stranger), None);
        }
    });
}

/// So that an answer never causes another.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_reset_is_not_answered() {
    with_rig(|rig| {
        for segment in for_nobody() {
            for flags in [RST, RST | ACK, RST | FIN, SYN | RST] {
                let frame = Segment { flags, ..segment }.octets();
                assert_eq!(answer_to(&frame, Nobody), None);
                rig.expect(&frame, Nobody);
            }
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_syn_that_may_not_be_sent_or_goes_elsewhere_is_not_answered() {
    with_rig(|rig| {
        let there = syn("10.1.2.3:4420", "10.9.9.9:80").octets();
        rig.expect(&there, ToNic);
        let to_other = syn("10.1.2.3:4420", "10.1.2.3:5000").octets();
        rig.expect(&to_other, ToPort);
        rig.connect(OTHER, false);
        rig.expect(&to_other, NoDevice);
        let here = syn("10.1.2.3:4420", "10.1.2.3:80").octets();
        rig.set_client(Policy {
            all_peers: false,
            ..FREE
        });
        rig.expect(&here, Peer);
        rig.permit(CLIENT, true, &[10]);
        rig.expect(&here, Nobody);
        rig.set_client(Policy {
            rate: 1,
            burst: 1,
            fill_time: u64::MAX,
            ..FREE
        });
        rig.expect(&here, Rate);
    });
}
