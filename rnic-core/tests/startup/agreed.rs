//! What the two sides negotiate at start-up.

use crate::common::*;
use rnic_core::connection::{ConnectionOptions, EndReason, Event, ReadDepths};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{Neighbours, Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use std::time::Duration;

/// Connects host 0 to port 7000 of host 1, and returns why that fails within a minute.
fn try_to_connect(sim: &mut Simulation, qp: &TestQp, options: &ConnectionOptions) -> EndReason {
    let remote = sim.hosts[1].socket(7000);
    sim.hosts[0].events.clear();
    sim.hosts[0].connect(qp, 45_000, remote, options);
    let failed = sim.run_until(SECOND * 60, |sim| {
        sim.hosts[0].failure_of(qp.number).is_some()
    });
    assert!(failed, "{:?}", sim.hosts[0].events);
    assert_eq!(sim.hosts[0].events.len(), 1);
    sim.hosts[0].failure_of(qp.number).unwrap()
}

#[test]
fn an_attempt_that_fails_leaves_the_queue_pair_idle() {
    let mut sim = simulation();
    let options = ConnectionOptions {
        connect_timeout: SECOND * 5,
        ..ConnectionOptions::default()
    };
    let mut qp = sim.hosts[0].create_qp();
    sim.hosts[0].post_recv(&mut qp, empty_recv(1));

    assert_eq!(
        try_to_connect(&mut sim, &qp, &options),
        EndReason::Refused,
        "nobody listens"
    );

    sim.link.set_impairments(cut_link());
    let begun = sim.now;
    assert_eq!(try_to_connect(&mut sim, &qp, &options), EndReason::TimedOut);
    assert_eq!(sim.now.since(begun), SECOND * 5);
    sim.link.set_impairments(Impairments::default());
    assert!(qp.poll().is_empty(), "the receive waits for a connection");

    let passive = sim.hosts[1].create_qp();
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&qp, &passive, &options, &options));
    sim.hosts[0].command(Command::Abort(qp.number));
    sim.run_now();
    let flushed = (1, WcOpcode::Recv, WcStatus::WrFlushed);
    assert_eq!(outcomes(&mut qp), [flushed]);
    assert_nothing_left(&mut sim);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at next hops; the kernel has them")]
fn a_host_without_a_way_fails_at_once_and_one_that_waits_for_it_in_time() {
    let mut sim = simulation();
    let options = ConnectionOptions {
        connect_timeout: SECOND * 5,
        ..ConnectionOptions::default()
    };
    let qp = sim.hosts[0].create_qp();
    sim.hosts[0].neighbours = Neighbours::Unreachable;
    for attempt in 1..3 {
        let begun = sim.now;
        let reason = try_to_connect(&mut sim, &qp, &options);
        assert_eq!(reason, EndReason::Unreachable);
        assert_eq!(sim.now, begun);
        assert_eq!(
            sim.hosts[0].next_hop_requests, attempt,
            "each attempt asks anew"
        );
    }
    sim.hosts[0].neighbours = Neighbours::Unresolved;
    assert_eq!(try_to_connect(&mut sim, &qp, &options), EndReason::TimedOut);
    assert_nothing_left(&mut sim);
}

#[test]
fn what_cannot_be_asked_for_fails_at_once() {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let too_long = |mpa_revision, len| ConnectionOptions {
        mpa_revision,
        private_data: vec![0; len],
        ..ConnectionOptions::default()
    };
    for options in [too_long(1, 513), too_long(2, 509), too_long(3, 0)] {
        let reason = try_to_connect(&mut sim, &qp, &options);
        assert!(matches!(reason, EndReason::Startup(_)), "{reason}");
    }
    let options = ConnectionOptions::default();
    let (used, _passive) = sim.connect(&options).unwrap();
    let reason = try_to_connect(&mut sim, &used, &options);
    assert_eq!(reason, EndReason::QpNotIdle);
    sim.hosts[0].events.clear();
    let (remote, port) = (sim.hosts[1].socket(7174), 40_000 + used.number.0 as u16);
    sim.hosts[0].connect(&qp, port, remote, &options);
    sim.run_now();
    assert_eq!(sim.hosts[0].failure_of(qp.number), Some(EndReason::InUse));
    sim.hosts[0].command(Command::Abort(used.number));
    assert_nothing_left(&mut sim);
}

