//! How streams end while messages are parked.

use rnic_core::connection::{EndReason, Event};
use rnic_core::engine::Command;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::{
    status::WcStatus,
    wr::{SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::rdmap::Opcode;

use crate::common::*;
use crate::scene::*;

/// Two messages of host 0 are parked at host 1.
fn parked() -> (Simulation, TestQp, TestQp) {
    let (mut sim, mut one, other) = connected();
    sim.hosts[0].post_send(&mut one, inline_send(1, b"one"));
    sim.hosts[0].post_send(&mut one, inline_send(2, b"two"));
    sim.run_for(SECOND / 100);
    assert_eq!(outcomes(&mut one), [sent(1), sent(2)]);
    assert_eq!(counters(&mut sim, 1).streams_parked_now, 1);
    (sim, one, other)
}

/// Receives both messages at host 1, one after the other. The peer's end is told behind them.
fn receive_both(sim: &mut Simulation, other: &mut TestQp) {
    let buffer = sim.hosts[1].share(&[0; 9], all_rights());
    for (id, text) in [(7, b"one"), (8, b"two")] {
        sim.run_for(100 * SECOND);
        assert_eq!(departure(sim, other), None);
        sim.hosts[1].post_recv(other, recv(id, &buffer, 9));
        sim.run_for(SECOND / 100);
        assert_eq!(outcomes(other), [received(id)]);
        assert_eq!(&buffer.content()[..3], text);
    }
    assert_nothing_parked(sim, 1);
}

/// Returns why the peer left host 1's queue pair, if that was told.
fn departure(sim: &Simulation, qp: &TestQp) -> Option<EndReason> {
    let told = sim.hosts[1].events.iter().find_map(|event| match event {
        Event::PeerLeft { qp: left, reason } if *left == qp.number => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(sim.hosts[1].end_of(qp.number), None, "it is orphaned");
    told
}

#[test]
fn a_peer_that_closes_in_order_has_its_messages_delivered() {
    let (mut sim, one, mut other) = parked();
    sim.hosts[0].command(Command::Disconnect(one.number));
    receive_both(&mut sim, &mut other);
    assert_eq!(departure(&sim, &other), Some(EndReason::Peer));
    assert_nothing_left(&mut sim);
}

#[test]
fn a_peer_that_resets_has_its_messages_delivered() {
    let (mut sim, one, mut other) = parked();
    sim.hosts[0].destroy_qp(one);
    receive_both(&mut sim, &mut other);
    assert!(departure(&sim, &other).is_some());
    assert_nothing_left(&mut sim);
}

#[test]
fn a_peer_that_falls_silent_has_its_messages_delivered() {
    let (mut sim, mut one, mut other) = parked();
    // The last ACK is lost, and so is all else.
    sim.link.set_impairments(cut_link());
    sim.hosts[0].command(Command::Abort(one.number));
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut one), []);
    receive_both_alive(&mut sim, &mut other);
}

fn receive_both_alive(sim: &mut Simulation, other: &mut TestQp) {
    for id in [7, 8] {
        let buffer = sim.hosts[1].share(&[0; 9], all_rights());
        sim.hosts[1].post_recv(other, recv(id, &buffer, 9));
    }
    sim.run_for(SECOND / 100);
    assert_eq!(outcomes(other), [received(7), received(8)]);
}

/// A request that the other side posts when its peer is gone waits for its application.
#[test]
fn a_request_behind_the_end_waits_and_keeps_no_message_away() {
    let (mut sim, one, mut other) = parked();
    sim.hosts[0].command(Command::Disconnect(one.number));
    sim.run_for(10 * SECOND);
    sim.hosts[1].post_send(&mut other, inline_send(5, b"late"));
    sim.run_for(10 * SECOND);
    assert_eq!(departure(&sim, &other), Some(EndReason::Peer));
    receive_both_alive(&mut sim, &mut other);
    sim.run_for(10 * SECOND);
    assert!(other.poll().is_empty());
    assert_given_up(&mut sim, &mut other);
    assert_eq!(sim.hosts[1].end_of(other.number), Some(EndReason::Peer));
    assert_nothing_left(&mut sim);
}

/// It may be failed while messages are parked, too.
#[test]
fn a_request_behind_the_end_can_be_given_up() {
    let (mut sim, one, mut other) = parked();
    sim.hosts[0].command(Command::Disconnect(one.number));
    sim.run_for(10 * SECOND);
    sim.hosts[1].post_send(&mut other, inline_send(5, b"late"));
    sim.run_for(10 * SECOND);
    assert_given_up(&mut sim, &mut other);
    assert_nothing_parked(&mut sim, 1);
    assert_nothing_left(&mut sim);
}

/// Gives up the request behind the end: it and nothing else completes.
fn assert_given_up(sim: &mut Simulation, qp: &mut TestQp) {
    let command = Command::FailAs {
        qp: qp.number,
        status: WcStatus::RetryExceeded,
    };
    sim.hosts[1].command(command);
    sim.run_for(SECOND);
    let done = qp.poll();
    let done: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id, done.status()))
        .collect();
    assert_eq!(done, [(5, WcStatus::RetryExceeded)]);
}

