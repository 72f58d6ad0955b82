//! Data under way: invalidation and revocation, full completion queues, frames and windows that run
//! out, sizes.

mod common;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::counters::DropReason;
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::memory::table::Scope;
use rnic_core::testing::deep;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::{PD, QpSettings, Simulation, TestQp};
use rnic_core::verbs::{
    status::WcStatus,
    wr::{Completion, WcOpcode, completion_flags, send_flags},
};
use std::time::Duration;

fn connected() -> (Simulation, TestQp, TestQp) {
    let mut sim = simulation();
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    (sim, active, passive)
}

fn statuses(completions: &[Completion]) -> Vec<WcStatus> {
    completions.iter().map(Completion::status).collect()
}

#[test]
fn a_send_with_invalidate_takes_the_memory_away_at_once() {
    let (mut sim, mut active, mut passive) = connected();
    let scope = Scope::Stream(PD, passive.stream);
    let target = sim.hosts[1].share_with(&[0; 100], all_rights(), scope);
    let source = sim.hosts[0].share(&[7; 100], all_rights());
    sim.hosts[1].post_recv(&mut passive, empty_recv(1));
    sim.hosts[1].post_recv(&mut passive, empty_recv(2));
    sim.hosts[0].post_send(&mut active, write(1, &source, target.stag, 100));
    sim.hosts[0].post_send(&mut active, invalidate(2, target.stag));
    let received = completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(
        outcome(&received[0]),
        (1, WcOpcode::Recv, WcStatus::Success)
    );
    assert_eq!(received[0].flags, completion_flags::WITH_INVALIDATE);
    assert_eq!(received[0].invalidated_stag, target.stag.0);
    assert!(!sim.hosts[1].is_valid(target.stag));
    assert_eq!(target.content(), [7; 100], "the Write came before");
    let sent = completions(&mut sim, &mut active, 2, SECOND);
    assert_eq!(statuses(&sent), [WcStatus::Success; 2]);
    // The STag is not valid for later data.
    sim.hosts[0].post_send(&mut active, write(3, &source, target.stag, 100));
    let ended = sim.run_until(SECOND, |sim| sim.hosts[0].end_of(active.number).is_some());
    assert!(ended);
    let reason = sim.hosts[0].end_of(active.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateReceived { control, .. })
        if (control.layer, control.error_type, control.code) == (1, 1, 0))
    );
    let failed = (3, WcOpcode::Write, WcStatus::RemoteAccessError);
    assert_eq!(outcomes(&mut active), [failed]);
    // Its owner revokes it, which is no error.
    sim.hosts[1].revoke(target.stag);
    assert_nothing_left(&mut sim);
}

#[test]
fn solicited_completions_wake_those_who_wait_for_them() {
    let (mut sim, mut active, mut passive) = connected();
    for id in 0..4 {
        sim.hosts[1].post_recv(&mut passive, empty_recv(id));
    }
    passive.arming.arm(true);
    sim.hosts[0].post_send(&mut active, inline_send(0, &[]));
    let received = completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!((received[0].flags, passive.notified()), (0, 0));
    sim.hosts[0].post_send(&mut active, solicited(inline_send(1, &[])));
    let received = completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(received[0].flags, completion_flags::SOLICITED);
    assert_eq!(passive.notified(), 1);
    // It notifies once.
    sim.hosts[0].post_send(&mut active, solicited(inline_send(2, &[])));
    completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(passive.notified(), 1);
    // A failure always counts as solicited.
    passive.arming.arm(true);
    sim.hosts[0].command(Command::Abort(active.number));
    completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(passive.notified(), 2);
}

