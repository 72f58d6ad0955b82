//! Associations that come up late, or only at one side.

use std::time::Duration;

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::TestQp;

use crate::common::{cut_link, empty_recv, inline_send};
use crate::{SECOND, Sessions, link, pair, sessions};

/// How long a session waits at first until its association is set up anew.
const PATIENCE: Duration = SECOND;

fn is_used(sim: &mut Sessions, (active, passive): (&mut TestQp, &mut TestQp)) {
    sim.hosts[1].post_recv(passive, empty_recv(1));
    sim.hosts[0].post_send(active, inline_send(2, b""));
    sim.run_for(SECOND / 10);
    assert_eq!(active.poll().len(), 1);
    assert_eq!(passive.poll().len(), 1);
}

/// Linux never repeats what tells a peer so, once the server has accepted it.
#[test]
fn an_association_that_is_up_at_its_server_alone_is_set_up_anew() {
    for tries in 0..3 {
        let mut sim = sessions();
        sim.hosts[1].machine().associations().leave_unheard(tries);
        let start = sim.now;
        let (mut active, mut passive) = pair(&mut sim);
        // One second, and two more.
        let expected = PATIENCE * ((1 << tries) - 1);
        let took = sim.now.since(start);
        assert!(
            (expected..expected + SECOND / 10).contains(&took),
            "{tries}: {took:?}"
        );
        is_used(&mut sim, (&mut active, &mut passive));
        for host in &sim.hosts {
            assert_eq!(host.machine().associations().count(), 1, "{tries}");
        }
    }
}

/// The server has the former one still, since it did not hear that it was given up.
#[test]
fn a_server_serves_a_peer_that_begins_again_before_any_session() {
    let mut sim = sessions();
    sim.hosts[1].machine().associations().leave_unheard(1);
    sim.hosts[1].listen(7000);
    let qp = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(7000);
    sim.hosts[0].connect(&qp, 40_001, remote, &ConnectionOptions::default());
    sim.run_for(PATIENCE / 2);
    sim.link.set_impairments(cut_link());
    sim.run_for(PATIENCE);
    sim.link.set_impairments(link());
    assert!(sim.run_until(SECOND, |sim| sim.hosts[1].connect_requests().count() == 1));
    let request = sim.hosts[1].connect_requests().last().unwrap();
    let peer = sim.hosts[1].create_qp();
    sim.hosts[1].accept(request, &peer, &ConnectionOptions::default());
    sim.run_for(SECOND / 10);
    let (mut active, mut passive) = (qp, peer);
    is_used(&mut sim, (&mut active, &mut passive));
    assert_eq!(sim.hosts[1].machine().associations().count(), 1);
}

/// Several sessions that wait for one association set it up once, and all get their place.
#[test]
fn sessions_that_wait_together_begin_again_once() {
    let mut sim = sessions();
    sim.hosts[1].machine().associations().leave_unheard(1);
    sim.hosts[1].listen(7000);
    let remote = sim.hosts[1].socket(7000);
    let mut active = Vec::new();
    for port in 0..3 {
        let qp = sim.hosts[0].create_qp();
        sim.hosts[0].connect(&qp, 40_000 + port, remote, &ConnectionOptions::default());
        active.push(qp);
        sim.run_for(PATIENCE / 4);
    }
    assert!(
        sim.run_until(SECOND * 2, |sim| sim.hosts[1].connect_requests().count()
            == 3)
    );
    assert!(sim.hosts[0].failure_of(active[0].number).is_none());
    for host in &sim.hosts {
        assert_eq!(host.machine().associations().count(), 1);
    }
}

/// Sessions that join later give it no less time.
#[test]
fn a_far_peer_answers_in_time_however_many_sessions_wait() {
    let is_asked = |sim: &mut Sessions| sim.hosts[1].connect_requests().count() > 0;
    for (others, every) in [(0, 100), (20, 500), (10, 1100), (40, 300)] {
        let mut sim = sessions();
        sim.link.set_impairments(Impairments {
            delay: Duration::from_millis(600),
            ..link()
        });
        sim.hosts[1].listen(7000);
        let (remote, start) = (sim.hosts[1].socket(7000), sim.now);
        for port in 0..=others {
            let qp = sim.hosts[0].create_qp();
            sim.hosts[0].connect(&qp, 40_000 + port, remote, &ConnectionOptions::default());
            if sim.run_until(Duration::from_millis(every), is_asked) {
                break;
            }
        }
        assert!(sim.run_until(SECOND * 4, is_asked), "{others}, {every} ms");
        let took = sim.now.since(start);
        assert!(took < SECOND * 4, "{others}, {every} ms: {took:?}");
    }
}

/// A peer that nobody hears of is given up when the connection's time is over.
#[test]
fn a_peer_that_is_never_heard_of_is_given_up_in_time() {
    let mut sim = sessions();
    sim.link.set_impairments(cut_link());
    let qp = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(7000);
    let options = ConnectionOptions::default();
    sim.hosts[0].connect(&qp, 40_001, remote, &options);
    let start = sim.now;
    assert!(sim.run_until(SECOND * 60, |sim| {
        sim.hosts[0].failure_of(qp.number).is_some()
    }));
    assert_eq!(
        sim.hosts[0].failure_of(qp.number),
        Some(EndReason::TimedOut)
    );
    let took = sim.now.since(start);
    assert!(took <= options.connect_timeout + SECOND / 10, "{took:?}");
    sim.run_for(SECOND);
    assert_eq!(sim.hosts[0].machine().associations().count(), 0);
}
