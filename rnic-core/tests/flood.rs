//! SYN floods, and peers that send much before their MPA Request.

mod common;

use std::net::{Ipv4Addr, SocketAddr};

use common::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::counters::DropReason;
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::mpa::StartupKind;
use rnic_core::wire::tcp::Seq;

const PORT: u16 = 4420;

/// Makes two hosts, of which host 1 has received `count` forged SYNs on the port that
/// [`Simulation::connect`] uses.
fn flooded(count: u32) -> Simulation {
    const PORT: u16 = 7174;
    let mut sim = simulation();
    // The SYN-ACKs are lost.
    sim.link.set_impairments(cut_link());
    sim.hosts[1].listen(PORT);
    let attacker = sim.add_raw_peer(1, PORT);
    for number in 0..count {
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        sim.raw[attacker].forge_syn(SocketAddr::new(address.into(), 5000));
        if number % 64 == 0 {
            sim.run_now();
        }
    }
    sim.run_now();
    sim.link.set_impairments(Impairments::default());
    sim
}

#[test]
fn ten_thousand_forged_syns_cost_a_thousand_places_and_keep_nobody_out() {
    let mut sim = flooded(10_000);
    let snapshot = sim.hosts[1].snapshot(sim.now);
    let most = EngineConfig::default().max_half_open;
    assert_eq!(snapshot.connections.len(), most);
    assert_eq!(snapshot.engine.syn_cookies_sent, 10_000 - most as u64);
    assert_eq!(sim.hosts[1].next_hop_requests, 0);

    let (mut active, mut passive) = sim
        .connect(&ConnectionOptions::default())
        .expect("it stands");
    let snapshot = sim.hosts[1].snapshot(sim.now);
    assert_eq!(snapshot.engine.syn_cookies_received, 1);
    let memory = sim.hosts[1].share(&[0; 5000], all_rights());
    let data = pattern(5000);
    let source = sim.hosts[0].share(&data, all_rights());
    sim.hosts[1].post_recv(&mut passive, empty_recv(1));
    sim.hosts[0].post_send(&mut active, write(1, &source, memory.stag, 5000));
    sim.hosts[0].post_send(&mut active, inline_send(2, &[]));
    let received = completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(
        outcome(&received[0]),
        (1, WcOpcode::Recv, WcStatus::Success)
    );
    assert_eq!(memory.content(), data);

    // The others time out, and there is room again.
    sim.run_for(SECOND * 11);
    assert_eq!(sim.hosts[1].snapshot(sim.now).connections.len(), 1);
}

#[test]
fn the_request_may_come_on_the_acknowledgment_of_the_cookie() {
    let mut sim = flooded(2000);
    let peer = sim.add_raw_peer(1, 7174);
    sim.raw[peer].acknowledges = false;
    sim.hosts[1].listen(7174);
    sim.raw[peer].connect();
    sim.run_now();
    let received = |sim: &mut Simulation| {
        let snapshot = sim.hosts[1].snapshot(sim.now);
        snapshot.engine.syn_cookies_received
    };
    assert_eq!(received(&mut sim), 0);
    let qp = sim.hosts[1].create_qp();
    sim.raw[peer].acknowledges = true;
    sim.raw[peer].send(&request(4));
    sim.run_now();
    assert_eq!(received(&mut sim), 1);
    let request = last_request(&sim, 1);
    sim.hosts[1].accept(request, &qp, &ConnectionOptions::default());
    sim.run_now();
    let (kind, _) = sim.raw[peer].take_startup().expect("a reply");
    assert_eq!(kind, StartupKind::Reply);
}

#[test]
fn an_acknowledgment_that_brings_no_cookie_is_reset() {
    for flood in [0, 2000] {
        let mut sim = flooded(flood);
        let peer = sim.add_raw_peer(1, 7174);
        sim.raw[peer].send(b"I have been here all the time");
        sim.run_now();
        assert!(sim.raw[peer].reset, "after {flood} SYNs");
    }
}