#[test]
fn unsignalled_requests_complete_silently_and_failed_ones_do_not() {
    let mut sim = simulation();
    let settings = QpSettings {
        signal_all: false,
        ..QpSettings::default()
    };
    let mut active = sim.hosts[0].create_qp_with(settings);
    let mut passive = sim.hosts[1].create_qp();
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    for id in 0..6 {
        sim.hosts[1].post_recv(&mut passive, empty_recv(id));
    }
    for id in 0..6 {
        let flags = if id == 3 { send_flags::SIGNALED } else { 0 };
        let wr = inline_send(id, &[]).with_flags(flags);
        sim.hosts[0].post_send(&mut active, wr);
    }
    completions(&mut sim, &mut passive, 6, SECOND);
    sim.run_for(SECOND);
    let done = (3, WcOpcode::Send, WcStatus::Success);
    assert_eq!(outcomes(&mut active), [done]);
    // The next one finds no receive.
    let wr = inline_send(7, &[]).with_flags(0);
    sim.hosts[0].post_send(&mut active, wr);
    sim.run_for(SECOND);
    let failed = (7, WcOpcode::Send, WcStatus::RemoteInvalidRequestError);
    assert_eq!(outcomes(&mut active), [failed]);
}

/// Memory that is revoked while the peer writes to it, or while it is read for the peer.
#[test]
fn revocation_is_final_in_the_middle_of_a_message() {
    for reading in [false, true] {
        let (mut sim, mut active, mut passive) = connected();
        let len = 2_000_000;
        let far = sim.hosts[1].share(&vec![if reading { 9 } else { 0 }; len], all_rights());
        let near = sim.hosts[0].share(&vec![if reading { 0 } else { 9 }; len], all_rights());
        let wr = if reading {
            read(1, &near, far.stag, len)
        } else {
            write(1, &near, far.stag, len)
        };
        let sink = if reading { &near } else { &far };
        sim.hosts[1].post_recv(&mut passive, empty_recv(5));
        sim.hosts[0].post_send(&mut active, wr);
        let mut first = [0];
        let begun = sim.run_until(SECOND, |_| {
            sink.region.read(100_000, &mut first).unwrap();
            first == [9]
        });
        assert!(begun);
        sim.hosts[1].revoke(far.stag);
        // The memory is the application's again: it does not change any more.
        let before = far.content();
        let ended = sim.run_until(SECOND, |sim| {
            sim.hosts[0].end_of(active.number).is_some()
                && sim.hosts[1].end_of(passive.number).is_some()
        });
        assert!(ended, "reading: {reading}");
        assert!(far.content() == before, "written to after it was revoked");
        let reason = sim.hosts[0].end_of(active.number);
        let layer = if reading { 0 } else { 1 };
        assert!(
            matches!(reason, Some(EndReason::TerminateReceived { control, .. })
                if (control.layer, control.error_type, control.code) == (layer, 1, 0)),
            "{reason:?}"
        );
        let all = outcomes(&mut active);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].2, WcStatus::RemoteAccessError);
        let flushed = (5, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut passive), [flushed]);
        assert_nothing_left(&mut sim);
    }
}

/// The sink of a Read is revoked before its response arrives.
#[test]
fn a_read_whose_sink_is_gone_fails() {
    let (mut sim, mut active, passive) = connected();
    let far = sim.hosts[1].share(&[9; 50_000], all_rights());
    let near = sim.hosts[0].share(&[0; 50_000], all_rights());
    sim.hosts[0].post_send(&mut active, read(1, &near, far.stag, 50_000));
    sim.run_now();
    sim.hosts[0].revoke(near.stag);
    let over = sim.run_until(SECOND, |sim| sim.hosts[1].end_of(passive.number).is_some());
    assert!(over);
    let all = outcomes(&mut active);
    assert_eq!(all.len(), 1);
    assert_ne!(all[0].2, WcStatus::Success);
    assert_eq!(near.content(), [0; 50_000]);
    assert_nothing_left(&mut sim);
}

