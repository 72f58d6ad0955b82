//! Peer-to-peer connections, and initiators that send without waiting for the Reply.

use crate::common::*;
use std::time::Duration;

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

/// Flags A and B beside the IRD, C and D beside the ORD.
const BY_SEND: [u8; 2] = [0xc0, 0];
const BY_WRITE: [u8; 2] = [0x80, 0x80];
const BY_READ: [u8; 2] = [0x80, 0x40];
const BY_ANY: [u8; 2] = [0xc0, 0xc0];

/// Sets these flags in a start-up frame.
fn flagged(mut frame: Vec<u8>, flags: [u8; 2]) -> Vec<u8> {
    frame[20] |= flags[0];
    frame[22] |= flags[1];
    frame
}

/// Makes the ready-to-receive message for these flags.
fn rtr_message(flags: [u8; 2]) -> (DdpHeader, Vec<u8>) {
    let queue = QueueNumber::READ_REQUEST;
    match flags {
        BY_SEND => (send_header(1), Vec::new()),
        BY_READ => (
            DdpHeader::Untagged(untagged(Opcode::ReadRequest, queue, 1, true)),
            vec![0; 28],
        ),
        _ => (nothing(), Vec::new()),
    }
}

/// Makes the response to a Read without payload.
fn read_response() -> DdpHeader {
    tagged(Opcode::ReadResponse, Stag(0), 0, true)
}

fn peer_to_peer() -> ConnectionOptions {
    ConnectionOptions {
        peer_to_peer: true,
        ..ConnectionOptions::default()
    }
}

fn sent(id: u64) -> (u64, WcOpcode, WcStatus) {
    (id, WcOpcode::Send, WcStatus::Success)
}

/// Connects a queue pair of host 0 to a raw peer. The test takes the Request.
fn ask(options: &ConnectionOptions) -> (Simulation, TestQp, usize) {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, options);
    sim.run_now();
    (sim, qp, peer)
}

#[test]
fn an_initiator_begins_with_the_message_agreed_on() {
    // rfc: 6581-2, 6581-25, 6581-26, 6581-31
    for (flags_of_reply, first) in [
        (BY_SEND, BY_SEND),
        (BY_WRITE, BY_WRITE),
        (BY_READ, BY_READ),
        (BY_ANY, BY_WRITE),
    ] {
        let (mut sim, mut qp, peer) = ask(&peer_to_peer());
        assert_eq!(sim.raw[peer].received[20] & 0xc0, 0xc0, "A and B");
        assert_eq!(sim.raw[peer].received[22] & 0xc0, 0xc0, "C and D");
        sim.raw[peer].take_startup().unwrap();
        sim.hosts[0].post_send(&mut qp, inline_send(1, b"one"));
        sim.raw[peer].send(&flagged(reply(4), flags_of_reply));
        sim.run_now();
        assert!(sim.hosts[0].is_established(qp.number));

        assert_eq!(sim.raw[peer].take_ddp(), Some(rtr_message(first)));
        let msn = if first == BY_SEND { 2 } else { 1 };
        let posted = (send_header(msn), b"one".to_vec());
        assert_eq!(sim.raw[peer].take_ddp(), Some(posted));
        sim.run_for(SECOND);
        assert_eq!(outcomes(&mut qp), [sent(1)], "nothing else completes");

        // The orderly end waits for the response to the Read.
        sim.hosts[0].command(Command::Disconnect(qp.number));
        sim.run_for(SECOND);
        assert_eq!(sim.raw[peer].finished, first != BY_READ);
        if first == BY_READ {
            sim.raw[peer].send_ddp(read_response(), &[]);
            sim.run_now();
            assert!(sim.raw[peer].finished);
        }
        assert_eq!(outcomes(&mut qp), []);
        sim.raw[peer].close();
        assert_nothing_left(&mut sim);
    }
}

