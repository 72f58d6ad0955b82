//! Peers that vanish or are silent: each session has its own patience.

use std::time::Duration;

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::tcp::Keepalive;
use rnic_core::testing::simulation::TestQp;

use crate::common::{cut_link, empty_recv, inline_send};
use crate::{SECOND, Sessions, link, pair, sessions};

const PROBES: Keepalive = Keepalive {
    idle: SECOND,
    interval: Duration::from_millis(100),
    count: 3,
};

fn connect(sim: &mut Sessions, options: &ConnectionOptions) -> (TestQp, TestQp) {
    sim.connect(options).unwrap()
}

/// Returns when the queue pair of a host has ended, counted from now on.
fn time_of_end(sim: &mut Sessions, host: usize, qp: &TestQp) -> Duration {
    let (start, number) = (sim.now, qp.number);
    assert!(sim.run_until(SECOND * 60, |sim| sim.hosts[host].end_of(number).is_some()));
    assert_eq!(sim.hosts[host].end_of(number), Some(EndReason::TimedOut));
    sim.now.since(start)
}

/// The clock is then where something happens next: a retransmission.
fn is_about(time: Duration, expected: Duration) {
    let late = expected + Duration::from_millis(30);
    assert!((expected..late).contains(&time), "{time:?}");
}

/// The virtual kernel's own patience is four seconds.
#[test]
fn a_session_fails_after_its_user_timeout() {
    for timeout in [SECOND, SECOND * 10] {
        let mut sim = sessions();
        let options = ConnectionOptions {
            user_timeout: Some(timeout),
            ..ConnectionOptions::default()
        };
        let (mut patient, _) = pair(&mut sim);
        let (mut hasty, _hasty_peer) = connect(&mut sim, &options);
        assert_eq!(sim.hosts[0].machine().associations().count(), 1);
        sim.run_for(SECOND);
        sim.link.set_impairments(cut_link());
        sim.hosts[0].post_send(&mut hasty, inline_send(1, b"lost"));
        sim.hosts[0].post_send(&mut patient, inline_send(2, b"lost"));
        is_about(time_of_end(&mut sim, 0, &hasty), timeout);
        // The others go on trying.
        assert_eq!(sim.hosts[0].end_of(patient.number), None);
        time_of_end(&mut sim, 0, &patient);
    }
}

/// What a patient session had asked for ends with it, or when it asks for less.
#[test]
fn an_association_is_as_patient_as_its_sessions() {
    let options = |timeout| ConnectionOptions {
        user_timeout: Some(timeout),
        ..ConnectionOptions::default()
    };
    let tries = |sim: &Sessions| sim.hosts[0].machine().associations().tries(0);
    let mut sim = sessions();
    let _plain = pair(&mut sim);
    let own = tries(&sim);
    let (longest, _longest_peer) = connect(&mut sim, &options(SECOND * 100));
    let (longer, _longer_peer) = connect(&mut sim, &options(SECOND * 10));
    sim.run_for(SECOND);
    assert!(tries(&sim) > 20 * own, "{} {own}", tries(&sim));
    sim.hosts[0].command(Command::Disconnect(longest.number));
    sim.run_for(SECOND);
    assert!(
        (2 * own..4 * own).contains(&tries(&sim)),
        "{} {own}",
        tries(&sim)
    );
    sim.hosts[0].command(Command::SetUserTimeout {
        qp: longer.number,
        user_timeout: None,
    });
    sim.run_for(SECOND);
    assert_eq!(tries(&sim), own);
}

#[test]
fn acknowledgments_begin_the_user_timeout_anew() {
    let mut sim = sessions();
    let options = ConnectionOptions {
        user_timeout: Some(SECOND),
        ..ConnectionOptions::default()
    };
    let (mut qp, mut peer) = connect(&mut sim, &options);
    for id in 0..4 {
        sim.hosts[1].post_recv(&mut peer, empty_recv(id));
        sim.hosts[0].post_send(&mut qp, inline_send(id, b""));
        sim.run_for(SECOND * 2 / 3);
    }
    assert_eq!(qp.poll().len(), 4);
    assert_eq!(sim.hosts[0].end_of(qp.number), None);
    sim.run_for(SECOND * 5);
    assert_eq!(sim.hosts[0].end_of(qp.number), None);
}

#[test]
fn a_silent_peer_is_probed_and_one_that_is_gone_is_found_out() {
    let mut sim = sessions();
    let options = ConnectionOptions {
        keepalive: Some(PROBES),
        ..ConnectionOptions::default()
    };
    let (mut patient, mut patient_peer) = pair(&mut sim);
    let (qp, _peer) = connect(&mut sim, &options);
    let probes = |sim: &Sessions| sim.hosts[0].machine().associations().probes();
    // While another session hears the peer, nobody need ask.
    for id in 0..10 {
        sim.hosts[1].post_recv(&mut patient_peer, empty_recv(id));
        sim.hosts[0].post_send(&mut patient, inline_send(id, b""));
        sim.run_for(SECOND / 2);
    }
    assert_eq!(probes(&sim), 0);
    sim.run_for(SECOND * 10);
    assert!((5..=10).contains(&probes(&sim)), "{}", probes(&sim));
    assert_eq!(sim.hosts[0].end_of(qp.number), None);
    sim.link.set_impairments(cut_link());
    let before = probes(&sim);
    let time = time_of_end(&mut sim, 0, &qp);
    // It was silent already, for up to the time between two probes.
    let whole = PROBES.idle + PROBES.interval * PROBES.count.into();
    assert!((PROBES.interval * 3..=whole).contains(&time), "{time:?}");
    assert_eq!(probes(&sim) - before, PROBES.count.into());
    assert_eq!(sim.hosts[0].end_of(patient.number), None);
    assert_eq!(patient.poll().len(), 10);
}

/// The next session is not to wait for the same peer in vain.
#[test]
fn an_association_that_a_session_gave_up_is_not_for_others() {
    let mut sim = sessions();
    let options = ConnectionOptions {
        user_timeout: Some(SECOND / 10),
        ..ConnectionOptions::default()
    };
    let _patient = pair(&mut sim);
    let (mut hasty, _peer) = connect(&mut sim, &options);
    sim.link.set_impairments(cut_link());
    sim.hosts[0].post_send(&mut hasty, inline_send(1, b"lost"));
    time_of_end(&mut sim, 0, &hasty);
    sim.link.set_impairments(link());
    pair(&mut sim);
    assert_eq!(sim.hosts[0].machine().associations().count(), 2);
}