#[test]
fn private_data_of_every_length_arrive_both_ways() {
    // rfc: 5044-10, 5044-s9, 6581-9, 6581-11
    for (mpa_revision, most) in [(1, 512), (2, 508)] {
        for len in [0, 1, most] {
            let mut sim = simulation();
            let mine = ConnectionOptions {
                mpa_revision,
                private_data: pattern(len),
                ..ConnectionOptions::default()
            };
            let theirs = ConnectionOptions {
                private_data: pattern(len).into_iter().rev().collect(),
                ..mine.clone()
            };
            let (active, _) = sim.connect_with(&mine, &theirs).unwrap();
            let asked = sim.hosts[1].events.iter().any(|event| {
                matches!(event, Event::ConnectRequest { private_data, mpa_revision: revision, .. }
                    if *private_data == mine.private_data && *revision == mpa_revision)
            });
            let answered = sim.hosts[0].events.iter().any(|event| {
                matches!(event, Event::Established { private_data, .. }
                    if *private_data == theirs.private_data)
            });
            assert!(asked && answered, "revision {mpa_revision}, {len} octets");
            sim.hosts[0].command(Command::Disconnect(active.number));
            assert_nothing_left(&mut sim);
        }
    }
}

#[test]
fn a_rejection_tells_why_and_leaves_the_queue_pair_idle() {
    // rfc: 5044-s8, 5044-s11, 6581-20
    for (mpa_revision, most) in [(1, 512), (2, 508)] {
        let mut sim = simulation();
        let options = ConnectionOptions {
            mpa_revision,
            ..ConnectionOptions::default()
        };
        sim.hosts[1].listen(7000);
        let remote = sim.hosts[1].socket(7000);
        let qp = sim.hosts[0].create_qp();
        sim.hosts[0].connect(&qp, 45_000, remote, &options);
        assert!(sim.run_until(SECOND, |sim| sim.hosts[1].connect_requests().count() == 1));
        let request = last_request(&sim, 1);
        let private_data = pattern(most);
        sim.hosts[1].command(Command::Reject {
            request,
            private_data: private_data.clone(),
        });
        sim.hosts[1].unlisten(7000);
        sim.run_for(SECOND);
        // A rejection repeats the depths of the Request: they are not the reason.
        let peer_depths = (mpa_revision == 2).then_some(ReadDepths {
            ird: options.ord,
            ord: options.ird,
        });
        let rejected = Event::Rejected {
            qp: qp.number,
            private_data,
            peer_depths,
        };
        assert_eq!(sim.hosts[0].events, [rejected]);
        let passive = sim.hosts[1].create_qp();
        assert!(sim.connect_pair(&qp, &passive, &options, &options));
        sim.hosts[0].command(Command::Abort(qp.number));
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_request_accepted_with_a_busy_queue_pair_is_rejected() {
    let mut sim = simulation();
    let options = ConnectionOptions::default();
    let (first, busy) = (sim.hosts[0].create_qp(), sim.hosts[1].create_qp());
    assert!(sim.connect_pair(&first, &busy, &options, &options));
    sim.hosts[1].events.clear();
    let second = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(7000);
    sim.hosts[1].listen(7000);
    sim.hosts[0].connect(&second, 45_001, remote, &options);
    assert!(sim.run_until(SECOND, |sim| {
        sim.hosts[1].connect_requests().next().is_some()
    }));
    let request = sim.hosts[1].connect_requests().next().unwrap();
    sim.hosts[1].accept(request, &busy, &options);
    let rejected = Event::Rejected {
        qp: second.number,
        private_data: Vec::new(),
        peer_depths: Some(ReadDepths {
            ird: options.ord,
            ord: options.ird,
        }),
    };
    // The peer does not wait until its time is over.
    assert!(sim.run_until(SECOND, |sim| sim.hosts[0].events.contains(&rejected)));
    let failure = sim.hosts[1].failure_of(busy.number);
    assert_eq!(failure, Some(EndReason::QpNotIdle));
}

#[test]
fn read_depths_are_settled_by_both_sides() {
    // rfc: 6581-14, 6581-21, 6581-22, 6581-23, 6581-24
    let depths = |mpa_revision, ird, ord| ConnectionOptions {
        mpa_revision,
        ird,
        ord,
        ..ConnectionOptions::default()
    };
    let settled = |mine, theirs| {
        let mut sim = simulation();
        let (active, passive) = sim.connect_with(&mine, &theirs).unwrap();
        let of = |host: usize, qp: &TestQp| {
            sim.hosts[host].events.iter().find_map(|event| match event {
                Event::Established {
                    qp: number,
                    ird,
                    ord,
                    peer_depths,
                    ..
                } if *number == qp.number => {
                    let told = peer_depths.map(|depths| (depths.ird, depths.ord));
                    Some(((*ird, *ord), told))
                }
                _ => None,
            })
        };
        (of(0, &active).unwrap(), of(1, &passive).unwrap())
    };
    let both = settled(depths(2, 4, 8), depths(2, 3, 10));
    assert_eq!(
        both,
        (((4, 3), Some((3, 4))), ((3, 4), Some((4, 8)))),
        "neither asks for more than is taken"
    );
    let both = settled(depths(2, 0, 8), depths(2, 3, 0));
    assert_eq!(both, (((0, 3), Some((3, 0))), ((3, 0), Some((0, 8)))));
    let both = settled(depths(1, 4, 8), depths(1, 3, 10));
    let untold = (((4, 8), None), ((3, 10), None));
    assert_eq!(both, untold, "revision 1 does not tell");

    let left = |ird, ord| ConnectionOptions {
        negotiate_reads: false,
        ..depths(2, ird, ord)
    };
    let not_stated = Some((16_383, 16_383));
    let both = settled(left(4, 8), depths(2, 3, 10));
    assert_eq!(both, untold, "nothing of RFC 6581 is asked for");
    let peer_to_peer = ConnectionOptions {
        peer_to_peer: true,
        ..left(4, 8)
    };
    let both = settled(peer_to_peer, depths(2, 3, 10));
    assert_eq!(both, (((4, 8), not_stated), ((3, 10), not_stated)));
    let both = settled(depths(2, 4, 8), left(3, 10));
    assert_eq!(both, (((4, 8), not_stated), ((3, 4), Some((4, 8)))));
}

#[test]
fn crcs_are_used_if_either_side_asks() {
    // rfc: 5044-61
    for (host_asks, peer_asks) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = ConnectionOptions {
            crc: host_asks,
            ..ConnectionOptions::default()
        };
        let mut sim = simulation();
        let mut qp = sim.hosts[0].create_qp();
        sim.hosts[0].listen(4420);
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        let mut octets = request(4);
        octets[16] = octets[16] & !0x40 | if peer_asks { 0x40 } else { 0 };
        sim.raw[peer].send(&octets);
        sim.run_now();
        let request = last_request(&sim, 0);
        sim.hosts[0].accept(request, &qp, &options);
        sim.run_now();
        let (_, reply) = sim.raw[peer].take_startup().unwrap();
        let used = host_asks || peer_asks;
        assert_eq!(reply.crc, used);
        sim.raw[peer].crc = used;
        sim.raw[peer].send_ddp(nothing(), &[]);
        sim.hosts[0].post_send(&mut qp, inline_send(1, b"hello"));
        sim.run_now();
        // Taking a ULPDU checks that its FPDU is as negotiated.
        let (header, payload) = sim.raw[peer].take_ddp().unwrap();
        assert_eq!((header, &payload[..]), (send_header(1), &b"hello"[..]));
    }
}

/// Where the administrator has not said that they may, applications do not do without.
#[test]
fn crcs_are_used_where_the_administrator_demands_them() {
    // rfc: 5044-28b
    let options = ConnectionOptions {
        crc: false,
        ..ConnectionOptions::default()
    };
    for needs_crcs in [false, true] {
        let config = EngineConfig {
            needs_crcs,
            ..EngineConfig::default()
        };
        let mut sim = simulation_with(&config, 1);
        let qps = [(); 2].map(|()| sim.hosts[0].create_qp());
        sim.hosts[0].listen(4420);
        let peer = sim.add_raw_peer(0, 4420);
        sim.raw[peer].connect();
        sim.run_now();
        let mut octets = request(4);
        octets[16] &= !0x40;
        sim.raw[peer].send(&octets);
        sim.run_now();
        let request = last_request(&sim, 0);
        sim.hosts[0].accept(request, &qps[0], &options);
        sim.run_now();
        let (_, reply) = sim.raw[peer].take_startup().unwrap();
        assert_eq!(reply.crc, needs_crcs);

        let peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&qps[1], 41_000, address, &options);
        sim.run_now();
        let (_, request) = sim.raw[peer].take_startup().unwrap();
        assert_eq!(request.crc, needs_crcs);
    }
}

