//! rnic with rnic: data, the sharing of associations, and ends.

use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::ids::QpNumber;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::TestQp;
use rnic_core::verbs::wr::Completion;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::hello::Receipts;
use std::time::Duration;

use crate::common::{all_rights, empty_recv, hello_of, outcome, pattern, read, recv, send, write};
use crate::{SECOND, Sessions, pair, sessions};

/// Runs until a queue pair of a host has so many completions, all good.
fn completed(sim: &mut Sessions, qp: &mut TestQp, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let there = sim.run_until(SECOND * 60, |_| {
        all.extend(qp.poll());
        all.len() >= count
    });
    assert!(
        there,
        "{} of {count}: {:?} {:?}",
        all.len(),
        sim.hosts[0].events,
        sim.hosts[1].events
    );
    assert!(
        all.iter().all(|one| outcome(one).2 == WcStatus::Success),
        "{all:?}"
    );
    all
}

/// Returns the local ports of the connections of a host.
fn local_ports(sim: &Sessions, host: usize) -> Vec<u16> {
    let events = sim.hosts[host].events.iter();
    let ports = events.filter_map(|event| match event {
        Event::Established { local, .. } => Some(local.port()),
        _ => None,
    });
    ports.collect()
}

/// Returns the options of every second connection: with the semantics of RC, whose requests complete
/// by receipts.
fn rc_by_turns(seed: u64) -> ConnectionOptions {
    ConnectionOptions {
        rc: seed % 2 == 1,
        private_data: hello_of(Receipts::Sent),
        ..ConnectionOptions::default()
    }
}

/// Writes, Sends and Reads both ways, through a network that does everything to frames.
#[test]
fn data_arrive_whatever_the_network_does() {
    // rfc: 5043-26
    let mut placed_early = 0;
    for seed in 0..6 {
        let link = Impairments {
            delay: Duration::from_micros(50),
            loss: 30,
            duplication: 20,
            corruption: 10,
            reordering: 300,
            jitter: Duration::from_micros(400),
            ..Impairments::default()
        };
        let mut sim = Sessions::over(&EngineConfig::default(), link, seed);
        let (mut active, mut passive) = sim.connect(&rc_by_turns(seed)).unwrap();
        let data = pattern(120_000);
        let here = sim.hosts[0].share(&data, all_rights());
        let there = sim.hosts[1].share(&vec![0; data.len()], all_rights());
        let got = sim.hosts[1].share(&vec![0; data.len()], all_rights());
        let back = sim.hosts[0].share(&vec![0; data.len()], all_rights());
        sim.hosts[1].post_recv(&mut passive, recv(1, &got, data.len()));
        sim.hosts[0].post_send(&mut active, write(2, &here, there.stag, data.len()));
        sim.hosts[0].post_send(&mut active, send(3, &here, data.len()));
        sim.hosts[0].post_send(&mut active, read(4, &back, there.stag, data.len()));
        let ids = |all: Vec<Completion>| all.iter().map(|one| one.wr_id).collect::<Vec<_>>();
        assert_eq!(ids(completed(&mut sim, &mut active, 3)), [2, 3, 4]);
        assert_eq!(ids(completed(&mut sim, &mut passive, 1)), [1]);
        for region in [&there, &got, &back] {
            assert!(region.content() == data, "seed {seed}");
        }
        placed_early += sim.hosts[1].snapshot(sim.now).rdma.octets_placed_early;
    }
    assert!(placed_early > 0);
}

/// Either side may be the first to send, and both at once.
#[test]
fn the_passive_side_may_send_first() {
    let mut sim = sessions();
    let (mut active, mut passive) = pair(&mut sim);
    let data = pattern(50_000);
    let here = sim.hosts[1].share(&data, all_rights());
    let got = sim.hosts[0].share(&vec![0; data.len()], all_rights());
    sim.hosts[0].post_recv(&mut active, recv(1, &got, data.len()));
    sim.hosts[1].post_send(&mut passive, send(2, &here, data.len()));
    completed(&mut sim, &mut passive, 1);
    completed(&mut sim, &mut active, 1);
    assert!(got.content() == data);
}

