//! What an initiator makes of what stands in the place of a Reply.

use crate::common::*;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::Command;
use rnic_core::testing::raw_peer::{ddp, enhanced_startup, fpdu};
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber};
use rnic_core::wire::mpa::{Enhanced, StartupKind};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

/// Connects a host, which gets these octets in place of a Reply.
pub(crate) fn reply_with(octets: &[u8]) -> (Simulation, TestQp, usize) {
    reply_to(&ConnectionOptions::default(), octets)
}

fn reply_to(options: &ConnectionOptions, octets: &[u8]) -> (Simulation, TestQp, usize) {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, options);
    sim.run_now();
    sim.raw[peer].take_startup().expect("the host asks");
    sim.raw[peer].send(octets);
    sim.run_now();
    (sim, qp, peer)
}

/// A good Reply with one octet changed.
fn changed(at: usize, octet: u8) -> Vec<u8> {
    let mut octets = reply(4);
    octets[at] = octet;
    octets
}

#[test]
fn bad_replies_fail_the_attempt() {
    // rfc: 5044-54, 5044-66, 5044-75, 5044-78, 5044-85d, 5044-86
    let cases = [
        ("no MPA", vec![b'H'; 40]),
        ("a Request", request(4)),
        ("too much private data", changed(18, 3)),
    ];
    for (name, octets) in cases {
        let (mut sim, qp, peer) = reply_with(&octets);
        let reason = sim.hosts[0].failure_of(qp.number);
        assert!(matches!(reason, Some(EndReason::Startup(_))), "{name}");
        assert_eq!(sim.hosts[0].events.len(), 1, "{name}");
        assert!(sim.raw[peer].reset, "{name}");
        assert_nothing_left(&mut sim);
    }
}

/// These faults have no code of their own. The peer that has them may speak RFC 6581, so it gets a
/// Terminate.
#[test]
fn a_reply_that_does_not_suit_an_enhanced_request_gets_a_terminate() {
    // rfc: 5044-66, 6581-38, 6581-39
    let good = reply(4);
    let cases = [
        ("revision 1", changed(17, 1)),
        ("revision 3", changed(17, 3)),
        ("not enhanced", changed(16, good[16] & !0x10)),
    ];
    for (name, octets) in cases {
        let (mut sim, qp, peer) = reply_with(&octets);
        let reason = sim.hosts[0].failure_of(qp.number);
        let told = match name {
            "revision 3" => matches!(reason, Some(EndReason::Startup(_))),
            _ => matches!(reason, Some(EndReason::NotEnhanced(_))),
        };
        assert!(told, "{name}: {reason:?}");
        assert_eq!(sim.hosts[0].events.len(), 1, "{name}");
        assert_said_and_closed(&mut sim, peer, name);
        assert_nothing_left(&mut sim);
    }
    // A plain Request shows nothing of RFC 6581: no Terminate is sent behind it.
    let plain = ConnectionOptions {
        mpa_revision: 1,
        ..ConnectionOptions::default()
    };
    let (mut sim, qp, peer) = reply_to(&plain, &good);
    let reason = sim.hosts[0].failure_of(qp.number);
    assert!(matches!(reason, Some(EndReason::Startup(_))), "{reason:?}");
    let (_, ulpdu) = given_up();
    let said = sim.raw[peer].received.ends_with(&fpdu(&ulpdu, true));
    assert!(sim.raw[peer].reset && !said);
    assert_nothing_left(&mut sim);
}

/// Checks that a host has told a peer that it gives up, and has closed the connection in order.
#[track_caller]
pub(crate) fn assert_said_and_closed(sim: &mut Simulation, peer: usize, name: &str) {
    let (_, ulpdu) = given_up();
    let raw = &mut sim.raw[peer];
    assert!(raw.received.ends_with(&fpdu(&ulpdu, true)), "{name}");
    assert!(raw.finished && !raw.reset, "{name}");
    raw.close();
}

// rfc: 6581-16, 6581-18, 6581-19, 6581-32, 6581-33
#[test]
fn a_reply_that_asks_too_much_gets_a_terminate() {
    let octets = |enhanced| enhanced_startup(StartupKind::Reply, enhanced);
    let deep = Enhanced {
        ird: 4,
        ord: 4000,
        ..Enhanced::default()
    };
    let peer_to_peer = Enhanced {
        peer_to_peer: true,
        rtr_send: true,
        ..Enhanced::default()
    };
    for (enhanced, code) in [(deep, 6), (peer_to_peer, 7)] {
        let (mut sim, qp, peer) = reply_with(&octets(enhanced));
        let control = TerminateControl {
            layer: 2,
            error_type: 0,
            code,
        };
        let reason = sim.hosts[0].failure_of(qp.number);
        assert!(
            matches!(&reason, Some(EndReason::TerminateSent { control: sent, .. }) if *sent == control),
            "{reason:?}"
        );
        assert_eq!(sim.hosts[0].events.len(), 1, "it never stood");
        let (header, payload) = sim.raw[peer].take_ddp().unwrap();
        assert!(
            matches!(header, DdpHeader::Untagged(header) if header.queue == QueueNumber::TERMINATE
                && header.msn.0 == 1 && header.last)
        );
        let terminate = Terminate::parse(&payload).unwrap();
        assert_eq!((terminate.control, terminate.ddp_header), (control, None));
        assert!(sim.raw[peer].finished);
        sim.raw[peer].close();
        sim.run_now();
        // The queue pair can be used again.
        let passive = sim.hosts[1].create_qp();
        let options = ConnectionOptions::default();
        assert!(sim.connect_pair(&qp, &passive, &options, &options));
        sim.hosts[0].command(Command::Abort(qp.number));
        assert_nothing_left(&mut sim);
    }
}

