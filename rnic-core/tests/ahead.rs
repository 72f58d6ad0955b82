//! Data that arrive out of order on a stream without markers. Nothing shows there where an FPDU
//! begins, so the data wait in the out-of-order queue.

mod common;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::{Simulation, TapPoint};
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{RecvWr, WcOpcode},
};
use rnic_core::wire::checksum::Checksums;
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::packet::parse;
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

fn buffered(sim: &mut Simulation) -> usize {
    let snapshot = sim.hosts[0].snapshot(sim.now);
    snapshot.connections.iter().map(|c| c.buffered).sum()
}

/// Returns FPDUs that a payload may contain and that would have an effect on this region.
fn inner_fpdus(stag: Stag) -> [(&'static str, Vec<u8>); 6] {
    let untagged = |opcode, queue, msn| DdpHeader::Untagged(untagged(opcode, queue, msn, true));
    let mut request = [0; ReadRequest::LEN];
    ReadRequest {
        sink_stag: Stag(7),
        sink_offset: TaggedOffset(0),
        length: 8,
        source_stag: stag,
        source_offset: TaggedOffset(0),
    }
    .emit(&mut request);
    let sealed = |header, payload: &[u8]| fpdu(&ddp(header, payload), true);
    let (send, reads) = (QueueNumber::SEND, QueueNumber::READ_REQUEST);
    [
        ("Write", sealed(write_header(stag, 16), &[7; 40])),
        ("Send", sealed(send_header(2), b"inner")),
        (
            "Immediate Data",
            sealed(untagged(Opcode::Immediate, send, 2), &[7; 8]),
        ),
        (
            "Terminate",
            sealed(
                untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1),
                &[0; 4],
            ),
        ),
        (
            "Read Request",
            sealed(untagged(Opcode::ReadRequest, reads, 1), &request),
        ),
        ("empty Write", sealed(nothing(), &[])),
    ]
}

/// A Send has a whole FPDU among its octets, and is cut into three segments around it, of which the
/// middle one comes first. The FPDU inside must be treated as payload.
#[test]
fn an_fpdu_inside_a_payload_stays_payload() {
    // rfc: 5044-45, 5044-46a, 5044-46b, 5044-47
    for kind in 0..6 {
        let mut sim = simulation();
        let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
        let target = sim.hosts[0].share(&[0; 64], all_rights());
        let sink = sim.hosts[0].share(&[0; 512], all_rights());
        let (name, inner) = inner_fpdus(target.stag)[kind].clone();
        sim.raw[raw.peer].send_ddp(nothing(), &[]);
        for id in 1..3 {
            sim.hosts[0].post_recv(&mut raw.qp, recv(id, &sink, 512));
        }
        let payload = [&[1; 100], &inner[..], &[2; 60]].concat();
        let outer = fpdu(&ddp(send_header(1), &payload), true);
        let from = outer
            .windows(inner.len())
            .position(|octets| octets == inner);
        let from = from.expect("it is in there");
        let to = from + inner.len();

        let peer = &mut sim.raw[raw.peer];
        peer.send_ahead(from as u32, &outer[from..to]);
        sim.run_now();
        assert_eq!(target.content(), [0; 64], "{name}: placed");
        assert_eq!(sink.content(), [0; 512], "{name}: placed");
        assert_eq!(buffered(&mut sim), inner.len(), "{name}");

        let peer = &mut sim.raw[raw.peer];
        peer.send(&outer[..from]);
        peer.skip(inner.len() as u32);
        peer.send(&outer[to..]);
        sim.run_now();
        let received = (1, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut raw.qp), [received], "{name}");
        assert_eq!(sink.content()[..payload.len()], payload, "{name}");
        assert_eq!(target.content(), [0; 64], "{name}: placed");
        assert_eq!(sim.raw[raw.peer].take_ddp(), None, "{name}: a Terminate");
        assert_eq!(buffered(&mut sim), 0, "{name}");

        // The stream still works.
        sim.raw[raw.peer].send_ddp(send_header(2), b"more");
        sim.run_now();
        let received = (2, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut raw.qp), [received], "{name}");
        assert_eq!(sink.content()[..4], *b"more", "{name}");
    }
}