#[test]
fn queue_pairs_share_an_association_and_have_streams_of_their_own() {
    let mut sim = sessions();
    let mut pairs: Vec<_> = (0..5).map(|_| pair(&mut sim)).collect();
    let associations = sim.hosts[0].machine().associations();
    assert_eq!(associations.count(), 1);
    let ports = local_ports(&sim, 0);
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    let data = pattern(20_000);
    let here = sim.hosts[0].share(&data, all_rights());
    for (number, (active, passive)) in pairs.iter_mut().enumerate() {
        let got = sim.hosts[1].share(&vec![0; data.len()], all_rights());
        sim.hosts[1].post_recv(passive, recv(7, &got, data.len()));
        sim.hosts[0].post_send(active, send(number as u64, &here, data.len()));
        completed(&mut sim, passive, 1);
        completed(&mut sim, active, 1);
        assert!(got.content() == data);
    }
    // One that wants its own has it.
    let own = ConnectionOptions {
        own_association: true,
        ..ConnectionOptions::default()
    };
    sim.connect(&own).unwrap();
    assert_eq!(associations.count(), 2);
    pair(&mut sim);
    assert_eq!(associations.count(), 2);
}

/// An association has so many streams; the next queue pair gets another association.
#[test]
fn an_association_that_is_full_has_a_second_one_beside_it() {
    let mut sim = sessions();
    for host in &sim.hosts {
        host.machine().associations().set_indication(Some(1), 2);
    }
    let pairs: Vec<_> = (0..5).map(|_| pair(&mut sim)).collect();
    assert_eq!(sim.hosts[0].machine().associations().count(), 3);
    assert_eq!(pairs.len(), 5);
}

/// What is lost of one queue pair's keeps nothing of another's from its place, its receive, or its
/// answer.
#[test]
fn a_loss_on_one_queue_pair_does_not_hold_another() {
    let mut sim = sessions();
    let (mut held, _held_peer) = pair(&mut sim);
    let (mut active, mut passive) = pair(&mut sim);
    let data = pattern(30_000);
    let here = sim.hosts[0].share(&data, all_rights());
    let stuck = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let there = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let got = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let back = sim.hosts[0].share(&vec![0; data.len()], all_rights());
    // The first queue pair has stream 0.
    let associations = sim.hosts[0].machine().associations();
    associations.hold_stream(Some(0));
    sim.hosts[0].post_send(&mut held, write(1, &here, stuck.stag, data.len()));
    sim.run_for(SECOND / 100);
    sim.hosts[1].post_recv(&mut passive, recv(2, &got, data.len()));
    sim.hosts[0].post_send(&mut active, write(3, &here, there.stag, data.len()));
    sim.hosts[0].post_send(&mut active, send(4, &here, data.len()));
    completed(&mut sim, &mut passive, 1);
    assert!(there.content() == data && got.content() == data);
    assert!(stuck.content().iter().all(|octet| *octet == 0));
    // Answers come too; a request completes when all chunks before it were acknowledged.
    sim.hosts[0].post_send(&mut active, read(5, &back, there.stag, 1000));
    let came = sim.run_until(SECOND, |_| back.content()[..1000] == data[..1000]);
    assert!(came && held.poll().is_empty());
    associations.hold_stream(None);
    completed(&mut sim, &mut active, 3);
    completed(&mut sim, &mut held, 1);
    assert!(stuck.content() == data);
}