/// The application says how far its IRD may be raised.
#[test]
fn a_reply_that_asks_for_as_much_as_is_allowed_is_taken() {
    // rfc: 6581-17
    let options = ConnectionOptions {
        max_ird: 200,
        ..ConnectionOptions::default()
    };
    for (ord, ird) in [(200, Some(200)), (201, None)] {
        let mut octets = reply(4);
        octets[22..24].copy_from_slice(&u16::to_be_bytes(ord));
        let (sim, _, _) = reply_to(&options, &octets);
        let taken = sim.hosts[0].events.iter().find_map(|event| match event {
            Event::Established { ird, .. } => Some(*ird),
            _ => None,
        });
        assert_eq!(taken, ird, "ORD {ord}");
    }
}

/// A responder that cannot continue sends a Terminate.
pub(crate) fn given_up() -> (TerminateControl, Vec<u8>) {
    let control = TerminateControl {
        layer: 2,
        error_type: 0,
        code: 5,
    };
    let said = Terminate {
        control,
        ddp_segment_length: None,
        ddp_header: None,
        rdma_header: None,
    };
    let mut octets = [0; 4];
    said.emit(&mut octets);
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    (control, ddp(DdpHeader::Untagged(header), &octets))
}

#[test]
fn a_terminate_in_the_place_of_a_reply_is_told() {
    // rfc: 6581-38
    let (control, ulpdu) = given_up();
    for crc in [true, false] {
        let options = ConnectionOptions {
            crc,
            ..ConnectionOptions::default()
        };
        let octets = fpdu(&ulpdu, crc);
        for cut in 1..octets.len() {
            let (mut sim, qp, peer) = reply_to(&options, &octets[..cut]);
            assert!(sim.hosts[0].events.is_empty(), "{cut} octets of it");
            sim.raw[peer].send(&octets[cut..]);
            sim.run_now();
            let told = Some(EndReason::TerminateReceived {
                control,
                quoted: None,
            });
            assert_eq!(sim.hosts[0].failure_of(qp.number), told);
            let rdma = sim.hosts[0].snapshot(sim.now).rdma;
            assert_eq!((rdma.terminates_received, rdma.terminates_sent), (1, 0));
            assert!(sim.raw[peer].finished && !sim.raw[peer].reset);
            sim.raw[peer].close();
            assert_nothing_left(&mut sim);
        }
    }
}

/// Any other FPDU in place of the Reply is an error, because the responder may not send before the
/// initiator.
#[test]
fn anything_else_in_the_place_of_a_reply_ends_the_connection() {
    // rfc: 5044-54, 5044-74, 5044-78
    let (_, ulpdu) = given_up();
    let second = {
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 2, true);
        ddp(DdpHeader::Untagged(header), &[0x20, 5, 0, 0])
    };
    let mut altered = fpdu(&ulpdu, true);
    altered[10] ^= 1;
    let cases = [
        (
            "a Write",
            fpdu(&ddp(nothing(), &[]), true),
            "an FPDU before",
        ),
        ("a second Terminate", fpdu(&second, true), "an FPDU before"),
        ("a short one", fpdu(&ulpdu[..20], true), "an FPDU before"),
        ("a bad CRC", altered, "MPA key"),
        ("a long one", fpdu(&[0x41; 600], true), "MPA key"),
    ];
    for (name, octets, words) in cases {
        let (mut sim, qp, peer) = reply_with(&octets);
        let reason = sim.hosts[0].failure_of(qp.number);
        let Some(EndReason::Startup(reason)) = reason else {
            panic!("{name}: {reason:?}");
        };
        assert!(reason.contains(words), "{name}: {reason}");
        assert!(sim.raw[peer].reset, "{name}");
        assert_nothing_left(&mut sim);
    }
}

/// A responder that knows RFC 5044 alone closes the connection.
#[test]
fn a_peer_that_closes_in_the_place_of_a_reply_may_know_revision_1_alone() {
    // rfc: 6581-39
    for (revision, octets) in [(2, 0), (2, 1), (1, 0)] {
        let options = ConnectionOptions {
            mpa_revision: revision,
            ..ConnectionOptions::default()
        };
        let (mut sim, qp, peer) = reply_to(&options, &reply(4)[..octets]);
        sim.raw[peer].close();
        sim.run_now();
        let reason = sim.hosts[0].failure_of(qp.number).unwrap();
        let may_be = matches!(reason, EndReason::NotEnhanced(_));
        assert_eq!(may_be, revision == 2 && octets == 0, "{reason}");
        assert_nothing_left(&mut sim);
    }
}
