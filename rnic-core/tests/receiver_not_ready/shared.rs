//! Streams that wait for receives of one shared queue.

use rnic_core::testing::simulation::{QpSettings, Simulation, TestQp, TestSrq};
use rnic_core::verbs::srq::SrqLimit;

use crate::common::*;
use crate::scene::*;

/// Host 1 with a shared receive queue and three queue pairs on it, each connected to one of host 0.
struct Scene {
    sim: Simulation,
    srq: TestSrq,
    pairs: Vec<(TestQp, TestQp)>,
}

fn scene() -> Scene {
    let mut sim = quiet();
    let srq = sim.hosts[1].create_srq(64, 8);
    let pairs = (0..3).map(|_| {
        let active = sim.hosts[0].create_qp();
        let passive = sim.hosts[1].create_qp_on(&srq, QpSettings::default());
        assert!(sim.connect_pair(&active, &passive, &rc(), &rc()));
        (active, passive)
    });
    let pairs = pairs.collect();
    Scene { sim, srq, pairs }
}

impl Scene {
    fn send(&mut self, pair: usize, id: u64) {
        let wr = inline_send(id, &[]);
        self.sim.hosts[0].post_send(&mut self.pairs[pair].0, wr);
        self.sim.run_for(SECOND / 100);
    }

    fn post(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.sim.hosts[1].post_shared(&mut self.srq, empty_recv(id));
        }
        self.sim.run_for(SECOND / 100);
    }

    /// Returns which receives each stream has got since the last call.
    fn received(&mut self) -> Vec<Vec<u64>> {
        let ids = |qp: &mut TestQp| qp.poll().iter().map(|done| done.wr_id).collect();
        self.pairs
            .iter_mut()
            .map(|(_, passive)| ids(passive))
            .collect()
    }
}

#[test]
fn a_dry_queue_serves_the_streams_that_wait_in_turn() {
    let mut scene = scene();
    for (pair, messages) in [(1, 3), (0, 1), (2, 2)] {
        for id in 0..messages {
            scene.send(pair, id);
        }
    }
    assert_eq!(counters(&mut scene.sim, 1).streams_parked_now, 3);
    assert_eq!(scene.received(), [vec![], vec![], vec![]] as [Vec<u64>; 3]);
    // The first to be parked is served first, with one receive.
    scene.post([10]);
    assert_eq!(scene.received(), [vec![], vec![10], vec![]]);
    scene.post([11, 12]);
    assert_eq!(scene.received(), [vec![11], vec![], vec![12]]);
    // The peers were told to wait: what they had not sent came when they were let on, behind.
    scene.post(13..20);
    let rest = scene.received();
    let counts: Vec<usize> = rest.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 2, 1], "{rest:?}");
    assert_nothing_parked(&mut scene.sim, 1);
    assert_eq!(scene.srq.posted(), 4);
    // Nobody waits any more: a message takes what is there.
    scene.send(0, 9);
    assert_eq!(scene.received()[0], [16]);
}

#[test]
fn a_stream_that_is_over_waits_no_more() {
    let mut scene = scene();
    for pair in 0..3 {
        scene.send(pair, 0);
    }
    let destroyed = scene.pairs.remove(0).1;
    scene.sim.hosts[1].destroy_qp(destroyed);
    let failed = scene.pairs[0].1.number;
    scene.sim.hosts[1].command(rnic_core::engine::Command::Fail(failed));
    scene.sim.run_for(SECOND / 100);
    let counters = counters(&mut scene.sim, 1);
    assert_eq!(counters.streams_parked_now, 1);
    scene.post([10, 11]);
    assert_eq!(scene.received(), [vec![], vec![10]]);
    assert_nothing_parked(&mut scene.sim, 1);
    assert_eq!(scene.srq.posted(), 1);
}

#[test]
fn a_stream_that_has_had_its_share_waits_until_the_limit_is_armed_anew() {
    let mut scene = scene();
    let share = |share| SrqLimit {
        left: 8,
        share: Some(share),
    };
    scene.post([10, 11, 12]);
    scene.sim.hosts[1].arm_srq(&scene.srq, share(1));
    for id in 0..2 {
        scene.send(0, id);
    }
    assert_eq!(scene.received()[0], [10]);
    assert_eq!(counters(&mut scene.sim, 1).streams_parked_now, 1);
    // There are receives for the others.
    scene.send(1, 0);
    assert_eq!(scene.received()[1], [11]);
    scene.post([13]);
    assert_eq!(scene.received()[0], []);
    scene.sim.hosts[1].arm_srq(&scene.srq, share(2));
    scene.sim.run_for(SECOND / 100);
    assert_eq!(scene.received()[0], [12]);
    assert_nothing_parked(&mut scene.sim, 1);
}

/// A queue pair that shares receives and sends: its own doorbell gives it no receive out of turn.
#[test]
fn sending_takes_no_receive_out_of_turn() {
    let mut scene = scene();
    for pair in 0..2 {
        scene.send(pair, 0);
    }
    // The bell is not rung: the engine does not know of this receive.
    let wr = inline_send(5, &[]);
    scene.sim.hosts[1].post_send(&mut scene.pairs[1].1, wr);
    scene.sim.hosts[0].post_recv(&mut scene.pairs[1].0, empty_recv(1));
    scene.post([10]);
    let got = scene.received();
    assert_eq!(got[0], [10]);
    assert_eq!(got[1], [5], "its Send");
}
