//! A peer cannot take all transmit frames from others, whether it vanishes, stops acknowledging,
//! closes its window for good or has its segments cut. A connection that ends gives its frames back
//! at once.

mod common;

use std::time::Duration;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::status::WcStatus;
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::icmp::TooBig;

/// Octets of ten segments, all that a new connection sends at first.
const TEN_SEGMENTS: usize = 14_000;

/// Enough to make a congestion window grow beyond all frames of these tests.
const MUCH: usize = 1_000_000;

/// Time for a hundred rounds of some octets to a healthy peer, over a path of 0.1 ms.
const SOON: Duration = Duration::from_secs(2);

/// Makes two hosts, the first with so many frames, and a connection between them.
struct Scene {
    sim: Simulation,
    qp: TestQp,
    source: SharedRegion,
    target: SharedRegion,
    next: u64,
}

impl Scene {
    fn new(frames: usize) -> Self {
        let mut sim = simulation();
        sim.hosts[0].set_frames(frames);
        let (qp, _) = sim.connect(&ConnectionOptions::default()).unwrap();
        let source = sim.hosts[0].share(&vec![7; MUCH], all_rights());
        let target = sim.hosts[1].share(&vec![0; MUCH], all_rights());
        Self {
            sim,
            qp,
            source,
            target,
            next: 0,
        }
    }

    /// Adds a raw peer that has acknowledged everything so far.
    fn peer(&mut self) -> RawConnection {
        let raw = accept_raw(&mut self.sim, &ConnectionOptions::default());
        self.sim.raw[raw.peer].send_ddp(nothing(), &[]);
        self.sim.run_now();
        raw
    }

    /// Adds a raw peer that has received so much that the congestion window is no limit any more.
    fn trusted_peer(&mut self) -> RawConnection {
        let mut raw = self.peer();
        self.send(&mut raw, MUCH);
        let sent = completions(&mut self.sim, &mut raw.qp, 1, SECOND);
        assert_eq!(sent[0].status(), WcStatus::Success);
        raw
    }

    fn send(&mut self, raw: &mut RawConnection, octets: usize) {
        let request = write(1, &self.source, Stag(0x1234), octets);
        self.sim.hosts[0].post_send(&mut raw.qp, request);
        self.sim.run_now();
    }

    fn in_use(&self) -> usize {
        self.sim.hosts[0].frames_in_use()
    }

    /// Checks that the two hosts exchange data.
    #[track_caller]
    fn others_move(&mut self) {
        for octets in [100, TEN_SEGMENTS, 10 * TEN_SEGMENTS] {
            self.next += 1;
            let request = write(self.next, &self.source, self.target.stag, octets);
            self.sim.hosts[0].post_send(&mut self.qp, request);
            let mut done = Vec::new();
            let moved = self.sim.run_until(SOON, |_| {
                done.extend(self.qp.poll());
                !done.is_empty()
            });
            let in_use = self.in_use();
            assert!(moved, "{octets} octets wait; {in_use} frames are in use");
            assert_eq!(outcome(&done[0]).2, WcStatus::Success);
        }
    }

    #[track_caller]
    fn nothing_is_left(mut self) {
        self.sim.hosts[0].command(Command::Disconnect(self.qp.number));
        assert_nothing_left(&mut self.sim);
    }
}

fn vanished_peers(scene: &mut Scene, count: usize) -> Vec<RawConnection> {
    let mut peers: Vec<_> = (0..count).map(|_| scene.peer()).collect();
    for raw in &mut peers {
        scene.sim.raw[raw.peer].acknowledges = false;
        scene.send(raw, TEN_SEGMENTS);
    }
    peers
}

#[test]
fn peers_that_vanish_leave_frames_to_others() {
    let mut scene = Scene::new(512);
    let peers = vanished_peers(&mut scene, 48);
    scene.sim.run_for(SECOND * 5);
    scene.others_move();
    scene.sim.run_for(SECOND * 600);
    for raw in &peers {
        let reason = scene.sim.hosts[0].end_of(raw.qp.number);
        assert_eq!(reason, Some(EndReason::TimedOut));
    }
    scene.others_move();
    scene.nothing_is_left();
}

#[test]
fn aborted_and_destroyed_connections_give_their_frames_back_at_once() {
    let mut scene = Scene::new(512);
    let peers = vanished_peers(&mut scene, 48);
    scene.sim.run_for(SECOND * 5);
    for raw in peers {
        match raw.peer % 2 {
            0 => scene.sim.hosts[0].command(Command::Abort(raw.qp.number)),
            _ => scene.sim.hosts[0].destroy_qp(raw.qp),
        }
    }
    scene.sim.run_now();
    assert_eq!(scene.in_use(), 0);
    assert!(scene.sim.raw.iter().all(|peer| peer.reset));
    scene.others_move();
    scene.nothing_is_left();
}

/// Their RSTs wait for room in the device, but do not keep frames.
#[test]
fn aborted_connections_end_though_the_device_is_stuck() {
    let mut scene = Scene::new(128);
    let peers = vanished_peers(&mut scene, 8);
    scene.sim.hosts[0].device().set_queue_len(0);
    for raw in &peers {
        scene.sim.hosts[0].command(Command::Abort(raw.qp.number));
    }
    scene.sim.run_now();
    assert_eq!(scene.in_use(), 0);
    scene.sim.run_for(SECOND * 60);
    let now = scene.sim.now;
    assert_eq!(scene.sim.hosts[0].snapshot(now).connections.len(), 1);
    scene.sim.hosts[0].device().set_queue_len(usize::MAX);
    scene.others_move();
    scene.nothing_is_left();
}

