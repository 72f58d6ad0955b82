//! A connection from the port of an earlier one, which waits out its TIME-WAIT.

use crate::common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{Simulation, TestQp};

/// The port to which host 0 connects.
const SERVER: u16 = 7174;
/// The port of the first connection.
const CLIENT: u16 = 40_001;

/// Connects host 0 to host 1 and ends that in order, so that host 0 waits out its TIME-WAIT.
fn ended(sim: &mut Simulation) {
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    assert_eq!(CLIENT, 40_000 + active.number.0 as u16);
    sim.hosts[0].command(Command::Disconnect(active.number));
    let over = sim.run_until(SECOND, |sim| {
        sim.hosts[0].end_of(active.number).is_some()
            && sim.hosts[1].end_of(passive.number).is_some()
    });
    assert!(over);
}

/// Connects from the same port to one of the server's.
fn connect(sim: &mut Simulation, to: u16) -> (TestQp, TestQp) {
    let (active, passive) = (sim.hosts[0].create_qp(), sim.hosts[1].create_qp());
    let options = ConnectionOptions::default();
    let remote = sim.hosts[1].socket(to);
    let asked = sim.hosts[1].connect_requests().count();
    sim.hosts[1].listen(to);
    sim.hosts[0].connect(&active, CLIENT, remote, &options);
    let comes = sim.run_until(SECOND * 60, |sim| {
        sim.hosts[1].connect_requests().count() > asked
            || sim.hosts[0].failure_of(active.number).is_some()
    });
    assert!(comes);
    let request = sim.hosts[1].connect_requests().nth(asked);
    if let Some(request) = request {
        sim.hosts[1].accept(request, &passive, &options);
        sim.run_until(SECOND, |sim| sim.hosts[0].is_established(active.number));
    }
    (active, passive)
}

#[test]
fn another_peer_is_reached_at_once_and_the_same_one_after_a_tick() {
    let mut sim = simulation();
    ended(&mut sim);
    let ended_at = sim.now;
    let (other, _other) = connect(&mut sim, SERVER + 1);
    assert!(sim.hosts[0].is_established(other.number));
    assert!(sim.now.since(ended_at) < SECOND);
    let (mut again, mut passive) = connect(&mut sim, SERVER);
    assert!(sim.hosts[0].is_established(again.number));
    let waited = sim.now.since(ended_at);
    assert!((SECOND..SECOND * 2).contains(&waited), "{waited:?}");
    // It carries data as any other.
    let region = sim.hosts[1].share(&[0; 8], all_rights());
    sim.hosts[1].post_recv(&mut passive, recv(1, &region, 8));
    sim.hosts[0].post_send(&mut again, inline_send(2, b"anew"));
    completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(region.content(), b"anew\0\0\0\0");
    assert_eq!(sim.hosts[0].snapshot(sim.now).tcp.timeouts, 0);
}

#[test]
fn a_connection_that_lives_or_has_no_timestamps_is_not_replaced() {
    let mut sim = simulation();
    let (alive, _passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    let (second, _) = connect(&mut sim, SERVER);
    assert_eq!(
        sim.hosts[0].failure_of(second.number),
        Some(EndReason::InUse)
    );
    assert!(sim.hosts[0].end_of(alive.number).is_none());

    let mut config = EngineConfig::default();
    config.tcp.timestamps = false;
    let mut sim = Simulation::new(&config, Impairments::default(), 1);
    ended(&mut sim);
    let (second, _) = connect(&mut sim, SERVER);
    assert_eq!(
        sim.hosts[0].failure_of(second.number),
        Some(EndReason::InUse)
    );
    // The port itself is free.
    let (other, _other) = connect(&mut sim, SERVER + 1);
    assert!(sim.hosts[0].is_established(other.number));
}

/// A queue pair that is destroyed behind an orderly end does not turn that into a failure.
#[test]
fn a_destroyed_queue_pair_ends_in_order_if_all_was_sent() {
    let mut sim = simulation();
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    sim.hosts[0].command(Command::Disconnect(active.number));
    sim.hosts[0].destroy_qp(active);
    let over = sim.run_until(SECOND, |sim| sim.hosts[1].end_of(passive.number).is_some());
    assert!(over);
    assert_eq!(sim.hosts[1].end_of(passive.number), Some(EndReason::Peer));
    assert_nothing_left(&mut sim);
}
