//! How connections end, and that nothing is left of them: every request completes once, and no
//! connection, frame or port stays behind.

mod common;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{QpSettings, Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::rdmap::TerminateControl;
use std::time::Duration;

fn connected() -> (Simulation, TestQp, TestQp) {
    let mut sim = simulation();
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    (sim, active, passive)
}

fn both_ended(sim: &mut Simulation, active: &TestQp, passive: &TestQp, limit: Duration) {
    let (a, p) = (active.number, passive.number);
    let over = sim.run_until(limit, |sim| {
        sim.hosts[0].end_of(a).is_some() && sim.hosts[1].end_of(p).is_some()
    });
    assert!(over, "{:?} {:?}", sim.hosts[0].events, sim.hosts[1].events);
}

#[test]
fn a_disconnect_sends_what_was_posted_first() {
    // rfc: 5041-11, 5041-12, 5041-s2, 5044-s16
    for by in [0, 1] {
        let (mut sim, mut active, mut passive) = connected();
        let data = pattern(100_000);
        let source = sim.hosts[by].share(&data, all_rights());
        let target = sim.hosts[1 - by].share(&vec![0; data.len()], all_rights());
        // The responder may send once it has received.
        sim.hosts[0].post_send(&mut active, write(0, &source, target.stag, 0));
        sim.run_for(SECOND / 10);
        active.poll();
        let (closer, other) = if by == 0 {
            (&mut active, &mut passive)
        } else {
            (&mut passive, &mut active)
        };
        sim.hosts[1 - by].post_recv(other, recv(7, &target, data.len()));
        sim.hosts[by].post_recv(closer, empty_recv(8));
        for id in 1..=20 {
            let wr = write(id, &source, target.stag, data.len());
            sim.hosts[by].post_send(closer, wr);
        }
        sim.hosts[by].command(Command::Disconnect(closer.number));
        both_ended(&mut sim, &active, &passive, SECOND * 10);
        let (closer, other) = if by == 0 {
            (active, passive)
        } else {
            (passive, active)
        };
        let (mut closer, mut other) = (closer, other);
        let mut wanted: Vec<_> = (1..=20)
            .map(|id| (id, WcOpcode::Write, WcStatus::Success))
            .collect();
        wanted.push((8, WcOpcode::Recv, WcStatus::WrFlushed));
        assert_eq!(outcomes(&mut closer), wanted);
        let flushed = (7, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut other), [flushed]);
        assert_eq!(target.content(), data);
        assert_eq!(sim.hosts[by].end_of(closer.number), Some(EndReason::Local));
        let told = sim.hosts[1 - by].end_of(other.number);
        assert_eq!(told, Some(EndReason::Peer));
        assert_eq!(ends(&sim, by, &closer) + ends(&sim, 1 - by, &other), 2);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_disconnect_may_take_as_long_as_it_gets_on() {
    let slow = Impairments {
        delay: SECOND / 2,
        ..Impairments::default()
    };
    let mut sim = watched(&EngineConfig::default(), slow, 1);
    let (mut active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    let data = pattern(4_000_000);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    sim.hosts[0].post_send(&mut active, write(1, &source, target.stag, data.len()));
    sim.hosts[0].post_send(&mut active, read(2, &source, target.stag, data.len()));
    let begun = sim.now;
    sim.hosts[0].command(Command::Disconnect(active.number));
    both_ended(&mut sim, &active, &passive, SECOND * 120);
    assert!(sim.now.since(begun) > SECOND * 10, "the link is too fast");
    let wanted = [
        (1, WcOpcode::Write, WcStatus::Success),
        (2, WcOpcode::Read, WcStatus::Success),
    ];
    assert_eq!(outcomes(&mut active), wanted);
    assert_eq!(
        sim.hosts[0].end_of(active.number),
        Some(EndReason::Local),
        "{:?}",
        sim.hosts[0].events
    );
    assert_nothing_left(&mut sim);
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let (mut sim, mut active, mut passive) = connected();
    sim.hosts[0].post_recv(&mut active, empty_recv(1));
    sim.hosts[1].post_recv(&mut passive, empty_recv(2));
    sim.hosts[0].command(Command::Disconnect(active.number));
    sim.hosts[1].command(Command::Disconnect(passive.number));
    both_ended(&mut sim, &active, &passive, SECOND);
    for (host, qp) in [(0, &mut active), (1, &mut passive)] {
        assert_eq!(sim.hosts[host].end_of(qp.number), Some(EndReason::Local));
        assert_eq!(ends(&sim, host, qp), 1);
        let id = host as u64 + 1;
        assert_eq!(outcomes(qp), [(id, WcOpcode::Recv, WcStatus::WrFlushed)]);
    }
    assert_nothing_left(&mut sim);
}

/// Posts requests of all kinds that cannot complete before the test lets them.
fn post_unfinished(sim: &Simulation, host: usize, qp: &mut TestQp) {
    let source = sim.hosts[host].share(&[1; 5000], all_rights());
    for id in 0..5 {
        sim.hosts[host].post_recv(qp, recv(100 + id, &source, 10));
    }
    for id in 0..5 {
        sim.hosts[host].post_send(qp, send(id, &source, 5000));
    }
}

/// Checks that all requests of `post_unfinished` complete as flushed, in order, once.
fn assert_flushed(qp: &mut TestQp) {
    let all = outcomes(qp);
    let (mut receives, mut sends): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(_, opcode, _)| *opcode == WcOpcode::Recv);
    let ids = |base| (base..base + 5).collect::<Vec<u64>>();
    for (list, base) in [(&mut receives, 100), (&mut sends, 0)] {
        assert!(
            list.iter()
                .all(|(.., status)| *status == WcStatus::WrFlushed)
        );
        assert_eq!(
            list.iter().map(|(id, ..)| *id).collect::<Vec<_>>(),
            ids(base)
        );
    }
}

#[test]
fn an_abort_flushes_both_sides() {
    let (mut sim, mut active, mut passive) = connected();
    post_unfinished(&sim, 0, &mut active);
    sim.hosts[0].command(Command::Abort(active.number));
    sim.hosts[1].post_recv(&mut passive, empty_recv(9));
    both_ended(&mut sim, &active, &passive, SECOND);
    assert_flushed(&mut active);
    let flushed = (9, WcOpcode::Recv, WcStatus::WrFlushed);
    assert_eq!(outcomes(&mut passive), [flushed]);
    assert_eq!(sim.hosts[0].end_of(active.number), Some(EndReason::Local));
    assert_eq!(sim.hosts[1].end_of(passive.number), Some(EndReason::Reset));
    assert_nothing_left(&mut sim);
}

#[test]
fn requests_posted_after_the_end_are_flushed() {
    let (mut sim, mut active, passive) = connected();
    sim.hosts[0].command(Command::Disconnect(active.number));
    both_ended(&mut sim, &active, &passive, SECOND);
    // In TIME-WAIT, and after it.
    for _ in 0..2 {
        post_unfinished(&sim, 0, &mut active);
        sim.run_now();
        assert_flushed(&mut active);
        sim.run_for(SECOND * 300);
    }
    assert_nothing_left(&mut sim);
}

/// The worker takes the doorbell, and in the same turn forgets the connection.
#[test]
fn a_request_posted_as_the_connection_is_forgotten_is_flushed() {
    let (mut sim, mut active, _passive) = connected();
    post_unfinished(&sim, 0, &mut active);
    sim.hosts[0].command(Command::Abort(active.number));
    sim.run_now();
    assert_flushed(&mut active);
    let (mut sim, mut active, passive) = connected();
    sim.hosts[0].command(Command::Disconnect(active.number));
    both_ended(&mut sim, &active, &passive, SECOND);
    loop {
        let id = sim.now.as_nanos();
        sim.hosts[0].post_recv(&mut active, empty_recv(id));
        let more = sim.step();
        assert_eq!(
            outcomes(&mut active),
            [(id, WcOpcode::Recv, WcStatus::WrFlushed)]
        );
        if !more {
            break;
        }
    }
    assert_nothing_left(&mut sim);
}

#[test]
fn a_queue_pair_can_be_destroyed_while_connected_and_its_number_used_again() {
    let (mut sim, mut active, passive) = connected();
    post_unfinished(&sim, 0, &mut active);
    let number = active.number;
    sim.hosts[0].destroy_qp(active);
    let again = sim.hosts[0].create_numbered_qp(number, QpSettings::default());
    let ended = sim.run_until(SECOND, |sim| sim.hosts[1].end_of(passive.number).is_some());
    assert!(ended, "the peer is told");
    assert_eq!(sim.hosts[1].end_of(passive.number), Some(EndReason::Reset));
    let told = |event: &Event| matches!(event, Event::Disconnected { .. } | Event::Failed { .. });
    assert!(!sim.hosts[0].events.iter().any(told), "stale news");
    use_again(&mut sim, again);
}

#[test]
fn a_queue_pair_can_be_destroyed_in_time_wait_and_its_number_used_again() {
    let (mut sim, active, passive) = connected();
    let number = active.number;
    sim.hosts[0].command(Command::Disconnect(number));
    both_ended(&mut sim, &active, &passive, SECOND);
    sim.hosts[0].destroy_qp(active);
    let again = sim.hosts[0].create_numbered_qp(number, QpSettings::default());
    sim.hosts[0].events.clear();
    // The old connection is forgotten meanwhile.
    sim.run_for(SECOND * 300);
    use_again(&mut sim, again);
}

#[test]
fn a_queue_pair_can_be_destroyed_while_connecting_and_its_number_used_again() {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let number = qp.number;
    let nobody = sim.hosts[1].socket(9);
    sim.link.set_impairments(cut_link());
    sim.hosts[0].connect(&qp, 40_900, nobody, &ConnectionOptions::default());
    sim.run_for(SECOND * 3);
    sim.hosts[0].destroy_qp(qp);
    let again = sim.hosts[0].create_numbered_qp(number, QpSettings::default());
    sim.link.set_impairments(Impairments::default());
    sim.run_for(SECOND * 60);
    assert!(sim.hosts[0].events.is_empty(), "{:?}", sim.hosts[0].events);
    use_again(&mut sim, again);
}

#[test]
fn a_queue_pair_can_be_destroyed_while_its_terminate_waits_and_its_number_used_again() {
    let mut sim = simulation();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let number = raw.qp.number;
    sim.raw[raw.peer].window = 0;
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.raw[raw.peer].send_ddp(send_header(1), &[]);
    sim.run_now();
    assert!(sim.hosts[0].end_of(number).is_some(), "no receive");
    sim.hosts[0].destroy_qp(raw.qp);
    let again = sim.hosts[0].create_numbered_qp(number, QpSettings::default());
    sim.hosts[0].events.clear();
    // The old connection is forgotten meanwhile.
    sim.run_for(SECOND * 300);
    use_again(&mut sim, again);
}

/// Checks that a queue pair works with a number that another had.
fn use_again(sim: &mut Simulation, mut active: TestQp) {
    let mut passive = sim.hosts[1].create_qp();
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    sim.hosts[1].post_recv(&mut passive, empty_recv(3));
    sim.hosts[0].post_send(&mut active, inline_send(4, &[]));
    let sent = completions(sim, &mut active, 1, SECOND);
    assert_eq!(outcome(&sent[0]), (4, WcOpcode::Send, WcStatus::Success));
    assert_eq!(
        outcomes(&mut passive),
        [(3, WcOpcode::Recv, WcStatus::Success)]
    );
    sim.hosts[0].command(Command::Disconnect(active.number));
    both_ended(sim, &active, &passive, SECOND);
    assert_nothing_left(sim);
}

#[test]
fn requests_that_wait_for_a_decision_go_with_their_listener() {
    let mut sim = simulation();
    sim.hosts[1].listen(7000);
    let remote = sim.hosts[1].socket(7000);
    let qps = [sim.hosts[0].create_qp(), sim.hosts[0].create_qp()];
    for qp in &qps {
        let port = 45_000 + qp.number.0 as u16;
        sim.hosts[0].connect(qp, port, remote, &ConnectionOptions::default());
    }
    assert!(sim.run_until(SECOND, |sim| sim.hosts[1].connect_requests().count() == 2));
    let requests: Vec<_> = sim.hosts[1].connect_requests().collect();
    sim.hosts[1].unlisten(7000);
    sim.run_for(SECOND / 10);
    for (qp, request) in qps.iter().zip(requests) {
        let gone = Event::RequestGone { request };
        assert!(sim.hosts[1].events.contains(&gone));
        let failure = sim.hosts[0].failure_of(qp.number);
        let control = TerminateControl {
            layer: 2,
            error_type: 0,
            code: 5,
        };
        assert_eq!(
            failure,
            Some(EndReason::TerminateReceived {
                control,
                quoted: None
            })
        );
    }
    assert_nothing_left(&mut sim);
}

#[test]
fn accepting_or_rejecting_a_request_that_is_gone_is_an_error() {
    let mut sim = simulation();
    sim.hosts[1].listen(7000);
    let remote = sim.hosts[1].socket(7000);
    let active = sim.hosts[0].create_qp();
    let passive = sim.hosts[1].create_qp();
    let options = ConnectionOptions {
        connect_timeout: SECOND,
        ..ConnectionOptions::default()
    };
    sim.hosts[0].connect(&active, 45_000, remote, &options);
    assert!(sim.run_until(SECOND, |sim| sim.hosts[1].connect_requests().count() == 1));
    let request = last_request(&sim, 1);
    let gone = Event::RequestGone { request };
    assert!(
        sim.run_until(SECOND * 3, |sim| sim.hosts[1].events.contains(&gone)),
        "the initiator gave up"
    );
    let failure = sim.hosts[0].failure_of(active.number);
    assert_eq!(failure, Some(EndReason::TimedOut));
    sim.hosts[1].command(Command::Reject {
        request,
        private_data: vec![],
    });
    sim.hosts[1].accept(request, &passive, &options);
    sim.run_now();
    let failure = sim.hosts[1].failure_of(passive.number);
    assert_eq!(failure, Some(EndReason::Reset));
    sim.hosts[1].unlisten(7000);
    // Both queue pairs are idle again.
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    sim.hosts[0].command(Command::Abort(active.number));
    assert_nothing_left(&mut sim);
}

#[test]
fn a_peer_that_vanishes_fails_every_request_once() {
    // rfc: 5041-5, 5041-70a, 5041-s6, 5044-85a
    for kind in ["send", "write", "read"] {
        let (mut sim, mut active, mut passive) = connected();
        let source = sim.hosts[0].share(&[1; 5000], all_rights());
        let target = sim.hosts[1].share(&[0; 5000], all_rights());
        sim.link.set_impairments(cut_link());
        for id in 0..20 {
            let wr = match kind {
                "send" => send(id, &source, 5000),
                "write" => write(id, &source, target.stag, 5000),
                _ => read(id, &source, target.stag, 5000),
            };
            sim.hosts[0].post_send(&mut active, wr);
        }
        sim.hosts[0].post_recv(&mut active, empty_recv(50));
        let begun = sim.now;
        let all = completions(&mut sim, &mut active, 21, SECOND * 900);
        assert!(sim.now.since(begun) < SECOND * 600);
        let ids: Vec<u64> = all.iter().map(|completion| completion.wr_id).collect();
        let wanted: Vec<u64> = (0..20).chain([50]).collect();
        assert_eq!(ids, wanted, "{kind}");
        assert!(all.iter().all(|c| c.status() == WcStatus::WrFlushed));
        let reason = sim.hosts[0].end_of(active.number);
        assert_eq!(reason, Some(EndReason::TimedOut), "{kind}");
        // The other side has nothing outstanding and receives nothing: the host ends it.
        sim.hosts[1].post_recv(&mut passive, empty_recv(1));
        sim.hosts[1].command(Command::Abort(passive.number));
        assert_nothing_left(&mut sim);
        assert!(active.poll().is_empty(), "completed twice");
    }
}

#[test]
fn a_disconnect_from_a_vanished_peer_ends() {
    let (mut sim, mut active, passive) = connected();
    sim.link.set_impairments(cut_link());
    post_unfinished(&sim, 0, &mut active);
    sim.hosts[0].command(Command::Disconnect(active.number));
    let number = active.number;
    let has_ended = |sim: &mut Simulation| sim.hosts[0].end_of(number).is_some();
    // A slow peer still gets everything.
    assert!(!sim.run_until(SECOND * 55, has_ended));
    assert!(sim.run_until(SECOND * 6, has_ended));
    assert_eq!(
        sim.hosts[0].end_of(active.number),
        Some(EndReason::TimedOut)
    );
    assert_flushed(&mut active);
    sim.hosts[1].command(Command::Abort(passive.number));
    assert_nothing_left(&mut sim);
}

/// A message that is partly sent when the peer closes is not sent further: the application has its
/// memory back.
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_message_is_not_sent_on_after_the_peer_closed() {
    // rfc: 5041-69, 5041-s4
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let source = sim.hosts[0].share(&pattern(1_000_000), all_rights());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.hosts[0].post_send(&mut raw.qp, send(1, &source, 1_000_000));
    sim.raw[raw.peer].acknowledges = false;
    sim.run_now();
    sim.raw[raw.peer].acknowledges = true;
    let begun = sim.raw[raw.peer].received.len();
    assert!(begun > 10_000, "the message is under way");
    sim.raw[raw.peer].close();
    sim.run_now();
    let flushed = (1, WcOpcode::Send, WcStatus::WrFlushed);
    assert_eq!(outcomes(&mut raw.qp), [flushed]);
    assert_eq!(sim.hosts[0].end_of(raw.qp.number), Some(EndReason::Peer));
    sim.hosts[0].revoke(source.stag);
    sim.run_for(SECOND / 10);
    let after = sim.raw[raw.peer].received.len() - begun;
    assert!(after < 3000, "{after} octets of a message that is over");
    assert!(sim.raw[raw.peer].finished && !sim.raw[raw.peer].reset);
    assert_nothing_left(&mut sim);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at TIME-WAIT")]
fn time_wait_lasts_its_time() {
    let (mut sim, active, passive) = connected();
    sim.hosts[0].command(Command::Disconnect(active.number));
    both_ended(&mut sim, &active, &passive, SECOND);
    // A second call changes nothing.
    sim.hosts[0].command(Command::Disconnect(active.number));
    sim.hosts[0].command(Command::Abort(active.number));
    let ended = sim.now;
    while !sim.hosts[0].snapshot(sim.now).connections.is_empty() {
        assert_eq!(sim.hosts[0].reservations(), 1);
        sim.step();
    }
    let waited = sim.now.since(ended);
    assert!(waited >= SECOND * 59, "{waited:?}");
    assert_nothing_left(&mut sim);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at TIME-WAIT")]
fn a_later_syn_ends_a_time_wait_where_somebody_listens() {
    let mut sim = simulation();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.hosts[0].command(Command::Disconnect(raw.qp.number));
    sim.run_now();
    sim.raw[raw.peer].close();
    sim.run_now();
    let facts = |sim: &mut Simulation| sim.hosts[0].snapshot(sim.now).connections;
    assert!(facts(&mut sim)[0].state.starts_with("TimeWait"));
    sim.raw[raw.peer].connect();
    sim.run_now();
    assert!(facts(&mut sim)[0].state.starts_with("TimeWait"));
    sim.hosts[0].listen(4420);
    // The SYN of the ended connection again.
    sim.raw[raw.peer].connect();
    sim.run_now();
    assert!(facts(&mut sim)[0].state.starts_with("TimeWait"));
    sim.raw[raw.peer].isn += 0x1000_0000;
    sim.raw[raw.peer].connect();
    sim.run_now();
    assert!(facts(&mut sim)[0].state.starts_with("Established"));
    sim.hosts[0].unlisten(4420);
    assert_nothing_left(&mut sim);
}

#[test]
fn sixty_four_connections_at_once() {
    const CONNECTIONS: usize = 64;
    let link = Impairments {
        delay: Duration::from_micros(200),
        loss: 5,
        reordering: 20,
        jitter: Duration::from_micros(300),
        ..Impairments::default()
    };
    let mut sim = watched(&EngineConfig::default(), link, 64);
    let options = ConnectionOptions::default();
    let mut pairs: Vec<_> = (0..CONNECTIONS)
        .map(|_| sim.connect(&options).expect("it stands"))
        .collect();
    let len = 20_000;
    let data = pattern(len);
    let source = sim.hosts[0].share(&data, all_rights());
    let targets: Vec<_> = (0..CONNECTIONS)
        .map(|_| sim.hosts[1].share(&vec![0; len], all_rights()))
        .collect();
    for ((active, passive), target) in pairs.iter_mut().zip(&targets) {
        sim.hosts[1].post_recv(passive, empty_recv(1));
        sim.hosts[0].post_send(active, write(1, &source, target.stag, len));
        sim.hosts[0].post_send(active, inline_send(2, &[]));
    }
    for (active, passive) in &mut pairs {
        let sent = completions(&mut sim, active, 2, SECOND * 60);
        assert!(sent.iter().all(|c| c.status() == WcStatus::Success));
        let received = completions(&mut sim, passive, 1, SECOND * 60);
        assert_eq!(received[0].status(), WcStatus::Success);
    }
    assert!(targets.iter().all(|target| target.content() == data));
    // One is cut off, half are destroyed, the others part in order.
    sim.hosts[0].command(Command::Abort(pairs[0].0.number));
    for (at, (active, _)) in pairs.into_iter().enumerate().skip(1) {
        if at % 2 == 0 {
            sim.hosts[0].destroy_qp(active);
        } else {
            sim.hosts[0].command(Command::Disconnect(active.number));
        }
    }
    // A lost RST leaves the other side open: it ends when it sends.
    sim.link.set_impairments(Impairments::default());
    sim.run_for(SECOND * 2);
    let alive = sim.hosts[1].snapshot(sim.now).connections.len();
    assert!(alive <= 4, "{alive} connections were not told");
    for number in 1..=CONNECTIONS as u32 {
        let number = rnic_core::ids::QpNumber(number);
        sim.hosts[1].command(Command::Abort(number));
    }
    assert_nothing_left(&mut sim);
}