/// The kernel's siw can overlook what comes right behind its Reply until more comes.
#[test]
fn a_patient_initiator_opens_again_until_it_is_answered() {
    let options = ConnectionOptions {
        first_fpdu_delay: Duration::from_millis(3),
        ..peer_to_peer()
    };
    let openings = |sim: &mut Simulation, peer: usize| {
        let next = || sim.raw[peer].take_ddp();
        std::iter::from_fn(next)
            .take_while(|message| *message == rtr_message(BY_WRITE))
            .count()
    };
    for (flags_of_reply, answered, expected) in [
        (BY_WRITE, false, 4),
        (BY_WRITE, true, 1),
        (BY_READ, false, 0),
        (BY_SEND, false, 0),
    ] {
        let (mut sim, mut qp, peer) = ask(&options);
        sim.hosts[0].post_recv(&mut qp, empty_recv(1));
        sim.raw[peer].take_startup().unwrap();
        sim.raw[peer].send(&flagged(reply(4), flags_of_reply));
        sim.run_for(Duration::from_millis(4));
        if answered {
            sim.raw[peer].send_ddp(send_header(1), &[]);
        }
        sim.run_for(3 * SECOND);
        assert_eq!(openings(&mut sim, peer), expected);
        sim.hosts[0].post_send(&mut qp, inline_send(2, b"next"));
        sim.run_for(SECOND);
        assert_eq!(outcomes(&mut qp).last(), Some(&sent(2)));
    }
    // An end in order is followed by nothing.
    let (mut sim, qp, peer) = ask(&options);
    sim.raw[peer].take_startup().unwrap();
    sim.raw[peer].send(&flagged(reply(4), BY_WRITE));
    sim.run_for(Duration::from_millis(4));
    sim.hosts[0].command(Command::Disconnect(qp.number));
    sim.run_for(SECOND);
    assert!(sim.raw[peer].finished);
    assert_eq!(openings(&mut sim, peer), 1);
    sim.raw[peer].close();
    assert_nothing_left(&mut sim);
}

/// The ready-to-receive Send takes an MSN: a Terminate about the next Send finds that one.
#[test]
fn a_terminate_finds_the_send_behind_the_rtr_send() {
    let (mut sim, mut qp, peer) = ask(&peer_to_peer());
    sim.raw[peer].take_startup().unwrap();
    sim.raw[peer].send(&flagged(reply(4), BY_SEND));
    sim.run_now();
    sim.raw[peer].acknowledges = false;
    sim.hosts[0].post_send(&mut qp, inline_send(7, b"late"));
    sim.run_now();
    let no_buffer = TerminateControl {
        layer: 1,
        error_type: 2,
        code: 2,
    };
    let offending = ddp(send_header(2), &[]);
    let about = Terminate {
        control: no_buffer,
        ddp_segment_length: Some(offending.len() as u16),
        ddp_header: Some(&offending),
        rdma_header: None,
    };
    let mut octets = [0; Terminate::MAX_LEN];
    let len = about.emit(&mut octets);
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    sim.raw[peer].send_ddp(DdpHeader::Untagged(header), &octets[..len]);
    sim.run_now();
    let ended = outcomes(&mut qp);
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].0, 7);
    assert_ne!(ended[0].2, WcStatus::WrFlushed, "it is the one to blame");
}

#[test]
fn a_responder_waits_for_the_rtr_message_and_hides_it() {
    // rfc: 5044-77a, 6581-27, 6581-28, 6581-s3
    // In order, or the message behind it first.
    for ahead in [false, true] {
        for flags in [BY_SEND, BY_WRITE, BY_READ] {
            let mut sim = simulation();
            let mut qp = sim.hosts[0].create_qp();
            let sinks = [1, 2].map(|_| sim.hosts[0].share(&[0; 8], all_rights()));
            for (id, sink) in (10..).zip(&sinks) {
                sim.hosts[0].post_recv(&mut qp, recv(id, sink, 8));
            }
            sim.hosts[0].post_send(&mut qp, inline_send(1, b"ours"));
            sim.hosts[0].listen(4420);
            let peer = sim.add_raw_peer(0, 4420);
            sim.raw[peer].connect();
            sim.run_now();
            sim.raw[peer].send(&flagged(request(4), flags));
            sim.run_now();
            let asked = last_request(&sim, 0);
            sim.hosts[0].accept(asked, &qp, &ConnectionOptions::default());
            sim.run_for(SECOND);
            let said = [20, 22].map(|at| sim.raw[peer].received[at] & 0xc0);
            assert_eq!(said, flags);
            sim.raw[peer].take_startup().unwrap();
            assert_eq!(sim.raw[peer].take_ulpdu(), None, "it waits");

            let (header, payload) = rtr_message(flags);
            let raw = &mut sim.raw[peer];
            let first = raw.fpdu(&ddp(header, &payload));
            let msn = if flags == BY_SEND { 2 } else { 1 };
            let second = raw.fpdu(&ddp(send_header(msn), b"theirs"));
            if ahead {
                raw.send_ahead(first.len() as u32, &second);
                sim.run_now();
                sim.raw[peer].send(&first);
                sim.raw[peer].skip(second.len() as u32);
            } else {
                raw.send(&first);
                raw.send(&second);
            }
            sim.run_now();

            let mut messages = vec![sim.raw[peer].take_ddp().unwrap()];
            messages.extend(sim.raw[peer].take_ddp());
            let ours = (send_header(1), b"ours".to_vec());
            assert!(messages.contains(&ours), "{messages:?}");
            let responded = messages.contains(&(read_response(), Vec::new()));
            assert_eq!(responded, flags == BY_READ);
            assert_eq!(sinks[0].content()[..6], *b"theirs");
            let done = outcomes(&mut qp);
            let received = (10, WcOpcode::Recv, WcStatus::Success);
            assert!(done.contains(&received) && done.contains(&sent(1)));
            assert_eq!(done.len(), 2);
        }
    }
}

