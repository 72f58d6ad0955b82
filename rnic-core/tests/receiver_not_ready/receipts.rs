//! Receipts: requests complete when the peer has told that they are placed, where its TCP
//! acknowledges octets before that (docs/design/rc-receipts.md).

use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::ddp::DdpSegment;
use rnic_core::wire::hello::Receipts;
use rnic_core::wire::mpa::StartupKind;
use rnic_core::wire::rdmap::{FlowControl, Readiness, Receipt};

use crate::common::*;
use crate::hostile::ended;
use crate::scene::*;

/// Octets of the FPDU of a Send of 4 octets: length, header, payload and CRC.
const SEND: u64 = 2 + 18 + 4 + 4;

/// Makes the MPA Request of a peer that does so about receipts.
fn request_of(receipts: Receipts) -> Vec<u8> {
    startup_with(StartupKind::Request, &hello_of(receipts))
}

/// Connects such a peer to host 0.
fn peer_with(receipts: Receipts) -> (Simulation, RawConnection) {
    peer_of(&rc(), receipts)
}

/// Connects such a peer to host 0, which accepts with these options.
fn peer_of(options: &ConnectionOptions, receipts: Receipts) -> (Simulation, RawConnection) {
    let mut sim = quiet();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, RAW_PORT);
    accept_request(&mut sim, peer, &qp, options, &request_of(receipts));
    sim.raw[peer].send_ddp(nothing(), &[]);
    sim.run_now();
    (sim, RawConnection { peer, qp })
}

fn receipt(offset: u64) -> Vec<u8> {
    let mut octets = vec![0; FlowControl::LEN];
    Receipt(offset).emit(&mut octets);
    octets
}

/// Returns the receipts that a peer has got since the last call.
fn receipts(sim: &mut Simulation, raw: &RawConnection) -> Vec<u64> {
    let ulpdus = std::iter::from_fn(|| sim.raw[raw.peer].take_ulpdu());
    let read = |ulpdu: Vec<u8>| Some(Receipt::parse(DdpSegment::parse(&ulpdu).ok()?.payload)?.0);
    ulpdus.filter_map(read).collect()
}

#[test]
fn a_request_completes_when_the_peer_has_placed_it() {
    let (mut sim, mut raw) = peer_with(Receipts::Sent);
    let start = sim.raw[raw.peer].received.len() as u64;
    for id in 1..=3 {
        sim.hosts[0].post_send(&mut raw.qp, inline_send(id, b"four"));
    }
    sim.run_for(SECOND);
    // All are acknowledged, and none is placed.
    assert_eq!(outcomes(&mut raw.qp), []);
    let hear = |sim: &mut Simulation, raw: &RawConnection, msn, offset| {
        say(sim, raw, control_header(msn), &receipt(offset));
    };
    hear(&mut sim, &raw, 1, start + SEND - 1);
    assert_eq!(outcomes(&mut raw.qp), []);
    hear(&mut sim, &raw, 2, start + SEND);
    assert_eq!(outcomes(&mut raw.qp), [sent(1)]);
    // An older one changes nothing.
    hear(&mut sim, &raw, 3, 0);
    hear(&mut sim, &raw, 4, start + 3 * SEND);
    assert_eq!(outcomes(&mut raw.qp), [sent(2), sent(3)]);
}

#[test]
fn no_peer_has_placed_what_its_tcp_has_not_acknowledged() {
    let (mut sim, mut raw) = peer_with(Receipts::Sent);
    say(&mut sim, &raw, control_header(1), &receipt(u64::MAX));
    let received = sim.raw[raw.peer].received.len();
    sim.raw[raw.peer].ack_limit = Some(received);
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"four"));
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), []);
    sim.raw[raw.peer].ack_limit = None;
    sim.raw[raw.peer].acknowledge();
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [sent(1)]);
}

#[test]
fn a_receipt_that_was_not_agreed_on_is_an_unknown_message() {
    for receipts in [Receipts::Unknown, Receipts::Known] {
        let (mut sim, raw) = peer_with(receipts);
        say(&mut sim, &raw, control_header(1), &receipt(1));
        assert_eq!(ended(&sim, &raw), Some((0, 2, 255)), "{receipts:?}");
    }
}

