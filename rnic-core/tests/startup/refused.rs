//! Errors of a peer during start-up, and limits on peers that connect at once.

use crate::common::*;
use crate::replies::{assert_said_and_closed, given_up, reply_with};
use rnic_core::connection::{ConnectionOptions, EndReason, Event, Refusals};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::mpa::marker;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::Neighbours;

#[test]
fn bad_requests_are_refused() {
    // rfc: 5044-52, 5044-65, 5044-66, 5044-68, 5044-72, 5044-78, 5044-85d, 5044-86
    let good = request(4);
    let changed = |at: usize, octet: u8| {
        let mut octets = good.clone();
        octets[at] = octet;
        octets
    };
    let cases = [
        ("no MPA", vec![b'G'; 40]),
        ("a Reply", reply(4)),
        ("revision 0", changed(17, 0)),
        ("revision 3", changed(17, 3)),
        ("too much private data", changed(18, 3)),
        ("no room for the enhanced data", changed(19, 3)),
    ];
    for (name, octets) in cases {
        let mut sim = simulation();
        sim.hosts[0].listen(4420);
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        sim.raw[peer].send(&octets);
        sim.run_for(SECOND);
        assert!(sim.hosts[0].events.is_empty(), "{name}");
        let raw = &mut sim.raw[peer];
        assert!(raw.reset && !raw.finished, "{name}");
        assert_eq!(raw.take_startup(), None, "{name}");
        let rdma = sim.hosts[0].snapshot(sim.now).rdma;
        assert_eq!(rdma.requests_refused, 1, "{name}");
        let refusals = &sim.hosts[0].refusals;
        let told = refusals.take().expect(name);
        assert!(matches!(told.reason, EndReason::Startup(_)), "{name}");
        let address = sim.raw[peer].address();
        assert_eq!((told.peer, refusals.count()), (address, 1), "{name}");
        sim.hosts[0].unlisten(4420);
        assert_nothing_left(&mut sim);
    }
}

/// Any number of peers may fail: the listener keeps the reasons of a few.
#[test]
fn the_owner_of_a_listener_hears_of_the_last_peers_that_failed() {
    let mut sim = simulation();
    sim.hosts[0].listen(4420);
    let mut peers = Vec::new();
    for _ in 0..40 {
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        sim.raw[peer].send(b"GET / HTTP/1.1");
        sim.run_now();
        peers.push(sim.raw[peer].address());
    }
    let refusals = sim.hosts[0].refusals.clone();
    assert_eq!(refusals.count(), 40);
    let told: Vec<_> = std::iter::from_fn(|| refusals.take()).collect();
    let told: Vec<_> = told.iter().map(|refusal| refusal.peer).collect();
    assert_eq!(told, peers[40 - Refusals::KEPT..]);

    // One that closes, one that sends nothing, and one that the listener's owner rejects.
    let [closes, waits] = [0, 1].map(|_| sim.add_raw_peer(0, 4420));
    for peer in [closes, waits] {
        sim.raw[peer].connect();
    }
    sim.run_now();
    sim.raw[closes].close();
    sim.run_for(SECOND * 10);
    let last = sim.add_raw_peer(0, 4420);
    sim.raw[last].connect();
    sim.run_now();
    sim.hosts[0].unlisten(4420);
    sim.run_now();
    let told: Vec<_> = std::iter::from_fn(|| refusals.take()).collect();
    let [first, second] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(first.peer, sim.raw[closes].address());
    assert!(matches!(first.reason, EndReason::Startup(_)));
    let second = (second.peer, second.reason.clone());
    assert_eq!(second, (sim.raw[waits].address(), EndReason::TimedOut));
    assert_nothing_left(&mut sim);
}

/// A responder that cannot go on tells an initiator of RFC 6581, with the markers that it requires.
#[test]
fn a_responder_that_gives_up_says_so() {
    // rfc: 6581-38
    for (enhanced, markers) in [(true, false), (true, true), (false, false)] {
        let mut sim = simulation();
        sim.hosts[0].listen(4420);
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        let mut octets = request(4);
        if !enhanced {
            octets[16] &= !0x10;
        }
        if markers {
            octets[16] |= 0x80;
        }
        sim.raw[peer].send(&octets);
        sim.run_now();
        let request = last_request(&sim, 0);
        sim.hosts[0].unlisten(4420);
        sim.run_now();
        let gone = Event::RequestGone { request };
        assert!(sim.hosts[0].events.contains(&gone));
        let raw = &mut sim.raw[peer];
        let (_, ulpdu) = given_up();
        let said = match (enhanced, markers) {
            (false, _) => Vec::new(),
            (true, false) => fpdu(&ulpdu, true),
            (true, true) => {
                let mut fpdu = vec![0; marker::max_fpdu_len(ulpdu.len())];
                fpdu[2..][..ulpdu.len()].copy_from_slice(&ulpdu);
                let len = marker::seal(&mut fpdu, ulpdu.len(), 0, true);
                fpdu.truncate(len);
                fpdu
            }
        };
        assert_eq!(raw.received, said, "{enhanced}, {markers}");
        assert_eq!((raw.finished, raw.reset), (enhanced, !enhanced));
        raw.close();
        assert_nothing_left(&mut sim);
    }
}