/// Without polling, completions wait in order, and none is lost when there is room again.
#[test]
fn a_full_completion_queue_loses_nothing() {
    const REQUESTS: u64 = 200;
    let mut sim = simulation();
    let small = QpSettings {
        cq: 8,
        ..QpSettings::default()
    };
    let mut active = sim.hosts[0].create_qp_with(small);
    let mut passive = sim.hosts[1].create_qp_with(small);
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    for id in 0..REQUESTS {
        sim.hosts[1].post_recv(&mut passive, empty_recv(id));
        sim.hosts[0].post_send(&mut active, inline_send(id, &[]));
    }
    sim.run_for(SECOND * 5);
    assert!(sim.hosts[0].driver().has_backlog());
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    // One entry at a time makes room for one.
    for _ in 0..100_000 {
        sent.extend(active.poll_one().map(|c| outcome(&c)));
        received.extend(passive.poll_one().map(|c| outcome(&c)));
        sim.run_for(SECOND / 1000);
        if received.len() == REQUESTS as usize && sent.len() == REQUESTS as usize {
            break;
        }
    }
    let wanted = |opcode| (0..REQUESTS).map(move |id| (id, opcode, WcStatus::Success));
    assert!(sent.into_iter().eq(wanted(WcOpcode::Send)));
    assert!(received.into_iter().eq(wanted(WcOpcode::Recv)));
    assert!(!sim.hosts[0].driver().has_backlog());
    sim.hosts[0].command(Command::Disconnect(active.number));
    assert_nothing_left(&mut sim);
}

#[test]
fn a_flush_into_a_full_completion_queue_loses_nothing() {
    let mut sim = simulation();
    let small = QpSettings {
        cq: 4,
        ..QpSettings::default()
    };
    let mut active = sim.hosts[0].create_qp_with(small);
    let passive = sim.hosts[1].create_qp();
    let options = ConnectionOptions::default();
    assert!(sim.connect_pair(&active, &passive, &options, &options));
    for id in 0..100 {
        sim.hosts[0].post_recv(&mut active, empty_recv(id));
    }
    sim.hosts[0].command(Command::Abort(active.number));
    let mut all = Vec::new();
    for _ in 0..100 {
        sim.run_for(SECOND);
        all.extend(outcomes(&mut active));
    }
    let wanted = (0..100).map(|id| (id, WcOpcode::Recv, WcStatus::WrFlushed));
    assert!(all.into_iter().eq(wanted));
    assert_nothing_left(&mut sim);
}

/// Fewer transmit frames than the windows have room for, shared by connections that all want them.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at transmit frames")]
fn a_host_with_few_frames_gets_by() {
    for lossy in [false, true] {
        let link = Impairments {
            delay: Duration::from_micros(100),
            loss: if lossy { 20 } else { 0 },
            ..Impairments::default()
        };
        let mut sim = watched(&EngineConfig::default(), link, 3);
        sim.hosts[0].set_frames(40);
        sim.hosts[1].set_frames(40);
        let options = ConnectionOptions::default();
        let mut pairs: Vec<_> = (0..6).map(|_| sim.connect(&options).unwrap()).collect();
        let data = pattern(200_000);
        let source = sim.hosts[0].share(&data, all_rights());
        let mut targets = Vec::new();
        for (active, _) in &mut pairs {
            let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
            let wr = write(1, &source, target.stag, data.len());
            sim.hosts[0].post_send(active, wr);
            let wr = read(2, &source, target.stag, data.len());
            sim.hosts[0].post_send(active, wr);
            targets.push(target);
        }
        for (active, _) in &mut pairs {
            let done = completions(&mut sim, active, 2, SECOND * 300);
            assert_eq!(statuses(&done), [WcStatus::Success; 2]);
        }
        assert!(targets.iter().all(|target| target.content() == data));
        let starved = sim.hosts[0].snapshot(sim.now).engine.no_transmit_frame;
        assert!(starved > 0, "the test gives it too many frames");
        for (active, _) in &pairs {
            sim.hosts[0].command(Command::Disconnect(active.number));
        }
        sim.link.set_impairments(Impairments::default());
        assert_nothing_left(&mut sim);
    }
}