/// Nothing was sent by the device, so nothing came back: the timeouts apply all the same.
#[test]
fn connections_end_by_their_timeouts_though_the_device_is_stuck() {
    for user_timeout in [None, Some(SECOND * 20)] {
        let mut scene = Scene::new(128);
        let options = ConnectionOptions {
            user_timeout,
            ..ConnectionOptions::default()
        };
        let mut raw = accept_raw(&mut scene.sim, &options);
        scene.sim.raw[raw.peer].send_ddp(nothing(), &[]);
        scene.sim.run_now();
        scene.sim.raw[raw.peer].acknowledges = false;
        scene.sim.hosts[0].device().hold();
        scene.send(&mut raw, TEN_SEGMENTS);
        scene.sim.hosts[0].device().set_queue_len(0);
        scene.sim.run_for(SECOND * 600);
        assert_eq!(
            scene.sim.hosts[0].end_of(raw.qp.number),
            Some(EndReason::TimedOut),
            "{user_timeout:?}"
        );
        let device = scene.sim.hosts[0].device();
        device.complete();
        device.set_queue_len(usize::MAX);
        scene.sim.run_for(SECOND * 10);
        assert_eq!(scene.in_use(), 0);
    }
}

/// An ICMP message reports a smaller path MTU, and everything in flight has to be cut.
#[test]
fn a_packet_too_big_costs_no_frames() {
    let mut scene = Scene::new(128);
    let mut raw = scene.trusted_peer();
    scene.sim.raw[raw.peer].acknowledges = false;
    scene.send(&mut raw, MUCH / 2);
    let held = scene.in_use();
    assert!(held >= 90, "{held}");
    let peer = &scene.sim.raw[raw.peer];
    let too_big = TooBig {
        local: peer.host_address(),
        remote: peer.address(),
        seq: peer.rcv_nxt() - 1,
        mtu: 576,
    };
    let now = scene.sim.now;
    scene.sim.hosts[0].handle_too_big(now, &too_big);
    scene.sim.run_now();
    assert_eq!(scene.in_use(), held, "they were cut in place");
    scene.others_move();
    scene.sim.raw[raw.peer].acknowledges = true;
    scene.sim.raw[raw.peer].acknowledge();
    let sent = completions(&mut scene.sim, &mut raw.qp, 1, SECOND * 10);
    assert_eq!(sent[0].status(), WcStatus::Success);
}

/// It answers every probe, so that its connection lasts as long as it likes.
#[test]
fn a_reader_that_closes_its_window_for_good_starves_nobody() {
    let mut scene = Scene::new(64);
    let mut raw = scene.trusted_peer();
    scene.sim.raw[raw.peer].window = 0;
    scene.send(&mut raw, MUCH / 2);
    scene.others_move();
    scene.sim.run_for(SECOND * 3 * 3600);
    assert_eq!(scene.sim.hosts[0].end_of(raw.qp.number), None);
    scene.others_move();
    scene.sim.raw[raw.peer].window = u16::MAX;
    scene.sim.raw[raw.peer].acknowledge();
    // The peer drops what is ahead of order, so that each loss costs a timeout.
    let sent = completions(&mut scene.sim, &mut raw.qp, 1, SECOND * 3600);
    assert_eq!(sent[0].status(), WcStatus::Success);
    assert_eq!(scene.in_use(), 0);
}

/// Half of them have peers that never acknowledge anything.
#[test]
fn more_connections_than_frames_move_each() {
    let mut scene = Scene::new(64);
    let source = scene.sim.hosts[0].share(&vec![7; TEN_SEGMENTS], all_rights());
    let options = ConnectionOptions::default();
    let mut pairs: Vec<_> = (0..100)
        .map(|_| scene.sim.connect(&options).unwrap().0)
        .collect();
    let silent = vanished_peers(&mut scene, 100);
    for qp in &mut pairs {
        for id in 0..3 {
            let request = write(id, &source, scene.target.stag, TEN_SEGMENTS);
            scene.sim.hosts[0].post_send(qp, request);
        }
    }
    // Group after group finds out that its peers are silent.
    let limit = SECOND * 20;
    for qp in &mut pairs {
        completions(&mut scene.sim, qp, 3, limit);
        scene.sim.hosts[0].command(Command::Disconnect(qp.number));
    }
    for raw in silent {
        scene.sim.hosts[0].destroy_qp(raw.qp);
    }
    scene.nothing_is_left();
}

#[test]
fn an_outage_is_survived_by_more_connections_than_there_are_frames_for() {
    for seconds in [15, 60] {
        let mut sim = simulation();
        sim.hosts[0].set_frames(512);
        let source = sim.hosts[0].share(&vec![7; MUCH], all_rights());
        let target = sim.hosts[1].share(&vec![0; MUCH], all_rights());
        let options = ConnectionOptions::default();
        let pairs: Option<Vec<_>> = (0..64).map(|_| sim.connect(&options)).collect();
        let mut pairs = pairs.unwrap();
        for (qp, _) in &mut pairs {
            let request = write(1, &source, target.stag, MUCH / 4);
            sim.hosts[0].post_send(qp, request);
        }
        sim.run_for(Duration::from_millis(2));
        assert!(sim.hosts[0].frames_in_use() >= 480);
        sim.link.set_impairments(cut_link());
        sim.run_for(SECOND * seconds);
        sim.link.set_impairments(Impairments {
            delay: Duration::from_micros(50),
            ..Impairments::default()
        });
        for (qp, _) in &mut pairs {
            let sent = completions(&mut sim, qp, 1, SECOND * 150);
            assert_eq!(sent[0].status(), WcStatus::Success, "{seconds} s");
            sim.hosts[0].command(Command::Disconnect(qp.number));
        }
        assert_nothing_left(&mut sim);
    }
}
