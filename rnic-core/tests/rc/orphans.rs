//! A peer that leaves: its last acknowledgment counts, and the queue pair stays as it is until its
//! application gives up.

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::tcp::Keepalive;
use rnic_core::testing::simulation::{QpSettings, Simulation, TestQp};
use rnic_core::verbs::status::WcStatus::{self, RetryExceeded, Success, WrFlushed};
use rnic_core::verbs::wr::WcOpcode::{Recv, Send};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

use crate::common::*;
use crate::scene::*;

/// What a side says that gives up during the start-up (RFC 6581 section 9.3).
const GIVEN_UP: TerminateControl = TerminateControl {
    layer: 2,
    error_type: 0,
    code: 5,
};

/// How a raw peer leaves.
#[derive(Clone, Copy, Debug)]
enum Way {
    Fin,
    Rst,
    /// In the middle of a message.
    Cut,
}

impl Way {
    const ALL: [Self; 3] = [Self::Fin, Self::Rst, Self::Cut];

    fn reason(self) -> EndReason {
        match self {
            Self::Fin => EndReason::Peer,
            Self::Rst => EndReason::Reset,
            Self::Cut => EndReason::CutOff,
        }
    }

    fn take(self, sim: &mut Simulation, raw: &RawConnection) {
        let peer = &mut sim.raw[raw.peer];
        match self {
            Self::Fin => peer.close(),
            Self::Rst => peer.abort(),
            Self::Cut => {
                let DdpHeader::Untagged(mut begun) = send_header(1) else {
                    return;
                };
                begun.last = false;
                peer.send_ddp(DdpHeader::Untagged(begun), b"begun");
                peer.close();
            }
        }
        sim.run_now();
    }
}

/// Returns an orphaned queue pair of host 0 with a receive, left in this way.
fn orphan(way: Way) -> (Simulation, TestQp) {
    let mut sim = rc_hosts();
    let mut raw = with_raw_peer(&mut sim);
    let region = sim.hosts[0].share(&[0; 8], all_rights());
    sim.hosts[0].post_recv(&mut raw.qp, recv(50, &region, 8));
    way.take(&mut sim, &raw);
    assert_orphaned(&sim, 0, &mut raw.qp, &way.reason());
    (sim, raw.qp)
}

fn retried(id: u64) -> Outcome {
    (id, Send, RetryExceeded)
}

fn flushed_send(id: u64) -> Outcome {
    (id, Send, WrFlushed)
}

fn flushed_receive(id: u64) -> Outcome {
    (id, Recv, WrFlushed)
}

