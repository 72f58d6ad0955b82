//! The ends of a stream of an endpoint (RFC 5041 section 6.2): half-closed, graceful, abortive.

use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::ddp::Teardown;
use rnic_core::engine::Command;
use rnic_core::testing::raw_peer::{ddp, enhanced_startup};
use rnic_core::verbs::RecvWr;
use rnic_core::wire::ddp::{DdpHeader, Stag, UntaggedHeader};
use rnic_core::wire::mpa::{Enhanced, StartupKind};
use rnic_core::wire::rdmap::Terminate;

use crate::common::*;
use crate::flow::untagged_to;
use crate::parcels::{Parcels, parcel};
use crate::scene::{Raw, accept, connect, connect_pair};

/// Makes a raw peer whose first FPDU has arrived, so that the ULP may send.
fn open() -> Raw {
    let mut raw = Raw::new(&[7]);
    raw.give(&ddp(write_header(Stag(0), 0), b""));
    raw.layer.take_arrived();
    raw
}

fn assert_ended(raw: &Raw, teardown: Teardown, reason: &EndReason) {
    assert_eq!(raw.layer.state().ended, Some(teardown));
    assert_eq!(
        raw.sim.hosts[0].end_of(raw.end.number).as_ref(),
        Some(reason)
    );
}

#[test]
fn a_stream_that_the_peer_has_half_closed_goes_on_until_this_side_closes_too() {
    // rfc: 5041-69, 5041-s3, 5041-s4
    let mut raw = open();
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert!(raw.layer.state().half_closed);
    raw.sim.run_for(SECOND * 600);
    assert!(!raw.sim.raw[0].finished && raw.layer.state().ended.is_none());
    for number in 0..3 {
        assert!(raw.layer.send(parcel(5, 0, number), &pattern(4000)));
        raw.ring();
        let mut len = 0;
        while let Some((_, payload)) = raw.sim.raw[0].take_ddp() {
            len += payload.len();
        }
        assert_eq!(len, 4000);
    }
    raw.layer.send(parcel(5, 0, 9), b"the last");
    raw.command(Command::Disconnect(raw.end.number));
    let (_, payload) = raw.sim.raw[0].take_ddp().unwrap();
    assert_eq!(payload, b"the last");
    assert!(raw.sim.raw[0].finished);
    assert_ended(&raw, Teardown::Graceful, &EndReason::Local);
    raw.assert_nothing_left();
}

#[test]
fn a_stream_that_this_side_has_half_closed_still_receives() {
    // rfc: 5041-67, 5041-s2, 5041-s5
    let mut raw = open();
    let region = raw.sim.hosts[0].share(&[0; 8], all_rights());
    raw.layer.send(parcel(5, 0, 0), &pattern(9000));
    raw.command(Command::Disconnect(raw.end.number));
    assert!(!raw.layer.send(parcel(5, 0, 0), b"too late"));
    raw.ring();
    let mut len = 0;
    while let Some((_, payload)) = raw.sim.raw[0].take_ddp() {
        len += payload.len();
    }
    assert_eq!(
        len, 9000,
        "all that was asked for before, and nothing after"
    );
    assert!(raw.sim.raw[0].finished);
    for msn in 1..4 {
        raw.sim.run_for(SECOND * 50);
        raw.layer
            .post(7, RecvWr::new(msn.into(), &[sge(&region, 8)]).unwrap());
        raw.give(&ddp(DdpHeader::Untagged(untagged_to(7, msn)), b"farewell"));
        assert_eq!(raw.layer.take_arrived().len(), 1);
    }
    assert_eq!(region.content(), b"farewell");
    assert_eq!(raw.layer.state().ended, None);
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert_ended(&raw, Teardown::Graceful, &EndReason::Local);
    raw.assert_nothing_left();
}

/// FIN is sent only behind the last octet of all messages, and only when the peer has acknowledged
/// them.
#[test]
fn everything_asked_for_is_transferred_before_a_graceful_end() {
    // rfc: 5041-s2
    let mut raw = open();
    raw.sim.raw[0].acknowledges = false;
    raw.layer.send(parcel(5, 0, 0), &pattern(3000));
    raw.layer.send(parcel(6, 0, 0), &pattern(3000));
    raw.command(Command::Disconnect(raw.end.number));
    assert!(
        !raw.sim.raw[0].finished,
        "what was sent is not acknowledged"
    );
    raw.sim.raw[0].acknowledges = true;
    raw.sim.raw[0].acknowledge();
    raw.sim.run_now();
    assert_eq!(raw.layer.state().transferred, 2);
    assert!(raw.sim.raw[0].finished);
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert_ended(&raw, Teardown::Graceful, &EndReason::Local);
    raw.assert_nothing_left();
}

#[test]
fn both_ends_may_close_at_once() {
    let mut sim = simulation();
    let layers = [Parcels::with_queues(&[7]), Parcels::with_queues(&[7])];
    let ends = connect_pair(&mut sim, [&layers[0], &layers[1]]);
    for (host, end) in ends.iter().enumerate() {
        sim.hosts[host].command(Command::Disconnect(end.number));
    }
    sim.run_for(SECOND);
    for layer in &layers {
        assert_eq!(layer.state().ended, Some(Teardown::Graceful));
    }
    assert_nothing_left(&mut sim);
}

#[test]
fn a_lost_connection_is_an_abortive_end() {
    // rfc: 5041-5, 5041-70a, 5041-s6
    let mut raw = open();
    raw.layer.send(parcel(5, 0, 0), b"lost");
    raw.sim.raw[0].acknowledges = false;
    raw.ring();
    raw.sim.raw[0].abort();
    raw.sim.run_now();
    assert_ended(&raw, Teardown::Abortive, &EndReason::Reset);
    assert_eq!(raw.layer.state().transferred, 0);
    assert!(!raw.layer.send(parcel(5, 0, 0), b"too late"));
    raw.assert_nothing_left();
}

