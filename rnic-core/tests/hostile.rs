//! Hostile or strange peers: memory stays bounded, nothing panics, other connections are not
//! affected.

mod common;

use common::*;
use fastrand::Rng;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::EngineConfig;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag};
use rnic_core::wire::rdmap::Opcode;

/// A receive window that a test can fill.
const WINDOW: u32 = 64 * 1024;

fn small_window() -> Simulation {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = WINDOW;
    config.tcp.receive_window_limit = WINDOW;
    simulation_with(&config, 1)
}

fn buffered(sim: &mut Simulation) -> usize {
    let snapshot = sim.hosts[0].snapshot(sim.now);
    snapshot.connections.iter().map(|c| c.buffered).sum()
}

/// The window is never taken back, and the out-of-order queue never exceeds it.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn the_out_of_order_queue_never_exceeds_the_window() {
    for seed in 0..20 {
        let mut rng = Rng::with_seed(seed);
        let mut sim = small_window();
        let raw = accept_raw(&mut sim, &ConnectionOptions::default());
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        sim.run_now();
        // Nothing of it is an FPDU that can be recognised, and the first octet never comes.
        let mut noise: Vec<u8> = (0..1460).map(|_| rng.u8(..)).collect();
        noise[..2].copy_from_slice(&[0, 16]);
        let start = sim.raw[raw.peer].acknowledged;
        for _ in 0..400 {
            let ahead = rng.u32(1..WINDOW * 2);
            let len = rng.usize(1..=noise.len());
            sim.raw[raw.peer].send_ahead(ahead, &noise[..len]);
            if rng.u8(0..4) == 0 {
                sim.run_now();
                let kept = buffered(&mut sim);
                assert!(kept <= WINDOW as usize, "seed {seed}: {kept} octets");
            }
        }
        sim.run_now();
        let kept = buffered(&mut sim);
        assert!(kept > WINDOW as usize / 2, "the test does not fill it");
        let peer = &sim.raw[raw.peer];
        assert_eq!(peer.acknowledged, start);
        assert!(peer.offered <= WINDOW);
        // The connection goes on: with the missing octets it is found to be no FPDU.
        sim.raw[raw.peer].send(&noise);
        sim.run_for(SECOND);
        let reason = sim.hosts[0].end_of(raw.qp.number);
        assert!(
            matches!(reason, Some(EndReason::TerminateSent { .. })),
            "seed {seed}: {reason:?}"
        );
        assert_eq!(buffered(&mut sim), 0, "it is over");
        assert_nothing_left(&mut sim);
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn the_window_shrinks_by_the_out_of_order_queue() {
    let mut sim = small_window();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    // The start of an FPDU of 40,000 octets, in order: it is buffered until the FPDU is complete.
    let region = sim.hosts[0].share(&vec![0; 40_000], all_rights());
    let receive = recv(1, &region, 40_000);
    sim.hosts[0].post_recv(&mut raw.qp, receive);
    let data = pattern(40_000);
    let large = fpdu(&ddp(send_header(1), &data), true);
    let mut edge = 0;
    let mut sent = 0;
    for piece in large.chunks(1000) {
        assert_eq!(buffered(&mut sim), sent);
        sim.raw[raw.peer].send(piece);
        sim.run_for(SECOND / 10);
        sent += piece.len();
        let peer = &sim.raw[raw.peer];
        // What is acknowledged and what may still come, together: no more than before the FPDU
        // began.
        let right = peer.acknowledged + peer.offered;
        if edge == 0 {
            edge = right;
        }
        if sent < large.len() {
            // Windows are in units of 256 octets, and rounded up so that the edge does not move
            // back: by less than one of them for each ACK, where it would be 1000 if nothing were
            // kept.
            assert!(
                right < edge + 256 * (sent as u32 / 1000),
                "the window did not shrink"
            );
        }
    }
    sim.run_for(SECOND / 10);
    let peer = &sim.raw[raw.peer];
    assert!(peer.offered > WINDOW - 3000, "the window is open again");
    assert_eq!(outcomes(&mut raw.qp)[0].2, WcStatus::Success);
    assert_eq!(region.content(), data);
    let counted = sim.hosts[0].snapshot(sim.now).rdma.octets_buffered;
    assert_eq!(
        counted as usize,
        large.chunks(1000).rev().skip(1).flatten().count()
    );
}

/// A peer without window scaling may send FPDUs larger than the window: the window must stay open
/// for the rest.
#[test]
fn an_fpdu_larger_than_the_window_gets_through() {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = 16 * 1024;
    let mut sim = simulation_with(&config, 1);
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    let region = sim.hosts[0].share(&vec![0; 60_000], all_rights());
    let receive = recv(1, &region, 60_000);
    sim.hosts[0].post_recv(&mut raw.qp, receive);
    let data = pattern(60_000);
    let large = fpdu(&ddp(send_header(1), &data), true);
    let mut rest = &large[..];
    let mut next = sim.raw[raw.peer].acknowledged;
    while !rest.is_empty() {
        let peer = &mut sim.raw[raw.peer];
        let room = (peer.acknowledged + peer.offered).saturating_sub(next);
        let (piece, later) = rest.split_at(rest.len().min(room as usize).min(1000));
        assert!(!piece.is_empty(), "{} octets are not let in", rest.len());
        peer.send(piece);
        next += piece.len() as u32;
        rest = later;
        sim.run_for(SECOND / 10);
    }
    assert_eq!(outcomes(&mut raw.qp)[0].2, WcStatus::Success);
    assert_eq!(region.content(), data);
}

/// Single octets that leave gaps: each costs a piece, and TCP and the engine bound their number.
#[test]
fn octets_that_leave_gaps_cost_little() {
    let mut sim = small_window();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    for ahead in (1..WINDOW).step_by(2) {
        sim.raw[raw.peer].send_ahead(ahead, &[0]);
    }
    sim.run_now();
    assert!(buffered(&mut sim) <= 512);
    // Descending, so that each lies in front of what is there.
    for ahead in (WINDOW / 2..WINDOW).rev() {
        sim.raw[raw.peer].send_ahead(ahead, &[0]);
    }
    sim.run_now();
    assert!(buffered(&mut sim) <= WINDOW as usize);
}

/// An old segment, by its sequence number, does not open a window that a later one has closed
/// (SND.WL1). Only the window probe is sent.
#[test]
fn a_window_in_an_old_segment_counts_for_nothing() {
    let mut sim = simulation();
    let raw = accept_raw(&mut sim, &ConnectionOptions::default());
    let peer = &mut sim.raw[raw.peer];
    peer.window = 0;
    peer.acknowledge();
    let nonsense = peer.fpdu(&[0x85; 7]);
    peer.send(&nonsense);
    sim.run_now();
    let before = sim.raw[raw.peer].received.len();
    let peer = &mut sim.raw[raw.peer];
    peer.skip(25_000_u32.wrapping_neg());
    peer.window = 9;
    peer.acknowledge();
    sim.run_now();
    assert_eq!(sim.raw[raw.peer].received.len(), before, "nothing yet");
    // The decoder listens: it does not object that the FPDU was not sent in one piece.
    sim.run_for(SECOND);
    assert_eq!(sim.raw[raw.peer].received.len(), before + 1, "a probe");
    sim.raw[raw.peer].abort();
    assert_nothing_left(&mut sim);
}

/// A message that the peer never finishes, and FIN in the middle of an FPDU of it, or behind one
/// that is not its last.
#[test]
fn a_stream_that_ends_inside_a_message_was_cut_off() {
    // rfc: 5041-11
    for in_fpdu in [true, false] {
        for untagged in [true, false] {
            let mut sim = simulation();
            let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
            let region = sim.hosts[0].share(&[0; 64], all_rights());
            sim.hosts[0].post_recv(&mut raw.qp, recv(1, &region, 64));
            let mut header = match untagged {
                true => send_header(1),
                false => write_header(region.stag, 0),
            };
            match &mut header {
                DdpHeader::Untagged(header) => header.last = in_fpdu,
                DdpHeader::Tagged(header) => header.last = in_fpdu,
            }
            let whole = fpdu(&ddp(header, b"a part of it"), true);
            let len = if in_fpdu { 12 } else { whole.len() };
            sim.raw[raw.peer].send(&whole[..len]);
            sim.raw[raw.peer].close();
            sim.run_now();
            let reason = sim.hosts[0].end_of(raw.qp.number);
            assert_eq!(reason, Some(EndReason::CutOff), "{in_fpdu} {untagged}");
            let flushed = (1, WcOpcode::Recv, WcStatus::WrFlushed);
            assert_eq!(outcomes(&mut raw.qp), [flushed]);
            // This side closes too, as after any end by the peer.
            assert!(sim.raw[raw.peer].finished && !sim.raw[raw.peer].reset);
            assert_nothing_left(&mut sim);
        }
    }
}

/// Any octets at all in place of FPDUs, well sealed or not, in order or not.
#[test]
fn any_octets_are_survived() {
    let mut terminated = 0;
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let mut sim = small_window();
        let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
        let region = sim.hosts[0].share(&[0; 4096], all_rights());
        for id in 0..3 {
            let receive = recv(id, &region, 1000);
            sim.hosts[0].post_recv(&mut raw.qp, receive);
        }
        let wr = read(9, &region, Stag(7), 100);
        sim.hosts[0].post_send(&mut raw.qp, wr);
        for _ in 0..20 {
            let octets = strange_fpdu(&mut rng, region.stag);
            let peer = &mut sim.raw[raw.peer];
            match rng.u8(0..8) {
                0 => peer.send_ahead(rng.u32(0..WINDOW), &octets),
                1 => {
                    let cut = rng.usize(..=octets.len());
                    peer.send(&octets[..cut]);
                    peer.send(&octets[cut..]);
                }
                2 => peer.window = rng.u16(0..100),
                _ => peer.send(&octets),
            }
            if rng.bool() {
                sim.run_now();
            }
        }
        sim.run_now();
        let reason = sim.hosts[0].end_of(raw.qp.number);
        terminated += usize::from(matches!(reason, Some(EndReason::TerminateSent { .. })));
        sim.raw[raw.peer].abort();
        sim.run_for(SECOND * 30);
        let number = raw.qp.number;
        sim.hosts[0].command(rnic_core::engine::Command::Abort(number));
        sim.run_now();
        let all = outcomes(&mut raw.qp);
        assert_eq!(all.len(), 4, "seed {seed}: {all:?}");
        assert_nothing_left(&mut sim);
    }
    assert!(
        terminated > 100,
        "only {terminated} of the streams were wrong"
    );
}

fn strange_fpdu(rng: &mut Rng, stag: Stag) -> Vec<u8> {
    let payload: Vec<u8> = (0..rng.usize(0..600)).map(|_| rng.u8(..)).collect();
    let opcodes = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::Terminate,
    ];
    let opcode = opcodes[rng.usize(..opcodes.len())];
    let last = rng.u8(0..4) > 0;
    let header = if rng.bool() {
        tagged(opcode, stag, rng.u64(0..4096), last)
    } else {
        let queue = QueueNumber(rng.u32(0..3));
        DdpHeader::Untagged(untagged(opcode, queue, rng.u32(0..3), last))
    };
    let mut ulpdu = ddp(header, &payload);
    if rng.u8(0..4) == 0 {
        let at = rng.usize(..ulpdu.len());
        ulpdu[at] = rng.u8(..);
    }
    if rng.u8(0..8) == 0 {
        ulpdu.truncate(rng.usize(..ulpdu.len()));
    }
    let mut octets = fpdu(&ulpdu, true);
    if rng.u8(0..16) == 0 {
        let at = rng.usize(..octets.len());
        octets[at] ^= 1 << rng.u8(0..8);
    }
    octets
}