#[test]
fn a_queue_pair_stays_as_it_is_until_its_application_gives_up() {
    for way in Way::ALL {
        let (mut sim, mut qp) = orphan(way);
        sim.run_for(SECOND * 300);
        sim.hosts[0].post_recv(&mut qp, empty_recv(51));
        sim.run_for(SECOND);
        assert_orphaned(&sim, 0, &mut qp, &way.reason());
        sim.hosts[0].post_send(&mut qp, inline_send(1, b"lost"));
        sim.hosts[0].post_send(&mut qp, inline_send(2, b"too"));
        sim.run_for(SECOND * 300);
        assert_orphaned(&sim, 0, &mut qp, &way.reason());
        give_up(&mut sim, 0, &qp);
        let wanted = [
            retried(1),
            flushed_send(2),
            flushed_receive(50),
            flushed_receive(51),
        ];
        assert_eq!(outcomes(&mut qp), wanted, "{way:?}");
        assert_eq!(sim.hosts[0].end_of(qp.number), Some(way.reason()));
        // From now on it is over.
        sim.hosts[0].post_send(&mut qp, inline_send(3, b"late"));
        sim.hosts[0].post_recv(&mut qp, empty_recv(52));
        sim.run_now();
        assert_eq!(outcomes(&mut qp), [flushed_send(3), flushed_receive(52)]);
        assert_eq!(ends(&sim, 0, &qp), 1);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn a_peer_that_falls_silent_is_noticed_by_a_request_only() {
    let mut sim = rc_hosts();
    let keepalive = Some(Keepalive {
        idle: SECOND,
        interval: SECOND,
        count: 2,
    });
    let options = ConnectionOptions { keepalive, ..rc() };
    let (mut active, _passive) = sim.connect(&options).unwrap();
    sim.hosts[0].post_recv(&mut active, empty_recv(50));
    sim.link.set_impairments(cut_link());
    sim.run_for(SECOND * 60);
    assert_orphaned(&sim, 0, &mut active, &EndReason::TimedOut);
    sim.hosts[0].post_send(&mut active, inline_send(1, b"lost"));
    give_up(&mut sim, 0, &active);
    assert_eq!(outcomes(&mut active), [retried(1), flushed_receive(50)]);
    let reason = sim.hosts[0].end_of(active.number);
    assert_eq!(reason, Some(EndReason::TimedOut));
}

#[test]
fn requests_that_the_silent_peer_has_not_acknowledged_wait() {
    let mut sim = rc_hosts();
    let (mut active, _passive) = sim.connect(&rc()).unwrap();
    sim.link.set_impairments(cut_link());
    for id in 1..=3 {
        sim.hosts[0].post_send(&mut active, inline_send(id, b"lost"));
    }
    sim.run_for(SECOND * 900);
    assert_orphaned(&sim, 0, &mut active, &EndReason::TimedOut);
    give_up(&mut sim, 0, &active);
    let failed = [retried(1), flushed_send(2), flushed_send(3)];
    assert_eq!(outcomes(&mut active), failed);
    let reason = sim.hosts[0].end_of(active.number);
    assert_eq!(reason, Some(EndReason::TimedOut));
}

/// Host 0 has sent three messages. The FIN or RST acknowledges some of them.
#[test]
fn the_last_acknowledgment_counts() {
    for way in Way::ALL {
        for (acknowledged, wanted) in [
            (0, [RetryExceeded, WrFlushed, WrFlushed]),
            (1, [Success, RetryExceeded, WrFlushed]),
            (3, [Success; 3]),
        ] {
            let mut sim = rc_hosts();
            let mut raw = with_raw_peer(&mut sim);
            let region = sim.hosts[0].share(&[0; 8], all_rights());
            sim.raw[raw.peer].acknowledges = false;
            sim.hosts[0].post_recv(&mut raw.qp, recv(50, &region, 8));
            let before = sim.raw[raw.peer].received.len();
            for id in 1..=3 {
                sim.hosts[0].post_send(&mut raw.qp, inline_send(id, b"text"));
            }
            sim.run_now();
            let sent = sim.raw[raw.peer].received.len() - before;
            assert_eq!(outcomes(&mut raw.qp), []);
            sim.raw[raw.peer].ack_limit = Some(before + sent / 3 * acknowledged);
            way.take(&mut sim, &raw);
            let done = outcomes(&mut raw.qp);
            assert_eq!(done.len(), acknowledged, "{way:?}");
            assert_eq!(ends(&sim, 0, &raw.qp), 0);
            assert_eq!(departure(&sim, 0, raw.qp.number), Some(way.reason()));
            give_up(&mut sim, 0, &raw.qp);
            let done = done.into_iter().chain(outcomes(&mut raw.qp));
            let (sends, receives): (Vec<_>, Vec<_>) =
                done.partition(|(_, opcode, _)| *opcode == Send);
            let statuses: Vec<WcStatus> = sends.iter().map(|(.., status)| *status).collect();
            assert_eq!(statuses, wanted, "{way:?}");
            assert_eq!(receives, [flushed_receive(50)]);
            assert_eq!(ends(&sim, 0, &raw.qp), 1);
            sim.hosts[0].destroy_qp(raw.qp);
            assert_nothing_left(&mut sim);
        }
    }
}

/// A RST behind data that is lost is asked about, and the repeated one acknowledges nothing.
#[test]
fn the_acknowledgment_of_a_reset_counts_although_the_reset_is_not_believed() {
    let mut sim = rc_hosts();
    let mut raw = with_raw_peer(&mut sim);
    sim.raw[raw.peer].acknowledges = false;
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"text"));
    sim.run_now();
    sim.raw[raw.peer].skip(100);
    sim.raw[raw.peer].abort();
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [(1, Send, Success)]);
    assert_eq!(departure(&sim, 0, raw.qp.number), None);
    sim.raw[raw.peer].skip(100_u32.wrapping_neg());
    sim.raw[raw.peer].abort();
    sim.run_now();
    assert_orphaned(&sim, 0, &mut raw.qp, &EndReason::Reset);
}

