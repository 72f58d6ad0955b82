//! Errors elsewhere, several errors, and the peer's Terminate.

use crate::common::*;
use crate::scene::{LEN, Quotes, at, scene};
use rnic_core::connection::EndReason;
use rnic_core::rdmap::QuotedSegment;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, Stag};
use rnic_core::wire::rdmap::{BitOrder, Opcode, ReadRequest, Terminate, TerminateControl};

#[test]
fn an_fpdu_that_was_altered_above_tcp() {
    // rfc: 5040-s4, 5041-8, 5041-s8, 5044-28a, 5044-37, 5044-45, 5044-46b, 5044-85b, 5044-88
    // rfc: 5044-s17
    let ulpdu = ddp(send_header(1), b"hello");
    let good = fpdu(&ulpdu, true);
    // The length field is left out: it would only make the peer wait for more.
    for at in 2..good.len() {
        let mut octets = good.clone();
        octets[at] ^= 0x04;
        let mut scene = scene(1);
        // The first FPDU of an initiator is another matter.
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        scene.sim.run_now();
        let content = scene.inbox.region.clone();
        scene.wrong_octets("altered", &octets, &ulpdu, (2, 0, 2), Quotes::Nothing);
        let mut placed = [0; LEN];
        content.read(0, &mut placed).unwrap();
        assert_eq!(placed, [0; LEN], "placed before its CRC was checked");
    }
}

/// DDP has no number for a segment without a whole header, and for MPA it is no error: 2/0/3 is for
/// markers.
#[test]
fn an_fpdu_too_short_for_its_header() {
    // rfc: 5041-48, 5044-85c
    for ulpdu in [&[][..], &[0xc1], &[0xc1; 13], &[0x41; 17]] {
        let name = format!("{} octets", ulpdu.len());
        scene(1).wrong(&name, ulpdu, (0, 2, 0xff), Quotes::Nothing);
    }
}

#[test]
fn nothing_is_placed_behind_an_error() {
    // rfc: 5040-85, 5041-10, 5041-75
    let wrong = fpdu(&ddp(DdpHeader::Untagged(at(4, 1, 0)), b"hello"), true);
    for together in [true, false] {
        let mut scene = scene(1);
        let target = scene.sim.hosts[0].share(&[0; 8], all_rights());
        let write = fpdu(&ddp(write_header(target.stag, 0), &[7; 8]), true);
        let peer = &mut scene.sim.raw[scene.peer];
        if together {
            peer.send(&[&wrong[..], &write].concat());
        } else {
            peer.send(&wrong);
            peer.send(&write);
        }
        scene.sim.run_now();
        assert_eq!(ends(&scene.sim, 0, &scene.qp), 1);
        assert_eq!(target.content(), [0; 8], "in one segment: {together}");
    }
}

// rfc: 5040-89
#[test]
fn the_first_of_several_errors_is_told() {
    let first = ddp(DdpHeader::Untagged(at(4, 1, 0)), b"hello");
    let second = ddp(write_header(Stag(1), 0), b"hello");
    let mut altered = fpdu(&second, true);
    altered[5] ^= 1;
    let octets = [fpdu(&first, true), fpdu(&second, true), altered].concat();
    scene(1).wrong_octets("several", &octets, &first, (1, 2, 1), Quotes::Segment);
}

#[test]
fn the_peers_terminate_is_told_and_answered_by_closing() {
    // rfc: 5040-s5
    for order in [BitOrder::Rfc, BitOrder::Swapped] {
        let mut scene = scene(2);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        let wr = send(1, &scene.open, LEN);
        scene.sim.hosts[0].post_send(&mut scene.qp, wr);
        scene.sim.raw[scene.peer].acknowledges = false;
        scene.sim.run_now();
        let control = TerminateControl {
            layer: 1,
            error_type: 2,
            code: 1,
        };
        let terminate = Terminate {
            control,
            ddp_segment_length: None,
            ddp_header: None,
            rdma_header: None,
        };
        let mut octets = vec![0; terminate.len()];
        terminate.emit_as(order, &mut octets);
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.acknowledges = true;
        peer.send_ddp(DdpHeader::Untagged(header), &octets);
        peer.send_ddp(DdpHeader::Untagged(header), &octets);
        scene.sim.run_now();
        let number = scene.qp.number;
        let reason = scene.sim.hosts[0].end_of(number);
        assert_eq!(
            reason,
            Some(EndReason::TerminateReceived {
                control,
                quoted: None
            })
        );
        assert_eq!(ends(&scene.sim, 0, &scene.qp), 1);
        let rdma = scene.sim.hosts[0].snapshot(scene.sim.now).rdma;
        assert_eq!((rdma.terminates_received, rdma.terminates_sent), (1, 0));
        assert!(scene.sim.raw[scene.peer].finished);
        let mut statuses = outcomes(&mut scene.qp);
        statuses.sort_by_key(|(id, opcode, _)| (*opcode as u8, *id));
        assert_eq!(statuses.len(), 3);
        assert!(statuses.iter().all(|(.., s)| *s != WcStatus::Success));
        scene.assert_bystanders_unhurt("Terminate received");
    }
}

/// A RST right behind a Terminate takes nothing from it, though this side finds that it cannot send
/// any more.
#[test]
fn a_terminate_counts_although_a_reset_follows() {
    let mut scene = scene(0);
    let long = scene.sim.hosts[0].share(&pattern(1_000_000), all_rights());
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let wr = send(1, &long, 1_000_000);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.raw[scene.peer].acknowledges = false;
    scene.sim.run_now();
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ddp(DdpHeader::Untagged(header), &[0x10, 0, 0, 0]);
    peer.abort();
    scene.sim.run_now();
    let reason = scene.sim.hosts[0].end_of(scene.qp.number);
    assert!(matches!(reason, Some(EndReason::TerminateReceived { .. })));
}

