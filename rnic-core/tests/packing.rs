//! Messages that wait together share a segment, each FPDU whole, and none is delayed for that.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::decoder::frame;
use common::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TapPoint, TestQp};
use rnic_core::verbs::{
    sge::Sge,
    status::WcStatus,
    wr::{SendWr, WcOpcode},
};
use rnic_core::wire::ddp::Stag;

/// Returns the lengths of the FPDUs in a segment. Panics if one is not whole.
fn fpdus(mut segment: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while !segment.is_empty() {
        let ulpdu_len = usize::from(u16::from_be_bytes([segment[0], segment[1]]));
        let len = (2 + ulpdu_len).next_multiple_of(4) + 4;
        assert!(len <= segment.len(), "an FPDU is cut behind {lengths:?}");
        lengths.push(len);
        segment = &segment[len..];
    }
    lengths
}

/// The segments that host 0 sends, as the lengths of their FPDUs.
type Segments = Rc<RefCell<Vec<Vec<usize>>>>;

fn watch(sim: &mut Simulation) -> Segments {
    let segments = Segments::default();
    let seen = segments.clone();
    let mut decoder = decoder::Decoder::default();
    sim.tap = Some(Box::new(move |point, octets| {
        let TapPoint::Sent(host) = point else { return };
        decoder.insist(true, octets);
        let Ok(Some(tcp)) = frame::parse(octets, true) else {
            return;
        };
        let startup = tcp.payload.starts_with(b"MPA ");
        if host == 0 && !tcp.payload.is_empty() && !startup {
            seen.borrow_mut().push(fpdus(tcp.payload));
        }
    }));
    segments
}

/// Makes a connection whose segments are watched, and memory of the same content on both sides.
fn scene(link: Impairments) -> (Simulation, [TestQp; 2], [SharedRegion; 2], Segments) {
    let mut sim = Simulation::new(&EngineConfig::default(), link, 3);
    let segments = watch(&mut sim);
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    let source = sim.hosts[0].share(&pattern(100_000), all_rights());
    let target = sim.hosts[1].share(&[0; 100_000], all_rights());
    segments.borrow_mut().clear();
    (sim, [active, passive], [source, target], segments)
}

/// Makes a Write of octets `at..at + len` to the same place.
fn write_at(id: u64, source: &SharedRegion, to: Stag, at: usize, len: usize) -> SendWr {
    let sge = Sge {
        offset: at as u64,
        length: len as u32,
        lkey: source.stag.0,
    };
    let mut wr = write(id, source, to, len).with_sges(&[sge]).unwrap();
    wr.remote_offset = at as u64;
    wr
}

fn post_writes(
    sim: &mut Simulation,
    qp: &mut TestQp,
    regions: &[SharedRegion; 2],
    lengths: &[usize],
) -> usize {
    let mut at = 0;
    for (id, &len) in (0..).zip(lengths) {
        let wr = write_at(id, &regions[0], regions[1].stag, at, len);
        sim.hosts[0].post_send(qp, wr);
        at += len;
    }
    at
}

#[test]
fn small_messages_that_wait_share_segments() {
    let (mut sim, [mut active, _passive], regions, segments) = scene(Impairments::default());
    let len = post_writes(&mut sim, &mut active, &regions, &[8; 100]);
    let done = completions(&mut sim, &mut active, 100, SECOND);
    let written = (0..100).map(|id| (id, WcOpcode::Write, WcStatus::Success));
    assert!(done.iter().map(outcome).eq(written));
    assert_eq!(regions[1].content()[..len], pattern(len));
    // 1448 octets have room for 51 FPDUs of 28.
    let counts: Vec<_> = segments.borrow().iter().map(Vec::len).collect();
    assert_eq!(counts, [51, 49]);
}

// rfc: 5044-s7
#[test]
fn a_message_of_any_size_goes_with_others_only_if_it_fits_whole() {
    for loss in [0, 20] {
        let link = Impairments {
            loss,
            duplication: loss,
            reordering: loss,
            ..Impairments::default()
        };
        let (mut sim, [mut active, _passive], regions, segments) = scene(Impairments::default());
        sim.link.set_impairments(link);
        let lengths: Vec<_> = (0..200).map(|n| n * n * 7 % 1500).collect();
        for lengths in [&lengths[..100], &lengths[100..]] {
            let len = post_writes(&mut sim, &mut active, &regions, lengths);
            completions(&mut sim, &mut active, lengths.len(), SECOND * 60);
            assert_eq!(regions[1].content()[..len], pattern(len));
        }
        let mut packed = 0;
        for segment in segments.borrow().iter() {
            assert!(segment.iter().sum::<usize>() <= 1448);
            packed += usize::from(segment.len() > 1);
        }
        assert!(packed > 10, "{packed} segments of several FPDUs");
    }
}

#[test]
fn what_is_behind_a_long_message_goes_with_its_end() {
    let (mut sim, [mut active, _passive], regions, segments) = scene(Impairments::default());
    // The second one ends a segment, the next is too long for the rest of another, and keeps its
    // own size.
    let lengths = [3000, 40, 20_000, 8];
    let len = post_writes(&mut sim, &mut active, &regions, &lengths);
    completions(&mut sim, &mut active, lengths.len(), SECOND);
    assert_eq!(regions[1].content()[..len], pattern(len));
    let segments = segments.borrow();
    let full = 1448;
    assert_eq!(segments[..2], [vec![full], vec![full]]);
    assert_eq!(segments[2].len(), 2);
    assert!(segments[3..17].iter().all(|segment| *segment == [full]));
    assert_eq!(segments[17].len(), 2);
    assert_eq!(segments.len(), 18);
}

#[test]
fn a_message_waits_for_no_other() {
    let (mut sim, [mut active, _passive], regions, _) = scene(Impairments::default());
    let before = sim.hosts[0].snapshot(sim.now).rdma.fpdus_sent;
    for count in 1..=5 {
        let wr = write_at(count, &regions[0], regions[1].stag, 0, 8);
        sim.hosts[0].post_send(&mut active, wr);
        sim.run_now();
        assert_eq!(
            sim.hosts[0].snapshot(sim.now).rdma.fpdus_sent,
            before + count
        );
    }
}

#[test]
fn a_request_completes_when_its_own_last_octet_is_acknowledged() {
    let mut sim = simulation();
    let mut raw = connect_raw(&mut sim, &ConnectionOptions::default());
    sim.run_now();
    let source = sim.hosts[0].share(&pattern(100), all_rights());
    sim.raw[raw.peer].acknowledges = false;
    let before = sim.raw[raw.peer].segments;
    for id in 0..4 {
        let wr = write(id, &source, Stag(7), 8);
        sim.hosts[0].post_send(&mut raw.qp, wr);
    }
    sim.run_now();
    assert_eq!(sim.raw[raw.peer].segments, before + 1);
    for (missing, completed) in [(85, 0), (57, 1), (56, 1), (1, 1), (0, 1)] {
        sim.raw[raw.peer].acknowledge_all_but(missing);
        sim.run_now();
        assert_eq!(raw.qp.poll().len(), completed, "{missing} octets missing");
    }
}