#[test]
fn peers_that_are_there_and_do_not_ask_are_bounded_too() {
    let config = EngineConfig {
        max_half_open: 2,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(PORT);
    for number in 0..20 {
        let peer = sim.add_raw_peer(0, PORT);
        sim.raw[peer].connect();
        sim.run_now();
        assert_eq!(sim.raw[peer].segments > 0, number < 16, "peer {number}");
        assert!(!sim.raw[peer].reset);
    }
    assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 16);
    assert_eq!(sim.hosts[0].next_hop_requests, 0);
    // When the others have given up, there is room again.
    sim.run_for(SECOND * 11);
    let peer = sim.add_raw_peer(0, PORT);
    sim.raw[peer].connect();
    sim.run_now();
    assert!(sim.raw[peer].segments > 0 && !sim.raw[peer].reset);
    sim.hosts[0].unlisten(PORT);
    assert_nothing_left(&mut sim);
}

/// One source connects as often as it can, and sends nothing; others still get in. Forged SYNs are
/// not counted against the source that they name.
#[test]
fn one_source_does_not_shut_out_newcomers() {
    // 64 places: half of them for anybody, and then 4 for each source.
    let config = EngineConfig {
        max_half_open: 8,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(PORT);
    let connect = |sim: &mut Simulation, peer: usize| {
        sim.raw[peer].connect();
        sim.run_now();
        assert!(!sim.raw[peer].reset);
        sim.raw[peer].segments > 0
    };
    let greedy = "198.51.100.1".parse().unwrap();
    let in_start_up = (0..100)
        .map(|port| {
            let address = SocketAddr::new(greedy, 10_000 + port);
            let peer = sim.add_raw_peer_at(0, PORT, address);
            connect(&mut sim, peer)
        })
        .filter(|is_in| *is_in)
        .count();
    assert_eq!(in_start_up, 32);
    // Its forged SYNs do not count against the sources that they name.
    let newcomer = "198.51.100.2".parse().unwrap();
    let forger = sim.add_raw_peer(0, PORT);
    for port in 0..5 {
        sim.raw[forger].forge_syn(SocketAddr::new(newcomer, 20_000 + port));
    }
    sim.run_now();
    let in_start_up = (0..10)
        .map(|port| {
            let address = SocketAddr::new(newcomer, 10_000 + port);
            let peer = sim.add_raw_peer_at(0, PORT, address);
            connect(&mut sim, peer)
        })
        .filter(|is_in| *is_in)
        .count();
    assert_eq!(in_start_up, 4);
    let another = sim.add_raw_peer(0, PORT);
    ask(&mut sim, another);
    assert_eq!(sim.hosts[0].connect_requests().count(), 1);
    // When the silent ones have been given up, there is room again.
    sim.run_for(SECOND * 70);
    let address = SocketAddr::new(greedy, 30_000);
    let peer = sim.add_raw_peer_at(0, PORT, address);
    assert!(connect(&mut sim, peer));
    sim.hosts[0].unlisten(PORT);
    sim.run_for(SECOND * 70);
    assert_nothing_left(&mut sim);
}

/// Connects a raw peer, which sends its MPA Request.
fn ask(sim: &mut Simulation, peer: usize) {
    sim.raw[peer].connect();
    sim.run_now();
    sim.raw[peer].send(&request(4));
    sim.run_now();
}

/// A listener whose application does not decide on requests leaves room for others.
#[test]
fn requests_that_nobody_answers_are_bounded_at_each_listener() {
    const OTHER: u16 = 4421;
    let config = EngineConfig {
        backlog: 3,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(PORT);
    sim.hosts[0].listen(OTHER);
    let peers: Vec<_> = (0..5).map(|_| sim.add_raw_peer(0, PORT)).collect();
    for peer in &peers {
        sim.raw[*peer].connect();
    }
    sim.run_now();
    // All are connected before the first of them asks.
    for (number, peer) in peers.iter().enumerate() {
        sim.raw[*peer].send(&request(4));
        sim.run_now();
        // Told by a Terminate, then reset.
        assert_eq!(sim.raw[*peer].reset, number >= 3, "peer {number}");
    }
    assert_eq!(sim.hosts[0].connect_requests().count(), 3);
    let snapshot = sim.hosts[0].snapshot(sim.now);
    assert_eq!(snapshot.rdma.requests_refused, 2);
    assert_eq!(snapshot.connections.len(), 3);
    // Peers that come later try again, and get in when there is room.
    let late = sim.add_raw_peer(0, PORT);
    sim.raw[late].connect();
    sim.run_now();
    assert!(sim.raw[late].segments == 0 && !sim.raw[late].reset);
    let other = sim.add_raw_peer(0, OTHER);
    ask(&mut sim, other);
    assert_eq!(sim.hosts[0].connect_requests().count(), 4);
    let reject = Command::Reject {
        request: sim.hosts[0].connect_requests().next().unwrap(),
        private_data: Vec::new(),
    };
    sim.hosts[0].command(reject);
    sim.raw[peers[1]].abort();
    sim.run_now();
    for _ in 0..2 {
        let late = sim.add_raw_peer(0, PORT);
        ask(&mut sim, late);
    }
    assert_eq!(sim.hosts[0].connect_requests().count(), 6);
    sim.hosts[0].unlisten(PORT);
    sim.hosts[0].unlisten(OTHER);
    sim.run_for(SECOND * 70);
    assert_nothing_left(&mut sim);
}

#[test]
fn what_comes_ahead_of_the_request_is_kept_up_to_a_few_kibibytes() {
    let mut sim = simulation();
    sim.hosts[0].listen(PORT);
    let peer = sim.add_raw_peer(0, PORT);
    sim.raw[peer].connect();
    sim.run_now();
    for ahead in (1..=200).map(|number| number * 1000) {
        sim.raw[peer].send_ahead(ahead, &[7; 1000]);
        sim.run_now();
    }
    let kept: usize = {
        let connections = sim.hosts[0].snapshot(sim.now).connections;
        connections.iter().map(|c| c.buffered).sum()
    };
    assert!((1000..=4096).contains(&kept), "{kept} octets");
    // A Request in reordered segments is accepted.
    let other = sim.add_raw_peer(0, PORT);
    sim.raw[other].connect();
    sim.run_now();
    let request = request(4);
    sim.raw[other].send_ahead(10, &request[10..]);
    sim.run_now();
    sim.raw[other].send(&request[..10]);
    sim.run_now();
    assert_eq!(sim.hosts[0].connect_requests().count(), 1);
    sim.hosts[0].unlisten(PORT);
    assert_nothing_left(&mut sim);
}

#[test]
fn a_time_wait_stays_where_the_new_connection_would_be_ignored() {
    let config = EngineConfig {
        max_half_open: 1,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.hosts[0].command(Command::Disconnect(raw.qp.number));
    sim.run_now();
    sim.raw[raw.peer].close();
    sim.run_now();
    sim.hosts[0].listen(PORT);
    let attacker = sim.add_raw_peer(0, PORT);
    sim.raw[attacker].forge_syn("10.0.0.1:5000".parse().unwrap());
    sim.run_now();
    let states = |sim: &mut Simulation| -> Vec<String> {
        let connections = sim.hosts[0].snapshot(sim.now).connections;
        connections.into_iter().map(|c| c.state).collect()
    };
    let before = states(&mut sim);
    assert!(before[0].starts_with("TimeWait") && before[1].starts_with("SynReceived"));
    sim.raw[raw.peer].isn = Seq(0x1000_0000);
    sim.raw[raw.peer].connect();
    sim.run_now();
    assert_eq!(states(&mut sim), before);
}

#[test]
fn damaged_frames_are_counted_and_do_nothing() {
    let mut sim = simulation();
    let corrupt = Impairments {
        corruption: 1000,
        ..Impairments::default()
    };
    sim.link.set_impairments(corrupt);
    let qp = sim.hosts[0].create_qp();
    let to = sim.hosts[1].socket(PORT);
    sim.hosts[1].listen(PORT);
    sim.hosts[0].connect(&qp, 40_000, to, &ConnectionOptions::default());
    sim.run_for(SECOND * 9);
    let drops = sim.hosts[1].snapshot(sim.now).drops;
    // One bit is wrong in each; in the MAC addresses it has no effect.
    assert!(drops.of(DropReason::TcpChecksum) > 0, "{drops:?}");
    assert!(sim.hosts[1].connect_requests().next().is_none());
}