#[test]
fn a_destroyed_queue_pair_drops_what_is_parked() {
    for leaves in [false, true] {
        let (mut sim, one, other) = parked();
        if leaves {
            sim.hosts[0].command(Command::Disconnect(one.number));
            sim.run_for(100 * SECOND);
        }
        sim.hosts[1].destroy_qp(other);
        sim.run_for(SECOND);
        assert_nothing_parked(&mut sim, 1);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_queue_pair_that_fails_drops_what_is_parked() {
    for leaves in [false, true] {
        let (mut sim, one, other) = parked();
        if leaves {
            sim.hosts[0].command(Command::Disconnect(one.number));
            sim.run_for(100 * SECOND);
        }
        sim.hosts[1].command(Command::Fail(other.number));
        sim.run_for(SECOND);
        assert_eq!(ends(&sim, 1, &other), 1);
        assert_nothing_parked(&mut sim, 1);
        assert_nothing_left(&mut sim);
    }
}

/// The side that has messages parked ends in order: it does not want them.
#[test]
fn an_orderly_end_of_this_side_drops_what_is_parked() {
    let (mut sim, _one, other) = parked();
    sim.hosts[1].command(Command::Disconnect(other.number));
    sim.run_for(SECOND);
    assert_eq!(sim.hosts[1].end_of(other.number), Some(EndReason::Local));
    assert_nothing_parked(&mut sim, 1);
    assert_nothing_left(&mut sim);
}

/// Requests of the other side flow while messages are parked, and complete.
#[test]
fn the_other_direction_goes_on() {
    let (mut sim, mut one, mut other) = parked();
    sim.hosts[0].post_recv(&mut one, empty_recv(3));
    sim.hosts[1].post_send(&mut other, inline_send(4, &[]));
    sim.run_for(SECOND / 10);
    assert_eq!(
        (outcomes(&mut one), outcomes(&mut other)),
        (vec![received(3)], vec![sent(4)])
    );
}

/// A Terminate is processed at once: the peer has found an error of ours.
#[test]
fn a_terminate_ends_a_parked_stream_at_once() {
    let (mut sim, mut raw) = raw();
    say(&mut sim, &raw, send_header(1), b"parked");
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    say(&mut sim, &raw, DdpHeader::Untagged(header), &[0, 0, 0, 0]);
    let reason = sim.hosts[0].end_of(raw.qp.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateReceived { .. })),
        "{reason:?}"
    );
    assert_nothing_parked(&mut sim, 0);
    assert_eq!(outcomes(&mut raw.qp), []);
}

/// The error is found when the message has its turn, behind those in front of it.
#[test]
fn an_error_in_a_parked_message_comes_in_its_turn() {
    let (mut sim, mut one, mut other) = connected();
    let [source, sink] = memory(&sim, 100);
    sim.hosts[0].post_send(&mut one, inline_send(1, &[]));
    sim.hosts[0].post_send(&mut one, write(2, &source, sink.stag, 100));
    sim.hosts[0].post_send(&mut one, inline_send(3, &[]));
    sim.run_for(SECOND / 100);
    // The memory is revoked while the Write is parked.
    sim.hosts[1].revoke(sink.stag);
    for id in [7, 8] {
        sim.hosts[1].post_recv(&mut other, empty_recv(id));
    }
    sim.run_for(SECOND);
    let flushed = (8, WcOpcode::Recv, WcStatus::WrFlushed);
    assert_eq!(outcomes(&mut other), [received(7), flushed]);
    let reason = sim.hosts[1].end_of(other.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateSent { .. })),
        "{reason:?}"
    );
    assert_nothing_parked(&mut sim, 1);
}

/// A parked Send with Invalidate is carried out when it is received, and not before.
#[test]
fn a_parked_send_invalidates_when_it_is_received() {
    let (mut sim, mut one, mut other) = connected();
    let scope =
        rnic_core::memory::table::Scope::Stream(rnic_core::testing::simulation::PD, other.stream);
    let window = sim.hosts[1].share_with(&[0; 10], all_rights(), scope);
    let wr = SendWr {
        invalidate_stag: window.stag.0,
        ..SendWr::new(1, WrOpcode::SendInvalidate)
    };
    sim.hosts[0].post_send(&mut one, wr);
    sim.run_for(SECOND);
    assert!(sim.hosts[1].is_valid(window.stag));
    sim.hosts[1].post_recv(&mut other, empty_recv(7));
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut other), [received(7)]);
    assert!(!sim.hosts[1].is_valid(window.stag));
    assert_ne!(window.stag, Stag(0));
}

/// The wait for the peer is over after the stream has ended, while its RST cannot leave.
#[test]
fn a_stream_that_is_over_has_no_timer() {
    let (mut sim, mut one, _other) = connected();
    let (qp, rnr_retry) = (one.number, 1);
    sim.hosts[0].command(Command::SetRnrRetry { qp, rnr_retry });
    sim.hosts[0].post_send(&mut one, inline_send(1, &[]));
    sim.run_for(SECOND / 2);
    sim.hosts[0].device().set_queue_len(0);
    sim.hosts[0].command(Command::Abort(qp));
    sim.run_for(2 * SECOND);
    assert_eq!(sim.hosts[0].end_of(qp), Some(EndReason::Local));
}