/// A program that resets or destroys a queue pair while that connects is no error of its peer.
#[test]
fn a_peer_that_gives_up_before_the_connection_is_there_has_left() {
    for rc in [true, false] {
        let options = ConnectionOptions {
            rc,
            ..crate::scene::rc()
        };
        let mut sim = rc_hosts();
        let mut raw = accept_raw(&mut sim, &options);
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(50));
        let region = sim.hosts[0].share(&[0; 8], all_rights());
        sim.hosts[0].post_send(&mut raw.qp, send(1, &region, 8));
        let mut said = [0; 4];
        Terminate {
            control: GIVEN_UP,
            ddp_segment_length: None,
            ddp_header: None,
            rdma_header: None,
        }
        .emit(&mut said);
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        sim.raw[raw.peer].send_ddp(DdpHeader::Untagged(header), &said);
        sim.run_now();
        if rc {
            assert_orphaned(&sim, 0, &mut raw.qp, &EndReason::Peer);
            give_up(&mut sim, 0, &raw.qp);
            assert_eq!(outcomes(&mut raw.qp), [retried(1), flushed_receive(50)]);
        } else {
            assert_eq!(
                outcomes(&mut raw.qp),
                [flushed_send(1), flushed_receive(50)]
            );
            let reason = sim.hosts[0].end_of(raw.qp.number);
            let told = matches!(reason, Some(EndReason::TerminateReceived { .. }));
            assert!(told, "{reason:?}");
        }
    }
}

/// What the other ends of connections do is as without RC.
#[test]
fn other_ends_flush() {
    let mut sim = rc_hosts();
    let mut raw = with_raw_peer(&mut sim);
    sim.hosts[0].post_recv(&mut raw.qp, empty_recv(50));
    sim.raw[raw.peer].send_ddp(write_header(Stag(9), 0), b"where?");
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [flushed_receive(50)]);
    let reason = sim.hosts[0].end_of(raw.qp.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateSent { .. })),
        "{reason:?}"
    );
    for command in [Command::Fail, Command::Abort] {
        let (mut sim, mut active, _passive) = connected();
        sim.hosts[0].post_recv(&mut active, empty_recv(50));
        sim.hosts[0].command(command(active.number));
        sim.run_now();
        assert_eq!(outcomes(&mut active), [flushed_receive(50)]);
        let reason = sim.hosts[0].end_of(active.number);
        assert_eq!(reason, Some(EndReason::Local));
        assert_eq!(departure(&sim, 0, active.number), None);
    }
}

#[test]
fn the_oldest_unfinished_request_tells_why_a_queue_pair_was_failed() {
    for options in [rc(), ConnectionOptions::default()] {
        let mut sim = rc_hosts();
        let mut raw = accept_raw(&mut sim, &options);
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(50));
        sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"heard"));
        sim.run_now();
        sim.raw[raw.peer].acknowledges = false;
        for id in 2..=3 {
            sim.hosts[0].post_send(&mut raw.qp, inline_send(id, b"lost"));
        }
        sim.run_now();
        let qp = raw.qp.number;
        let status = WcStatus::RetryExceeded;
        sim.hosts[0].command(Command::FailAs { qp, status });
        sim.run_now();
        let wanted = [
            (1, Send, Success),
            retried(2),
            flushed_send(3),
            flushed_receive(50),
        ];
        assert_eq!(outcomes(&mut raw.qp), wanted);
        assert_eq!(sim.hosts[0].end_of(qp), Some(EndReason::Local));
    }
}

