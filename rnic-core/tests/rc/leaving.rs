//! A queue pair that leaves: its peer gets the acknowledgment of all that was delivered.

use std::time::Duration;

use rnic_core::connection::EndReason;
use rnic_core::engine::Command;
use rnic_core::ids::QpNumber;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::status::WcStatus::{RetryExceeded, Success, WrFlushed};
use rnic_core::verbs::wr::WcOpcode::{Recv, Send};

use crate::common::*;
use crate::scene::*;

/// Each way of leaving that is no Terminate.
const WAYS: [fn(QpNumber) -> Command; 3] = [Command::DestroyQp, Command::Fail, Command::Abort];

/// Two messages are delivered, and their receiver leaves in the same turn.
fn deliver_and_leave(
    sim: &mut Simulation,
    active: &mut TestQp,
    passive: &mut TestQp,
    leave: fn(QpNumber) -> Command,
) {
    for id in 1..=2 {
        sim.hosts[1].post_recv(passive, empty_recv(id));
    }
    sim.hosts[0].post_recv(active, empty_recv(50));
    sim.hosts[0].post_send(active, inline_send(1, b""));
    sim.hosts[0].post_send(active, inline_send(2, b""));
    let mut received = Vec::new();
    assert!(sim.run_until(SECOND, |_| {
        received.extend(outcomes(passive));
        received.len() == 2
    }));
    sim.hosts[1].command(leave(passive.number));
    sim.run_for(SECOND);
}

/// The receiver takes a message and leaves in the same turn: before its ACK.
#[test]
fn a_message_that_was_delivered_succeeds_although_the_receiver_leaves() {
    for leave in WAYS {
        let (mut sim, mut active, mut passive) = connected();
        deliver_and_leave(&mut sim, &mut active, &mut passive, leave);
        let sent = [(1, Send, Success), (2, Send, Success)];
        assert_eq!(outcomes(&mut active), sent);
        assert_orphaned(&sim, 0, &mut active, &EndReason::Peer);
        sim.hosts[0].destroy_qp(active);
        assert_nothing_left(&mut sim);
    }
}

/// What comes when the queue pair has left is not acknowledged: nobody has it.
#[test]
#[cfg_attr(carrier_sockets, ignore = "acknowledges only what was delivered")]
fn what_was_not_delivered_fails() {
    for leave in WAYS {
        let mut sim = rc_hosts();
        let mut raw = with_raw_peer(&mut sim);
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(50));
        let delivered = {
            sim.raw[raw.peer].send_ddp(send_header(1), &[]);
            sim.run_now();
            sim.raw[raw.peer].acknowledged
        };
        assert_eq!(outcomes(&mut raw.qp), [(50, Recv, Success)]);
        sim.hosts[0].command(leave(raw.qp.number));
        sim.run_now();
        assert!(sim.raw[raw.peer].finished);
        assert!(!sim.raw[raw.peer].reset);
        assert_eq!(sim.raw[raw.peer].acknowledged, delivered);
        sim.raw[raw.peer].send_ddp(send_header(2), &[]);
        sim.run_now();
        assert!(sim.raw[raw.peer].reset);
        assert_eq!(sim.raw[raw.peer].acknowledged, delivered);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_sender_whose_message_came_too_late_is_told() {
    let (mut sim, mut active, passive) = connected();
    sim.hosts[0].post_recv(&mut active, empty_recv(50));
    sim.hosts[1].command(Command::DestroyQp(passive.number));
    sim.hosts[1].turn_with(sim.now, std::iter::empty());
    // The FIN above is lost, and comes again.
    for id in 1..=2 {
        sim.hosts[0].post_send(&mut active, inline_send(id, b""));
    }
    sim.run_for(SECOND * 10);
    give_up(&mut sim, 0, &active);
    let wanted = [
        (1, Send, RetryExceeded),
        (2, Send, WrFlushed),
        (50, Recv, WrFlushed),
    ];
    assert_eq!(outcomes(&mut active), wanted);
    assert_nothing_left(&mut sim);
}

/// The frames of a message that was begun go out, its memory may be gone, and the rest is not sent.
#[test]
fn a_message_that_was_begun_is_not_finished() {
    let (mut sim, mut active, mut passive) = connected();
    let data = pattern(4_000_000);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    sim.hosts[1].post_recv(&mut passive, empty_recv(50));
    sim.hosts[0].post_send(&mut active, write(1, &source, target.stag, data.len()));
    sim.run_for(Duration::from_micros(200));
    sim.hosts[0].command(Command::DestroyQp(active.number));
    sim.run_for(Duration::from_micros(1));
    source.region.write(0, &vec![0xff; data.len()]).unwrap();
    sim.hosts[0].revoke(source.stag);
    sim.run_for(SECOND * 10);
    assert_orphaned(&sim, 1, &mut passive, &EndReason::CutOff);
    let arrived = target.content();
    let len = arrived
        .iter()
        .zip(&data)
        .take_while(|(a, b)| a == b)
        .count();
    assert!(len > 1000 && len < data.len(), "{len}");
    assert!(arrived[len..].iter().all(|octet| *octet == 0));
    sim.hosts[1].destroy_qp(passive);
    assert_nothing_left(&mut sim);
}

#[test]
fn a_peer_that_says_nothing_is_reset_after_some_time() {
    let mut sim = rc_hosts();
    let raw = with_raw_peer(&mut sim);
    sim.raw[raw.peer].acknowledges = false;
    sim.hosts[0].command(Command::DestroyQp(raw.qp.number));
    sim.run_for(SECOND * 4);
    assert!(sim.raw[raw.peer].finished && !sim.raw[raw.peer].reset);
    sim.run_for(SECOND * 4);
    assert!(sim.raw[raw.peer].reset);
    assert_nothing_left(&mut sim);
}

/// Nothing is changed for others.
#[test]
fn a_connection_without_rc_is_reset() {
    for leave in WAYS {
        let mut sim = rc_hosts();
        let raw = accept_raw(&mut sim, &Default::default());
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.run_now();
        sim.hosts[0].command(leave(raw.qp.number));
        sim.run_now();
        assert!(sim.raw[raw.peer].reset && !sim.raw[raw.peer].finished);
    }
}

/// The RST of a receiver that takes a message and leaves in the same turn acknowledges the message:
/// so it is on all connections.
#[test]
fn a_message_that_a_reset_acknowledges_succeeds_without_rc_too() {
    for leave in WAYS {
        let mut sim = rc_hosts();
        let (mut active, mut passive) = sim.connect(&Default::default()).unwrap();
        deliver_and_leave(&mut sim, &mut active, &mut passive, leave);
        let wanted = [
            (1, Send, Success),
            (2, Send, Success),
            (50, Recv, WrFlushed),
        ];
        assert_eq!(outcomes(&mut active), wanted);
        assert_nothing_left(&mut sim);
    }
}
