//! How long requests wait for a peer without receives.

use rnic_core::connection::{EndReason, Event};
use rnic_core::engine::Command;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::{
    status::WcStatus,
    wr::{SendWr, WcOpcode},
};
use std::time::Duration;

use crate::common::*;
use crate::scene::*;

fn set_rnr_retry(sim: &Simulation, qp: &TestQp, rnr_retry: u8) {
    let qp = qp.number;
    sim.hosts[0].command(Command::SetRnrRetry { qp, rnr_retry });
}

/// The first Send has completed and is parked at the peer; then a request waits.
fn waiting(rnr_retry: u8, request: SendWr) -> (Simulation, TestQp, TestQp) {
    let (mut sim, mut one, other) = connected();
    set_rnr_retry(&sim, &one, rnr_retry);
    sim.hosts[0].post_send(&mut one, inline_send(1, b"parked"));
    sim.run_for(SECOND / 100);
    assert_eq!(outcomes(&mut one), [sent(1)]);
    sim.hosts[0].post_send(&mut one, request);
    (sim, one, other)
}

fn exceeded(wr_id: u64) -> (u64, WcOpcode, WcStatus) {
    (wr_id, WcOpcode::Send, WcStatus::RnrRetryExceeded)
}

fn flushed(wr_id: u64) -> (u64, WcOpcode, WcStatus) {
    (wr_id, WcOpcode::Send, WcStatus::WrFlushed)
}

/// The product, and a second at least. The peer's min_rnr_timer is half a second.
#[test]
fn the_wait_ends_with_an_error_of_the_oldest_request() {
    for (rnr_retry, millis) in [(0, 1000), (1, 1000), (3, 1500), (6, 3000)] {
        let (mut sim, mut one, _other) = waiting(rnr_retry, inline_send(2, b"waits"));
        sim.hosts[0].post_send(&mut one, inline_send(3, b"too"));
        sim.run_for(Duration::from_millis(millis - 100));
        assert_eq!(outcomes(&mut one), [], "{rnr_retry}");
        sim.run_for(SECOND / 5);
        assert_eq!(outcomes(&mut one), [exceeded(2), flushed(3)], "{rnr_retry}");
        let reason = sim.hosts[0].end_of(one.number);
        assert_eq!(reason, Some(EndReason::ReceiverNotReady));
    }
}

#[test]
fn seven_means_for_ever() {
    let (mut sim, mut one, mut other) = waiting(7, inline_send(2, b"waits"));
    sim.run_for(3000 * SECOND);
    assert_eq!(outcomes(&mut one), []);
    sim.hosts[1].post_recv(
        &mut other,
        recv(7, &sim.hosts[1].share(&[0; 9], all_rights()), 9),
    );
    sim.hosts[1].post_recv(
        &mut other,
        recv(8, &sim.hosts[1].share(&[0; 9], all_rights()), 9),
    );
    sim.run_for(SECOND);
    assert_eq!(
        (outcomes(&mut one), outcomes(&mut other)),
        (vec![sent(2)], vec![received(7), received(8)])
    );
}

/// In time, the receive is posted; the next wait begins anew.
#[test]
fn each_wait_has_a_time_of_its_own() {
    let (mut sim, mut one, mut other) = waiting(0, inline_send(2, &[]));
    for round in 0..5 {
        sim.run_for(SECOND * 9 / 10);
        sim.hosts[1].post_recv(
            &mut other,
            recv(round, &sim.hosts[1].share(&[0; 9], all_rights()), 9),
        );
        sim.run_for(SECOND / 100);
        sim.hosts[0].post_send(&mut one, inline_send(3 + round, &[]));
        sim.run_for(SECOND / 100);
    }
    assert_eq!(outcomes(&mut other).len(), 5);
    assert_eq!(outcomes(&mut one).len(), 5);
    assert!(sim.hosts[0].end_of(one.number).is_none());
}

