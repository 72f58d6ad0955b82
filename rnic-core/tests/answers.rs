//! The acknowledgment of all that was on its way, with data: what every message gets that waits for its answer. It is handled
//! in a short way, in which nothing else may be forgotten that there is to do.

mod common;

use common::*;
use rnic_core::engine::ConnectionOptions;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::wr::{WcOpcode, WcStatus, send_flags};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

/// A peer that acknowledges with its answers only, to whom Sends were sent and answered already.
struct Scene {
    sim: Simulation,
    peer: usize,
    qp: TestQp,
}

impl Scene {
    fn new() -> Self {
        let mut sim = simulation();
        let qp = sim.hosts[0].create_qp();
        let peer = sim.add_raw_peer(0, RAW_PORT);
        sim.raw[peer].sack = true;
        accept_peer(&mut sim, peer, &qp, &ConnectionOptions::default());
        sim.raw[peer].send_ddp(nothing(), &[]);
        sim.run_now();
        sim.raw[peer].acknowledges = false;
        let mut scene = Self { sim, peer, qp };
        for id in 1..=3 {
            scene.sim.hosts[0].post_send(&mut scene.qp, inline_send(id, b"ask"));
            scene.sim.run_now();
            assert!(scene.sim.raw[peer].take_ddp().is_some());
            scene.sim.raw[peer].send_ddp(nothing(), &[]);
            scene.sim.run_now();
            let done = (id, WcOpcode::Send, WcStatus::Success);
            assert_eq!(outcomes(&mut scene.qp), [done]);
        }
        scene
    }

    /// Octets that the peer has sent and heard of.
    fn acknowledged(&self) -> u32 {
        self.sim.raw[self.peer].acknowledged
    }
}

/// What the peer pushes is acknowledged with the next turn, and the rest when it has waited for long enough.
#[test]
fn an_answer_that_is_not_pushed_is_acknowledged_too() {
    let mut scene = Scene::new();
    let before = scene.acknowledged();
    let ask = inline_send(4, b"ask");
    scene.sim.hosts[0].post_send(&mut scene.qp, ask);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let fpdu = peer.fpdu(&rnic_core::testing::raw_peer::ddp(nothing(), &[]));
    let len = fpdu.len() as u32;
    peer.send_ahead(0, &fpdu);
    peer.skip(len);
    scene.sim.run_for(SECOND);
    assert_eq!(scene.acknowledged(), before + len);
}

/// A request that waits for the answer to another goes as soon as that has come.
#[test]
fn a_request_behind_a_fence_goes_when_the_answer_has_come() {
    let mut scene = Scene::new();
    let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
    let host = &scene.sim.hosts[0];
    host.post_send(&mut scene.qp, read(4, &sink, Stag(0x100), 8));
    let fenced = inline_send(5, b"behind").with_flags(send_flags::SIGNALED | send_flags::FENCE);
    host.post_send(&mut scene.qp, fenced);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let (header, octets) = peer.take_ddp().expect("a Read Request");
    assert!(
        matches!(header, DdpHeader::Untagged(header) if header.queue == QueueNumber::READ_REQUEST)
    );
    assert_eq!(peer.take_ddp(), None);
    let asked = ReadRequest::parse(&octets).unwrap();
    let response = tagged(
        Opcode::ReadResponse,
        asked.sink_stag,
        asked.sink_offset.0,
        true,
    );
    peer.send_ddp(response, b"answered");
    scene.sim.run_now();
    let read = (4, WcOpcode::Read, WcStatus::Success);
    assert_eq!(outcomes(&mut scene.qp), [read]);
    assert_eq!(sink.content(), b"answered");
    let behind = scene.sim.raw[scene.peer].take_ddp().expect("what waited");
    assert_eq!(behind.1, b"behind");
}

/// What the MPA Reply waits for, here a frame, messages behind it wait for too.
#[test]
fn no_message_overtakes_the_reply_to_a_peer_that_does_not_wait_for_it() {
    let mut sim = simulation();
    let mut qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, RAW_PORT);
    // Enough for acknowledgments.
    sim.hosts[0].set_frames(8);
    sim.hosts[0].listen(RAW_PORT);
    sim.raw[peer].connect();
    sim.run_now();
    sim.raw[peer].send(&request(16));
    sim.run_now();
    let asked = last_request(&sim, 0);
    sim.hosts[0].accept(asked, &qp, &ConnectionOptions::default());
    sim.run_now();
    sim.raw[peer].send_ddp(nothing(), &[]);
    sim.hosts[0].post_send(&mut qp, inline_send(1, b"early"));
    sim.run_now();
    assert!(sim.raw[peer].received.is_empty());
    sim.hosts[0].set_frames(100);
    sim.run_now();
    assert!(sim.raw[peer].take_startup().is_some(), "the Reply is first");
    let (_, octets) = sim.raw[peer].take_ddp().expect("then the message");
    assert_eq!(octets, b"early");
}