#[test]
fn an_orphan_can_be_failed_aborted_and_disconnected() {
    for command in [Command::Fail, Command::Abort, Command::Disconnect] {
        let (mut sim, mut qp) = orphan(Way::Fin);
        sim.hosts[0].command(command(qp.number));
        sim.run_now();
        assert_eq!(outcomes(&mut qp), [flushed_receive(50)]);
        assert_eq!(sim.hosts[0].end_of(qp.number), Some(EndReason::Local));
        sim.hosts[0].post_send(&mut qp, inline_send(1, b"late"));
        sim.hosts[0].command(command(qp.number));
        sim.run_now();
        assert_eq!(outcomes(&mut qp), [flushed_send(1)]);
        assert_eq!(ends(&sim, 0, &qp), 1);
        assert_nothing_left(&mut sim);
    }
}

#[test]
fn an_orphan_has_no_second_connection() {
    let (mut sim, qp) = orphan(Way::Rst);
    let remote = sim.hosts[1].socket(9);
    sim.hosts[0].connect(&qp, 41_000, remote, &rc());
    sim.run_now();
    let failure = sim.hosts[0].failure_of(qp.number);
    assert_eq!(failure, Some(EndReason::QpNotIdle));
    assert_eq!(ends(&sim, 0, &qp), 0);
}

#[test]
fn an_orphan_can_be_destroyed_and_its_number_used_again() {
    let (mut sim, qp) = orphan(Way::Fin);
    let number = qp.number;
    sim.hosts[0].destroy_qp(qp);
    let mut again = sim.hosts[0].create_numbered_qp(number, QpSettings::default());
    sim.hosts[0].post_recv(&mut again, empty_recv(1));
    let mut peer = sim.hosts[1].create_qp();
    sim.hosts[1].post_recv(&mut peer, empty_recv(1));
    assert!(sim.connect_pair(&again, &peer, &rc(), &rc()));
    sim.hosts[0].post_send(&mut again, inline_send(2, b""));
    sim.run_for(SECOND);
    assert_eq!(ends(&sim, 0, &again), 0);
    assert_eq!(departure(&sim, 0, number), Some(EndReason::Peer), "once");
}

/// Receives that it has taken from a shared queue are its own until it is over.
#[test]
fn an_orphan_with_a_shared_queue_keeps_its_receives_until_it_is_over() {
    for destroyed in [false, true] {
        let mut sim = rc_hosts();
        let mut srq = sim.hosts[0].create_srq(16, 8);
        let mut qp = sim.hosts[0].create_qp_on(&srq, QpSettings::default());
        let region = sim.hosts[0].share(&[0; 8], all_rights());
        for id in [50, 51] {
            sim.hosts[0].post_shared(&mut srq, recv(id, &region, 8));
        }
        let peer = accept_raw_with(&mut sim, &qp, &rc());
        sim.raw[peer].send_ddp(nothing(), &[]);
        let raw = RawConnection { peer, qp };
        Way::Cut.take(&mut sim, &raw);
        qp = raw.qp;
        assert_orphaned(&sim, 0, &mut qp, &EndReason::CutOff);
        let number = qp.number;
        if destroyed {
            sim.hosts[0].command(Command::DestroyQp(number));
            sim.run_now();
            assert_eq!(outcomes(&mut qp), [flushed_receive(50)]);
            continue;
        }
        sim.hosts[0].post_send(&mut qp, inline_send(1, b"lost"));
        give_up(&mut sim, 0, &qp);
        assert_eq!(outcomes(&mut qp), [retried(1), flushed_receive(50)]);
        assert_eq!(last_receives(&sim, 0, number), 1);
        assert_eq!(ends(&sim, 0, &qp), 1);
    }
}
