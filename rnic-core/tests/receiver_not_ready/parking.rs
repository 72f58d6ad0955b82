//! Messages that find no receive wait, and all requests behind them.

use rnic_core::connection::ConnectionOptions;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::{
    status::WcStatus,
    wr::{SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::{MessageOffset, QueueNumber, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, Opcode, Readiness};

use crate::common::*;
use crate::scene::*;

fn rest(sim: &mut Simulation) {
    sim.run_for(SECOND / 10);
}

#[test]
fn a_send_waits_for_its_receive() {
    let (mut sim, mut one, mut other) = connected();
    sim.hosts[0].post_send(&mut one, inline_send(1, b"early"));
    rest(&mut sim);
    // It is complete once the peer's TCP has it.
    assert_eq!(
        (outcomes(&mut one), outcomes(&mut other)),
        (vec![sent(1)], vec![])
    );
    let parked = counters(&mut sim, 1);
    assert_eq!((parked.streams_parked, parked.streams_parked_now), (1, 1));
    assert!(parked.octets_parked_now > 5);
    assert_eq!(counters(&mut sim, 0).xoffs_received, 1);
    let sink = sim.hosts[1].share(&[0; 100], all_rights());
    sim.hosts[1].post_recv(&mut other, recv(7, &sink, 100));
    rest(&mut sim);
    let got = other.poll();
    assert_eq!((outcome(&got[0]), got[0].byte_len), (received(7), 5));
    assert_eq!(&sink.content()[..5], b"early");
    assert_nothing_parked(&mut sim, 1);
    // All is as before.
    sim.hosts[1].post_recv(&mut other, recv(8, &sink, 100));
    sim.hosts[0].post_send(&mut one, inline_send(2, b"later"));
    rest(&mut sim);
    assert_eq!(
        (outcomes(&mut one), outcomes(&mut other)),
        (vec![sent(2)], vec![received(8)])
    );
    assert_eq!(counters(&mut sim, 1).streams_parked, 1);
}

#[test]
fn without_rc_a_missing_receive_ends_the_connection() {
    let mut sim = simulation();
    let (mut one, _other) = sim.connect(&ConnectionOptions::default()).unwrap();
    sim.hosts[0].post_send(&mut one, inline_send(1, b"early"));
    rest(&mut sim);
    assert!(sim.hosts[0].end_of(one.number).is_some());
    assert_eq!(counters(&mut sim, 1).streams_parked, 0);
}

/// What comes behind a parked message takes no effect before it, whatever it is.
#[test]
fn requests_behind_a_parked_message_wait_in_their_order() {
    let (mut sim, mut one, mut other) = connected();
    let [source, sink] = memory(&sim, 10_000);
    let counter = sim.hosts[1].share(&[0; 8], all_rights());
    let found = sim.hosts[0].share(&[0; 8], all_rights());
    sim.hosts[0].post_send(&mut one, inline_send(0, b"first"));
    sim.hosts[0].post_send(&mut one, write(1, &source, sink.stag, 10_000));
    let add = AtomicOperation::FetchAdd { add: 5, mask: 0 };
    let atomic = SendWr::atomic(2, add, sge(&found, 8)).with_remote(counter.stag, TaggedOffset(0));
    sim.hosts[0].post_send(&mut one, atomic);
    let with_immediate = SendWr::new(3, WrOpcode::WriteImmediate)
        .with_immediate(*b"8 octets")
        .with_remote(sink.stag, TaggedOffset(0))
        .with_sges(&[sge(&source, 3000)])
        .unwrap();
    sim.hosts[0].post_send(&mut one, with_immediate);
    rest(&mut sim);
    // The XOFF came behind all of them: they went out at once.
    assert_eq!(outcomes(&mut one).len(), 2);
    assert_eq!(
        (sink.content(), counter.content()),
        (vec![0; 10_000], vec![0; 8])
    );
    let buffer = sim.hosts[1].share(&[0; 10], all_rights());
    sim.hosts[1].post_recv(&mut other, recv(7, &buffer, 10));
    rest(&mut sim);
    assert_eq!(outcomes(&mut other), [received(7)]);
    assert_eq!(sink.content(), pattern(10_000));
    assert_eq!(counter.content(), 5u64.to_ne_bytes());
    assert_eq!(
        counters(&mut sim, 1).streams_parked_now,
        1,
        "for the Immediate Data"
    );
    sim.hosts[1].post_recv(&mut other, empty_recv(8));
    rest(&mut sim);
    let got = other.poll();
    let told = (8, WcOpcode::RecvImmediate, WcStatus::Success);
    assert_eq!((outcome(&got[0]), got[0].byte_len), (told, 3000));
    assert_eq!(&got[0].immediate, b"8 octets");
    let done: Vec<_> = outcomes(&mut one)
        .iter()
        .map(|done| (done.0, done.2))
        .collect();
    assert_eq!(done, [(2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_nothing_parked(&mut sim, 1);
}

/// From XOFF to XON the peer begins nothing.
#[test]
fn a_peer_that_was_told_begins_no_request() {
    let (mut sim, mut one, mut other) = connected();
    let [source, sink] = memory(&sim, 100);
    sim.hosts[0].post_send(&mut one, inline_send(0, b"first"));
    rest(&mut sim);
    let before = counters(&mut sim, 0).fpdus_sent;
    sim.hosts[0].post_send(&mut one, inline_send(1, b"second"));
    sim.hosts[0].post_send(&mut one, write(2, &source, sink.stag, 100));
    sim.hosts[0].post_send(&mut one, read(3, &source, sink.stag, 100));
    sim.run_for(20 * SECOND);
    assert_eq!(counters(&mut sim, 0).fpdus_sent, before);
    assert_eq!(outcomes(&mut one), [sent(0)]);
    for id in [7, 8] {
        let buffer = sim.hosts[1].share(&[0; 10], all_rights());
        sim.hosts[1].post_recv(&mut other, recv(id, &buffer, 10));
    }
    rest(&mut sim);
    assert_eq!(outcomes(&mut other), [received(7), received(8)]);
    assert_eq!(outcomes(&mut one).len(), 3);
}

/// A program that waits for its own Read before it posts a receive gets on, on both sides.
#[test]
fn reads_are_answered_while_requests_are_parked() {
    let (mut sim, mut one, mut other) = connected();
    let [left, right] = memory(&sim, 20_000);
    let near = [0, 1].map(|host| sim.hosts[host].share(&vec![0; 20_000], all_rights()));
    let counter = [0, 1].map(|host| sim.hosts[host].share(&[0; 8], all_rights()));
    // Each sends to the other first, so that both are parked, or soon will be.
    sim.hosts[0].post_send(&mut one, read(1, &near[0], right.stag, 20_000));
    sim.hosts[0].post_send(&mut one, inline_send(2, b"to the right"));
    let add = AtomicOperation::FetchAdd { add: 5, mask: 0 };
    sim.hosts[1].post_send(&mut other, read(1, &near[1], left.stag, 20_000));
    let sum = SendWr::atomic(2, add, sge(&counter[1], 8));
    let sum = sum.with_remote(counter[0].stag, TaggedOffset(0));
    sim.hosts[1].post_send(&mut other, sum);
    sim.hosts[1].post_send(&mut other, inline_send(3, b"to the left"));
    rest(&mut sim);
    assert_eq!(outcomes(&mut one).len(), 2);
    assert_eq!(outcomes(&mut other).len(), 3);
    assert_eq!(near[1].content(), pattern(20_000));
    for host in 0..2 {
        assert_eq!(counters(&mut sim, host).streams_parked_now, 1);
    }
    sim.hosts[0].post_recv(&mut one, recv(9, &left, 100));
    sim.hosts[1].post_recv(&mut other, recv(9, &right, 100));
    rest(&mut sim);
    assert_eq!(
        (outcomes(&mut one), outcomes(&mut other)),
        (vec![received(9)], vec![received(9)])
    );
}

/// The Response to our Read comes in pieces between which a parked message is received.
#[test]
fn a_response_in_progress_and_a_parked_message_do_not_disturb_each_other() {
    let (mut sim, mut raw) = raw();
    let sink = sim.hosts[0].share(&[0; 3000], all_rights());
    let buffer = sim.hosts[0].share(&[0; 100], all_rights());
    sim.hosts[0].post_send(&mut raw.qp, read(1, &sink, sink.stag, 2000));
    sim.run_now();
    let part = |offset, last| {
        let mut header = untagged(Opcode::Send, QueueNumber::SEND, 1, last);
        header.offset = MessageOffset(offset);
        rnic_core::wire::ddp::DdpHeader::Untagged(header)
    };
    say(&mut sim, &raw, part(0, false), b"one ");
    say(&mut sim, &raw, part(4, true), b"two");
    let response = |offset, last| tagged(Opcode::ReadResponse, sink.stag, offset, last);
    say(&mut sim, &raw, response(0, false), &[5; 1000]);
    assert_eq!(told(&mut sim, &raw), [(Readiness::NotReady, 1)]);
    sim.hosts[0].post_recv(&mut raw.qp, recv(7, &buffer, 100));
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [received(7)]);
    assert_eq!(&buffer.content()[..7], b"one two");
    assert_eq!(told(&mut sim, &raw), [(Readiness::Ready, 1)]);
    say(&mut sim, &raw, response(1000, true), &[6; 1000]);
    let done = (1, WcOpcode::Read, WcStatus::Success);
    assert_eq!(outcomes(&mut raw.qp), [done]);
    assert!(sim.hosts[0].end_of(raw.qp.number).is_none());
}

/// The receive comes when only a part of the parked message has arrived.
#[test]
fn a_message_that_was_parked_in_part_goes_on() {
    let (mut sim, mut raw) = raw();
    let buffer = sim.hosts[0].share(&[0; 100], all_rights());
    let part = |msn, offset, last| {
        let mut header = untagged(Opcode::Send, QueueNumber::SEND, msn, last);
        header.offset = MessageOffset(offset);
        rnic_core::wire::ddp::DdpHeader::Untagged(header)
    };
    say(&mut sim, &raw, part(1, 0, false), b"one ");
    sim.hosts[0].post_recv(&mut raw.qp, recv(7, &buffer, 100));
    sim.run_now();
    assert_nothing_parked(&mut sim, 0);
    assert_eq!(outcomes(&mut raw.qp), []);
    say(&mut sim, &raw, part(1, 4, false), b"two ");
    say(&mut sim, &raw, part(1, 8, true), b"three");
    assert_eq!(outcomes(&mut raw.qp), [received(7)]);
    assert_eq!(&buffer.content()[..13], b"one two three");
    // Between its parts nothing else may come.
    say(&mut sim, &raw, part(2, 0, false), b"four");
    sim.hosts[0].post_recv(&mut raw.qp, recv(8, &buffer, 100));
    sim.run_now();
    say(&mut sim, &raw, write_header(buffer.stag, 0), b"five");
    assert!(sim.hosts[0].end_of(raw.qp.number).is_some());
}

/// More is parked than a stream may without a smaller window.
#[test]
fn a_long_message_waits_behind_a_closed_window() {
    let (mut sim, mut one, mut other) = connected();
    let len = 20_000_000;
    let [source, sink] = memory(&sim, len);
    sim.hosts[0].post_send(&mut one, send(1, &source, len));
    sim.run_for(5 * SECOND);
    assert_eq!(outcomes(&mut one), []);
    let parked = counters(&mut sim, 1).octets_parked_now;
    // The share of a stream, and as much as its window had grown to.
    assert!((1 << 20..19_000_000).contains(&parked), "{parked}");
    // The connection lives, however long it takes.
    sim.run_for(600 * SECOND);
    assert_eq!(counters(&mut sim, 1).octets_parked_now, parked);
    sim.hosts[1].post_recv(&mut other, recv(7, &sink, len));
    let got = completions(&mut sim, &mut other, 1, 60 * SECOND);
    assert_eq!(
        (outcome(&got[0]), got[0].byte_len),
        (received(7), len as u32)
    );
    assert_eq!(sink.content(), pattern(len));
    assert_nothing_parked(&mut sim, 1);
}

/// With markers, FPDUs ahead of order are placed early, but for those of a parked stream.
#[test]
fn nothing_is_placed_early_while_messages_are_parked() {
    let mut sim = quiet();
    let options = ConnectionOptions {
        markers: true,
        ..rc()
    };
    let mut raw = accept_raw(&mut sim, &options);
    sim.raw[raw.peer].markers_from = Some(request(16).len() as u32);
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    let [target, buffer] = [0, 1].map(|_| sim.hosts[0].share(&[0; 1000], all_rights()));
    say(&mut sim, &raw, send_header(1), b"parked");
    let first = fpdu(&sim, &raw, write_header(target.stag, 0), &[1; 600]);
    let ahead = first.len() as u32;
    sim.raw[raw.peer].skip(ahead);
    let second = fpdu(&sim, &raw, write_header(target.stag, 0), &[2; 600]);
    sim.raw[raw.peer].skip(ahead.wrapping_neg());
    sim.raw[raw.peer].send_ahead(ahead, &second);
    sim.run_now();
    assert_eq!(target.content(), [0; 1000]);
    sim.raw[raw.peer].send(&first);
    sim.raw[raw.peer].skip(second.len() as u32);
    sim.run_now();
    assert_eq!(target.content(), [0; 1000]);
    sim.hosts[0].post_recv(&mut raw.qp, recv(7, &buffer, 100));
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [received(7)]);
    assert_eq!(&target.content()[..600], [2; 600]);
}