#[test]
fn a_responder_waits_for_the_first_fpdu() {
    // rfc: 5044-77a
    let mut sim = simulation();
    let mut qp = sim.hosts[0].create_qp();
    // Posted before there is a connection, and while there is one.
    sim.hosts[0].post_send(&mut qp, inline_send(1, b"one"));
    let peer = accept_raw_with(&mut sim, &qp, &ConnectionOptions::default());
    sim.hosts[0].post_send(&mut qp, inline_send(2, b"two"));
    sim.run_for(SECOND * 5);
    assert_eq!(sim.raw[peer].take_ulpdu(), None);
    // A part of an FPDU is not one.
    let fpdu = sim.raw[peer].fpdu(&rnic_core::testing::raw_peer::ddp(nothing(), &[]));
    sim.raw[peer].send(&fpdu[..10]);
    sim.run_for(SECOND);
    assert_eq!(sim.raw[peer].take_ulpdu(), None);
    sim.raw[peer].send(&fpdu[10..]);
    sim.run_now();
    assert_eq!(sim.raw[peer].take_ddp().unwrap().1, b"one");
    assert_eq!(sim.raw[peer].take_ddp().unwrap().1, b"two");
    sim.run_for(SECOND);
    let sent = |id| (id, WcOpcode::Send, WcStatus::Success);
    assert_eq!(outcomes(&mut qp), [sent(1), sent(2)]);
}