/// Nothing is unfinished when the time is over: the next request fails, if the peer is not ready
/// then.
#[test]
fn a_request_that_is_posted_too_late_fails() {
    for ready in [false, true] {
        let (mut sim, mut one, mut other) = connected();
        set_rnr_retry(&sim, &one, 1);
        sim.hosts[0].post_send(&mut one, inline_send(1, b"parked"));
        sim.run_for(60 * SECOND);
        assert_eq!(outcomes(&mut one), [sent(1)]);
        assert!(sim.hosts[0].end_of(one.number).is_none());
        if ready {
            let buffer = sim.hosts[1].share(&[0; 9], all_rights());
            sim.hosts[1].post_recv(&mut other, recv(7, &buffer, 9));
            sim.run_for(SECOND);
        }
        sim.hosts[0].post_send(&mut one, inline_send(2, &[]));
        sim.hosts[0].post_send(&mut one, inline_send(3, &[]));
        sim.run_for(SECOND / 10);
        let expected = match ready {
            true => [sent(2), sent(3)],
            false => [exceeded(2), flushed(3)],
        };
        assert_eq!(outcomes(&mut one), expected);
        assert_eq!(sim.hosts[0].end_of(one.number).is_some(), !ready);
    }
}

/// The Read Request is parked at the peer: it is the oldest request that is not finished.
#[test]
fn a_request_that_has_begun_may_be_the_one_that_fails() {
    let (mut sim, mut one, _other) = connected();
    set_rnr_retry(&sim, &one, 2);
    let [near, far] = memory(&sim, 100);
    sim.hosts[0].post_send(&mut one, inline_send(1, b"parked"));
    sim.hosts[0].post_send(&mut one, read(2, &near, far.stag, 100));
    sim.run_for(SECOND / 100);
    sim.hosts[0].post_send(&mut one, inline_send(3, &[]));
    sim.run_for(2 * SECOND);
    let failed = (2, WcOpcode::Read, WcStatus::RnrRetryExceeded);
    assert_eq!(outcomes(&mut one), [sent(1), failed, flushed(3)]);
}

/// What the peer has parked is delivered, although its sender has given up.
#[test]
fn parked_messages_outlive_a_requester_that_gave_up() {
    let (mut sim, mut one, mut other) = waiting(0, inline_send(2, b"waits"));
    sim.run_for(30 * SECOND);
    assert_eq!(outcomes(&mut one), [exceeded(2)]);
    assert_eq!(outcomes(&mut other), []);
    let buffer = sim.hosts[1].share(&[0; 9], all_rights());
    sim.hosts[1].post_recv(&mut other, recv(7, &buffer, 9));
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut other), [received(7)]);
    assert_eq!(&buffer.content()[..6], b"parked");
    assert_nothing_left(&mut sim);
}

/// It may be set at any time: before the connection, and while requests wait.
#[test]
fn rnr_retry_can_be_set_at_any_time() {
    let mut sim = quiet();
    let (mut one, other) = (sim.hosts[0].create_qp(), sim.hosts[1].create_qp());
    set_rnr_retry(&sim, &one, 0);
    assert!(sim.connect_pair(&one, &other, &rc(), &rc()));
    sim.hosts[0].post_send(&mut one, inline_send(1, &[]));
    sim.hosts[0].post_send(&mut one, inline_send(2, &[]));
    sim.run_for(SECOND / 2);
    set_rnr_retry(&sim, &one, 7);
    sim.run_for(10 * SECOND);
    sim.hosts[0].post_send(&mut one, inline_send(3, &[]));
    sim.run_for(SECOND / 10);
    assert_eq!(outcomes(&mut one), [sent(1), sent(2)]);
    set_rnr_retry(&sim, &one, 6);
    sim.run_for(4 * SECOND);
    assert_eq!(outcomes(&mut one), [exceeded(3)]);
    let events = &sim.hosts[0].events;
    assert!(matches!(events.last(), Some(Event::Disconnected { .. })));
}

/// The time is over with nothing unfinished, and then is made longer.
#[test]
fn a_longer_wait_takes_back_that_the_next_request_fails() {
    let (mut sim, mut one, mut other) = connected();
    set_rnr_retry(&sim, &one, 0);
    sim.hosts[0].post_send(&mut one, inline_send(1, &[]));
    sim.run_for(2 * SECOND);
    set_rnr_retry(&sim, &one, 7);
    sim.hosts[0].post_send(&mut one, inline_send(2, &[]));
    sim.run_for(100 * SECOND);
    assert_eq!(outcomes(&mut one), [sent(1)]);
    for id in [7, 8] {
        sim.hosts[1].post_recv(&mut other, empty_recv(id));
    }
    sim.run_for(SECOND);
    assert_eq!(outcomes(&mut one), [sent(2)]);
}