/// Segments that are new, retransmitted, sent in part or without payload: the device computes the
/// checksums of all.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn a_device_may_complete_checksums() {
    let link = Impairments {
        loss: 20,
        ..Impairments::default()
    };
    let mut sim = watched(&EngineConfig::default(), link, 9);
    sim.hosts[0].complete_checksums();
    let (mut active, _passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    let content = pattern(300_001);
    let source = sim.hosts[0].share(&content, all_rights());
    let target = sim.hosts[1].share(&vec![0; content.len()], all_rights());
    let post = write(1, &source, target.stag, content.len());
    sim.hosts[0].post_send(&mut active, post);
    let sent = completions(&mut sim, &mut active, 1, SECOND * 60);
    assert_eq!(statuses(&sent), [WcStatus::Success]);
    assert_eq!(target.content(), content);
    let now = sim.now;
    let snapshots = [0, 1].map(|host: usize| sim.hosts[host].snapshot(now));
    assert!(snapshots[0].tcp.retransmits > 0);
    assert_eq!(snapshots[1].drops.of(DropReason::TcpChecksum), 0);
    // No frame left with a checksum of ours.
    let sent = snapshots[0].engine.frames_sent;
    assert_eq!(sim.hosts[0].checksums_completed(), sent);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn a_peer_may_close_its_window_and_open_it_again() {
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let data = pattern(60_000);
    let source = sim.hosts[0].share(&data, all_rights());
    sim.raw[raw.peer].window = 0;
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    sim.hosts[0].post_send(&mut raw.qp, send(1, &source, data.len()));
    let begun = sim.raw[raw.peer].received.len();
    // The zero-window probe goes on for any time.
    sim.run_for(SECOND * 300);
    assert_eq!(sim.raw[raw.peer].received.len(), begun);
    assert!(sim.hosts[0].snapshot(sim.now).tcp.window_probes > 3);
    assert!(raw.qp.poll().is_empty());
    // It opens by less than an FPDU, then wholly.
    for window in [20, u16::MAX] {
        sim.raw[raw.peer].window = window;
        sim.raw[raw.peer].acknowledge();
        sim.run_for(SECOND * 120);
    }
    let sent = completions(&mut sim, &mut raw.qp, 1, SECOND * 60);
    assert_eq!(statuses(&sent), [WcStatus::Success]);
    let mut arrived = Vec::new();
    while let Some((_, payload)) = sim.raw[raw.peer].take_ddp() {
        arrived.extend(payload);
    }
    assert!(arrived == data);
}

#[test]
fn messages_of_every_size_arrive() {
    let (mut sim, mut active, mut passive) = connected();
    let largest = deep(64 << 20) as usize;
    let sizes = [0, 1, 3, 4, 1_424, 1_428, 1_429, 65_536, largest];
    let data = pattern(largest);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; largest], all_rights());
    let back = sim.hosts[0].share(&vec![0; largest], all_rights());
    for (id, len) in sizes.into_iter().enumerate() {
        let id = id as u64;
        sim.hosts[1].post_recv(&mut passive, recv(id, &target, len));
        sim.hosts[0].post_send(&mut active, send(id, &source, len));
        let received = completions(&mut sim, &mut passive, 1, SECOND * 60);
        assert_eq!(received[0].byte_len as usize, len);
        assert!(target.content()[..len] == data[..len], "{len} octets sent");
        target.region.write(0, &vec![0; len.min(1 << 20)]).unwrap();
        sim.hosts[0].post_send(&mut active, write(id, &source, target.stag, len));
        sim.hosts[0].post_send(&mut active, read(id, &back, target.stag, len));
        let done = completions(&mut sim, &mut active, 3, SECOND * 60);
        assert_eq!(statuses(&done), [WcStatus::Success; 3], "{len} octets");
        assert!(back.content()[..len] == data[..len], "{len} octets read");
    }
}