/// A Send without payload that is no ready-to-receive message takes a receive.
#[test]
fn only_an_agreed_send_takes_no_receive() {
    let mut sim = simulation();
    let options = ConnectionOptions::default();
    let mut raw = accept_raw(&mut sim, &options);
    sim.hosts[0].post_recv(&mut raw.qp, empty_recv(1));
    sim.raw[raw.peer].send_ddp(send_header(1), &[]);
    sim.run_now();
    let received = (1, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(outcomes(&mut raw.qp), [received]);
}

#[test]
fn the_side_that_was_asked_may_speak_first() {
    // rfc: 6581-2, 6581-28
    let mut sim = simulation();
    let accept = ConnectionOptions::default();
    let (mut active, mut passive) = sim.connect_with(&peer_to_peer(), &accept).unwrap();
    sim.hosts[0].post_recv(&mut active, empty_recv(1));
    sim.hosts[1].post_send(&mut passive, inline_send(2, b""));
    let received = completions(&mut sim, &mut active, 1, SECOND);
    assert_eq!(received[0].status(), WcStatus::Success);
    assert_eq!(outcomes(&mut active), []);
}

#[test]
fn revision_1_has_no_peer_to_peer_connections() {
    let options = ConnectionOptions {
        mpa_revision: 1,
        ..peer_to_peer()
    };
    let (sim, qp, _) = ask(&options);
    let reason = sim.hosts[0].failure_of(qp.number);
    assert!(matches!(reason, Some(EndReason::Startup(_))), "{reason:?}");
}

#[test]
fn an_initiator_that_gives_up_says_so() {
    // rfc: 6581-38
    type Ending = (fn(&TestQp) -> Option<Command>, EndReason);
    let endings: [Ending; 3] = [
        (|qp| Some(Command::Abort(qp.number)), EndReason::Local),
        (|qp| Some(Command::Disconnect(qp.number)), EndReason::Local),
        (|_| None, EndReason::TimedOut),
    ];
    for mpa_revision in [1, 2] {
        for (end, reason) in &endings {
            let options = ConnectionOptions {
                mpa_revision,
                ..ConnectionOptions::default()
            };
            let (mut sim, qp, peer) = ask(&options);
            sim.raw[peer].take_startup().unwrap();
            match end(&qp) {
                Some(command) => sim.hosts[0].command(command),
                None => sim.run_for(options.connect_timeout),
            }
            sim.run_now();
            assert_eq!(sim.hosts[0].failure_of(qp.number).as_ref(), Some(reason));
            assert_eq!(sim.hosts[0].events.len(), 1);
            let said = sim.raw[peer].take_ddp().map(|(_, payload)| {
                let control = Terminate::parse(&payload).unwrap().control;
                (control.layer, control.error_type, control.code)
            });
            assert_eq!(said, (mpa_revision == 2).then_some((2, 0, 5)));
            assert_eq!(sim.raw[peer].reset, mpa_revision == 1);
            // Whether or not the peer closes as well.
            sim.run_for(SECOND * 6);
            assert!(sim.raw[peer].reset);
            assert_nothing_left(&mut sim);
        }
    }
}