#[test]
fn sessions_end_in_order_and_leave_nothing() {
    // rfc: 5043-11, 5043-19
    for by in [0, 1] {
        let mut sim = sessions();
        let (mut active, mut passive) = pair(&mut sim);
        let (other, _other_peer) = pair(&mut sim);
        let data = pattern(40_000);
        let here = sim.hosts[0].share(&data, all_rights());
        let there = sim.hosts[1].share(&vec![0; data.len()], all_rights());
        sim.hosts[0].post_send(&mut active, write(1, &here, there.stag, data.len()));
        sim.run_for(SECOND / 10);
        let closer = if by == 0 {
            active.number
        } else {
            passive.number
        };
        sim.hosts[by].command(Command::Disconnect(closer));
        let (a, p) = (active.number, passive.number);
        let over = sim.run_until(SECOND, |sim| {
            sim.hosts[0].end_of(a).is_some() && sim.hosts[1].end_of(p).is_some()
        });
        assert!(over, "{:?} {:?}", sim.hosts[0].events, sim.hosts[1].events);
        let expected = match by {
            0 => [EndReason::Local, EndReason::Peer],
            _ => [EndReason::Peer, EndReason::Local],
        };
        let ends = [sim.hosts[0].end_of(a), sim.hosts[1].end_of(p)];
        assert_eq!(ends.map(Option::unwrap), expected);
        assert!(there.content() == data);
        sim.run_for(SECOND);
        assert!(passive.poll().is_empty());
        // The stream is used again, on the same association.
        assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 1);
        pair(&mut sim);
        assert_eq!(sim.hosts[0].machine().associations().count(), 1);
        sim.hosts[0].command(Command::Disconnect(other.number));
        sim.run_for(SECOND);
        assert_eq!(sim.hosts[0].snapshot(sim.now).connections.len(), 1);
    }
}

/// With its last session an association of ours ends, on both sides.
#[test]
fn an_association_ends_with_its_last_session() {
    let mut sim = sessions();
    let (active, _passive) = pair(&mut sim);
    sim.hosts[0].command(Command::Disconnect(active.number));
    sim.run_for(SECOND);
    for host in [0, 1] {
        assert_eq!(sim.hosts[host].machine().associations().count(), 0);
        assert_eq!(sim.hosts[host].snapshot(sim.now).connections.len(), 0);
    }
}

/// Nobody's request is lost when all packets are.
#[test]
fn all_sessions_are_told_that_their_association_is_lost() {
    // rfc: 5043-s10, 5043-s11
    let mut sim = sessions();
    let mut pairs: Vec<_> = (0..3).map(|_| pair(&mut sim)).collect();
    sim.link.set_impairments(crate::common::cut_link());
    for (active, passive) in &mut pairs {
        sim.hosts[1].post_recv(passive, empty_recv(1));
        sim.hosts[0].post_recv(active, empty_recv(2));
        sim.hosts[0].post_send(active, crate::common::inline_send(3, b"lost"));
    }
    sim.run_for(SECOND * 20);
    for (active, _) in &mut pairs {
        let end = sim.hosts[0].end_of(active.number);
        assert_eq!(end, Some(EndReason::TimedOut));
        let flushed = active.poll();
        assert_eq!(flushed.len(), 2);
        assert!(
            flushed
                .iter()
                .all(|one| outcome(one).2 == WcStatus::WrFlushed)
        );
    }
    let snapshot = sim.hosts[0].snapshot(sim.now);
    assert_eq!(
        (snapshot.rdma.terminates_sent, snapshot.connections.len()),
        (0, 0)
    );
}

/// A wrong STag ends its session with RDMAP's Terminate, and no other.
#[test]
fn an_error_of_one_session_does_not_touch_another() {
    // rfc: 5043-32
    let mut sim = sessions();
    let (mut bad, bad_peer) = pair(&mut sim);
    let (mut good, _good_peer) = pair(&mut sim);
    let data = pattern(10_000);
    let here = sim.hosts[0].share(&data, all_rights());
    let there = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let gone = sim.hosts[1].share(b"gone", all_rights());
    sim.hosts[1].revoke(gone.stag);
    let back = sim.hosts[0].share(b"here", all_rights());
    sim.hosts[0].post_send(&mut bad, read(1, &back, gone.stag, 4));
    let (a, p) = (bad.number, bad_peer.number);
    let over = sim.run_until(SECOND, |sim| {
        sim.hosts[0].end_of(a).is_some() && sim.hosts[1].end_of(p).is_some()
    });
    assert!(over);
    assert!(matches!(
        sim.hosts[0].end_of(a),
        Some(EndReason::TerminateReceived { .. })
    ));
    assert!(matches!(
        sim.hosts[1].end_of(p),
        Some(EndReason::TerminateSent { .. })
    ));
    assert_ne!(outcome(&bad.poll()[0]).2, WcStatus::Success);
    sim.hosts[0].post_send(&mut good, write(2, &here, there.stag, data.len()));
    let done = completed(&mut sim, &mut good, 1);
    assert_eq!(outcome(&done[0]).1, WcOpcode::Write);
    assert!(there.content() == data);
}