/// No octet can come any more, but the connection may still be lost.
#[test]
fn a_stream_that_the_peer_has_half_closed_may_be_lost() {
    // rfc: 5041-5, 5041-70a
    let mut raw = open();
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert!(raw.layer.state().half_closed);
    raw.sim.raw[0].abort();
    raw.sim.run_now();
    assert_ended(&raw, Teardown::Abortive, &EndReason::Reset);
    raw.assert_nothing_left();
}

#[test]
fn the_application_may_cut_a_stream_off() {
    let mut raw = open();
    raw.sim.raw[0].acknowledges = false;
    raw.layer.send(parcel(5, 0, 0), &pattern(100_000));
    raw.ring();
    raw.command(Command::Abort(raw.end.number));
    assert!(raw.sim.raw[0].reset && !raw.sim.raw[0].finished);
    assert_ended(&raw, Teardown::Abortive, &EndReason::Local);
    raw.assert_nothing_left();
}

/// A FIN behind a segment that is not the last of its message is no orderly end.
#[test]
fn a_peer_that_closes_within_a_message_has_cut_the_stream_off() {
    // rfc: 5041-11
    let mut raw = open();
    let region = raw.sim.hosts[0].share(&[0; 8], all_rights());
    raw.layer
        .post(7, RecvWr::new(1, &[sge(&region, 8)]).unwrap());
    let begun = UntaggedHeader {
        last: false,
        ..untagged_to(7, 1)
    };
    let fpdu = raw.sim.raw[0].fpdu(&ddp(DdpHeader::Untagged(begun), b"half"));
    raw.sim.raw[0].send(&fpdu);
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert!(!raw.layer.state().half_closed);
    assert_ended(&raw, Teardown::Abortive, &EndReason::CutOff);
    raw.assert_nothing_left();
}

/// A FIN in the middle of an FPDU is no orderly end.
#[test]
fn a_peer_that_closes_within_a_segment_has_cut_the_stream_off() {
    // rfc: 5041-6, 5041-11
    let mut raw = open();
    let fpdu = raw.sim.raw[0].fpdu(&ddp(DdpHeader::Untagged(untagged_to(7, 1)), b"half"));
    raw.sim.raw[0].send(&fpdu[..fpdu.len() / 2]);
    raw.sim.raw[0].close();
    raw.sim.run_now();
    assert!(!raw.layer.state().half_closed);
    assert_ended(&raw, Teardown::Abortive, &EndReason::CutOff);
    raw.assert_nothing_left();
}

#[test]
fn what_comes_behind_the_peers_close_is_not_taken() {
    let mut raw = open();
    raw.sim.raw[0].close();
    raw.give(&ddp(DdpHeader::Untagged(untagged_to(7, 1)), b"late"));
    assert_eq!(raw.layer.take_arrived(), []);
    assert_eq!(raw.layer.state().reports, []);
    raw.command(Command::Abort(raw.end.number));
    raw.assert_nothing_left();
}

/// Destroying an endpoint ends its connection, and its ULP is not called any more.
#[test]
fn an_endpoint_can_be_destroyed_while_it_is_connected() {
    let mut raw = open();
    raw.command(Command::DestroyQp(raw.end.number));
    assert!(raw.sim.raw[0].reset);
    assert_eq!(raw.layer.state().ended, None);
    raw.assert_nothing_left();
}

/// A ready-to-receive message is one of RDMAP: no other ULP can send or receive it.
#[test]
fn an_endpoint_does_not_connect_peer_to_peer() {
    let mut sim = simulation();
    let end = sim.hosts[0].create_endpoint(Parcels::default());
    let options = ConnectionOptions {
        peer_to_peer: true,
        ..ConnectionOptions::default()
    };
    let remote = sim.hosts[1].socket(1);
    connect(&sim, end, remote, &options);
    sim.run_now();
    let Some(EndReason::Startup(reason)) = sim.hosts[0].failure_of(end.number) else {
        panic!("{:?}", sim.hosts[0].events);
    };
    assert!(reason.contains("message of RDMAP"), "{reason}");

    sim.hosts[0].events.clear();
    sim.hosts[0].listen(860);
    sim.add_raw_peer(0, 860);
    sim.raw[0].connect();
    sim.run_now();
    let enhanced = Enhanced {
        peer_to_peer: true,
        rtr_write: true,
        ..Enhanced::default()
    };
    sim.raw[0].send(&enhanced_startup(StartupKind::Request, enhanced));
    sim.run_now();
    accept(&sim, 0, end);
    sim.run_now();
    let Some(EndReason::Startup(reason)) = sim.hosts[0].failure_of(end.number) else {
        panic!("{:?}", sim.hosts[0].events);
    };
    assert!(reason.contains("message of RDMAP"), "{reason}");
    // rfc: 6581-38 the peer has asked in the form of RFC 6581, and is told
    let (_, payload) = sim.raw[0].take_ddp().expect("a Terminate");
    let said = Terminate::parse(&payload).unwrap().control;
    assert_eq!((said.layer, said.error_type, said.code), (2, 0, 5));
    assert!(sim.raw[0].finished && !sim.raw[0].reset);
    sim.raw[0].close();
    let gone = |event: &Event| matches!(event, Event::Established { .. });
    assert!(!sim.hosts[0].events.iter().any(gone));
    assert_nothing_left(&mut sim);
}