/// Messages that arrive out of order are delivered in order.
#[test]
fn what_arrives_ahead_of_order_is_delivered_in_order() {
    // rfc: 5041-21, 5041-63
    let mut sim = simulation();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let region = sim.hosts[0].share(&[0; 100], all_rights());
    for id in 0..3 {
        let receive = recv(id, &region, 100);
        sim.hosts[0].post_recv(&mut raw.qp, receive);
    }
    let message = |msn: u32| fpdu(&ddp(send_header(msn), &[msn as u8; 10]), true);
    let len = message(1).len() as u32;
    sim.raw[raw.peer].send_ahead(2 * len, &message(3));
    sim.raw[raw.peer].send_ahead(len, &message(2));
    sim.run_for(SECOND);
    assert_eq!(region.content(), [0; 100], "placed before its turn");
    assert!(raw.qp.poll().is_empty(), "delivered before its turn");
    let raw_peer = &mut sim.raw[raw.peer];
    raw_peer.send(&message(1));
    raw_peer.skip(2 * len);
    sim.run_now();
    let received = |id| (id, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(
        outcomes(&mut raw.qp),
        [received(0), received(1), received(2)]
    );
    // The stream goes on behind them.
    sim.hosts[0].post_recv(&mut raw.qp, empty_recv(4));
    sim.raw[raw.peer].send_ddp(send_header(4), &[]);
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [received(4)]);
}

/// So many connections that their state is prefetched, on a network that loses and duplicates
/// frames.
#[test]
fn a_hundred_connections_take_turns() {
    let link = Impairments {
        delay: Duration::from_micros(100),
        loss: 10,
        duplication: 10,
        ..Impairments::default()
    };
    let mut sim = watched(&EngineConfig::default(), link, 5);
    let options = ConnectionOptions::default();
    let mut pairs: Vec<_> = (0..100).map(|_| sim.connect(&options).unwrap()).collect();
    let data = pattern(5000);
    let source = sim.hosts[0].share(&data, all_rights());
    let mut targets = Vec::new();
    for (active, _) in &mut pairs {
        let target = sim.hosts[1].share(&[0; 5000], all_rights());
        sim.hosts[0].post_send(active, write(1, &source, target.stag, 5000));
        targets.push(target);
    }
    for ((active, _), target) in pairs.iter_mut().zip(&targets) {
        let done = completions(&mut sim, active, 1, SECOND * 20);
        assert_eq!(statuses(&done), [WcStatus::Success]);
        assert_eq!(target.content(), data);
    }
    for (active, _) in &pairs {
        sim.hosts[0].command(Command::Disconnect(active.number));
    }
    assert_nothing_left(&mut sim);
}

/// A timer that expires in vain would load the connection into the cache and evict others.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn a_hundred_connections_leave_no_timer_behind_what_was_acknowledged() {
    let link = Impairments {
        delay: Duration::from_micros(100),
        ..Impairments::default()
    };
    let mut sim = watched(&EngineConfig::default(), link, 6);
    let options = ConnectionOptions::default();
    let mut pairs: Vec<_> = (0..100).map(|_| sim.connect(&options).unwrap()).collect();
    sim.run_for(SECOND);
    let data = pattern(5000);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&[0; 5000], all_rights());
    for (active, _) in &mut pairs {
        sim.hosts[0].post_send(active, write(1, &source, target.stag, 5000));
    }
    sim.run_now();
    assert!(sim.hosts[0].driver().engine().next_timeout().is_some());
    for (active, _) in &mut pairs {
        let done = completions(&mut sim, active, 1, SECOND);
        assert_eq!(statuses(&done), [WcStatus::Success]);
    }
    assert_eq!(sim.hosts[0].driver().engine().next_timeout(), None);
}
