//! What the program answers to a SYN that no client of this host accepts.

use rnic_xdp::sharing::PoliceVerdict::{NoDevice, Nobody, Peer, Rate, Stranger, ToNic, ToPort};

use crate::answers::{ACK, ECN, FIN, RST, SYN, answer_to, word};
use crate::frames::{Segment, VLAN, VLANS, segment};
use crate::host::{CLIENT, OTHER};
use crate::program::{FREE, Policy, with_rig};

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

/// What the rig compares is written anew here; this test has it from the RFCs: the answer is an acceptable RST.
#[test]
fn a_syn_for_nobody_is_answered_with_a_valid_reset() {
    with_rig("a_syn_for_nobody_is_answered_with_a_valid_reset", |rig| {
        for segment in for_nobody() {
            let mut frame = segment.octets();
            let ip = segment.ip_at();
            let tcp = ip + if segment.source.is_ipv4() { 20 } else { 40 };
            frame[tcp + 4..tcp + 8].copy_from_slice(&[0xff; 4]);
            let sum = sum_of(&frame, ip, tcp);
            frame[tcp + 16..tcp + 18].copy_from_slice(&(!sum).to_be_bytes());
            rig.expect(&frame, Nobody);
            let answer = answer_to(&frame).unwrap();
            assert_eq!(sum_of(&answer, ip, tcp), 0xffff, "its checksum holds");
            assert_eq!(
                answer[tcp..tcp + 2],
                segment.destination.port().to_be_bytes()
            );
            assert_eq!(answer[tcp + 4..tcp + 12], [0; 8], "it follows the SYN");
            // In buffers of any length, and with what fills a frame up.
            for linear in 14..frame.len() {
                assert_eq!(rig.run(&frame, Some(linear)), Nobody, "{linear}");
            }
            frame.resize(frame.len() + 6, 0);
            rig.expect(&frame, Nobody);
        }
    });
}

/// Returns the sum of a TCP segment and its pseudo-header.
fn sum_of(frame: &[u8], ip: usize, tcp: usize) -> u16 {
    let addresses = &frame[if tcp - ip == 20 { ip + 12 } else { ip + 8 }..tcp];
    let len = (frame.len() - tcp) as u16;
    let pseudo = [addresses, &[0, 6], &len.to_be_bytes(), &frame[tcp..]].concat();
    let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(word(pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn strangers_are_refused_too() {
    with_rig("strangers_are_refused_too", |rig| {
        rig.lease(OTHER, "10.1.2.3:6001", 0, Some(&[&[10, 8]]));
        let frame = syn("10.1.2.3:4420", "10.1.2.3:6001").octets();
        rig.expect(&frame, Stranger);
        assert!(answer_to(&frame).is_some());
    });
}

/// An answer is caused by a SYN alone, and so never by an answer.
#[test]
fn nothing_but_a_syn_is_answered() {
    with_rig("nothing_but_a_syn_is_answered", |rig| {
        let kinds = [0, ACK, RST, FIN, FIN | ACK, RST | ACK];
        let kinds = kinds.into_iter().chain([SYN | ACK, SYN | RST, SYN | FIN]);
        for segment in for_nobody() {
            let with_flags = kinds.clone().map(|flags| Segment { flags, ..segment });
            let with_data = Segment {
                payload: 1,
                ..segment
            };
            for segment in with_flags.chain([with_data]) {
                let frame = segment.octets();
                assert_eq!(answer_to(&frame), None);
                rig.expect(&frame, Nobody);
            }
        }
    });
}

#[test]
fn a_syn_that_may_not_be_sent_or_goes_elsewhere_is_not_answered() {
    let test = "a_syn_that_may_not_be_sent_or_goes_elsewhere_is_not_answered";
    with_rig(test, |rig| {
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
