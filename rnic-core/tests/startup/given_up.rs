//! Sides that give up between Request and Reply, and say so (RFC 6581 section 9.3).

use crate::common::*;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::EngineConfig;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::ddp::{DdpHeader, QueueNumber};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

const PORT: u16 = 4420;

const CONTROL: TerminateControl = TerminateControl {
    layer: 2,
    error_type: 0,
    code: 5,
};

/// The FPDU by which a side says that it gives up.
fn giving_up() -> Vec<u8> {
    let said = Terminate {
        control: CONTROL,
        ddp_segment_length: None,
        ddp_header: None,
        rdma_header: None,
    };
    let mut octets = [0; 4];
    said.emit(&mut octets);
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    fpdu(&ddp(DdpHeader::Untagged(header), &octets), true)
}

/// Connects a raw peer, which sends its Request.
fn ask(sim: &mut Simulation) -> usize {
    let peer = sim.add_raw_peer(0, PORT);
    sim.raw[peer].connect();
    sim.run_now();
    sim.raw[peer].send(&request(4));
    sim.run_now();
    peer
}

/// The Terminate comes in any pieces, also right behind the Request.
#[test]
fn a_responder_hears_that_the_initiator_gives_up() {
    // rfc: 6581-38
    let terminate = giving_up();
    for cut in 0..terminate.len() {
        let mut sim = simulation();
        sim.hosts[0].listen(PORT);
        let peer = sim.add_raw_peer(0, PORT);
        sim.raw[peer].connect();
        sim.run_now();
        sim.raw[peer].send(&[&request(4)[..], &terminate[..cut]].concat());
        sim.run_now();
        let request = last_request(&sim, 0);
        assert_eq!(sim.hosts[0].events.len(), 1, "{cut} octets of it");
        sim.raw[peer].send(&terminate[cut..]);
        sim.run_now();
        let gone = Event::RequestGone { request };
        assert_eq!(sim.hosts[0].events.last(), Some(&gone), "{cut}");
        let rdma = sim.hosts[0].snapshot(sim.now).rdma;
        assert_eq!((rdma.terminates_received, rdma.terminates_sent), (1, 0));
        let raw = &mut sim.raw[peer];
        assert!(raw.finished && !raw.reset && raw.received.is_empty());
        raw.close();
        sim.hosts[0].unlisten(PORT);
        assert_nothing_left(&mut sim);
    }
}

/// Octets of it that came before the application accepted are the beginning of the stream.
#[test]
fn an_initiator_that_gives_up_while_it_is_accepted_is_heard() {
    // rfc: 6581-38
    let terminate = giving_up();
    for cut in 0..=terminate.len() - 1 {
        let mut sim = simulation();
        let qp = sim.hosts[0].create_qp();
        sim.hosts[0].listen(PORT);
        let peer = ask(&mut sim);
        sim.raw[peer].send(&terminate[..cut]);
        sim.run_now();
        let request = last_request(&sim, 0);
        sim.hosts[0].accept(request, &qp, &ConnectionOptions::default());
        sim.run_now();
        assert!(sim.hosts[0].is_established(qp.number), "{cut}");
        sim.raw[peer].send(&terminate[cut..]);
        sim.run_now();
        let told = Event::Disconnected {
            qp: qp.number,
            reason: EndReason::TerminateReceived {
                control: CONTROL,
                quoted: None,
            },
        };
        assert_eq!(sim.hosts[0].events.last(), Some(&told), "{cut}");
        assert!(sim.raw[peer].finished && !sim.raw[peer].reset);
        sim.raw[peer].close();
        sim.hosts[0].unlisten(PORT);
        assert_nothing_left(&mut sim);
    }
}

/// Both sides are ours.
#[test]
fn a_responder_of_ours_hears_an_initiator_of_ours() {
    // rfc: 6581-38
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    sim.hosts[1].listen(PORT);
    let remote = sim.hosts[1].socket(PORT);
    let options = ConnectionOptions::default();
    sim.hosts[0].connect(&qp, 41_000, remote, &options);
    sim.run_for(SECOND);
    let request = last_request(&sim, 1);
    let abort = rnic_core::engine::Command::Abort(qp.number);
    sim.hosts[0].command(abort);
    sim.run_for(SECOND);
    let gone = Event::RequestGone { request };
    assert_eq!(sim.hosts[1].events.last(), Some(&gone));
    let rdma = sim.hosts[1].snapshot(sim.now).rdma;
    assert_eq!(rdma.terminates_received, 1);
    for host in 0..2 {
        assert_eq!(sim.hosts[host].snapshot(sim.now).tcp.resets_sent, 0);
    }
    sim.hosts[1].unlisten(PORT);
    assert_nothing_left(&mut sim);
}

/// One whose application destroys the queue pair tells the peer too.
#[test]
fn a_queue_pair_that_is_destroyed_while_it_connects_says_so() {
    // rfc: 6581-38
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, &ConnectionOptions::default());
    sim.run_now();
    sim.raw[peer].take_startup().expect("the host asks");
    let destroy = rnic_core::engine::Command::DestroyQp(qp.number);
    sim.hosts[0].command(destroy);
    sim.run_now();
    assert!(sim.raw[peer].received.ends_with(&giving_up()));
    assert!(sim.raw[peer].reset, "nothing of it is kept");
    assert_eq!(sim.hosts[0].events, []);
    assert_nothing_left(&mut sim);
}

/// A peer for whose request a listener has no room is told, and leaves nothing behind.
#[test]
fn a_full_listener_says_so() {
    // rfc: 6581-38
    let config = EngineConfig {
        backlog: 1,
        max_half_open: 1,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(PORT);
    // More than may be in start-up at a time: none of them counts for it any more when it was
    // turned away.
    for round in 0..12 {
        let peers = [(); 3].map(|()| {
            let peer = sim.add_raw_peer(0, PORT);
            sim.raw[peer].connect();
            sim.run_now();
            peer
        });
        let mut plain = request(4);
        plain[16] &= !0x10;
        plain[17] = 1;
        for (peer, octets) in peers.into_iter().zip([request(4), request(4), plain]) {
            sim.raw[peer].send(&octets);
            sim.run_now();
        }
        let [first, told, reset] = peers.map(|peer| &sim.raw[peer]);
        assert!(!first.reset && first.received.is_empty(), "{round}");
        assert!(told.reset && told.received == giving_up(), "{round}");
        assert!(reset.reset && reset.received.is_empty(), "{round}");
        let request = last_request(&sim, 0);
        let reject = rnic_core::engine::Command::Reject {
            request,
            private_data: Vec::new(),
        };
        sim.hosts[0].command(reject);
        sim.raw[peers[0]].abort();
        sim.run_now();
    }
    sim.hosts[0].unlisten(PORT);
    assert_nothing_left(&mut sim);
}

/// One that does not acknowledge what it is told keeps nothing for long.
#[test]
fn a_peer_that_does_not_hear_that_the_listener_is_full_is_forgotten() {
    let config = EngineConfig {
        backlog: 1,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(PORT);
    let peers = [(); 2].map(|()| {
        let peer = sim.add_raw_peer(0, PORT);
        sim.raw[peer].connect();
        sim.run_now();
        peer
    });
    sim.raw[peers[1]].acknowledges = false;
    for peer in peers {
        sim.raw[peer].send(&request(4));
        sim.run_now();
    }
    assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 2);
    sim.run_for(SECOND * 6);
    assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 1);
    assert!(sim.raw[peers[1]].reset);
    sim.hosts[0].unlisten(PORT);
    assert_nothing_left(&mut sim);
}