/// A side does what it has said of itself, whatever the other says: that one cannot know otherwise.
#[test]
fn who_does_not_know_receipts_gets_none_and_sends_none() {
    let options = ConnectionOptions {
        private_data: hello_of(Receipts::Unknown),
        ..rc()
    };
    for peer in [Receipts::Known, Receipts::Sent] {
        let (mut sim, mut raw) = peer_of(&options, peer);
        let buffer = sim.hosts[0].share(&[0; 4], all_rights());
        sim.hosts[0].post_recv(&mut raw.qp, recv(9, &buffer, 4));
        say(&mut sim, &raw, send_header(1), b"four");
        assert_eq!(receipts(&mut sim, &raw), [], "{peer:?}");
        assert_eq!(outcomes(&mut raw.qp), [received(9)]);
        sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"four"));
        sim.run_for(SECOND);
        assert_eq!(outcomes(&mut raw.qp), [sent(1)], "{peer:?}");
        say(&mut sim, &raw, control_header(1), &receipt(1));
        assert_eq!(ended(&sim, &raw), Some((0, 2, 255)), "{peer:?}");
    }
}

/// As with an adapter, a program sees that its request is done before it sees the answer to it.
#[test]
fn what_a_receipt_completes_comes_before_the_answer_behind_it() {
    let (mut sim, mut raw) = peer_with(Receipts::Sent);
    let start = sim.raw[raw.peer].received.len() as u64;
    let buffer = sim.hosts[0].share(&[0; 4], all_rights());
    sim.hosts[0].post_recv(&mut raw.qp, recv(9, &buffer, 4));
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"four"));
    sim.run_now();
    let told = fpdu(&sim, &raw, control_header(1), &receipt(start + SEND));
    let answer = fpdu(&sim, &raw, send_header(1), b"four");
    sim.raw[raw.peer].send(&[told, answer].concat());
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [sent(1), received(9)]);
}

/// Only sockets acknowledge what is not placed yet, and only a peer that knows receipts gets any.
#[test]
fn requests_over_sockets_are_receipted() {
    for known in [Receipts::Unknown, Receipts::Known] {
        let (mut sim, mut raw) = peer_with(known);
        let begin = receipts(&mut sim, &raw);
        let tells = cfg!(carrier_sockets) && known != Receipts::Unknown;
        assert_eq!(begin.len(), usize::from(tells), "{begin:?}");
        let start = begin.first().copied().unwrap_or_default();
        let buffer = sim.hosts[0].share(&[0; 4], all_rights());
        sim.hosts[0].post_recv(&mut raw.qp, recv(9, &buffer, 4));
        say(&mut sim, &raw, send_header(1), b"four");
        let told = [start + SEND];
        assert_eq!(receipts(&mut sim, &raw), told[..usize::from(tells)]);
        assert_eq!(outcomes(&mut raw.qp), [received(9)]);
        // What is no request is not answered.
        let xoff = control(Readiness::NotReady, 1);
        say(&mut sim, &raw, control_header(1), &xoff);
        assert_eq!(receipts(&mut sim, &raw), []);
        // Of two that come at once, and of the part of a third, the whole ones are told of.
        let octets: Vec<u8> = [2, 3, 4]
            .iter()
            .flat_map(|msn| fpdu(&sim, &raw, send_header(*msn), b"four"))
            .collect();
        sim.raw[raw.peer].send(&octets[..2 * SEND as usize + 5]);
        sim.run_now();
        let told = [start + SEND + XOFF + 2 * SEND];
        assert_eq!(receipts(&mut sim, &raw), told[..usize::from(tells)]);
    }
}

/// Octets of the FPDU of an XOFF.
const XOFF: u64 = 2 + 18 + 16 + 4;

/// Its host acknowledges, and it never tells: that keeps neither an orderly end nor memory.
#[test]
fn a_peer_that_never_tells_keeps_nobody() {
    for ends in [Command::Disconnect, Command::Abort, Command::DestroyQp] {
        let (mut sim, mut raw) = peer_with(Receipts::Sent);
        sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"four"));
        sim.run_for(SECOND);
        assert_eq!(outcomes(&mut raw.qp), []);
        sim.hosts[0].command(ends(raw.qp.number));
        assert_nothing_left(&mut sim);
    }
}

/// Receipts in pieces, of other lengths, and inside a message of the peer.
#[test]
fn malformed_receipts_end_the_connection_at_most() {
    let (mut sim, mut raw) = peer_with(Receipts::Sent);
    let start = sim.raw[raw.peer].received.len() as u64;
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"four"));
    sim.run_now();
    for octet in fpdu(&sim, &raw, control_header(1), &receipt(start + SEND)) {
        sim.raw[raw.peer].send(&[octet]);
        sim.run_now();
    }
    assert_eq!(outcomes(&mut raw.qp), [sent(1)]);
    for len in [0, 1, 15, 17, 100] {
        let (mut sim, raw) = peer_with(Receipts::Sent);
        let mut octets = receipt(1);
        octets.resize(len, 0);
        say(&mut sim, &raw, control_header(1), &octets);
        assert!(ended(&sim, &raw).is_some(), "{len}");
    }
}
