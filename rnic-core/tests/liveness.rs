//! Peers that vanish: requests fail, if keepalive is on.

mod common;

use std::time::Duration;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::tcp::Keepalive;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::status::WcStatus;

/// Makes a Read whose request was acknowledged, to a peer that sends nothing more.
fn read_from_a_peer_that_vanished(options: &ConnectionOptions) -> (Simulation, RawConnection) {
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, options);
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    let sink = sim.hosts[0].share(&[0; 100], all_rights());
    let request = read(1, &sink, rnic_core::wire::ddp::Stag(0x1234), 100);
    sim.hosts[0].post_send(&mut raw.qp, request);
    sim.run_now();
    assert!(sim.raw[raw.peer].take_ddp().is_some(), "the peer is asked");
    sim.raw[raw.peer].acknowledges = false;
    (sim, raw)
}

#[test]
fn a_read_from_a_peer_that_vanished_fails_with_keepalive() {
    let options = ConnectionOptions {
        keepalive: Some(Keepalive {
            idle: SECOND * 60,
            interval: SECOND * 10,
            count: 3,
        }),
        ..ConnectionOptions::default()
    };
    let (mut sim, mut raw) = read_from_a_peer_that_vanished(&options);
    let started = sim.now;
    let failed = completions(&mut sim, &mut raw.qp, 1, SECOND * 100);
    assert_eq!(failed[0].wr_id, 1);
    assert_ne!(failed[0].status(), WcStatus::Success);
    assert_eq!(
        sim.hosts[0].end_of(raw.qp.number),
        Some(EndReason::TimedOut)
    );
    let waited = sim.now.since(started);
    assert!(
        waited.abs_diff(SECOND * 90) < Duration::from_millis(1),
        "{waited:?}"
    );
    assert_nothing_left(&mut sim);
}

#[test]
fn without_keepalive_a_read_waits_for_ever() {
    let (mut sim, mut raw) = read_from_a_peer_that_vanished(&ConnectionOptions::default());
    sim.run_for(SECOND * 3600 * 24);
    assert_eq!(outcomes(&mut raw.qp), []);
    assert_eq!(sim.hosts[0].end_of(raw.qp.number), None);
}

#[test]
fn a_send_that_nobody_acknowledges_fails_after_the_user_timeout() {
    for active in [true, false] {
        let mut sim = simulation();
        let options = ConnectionOptions {
            user_timeout: Some(SECOND * 2),
            ..ConnectionOptions::default()
        };
        let mut raw = if active {
            connect_raw(&mut sim, &options)
        } else {
            accept_raw(&mut sim, &options)
        };
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.run_for(SECOND);
        sim.raw[raw.peer].acknowledges = false;
        sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"anybody there?"));
        let started = sim.now;
        completions(&mut sim, &mut raw.qp, 1, SECOND * 10);
        let waited = sim.now.since(started);
        assert!(
            waited.abs_diff(SECOND * 2) < Duration::from_millis(1),
            "{waited:?}"
        );
        assert_eq!(
            sim.hosts[0].end_of(raw.qp.number),
            Some(EndReason::TimedOut)
        );
    }
}

#[test]
fn patience_ends_a_connection_to_a_peer_that_vanished() {
    let (mut sim, mut raw) =
        read_from_a_peer_that_vanished(&ConnectionOptions::with_patience(SECOND * 9));
    let started = sim.now;
    completions(&mut sim, &mut raw.qp, 1, SECOND * 100);
    assert_eq!(
        sim.hosts[0].end_of(raw.qp.number),
        Some(EndReason::TimedOut)
    );
    let waited = sim.now.since(started);
    assert!(
        waited.abs_diff(SECOND * 9) < Duration::from_millis(1),
        "{waited:?}"
    );
}