/// Both sides are ours.
#[test]
fn an_initiator_hears_that_the_responder_gives_up() {
    // rfc: 6581-38
    for markers in [false, true] {
        let mut sim = simulation();
        let qp = sim.hosts[0].create_qp();
        sim.hosts[1].listen(4420);
        let options = ConnectionOptions {
            markers,
            ..ConnectionOptions::default()
        };
        let remote = sim.hosts[1].socket(4420);
        sim.hosts[0].connect(&qp, 41_000, remote, &options);
        sim.run_for(SECOND);
        sim.hosts[1].unlisten(4420);
        sim.run_for(SECOND);
        let (control, _) = given_up();
        let told = Some(EndReason::TerminateReceived {
            control,
            quoted: None,
        });
        assert_eq!(sim.hosts[0].failure_of(qp.number), told);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_peer_that_goes_during_start_up_fails_the_attempt() {
    for reset in [false, true] {
        let (mut sim, qp, peer) = reply_with(&reply(4)[..7]);
        if reset {
            sim.raw[peer].abort();
        } else {
            sim.raw[peer].close();
        }
        sim.run_now();
        let reason = sim.hosts[0].failure_of(qp.number).unwrap();
        assert_eq!(reason == EndReason::Reset, reset, "{reason}");
        assert!(sim.raw[peer].finished || reset);

        // And as initiator, before and after its Request is complete.
        for len in [7, 24] {
            sim.hosts[0].listen(4420);
            let peer = sim.add_raw_peer(0, 4420);
            sim.raw[peer].connect();
            sim.run_now();
            sim.raw[peer].send(&request(4)[..len]);
            sim.run_now();
            sim.hosts[0].events.clear();
            if reset {
                sim.raw[peer].abort();
            } else {
                sim.raw[peer].close();
            }
            sim.run_now();
            let gone = |event: &Event| matches!(event, Event::RequestGone { .. });
            assert_eq!(
                sim.hosts[0].events.iter().filter(|e| gone(e)).count(),
                len / 24
            );
            sim.hosts[0].unlisten(4420);
        }
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn an_fpdu_before_the_reply_ends_the_connection() {
    for at_once in [true, false] {
        let mut sim = simulation();
        sim.hosts[0].listen(4420);
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        let fpdu = sim.raw[peer].fpdu(&ddp(nothing(), &[]));
        if at_once {
            sim.raw[peer].send(&[request(4), fpdu].concat());
            sim.run_now();
            // The application was told nothing of it.
            assert_eq!(sim.hosts[0].events, []);
        } else {
            sim.raw[peer].send(&request(4));
            sim.run_now();
            let request = last_request(&sim, 0);
            sim.raw[peer].send(&fpdu);
            sim.run_now();
            let gone = Event::RequestGone { request };
            assert!(sim.hosts[0].events.contains(&gone));
        }
        assert_said_and_closed(&mut sim, peer, "an enhanced Request");
        sim.hosts[0].unlisten(4420);
        assert_nothing_left(&mut sim);
    }
}

/// One that has asked in the form of RFC 5044 does not understand a Terminate before the Reply.
#[test]
fn an_fpdu_before_the_reply_to_a_plain_request_resets_the_connection() {
    let mut sim = simulation();
    sim.hosts[0].listen(4420);
    let peer = sim.add_raw_peer(0, 4420);
    sim.raw[peer].connect();
    sim.run_now();
    let mut octets = request(4);
    octets[16] &= !0x10;
    octets[17] = 1;
    sim.raw[peer].send(&octets);
    sim.run_now();
    let gone = Event::RequestGone {
        request: last_request(&sim, 0),
    };
    sim.raw[peer].send_ddp(nothing(), &[]);
    sim.run_now();
    assert!(sim.hosts[0].events.contains(&gone));
    assert!(sim.raw[peer].reset && sim.raw[peer].received.is_empty());
    sim.hosts[0].unlisten(4420);
    assert_nothing_left(&mut sim);
}

#[test]
fn a_peer_that_never_asks_is_cut_off() {
    // rfc: 5044-s12, 5044-s13
    let mut sim = simulation();
    sim.hosts[0].listen(4420);
    let peer = sim.add_raw_peer(0, 4420);
    sim.raw[peer].connect();
    sim.run_now();
    assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 1);
    sim.run_for(SECOND * 9);
    assert!(!sim.raw[peer].reset);
    sim.run_for(SECOND);
    assert!(sim.raw[peer].reset);
    sim.hosts[0].unlisten(4420);
    assert_nothing_left(&mut sim);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let config = EngineConfig {
        max_connections: 2,
        ..EngineConfig::default()
    };
    let mut sim = simulation_with(&config, 1);
    sim.hosts[0].listen(4420);
    for number in 0..3 {
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        assert_eq!(sim.raw[peer].reset, number == 2);
    }
    sim.hosts[0].unlisten(4420);
    assert_nothing_left(&mut sim);
}

/// Where the peer's first FPDU is not one, it gets no Terminate: it may not be one that sends FPDUs
/// at all.
#[test]
fn a_first_fpdu_that_mpa_refuses_gets_no_terminate() {
    // rfc: 5044-77b
    for (markers, first) in [(false, true), (false, false), (true, true)] {
        let mut sim = simulation();
        let options = ConnectionOptions {
            markers,
            ..ConnectionOptions::default()
        };
        let raw = accept_raw(&mut sim, &options);
        if !first {
            sim.raw[raw.peer].send_ddp(nothing(), &[]);
        }
        let mut octets = fpdu(&ddp(nothing(), &[]), true);
        octets[10] ^= 1;
        // With markers it is the first octets that are wrong.
        octets.resize(if markers { 600 } else { octets.len() }, 7);
        sim.raw[raw.peer].send(&octets);
        sim.run_now();
        let reason = sim.hosts[0].end_of(raw.qp.number).unwrap();
        let said = sim.raw[raw.peer].take_ddp().is_some();
        assert_eq!(said, !first, "{reason}");
        assert_eq!(matches!(reason, EndReason::Startup(_)), first, "{reason}");
        let rdma = sim.hosts[0].snapshot(sim.now).rdma;
        assert_eq!(rdma.terminates_sent, u64::from(!first));
        assert!(sim.raw[raw.peer].finished && !sim.raw[raw.peer].reset);
        sim.raw[raw.peer].close();
        assert_nothing_left(&mut sim);
    }
}

/// RFC 9293 section 3.7.1 (MUST-16): no segment is larger than the peer says it takes, also if an
/// FPDU does not fit one.
#[test]
fn segments_keep_to_what_the_peer_takes() {
    for mss in [48, 100, 159, 160, 161, 536] {
        for active in [true, false] {
            let mut sim = simulation();
            let qp = sim.hosts[0].create_qp();
            let peer = sim.add_raw_peer(0, if active { 0 } else { RAW_PORT });
            sim.raw[peer].mss = mss;
            let options = ConnectionOptions::default();
            if active {
                let address = sim.raw[peer].address();
                sim.hosts[0].connect(&qp, 41_000, address, &options);
                sim.run_now();
                sim.raw[peer].take_startup().expect("the host asks");
                sim.raw[peer].send(&reply(16));
                sim.run_now();
            } else {
                accept_peer(&mut sim, peer, &qp, &options);
            }
            let mut qp = qp;
            let source = sim.hosts[0].share(&pattern(5_000), all_rights());
            sim.raw[peer].send_ddp(nothing(), &[]);
            sim.hosts[0].post_send(&mut qp, send(1, &source, 5_000));
            sim.hosts[0].post_send(&mut qp, inline_send(2, &[9; 60]));
            completions(&mut sim, &mut qp, 2, SECOND * 10);
            let largest = sim.raw[peer].largest_packet;
            let most = 40 + usize::from(mss);
            assert!(largest <= most && largest > most - 16, "{mss}: {largest}");
            let mut got = Vec::new();
            while let Some((_, payload)) = sim.raw[peer].take_ddp() {
                // The least MULPDU (RFC 5044 section 4.5), less its header.
                assert!(payload.len() <= usize::from(mss).max(128));
                got.extend(payload);
            }
            assert_eq!(got, [pattern(5_000), vec![9; 60]].concat(), "{mss}");
            sim.hosts[0].command(Command::Abort(qp.number));
            assert_nothing_left(&mut sim);
        }
    }
}

#[test]
fn segments_keep_to_what_the_route_takes() {
    // rfc: 5044-s5
    for active in [true, false] {
        let mut sim = simulation();
        sim.hosts[0].neighbours = Neighbours::Known(1000);
        let options = ConnectionOptions::default();
        let mut raw = if active {
            connect_raw(&mut sim, &options)
        } else {
            accept_raw(&mut sim, &options)
        };
        let source = sim.hosts[0].share(&pattern(50_000), all_rights());
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.hosts[0].post_send(&mut raw.qp, send(1, &source, 50_000));
        completions(&mut sim, &mut raw.qp, 1, SECOND * 10);
        let largest = sim.raw[raw.peer].largest_packet;
        assert!((990..=1000).contains(&largest), "{largest} octets");
    }
}