/// A receive window that a test can fill.
const WINDOW: u32 = 64 * 1024;

/// Makes a raw peer that permits SACK, and a host with such a window.
fn with_small_window(seed: u64) -> (Simulation, RawConnection) {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = WINDOW;
    config.tcp.receive_window_limit = WINDOW;
    let mut sim = simulation_with(&config, seed);
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, RAW_PORT);
    sim.raw[peer].sack = true;
    accept_peer(&mut sim, peer, &qp, &ConnectionOptions::default());
    sim.raw[peer].send_ddp(nothing(), &[]);
    sim.run_now();
    (sim, RawConnection { peer, qp })
}

/// Returns the octets of the partial FPDU in front of `front`, where FPDUs end at `ends`.
fn part_of_fpdu(ends: &[usize], front: usize) -> usize {
    let last = ends.iter().rev().find(|end| **end <= front);
    front - last.unwrap_or(&0)
}

/// Returns the SACK blocks that host 0 sent last, as octets behind those acknowledged to the peer
/// so far.
fn sack_blocks(sim: &mut Simulation, peer: usize) -> Rc<RefCell<Vec<Range<usize>>>> {
    let said = Rc::new(RefCell::new(Vec::new()));
    let front = sim.raw[peer].isn + 1 + sim.raw[peer].acknowledged;
    let (blocks, mut listen) = (said.clone(), sim.tap.take().unwrap());
    sim.tap = Some(Box::new(move |point, frame| {
        listen(point, frame);
        if point == TapPoint::Sent(0) {
            let packet = parse(frame, Checksums::None).unwrap();
            let offset = |seq| rnic_core::wire::tcp::Seq::distance_from(seq, front) as usize;
            let sack = packet.segment.header.options.sack;
            let all = sack.iter().map(|(left, right)| offset(left)..offset(right));
            *blocks.borrow_mut() = all.collect();
        }
    }));
    said
}

/// Segments cut anywhere, in any order, twice, overlapping. Each octet that has come is queued
/// once, SACK reports just those, and when the missing ones are sent again, everything is
/// delivered.
#[test]
fn segments_in_any_order_make_up_the_stream() {
    // rfc: 5041-14, 5044-43, 5044-92
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        let (mut sim, mut raw) = with_small_window(seed);
        let (mut octets, mut ends) = (Vec::new(), Vec::new());
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let region = sim.hosts[0].share(&vec![0; WINDOW as usize], all_rights());
        let said = sack_blocks(&mut sim, raw.peer);
        while octets.len() < 50_000 {
            let most = if rng.bool() { 50 } else { 6000 };
            let text: Vec<u8> = (0..rng.usize(0..most)).map(|_| rng.u8(..)).collect();
            let msn = texts.len() as u32 + 1;
            octets.extend(fpdu(&ddp(send_header(msn), &text), true));
            ends.push(octets.len());
            let sge = Sge {
                offset: texts.concat().len() as u64,
                ..sge(&region, text.len())
            };
            let receive = RecvWr::new(msn.into(), &[sge]).unwrap();
            sim.hosts[0].post_recv(&mut raw.qp, receive);
            texts.push(text);
        }
        let mut segments = Vec::new();
        let mut at = 0;
        while at < octets.len() {
            let end = octets.len().min(at + rng.usize(1..1461));
            segments.push(at..end);
            at = end;
        }
        rng.shuffle(&mut segments);
        let mut here = vec![false; octets.len()];
        let mut blocks = 0;
        for segment in segments {
            let again = rng.usize(..octets.len());
            let again = again..octets.len().min(again + 1460);
            for range in [Some(segment), rng.bool().then_some(again)]
                .into_iter()
                .flatten()
            {
                sim.raw[raw.peer].send_ahead(range.start as u32, &octets[range.clone()]);
                sim.run_now();
                // A segment that begins with queued octets is cut in front; one that goes on behind
                // queued octets is cut there.
                let first = here[range.clone()].iter().take_while(|here| **here).count();
                let new = &mut here[range][first..];
                let free = new.iter().take_while(|here| !**here).count();
                new[..free].fill(true);
                let front = here.iter().take_while(|here| **here).count();
                let ahead = here[front..].iter().filter(|here| **here).count();
                let kept = buffered(&mut sim);
                assert_eq!(kept, part_of_fpdu(&ends, front) + ahead, "seed {seed}");
                assert!(kept <= WINDOW as usize);
                let said = said.borrow();
                blocks += said.len();
                for block in said.iter() {
                    let came = here[block.clone()].iter().all(|here| *here);
                    assert!(came, "seed {seed}: SACK {block:?}");
                }
            }
        }
        assert!(blocks > 10, "seed {seed}: {blocks} SACK blocks");
        let missing: Vec<usize> = (0..here.len()).filter(|at| !here[*at]).collect();
        for at in missing {
            sim.raw[raw.peer].send_ahead(at as u32, &octets[at..=at]);
        }
        sim.run_now();
        let done = raw.qp.poll();
        assert!(done.iter().all(|done| done.status() == WcStatus::Success));
        let lengths = done.iter().map(|done| done.byte_len as usize);
        assert!(lengths.eq(texts.iter().map(Vec::len)), "seed {seed}");
        let all = texts.concat();
        assert!(region.content()[..all.len()] == all, "seed {seed}");
        assert_eq!(buffered(&mut sim), 0, "seed {seed}");
    }
}