/// All that a Terminate says reaches the application.
#[test]
fn what_the_peers_terminate_quotes_is_told() {
    // rfc: 5040-67
    let mut scene = scene(0);
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let wr = read(1, &scene.open, Stag(0x77), LEN);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let asked = peer.take_ulpdu().expect("a Read Request");
    let control = TerminateControl {
        layer: 0,
        error_type: 1,
        code: 0,
    };
    let terminate = Terminate {
        control,
        ddp_segment_length: Some(asked.len() as u16),
        ddp_header: Some(&asked[..18]),
        rdma_header: Some(&asked[18..]),
    };
    let mut octets = vec![0; terminate.len()];
    terminate.emit(&mut octets);
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    peer.send_ddp(DdpHeader::Untagged(header), &octets);
    scene.sim.run_now();
    let quoted = QuotedSegment {
        len: Some(asked.len() as u16),
        header: Some(DdpSegment::parse(&asked).unwrap().header),
        read_request: Some(ReadRequest::parse(&asked[18..]).unwrap()),
    };
    let told = EndReason::TerminateReceived {
        control,
        quoted: Some(Box::new(quoted)),
    };
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), Some(told));
}

/// The peer acknowledges a Send together with a segment that ends the connection: the Send
/// completes nevertheless.
#[test]
fn a_wrong_response_takes_nothing_from_the_request_that_it_acknowledges() {
    let mut scene = scene(0);
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let wr = send(1, &scene.open, LEN);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.raw[scene.peer].acknowledges = false;
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    peer.acknowledges = true;
    peer.send_ddp(write_header(Stag(0xbad), 0), b"answer");
    scene.sim.run_now();
    let reason = scene.sim.hosts[0].end_of(scene.qp.number);
    assert!(matches!(reason, Some(EndReason::TerminateSent { .. })));
    let done = (1, WcOpcode::Send, WcStatus::Success);
    assert_eq!(outcomes(&mut scene.qp), [done]);
}

/// A Terminate of the peer also ends a message that is not sent in full.
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn nothing_is_sent_on_after_the_peers_terminate() {
    let mut scene = scene(0);
    let long = scene.sim.hosts[0].share(&pattern(1_000_000), all_rights());
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let wr = send(1, &long, 1_000_000);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.raw[scene.peer].acknowledges = false;
    scene.sim.run_now();
    let begun = scene.sim.raw[scene.peer].received.len();
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.acknowledges = true;
    peer.send_ddp(DdpHeader::Untagged(header), &[0x10, 0, 0, 0]);
    scene.sim.run_for(SECOND / 10);
    let peer = &scene.sim.raw[scene.peer];
    assert!(peer.received.len() < begun + 3000 && peer.finished);
}

/// A work request that fails is told to the peer, even where nothing else is sent or received that
/// would run the engine.
// rfc: 5040-87, 5040-88a
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_local_error_is_told_to_the_peer_at_once() {
    for bad_from_the_start in [true, false] {
        let mut scene = scene(1);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        scene.sim.run_now();
        let len = 100_000;
        let source = scene.sim.hosts[0].share(&pattern(len), all_rights());
        let wr = send(1, &source, len);
        if bad_from_the_start {
            scene.sim.hosts[0].revoke(source.stag);
        }
        scene.sim.hosts[0].post_send(&mut scene.qp, wr);
        scene.sim.raw[scene.peer].acknowledges = false;
        scene.sim.run_now();
        if !bad_from_the_start {
            assert!(scene.sim.hosts[0].end_of(scene.qp.number).is_none());
            scene.sim.hosts[0].revoke(source.stag);
        }
        let peer = &mut scene.sim.raw[scene.peer];
        peer.acknowledges = true;
        let early = peer.take_ddp();
        let is_terminate = |(header, _): &(DdpHeader, _)| matches!(header, DdpHeader::Untagged(h) if h.queue == QueueNumber::TERMINATE);
        assert_eq!(
            early.as_ref().is_some_and(is_terminate),
            bad_from_the_start,
            "it waits for no acknowledgment"
        );
        peer.acknowledge();
        scene.sim.run_now();
        let failed = (1, WcOpcode::Send, WcStatus::LocalProtectionError);
        assert_eq!(outcomes(&mut scene.qp)[0], failed);
        let peer = &mut scene.sim.raw[scene.peer];
        let mut last = early;
        while let Some(segment) = peer.take_ddp() {
            last = Some(segment);
        }
        let last = last.filter(is_terminate).expect("a Terminate");
        let terminate = Terminate::parse(&last.1).unwrap();
        let control = terminate.control;
        assert_eq!((control.layer, control.error_type, control.code), (0, 0, 0));
        assert_eq!((terminate.ddp_header, terminate.rdma_header), (None, None));
        assert!(peer.finished);
    }
}

/// A peer cannot keep a failed connection alive, neither by a closed window for the Terminate nor
/// by never closing.
#[test]
fn a_peer_that_takes_no_terminate_is_cut_off() {
    // rfc: 5040-86, 5041-13
    for window_closed in [true, false] {
        let mut scene = scene(1);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.send_ddp(nothing(), &[]);
        peer.window = if window_closed { 0 } else { u16::MAX };
        peer.send(&fpdu(&[0; 30], true));
        scene.sim.run_for(SECOND * 4);
        assert!(!scene.sim.raw[scene.peer].reset);
        assert!(scene.sim.hosts[0].end_of(scene.qp.number).is_some());
        scene.sim.run_for(SECOND * 4);
        assert!(
            scene.sim.raw[scene.peer].reset,
            "window closed: {window_closed}"
        );
    }
}