#[test]
fn requests_wait_for_the_connection_to_stand() {
    let mut sim = simulation();
    let (mut active, mut passive) = (sim.hosts[0].create_qp(), sim.hosts[1].create_qp());
    let region = sim.hosts[0].share(&pattern(3000), all_rights());
    let sink = sim.hosts[1].share(&[0; 3000], all_rights());
    sim.hosts[0].post_recv(&mut active, recv(1, &region, 3000));
    sim.hosts[0].post_send(&mut active, send(2, &region, 3000));
    sim.hosts[1].post_recv(&mut passive, recv(3, &sink, 3000));
    sim.hosts[1].post_send(&mut passive, inline_send(4, b"back"));
    sim.run_now();
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    let first = completions(&mut sim, &mut active, 2, SECOND);
    let second = completions(&mut sim, &mut passive, 2, SECOND);
    let all = first.iter().chain(&second);
    assert!(all.clone().all(|c| c.status() == WcStatus::Success));
    assert_eq!(sink.content(), pattern(3000));
    assert_eq!(&region.content()[..4], b"back");
}

#[test]
fn an_initiator_can_be_asked_to_wait_before_its_first_fpdu() {
    let delay = Duration::from_millis(3);
    let options = ConnectionOptions {
        first_fpdu_delay: delay,
        ..ConnectionOptions::default()
    };
    let mut sim = simulation();
    let mut raw = connect_raw(&mut sim, &options);
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"patience"));
    let moment = Duration::from_micros(1);
    sim.run_for(delay - moment);
    assert_eq!(sim.raw[raw.peer].take_ulpdu(), None);
    sim.run_for(moment);
    assert_eq!(sim.raw[raw.peer].take_ddp().unwrap().1, b"patience");
    // It is over: what follows goes at once.
    sim.hosts[0].post_send(&mut raw.qp, inline_send(2, b"more"));
    sim.run_now();
    assert_eq!(sim.raw[raw.peer].take_ddp().unwrap().1, b"more");
}

#[test]
fn start_up_frames_come_in_any_pieces() {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    sim.hosts[0].listen(4420);
    let peer = sim.add_raw_peer(0, 4420);
    sim.raw[peer].connect();
    sim.run_now();
    for octet in request(4) {
        assert_eq!(sim.hosts[0].connect_requests().count(), 0);
        sim.raw[peer].send(&[octet]);
        sim.run_now();
    }
    let asked = last_request(&sim, 0);
    sim.hosts[0].accept(asked, &qp, &ConnectionOptions::default());
    sim.run_now();
    assert!(sim.hosts[0].is_established(qp.number));

    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, &ConnectionOptions::default());
    sim.run_now();
    for octet in reply(4) {
        assert!(!sim.hosts[0].is_established(qp.number));
        sim.raw[peer].send(&[octet]);
        sim.run_now();
    }
    assert!(sim.hosts[0].is_established(qp.number));
}

/// FPDUs may follow the Reply in the same segment, and arrive before it.
#[test]
fn fpdus_may_follow_the_reply_at_once() {
    // rfc: 5044-50, 5044-84, 5044-s10
    for reply_first in [true, false] {
        let mut sim = simulation();
        let mut qp = sim.hosts[0].create_qp();
        sim.hosts[0].post_recv(&mut qp, empty_recv(1));
        let peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&qp, 41_000, address, &ConnectionOptions::default());
        sim.run_now();
        let fpdu = sim.raw[peer].fpdu(&rnic_core::testing::raw_peer::ddp(send_header(1), &[]));
        let reply = reply(4);
        if reply_first {
            sim.raw[peer].send(&[&reply[..], &fpdu].concat());
        } else {
            sim.raw[peer].send_ahead(reply.len() as u32, &fpdu);
            sim.run_now();
            sim.raw[peer].send(&reply);
        }
        sim.run_now();
        assert!(sim.hosts[0].is_established(qp.number));
        let received = (1, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut qp), [received]);
    }
}