/// A whole window of octets behind a hole is queued, and nothing beyond. It is freed when the
/// connection ends.
#[test]
fn a_window_is_kept_and_freed() {
    let (mut sim, raw) = with_small_window(1);
    let noise = vec![0xff; 1024];
    for ahead in (1..2 * WINDOW).step_by(noise.len()) {
        sim.raw[raw.peer].send_ahead(ahead, &noise);
    }
    sim.run_now();
    let peer = &sim.raw[raw.peer];
    let promised = peer.offered as usize;
    assert!(promised > 0 && promised <= WINDOW as usize);
    assert_eq!(buffered(&mut sim), promised - 1);
    sim.raw[raw.peer].abort();
    sim.run_now();
    assert_eq!(buffered(&mut sim), 0);
    assert_nothing_left(&mut sim);
}

/// On a long path that holds far more than the first window, little more than what was lost is
/// retransmitted, because everything behind it is queued.
#[test]
fn a_loss_costs_no_more_than_what_was_lost() {
    let link = Impairments {
        delay: Duration::from_millis(20),
        ..Impairments::default()
    };
    let (mut sim, decoder) = watched_by(&EngineConfig::default(), link, 3);
    let (mut active, _passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    let data = pattern(16 << 20);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let wr = write(1, &source, target.stag, data.len());
    // The window grows.
    sim.hosts[0].post_send(&mut active, wr);
    completions(&mut sim, &mut active, 1, SECOND * 60);
    assert_eq!(decoder.borrow().heard.retransmitted_octets, 0);
    sim.link.set_impairments(Impairments { loss: 1, ..link });
    sim.hosts[0].post_send(&mut active, wr);
    let mut most = 0;
    let done = sim.run_until(SECOND * 60, |sim| {
        let snapshot = sim.hosts[1].snapshot(sim.now);
        most = most.max(snapshot.connections[0].buffered);
        !active.poll().is_empty()
    });
    assert!(done && target.content() == data);
    assert!(most > 1 << 20, "{most} octets waited behind a hole");
    let sent_again = decoder.borrow().heard.retransmitted_octets;
    assert!(
        sent_again > 0 && sent_again < data.len() as u64 / 100,
        "{sent_again} octets were sent again"
    );
}