#[test]
fn a_rejection_and_its_private_data_reach_the_application() {
    // rfc: 5043-6, 5043-s1, 5043-s2, 6581-s1
    let mut sim = sessions();
    let qp = sim.hosts[0].create_qp();
    sim.hosts[1].listen(7174);
    let options = ConnectionOptions {
        private_data: b"please".to_vec(),
        ird: 3,
        ord: 5,
        ..ConnectionOptions::default()
    };
    let remote = sim.hosts[1].socket(7174);
    sim.hosts[0].connect(&qp, 40_001, remote, &options);
    let limit = SECOND;
    assert!(sim.run_until(limit, |sim| sim.hosts[1].connect_requests().count() == 1));
    let request = sim.hosts[1].events.iter().find_map(|event| match event {
        Event::ConnectRequest {
            request,
            private_data,
            ird,
            ord,
            ..
        } => Some((*request, private_data.clone(), *ird, *ord)),
        _ => None,
    });
    let (request, private_data, ird, ord) = request.unwrap();
    assert_eq!((&private_data[..], ird, ord), (&b"please"[..], 3, 5));
    // Nothing is decided but by the application.
    sim.run_for(SECOND * 5);
    assert!(sim.hosts[0].events.is_empty());
    let private_data = b"no".to_vec();
    sim.hosts[1].command(Command::Reject {
        request,
        private_data,
    });
    let number: QpNumber = qp.number;
    let told = sim.run_until(limit, |sim| {
        sim.hosts[0].events.iter().any(|event| {
            matches!(event, Event::Rejected { qp, private_data, .. }
                if *qp == number && private_data == b"no")
        })
    });
    assert!(told, "{:?}", sim.hosts[0].events);
    sim.run_for(SECOND);
    for host in [0, 1] {
        assert_eq!(sim.hosts[host].snapshot(sim.now).connections.len(), 0);
    }
    assert_eq!(sim.hosts[0].machine().associations().count(), 0);
}

/// A segment is no longer than SCTP takes without cutting it, but has 516 octets at least.
#[test]
fn chunks_are_as_long_as_the_path_takes() {
    // rfc: 5043-22, 5043-23, 5043-24
    for (path, longest) in [(1432, 1432), (700, 700), (100, 516)] {
        let mut sim = sessions();
        let local = sim.hosts[1].socket(7174);
        let by_hand = sim.hosts[1].machine().associations();
        by_hand.listen_by_hand(local);
        sim.hosts[0].machine().associations().set_max_chunk(path);
        let (mut qp, mut peer) = crate::peer::accepted_by_hand(&mut sim, &by_hand);
        let data = pattern(5000);
        let here = sim.hosts[0].share(&data, all_rights());
        sim.hosts[0].post_send(&mut qp, send(1, &here, data.len()));
        sim.run_for(SECOND / 10);
        let chunks = std::iter::from_fn(|| peer.take_chunk());
        let lengths: Vec<usize> = chunks.map(|(_, _, octets)| octets.len()).collect();
        let (last, full) = lengths.split_last().unwrap();
        assert!(
            full.iter().all(|len| *len == longest),
            "{path}: {lengths:?}"
        );
        assert!(*last <= longest);
    }
}
