//! FPDUs that arrive ahead of order: located by markers, placed at once, delivered in order.

use crate::common::*;
use crate::receiving::{connect, requiring, terminate};
use crate::stream::{Writer, read};
use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{SharedRegion, Simulation};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};

/// The most octets of a Write: each has a slot of this size in the region.
const SLOT: usize = 4096;

/// A shorter FPDU may stay in the out-of-order queue: its record would take more memory than its
/// octets.
const SHORT: usize = 256;

/// One FPDU of the peer, a Write to a slot of its own.
struct Sent {
    /// Where it stands in the peer's stream of FPDUs.
    begin: usize,
    end: usize,
    data: Vec<u8>,
}

/// Writes of these lengths, one FPDU each: their octets, and where each is.
fn writes(writer: &mut Writer, region: &SharedRegion, lengths: &[usize]) -> (Vec<u8>, Vec<Sent>) {
    let (mut octets, mut all) = (Vec::new(), Vec::new());
    let base = writer.position;
    for (slot, len) in lengths.iter().enumerate() {
        let data: Vec<u8> = (0..*len)
            .map(|at| (slot * 37 + at * 11) as u8 | 1)
            .collect();
        let header = write_header(region.stag, (slot * SLOT) as u64);
        let begin = writer.position;
        octets.extend(writer.fpdu(&ddp(header, &data)));
        let end = writer.position;
        all.push(Sent { begin, end, data });
    }
    assert_eq!(octets.len(), writer.position - base);
    (octets, all)
}

/// Returns whether the data of a Write are placed; panics where only a part of them is.
fn is_placed(content: &[u8], slot: usize, data: &[u8]) -> bool {
    let there = &content[slot * SLOT..][..data.len()];
    assert!(
        there == data || there.iter().all(|octet| *octet == 0),
        "slot {slot}: a part"
    );
    there == data
}

fn placed_early(sim: &mut Simulation) -> u64 {
    let now = sim.now;
    sim.hosts[0].snapshot(now).rdma.octets_placed_early
}

/// The first FPDU is lost; all others arrive, segmented anywhere. Each is placed as soon as its
/// last octet has arrived, if it is not [short](SHORT), and holds a marker or follows one that is
/// placed. The Send at the end is delivered when the first FPDU has arrived.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn fpdus_are_found_by_markers_wherever_segments_are_cut() {
    // rfc: 5041-7, 5044-1, 5044-46a, 5044-46b, 5044-47, 5044-92, 5044-s2
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let mut sim = simulation();
        let (mut raw, mut writer) = connect(&mut sim, rng.bool(), &requiring());
        let lengths: Vec<usize> = (0..24)
            .map(|_| {
                if rng.bool() {
                    rng.usize(1..200)
                } else {
                    rng.usize(500..3000)
                }
            })
            .collect();
        let region = sim.hosts[0].share(&vec![0; SLOT * lengths.len()], all_rights());
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(7));
        let base = writer.position;
        let (mut octets, sent) = writes(&mut writer, &region, &lengths);
        octets.extend(writer.fpdu(&ddp(send_header(1), &[])));

        // Segments behind the first FPDU, and the order in which they come.
        let mut segments = Vec::new();
        let mut at = sent[0].end - base;
        while at < octets.len() {
            let end = octets.len().min(at + rng.usize(1..1461));
            segments.push(at..end);
            at = end;
        }
        rng.shuffle(&mut segments);
        let mut here = vec![false; octets.len()];
        let mut placed = vec![false; sent.len()];
        for segment in segments {
            sim.raw[raw.peer].send_ahead(segment.start as u32, &octets[segment.clone()]);
            sim.run_now();
            here[segment.clone()].fill(true);
            let content = region.content();
            for (slot, fpdu) in sent.iter().enumerate() {
                let range = fpdu.begin - base..fpdu.end - base;
                let whole = here[range].iter().all(|here| *here);
                let marked = fpdu.begin.next_multiple_of(512) < fpdu.end;
                let follows = slot > 1 && placed[slot - 1];
                let is = is_placed(&content, slot, &fpdu.data);
                if whole && (marked || follows) && fpdu.end - fpdu.begin >= SHORT {
                    assert!(is, "seed {seed}: FPDU {slot} is not placed");
                }
                assert!(whole || !is, "seed {seed}: FPDU {slot} has not come");
                placed[slot] = is;
            }
            assert_eq!(outcomes(&mut raw.qp), [], "nothing is delivered");
        }
        assert!(placed_early(&mut sim) > 0);
        let first = sent[0].end - base;
        sim.raw[raw.peer].send(&octets[..first]);
        sim.raw[raw.peer].skip((octets.len() - first) as u32);
        sim.run_now();
        let received = (7, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut raw.qp), [received], "seed {seed}");
        let content = region.content();
        for (slot, fpdu) in sent.iter().enumerate() {
            assert!(is_placed(&content, slot, &fpdu.data), "seed {seed}");
        }
        // The connection goes on.
        let (more, _) = writes(&mut writer, &region, &[700]);
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(8));
        sim.raw[raw.peer].send(&more);
        let last = writer.fpdu(&ddp(send_header(2), &[]));
        sim.raw[raw.peer].send(&last);
        sim.run_now();
        assert_eq!(outcomes(&mut raw.qp).len(), 1, "seed {seed}");
    }
}

/// Each FPDU in a segment of its own that begins and ends elsewhere, at every position modulo 512.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn an_fpdu_inside_of_a_segment_is_found_at_every_position() {
    // rfc: 5044-46a, 5044-46b
    for shift in (0..512).step_by(4) {
        let mut sim = simulation();
        let (raw, mut writer) = connect(&mut sim, true, &requiring());
        let region = sim.hosts[0].share(&vec![0; SLOT * 3], all_rights());
        let (octets, sent) = writes(&mut writer, &region, &[shift + 1, 600, 300]);
        // From inside the first to inside the last.
        let from = sent[0].end - 4;
        let segment = &octets[from..sent[1].end + 8];
        sim.raw[raw.peer].send_ahead(from as u32, segment);
        sim.run_now();
        let content = region.content();
        let placed = [0, 1, 2].map(|slot| is_placed(&content, slot, &sent[slot].data));
        assert_eq!(placed, [false, true, false], "shifted by {shift}");
    }
}

/// With CRCs off nothing could verify an FPDU.
#[test]
fn without_crcs_nothing_is_placed_ahead_of_order() {
    let mut sim = simulation();
    let options = ConnectionOptions {
        crc: false,
        ..requiring()
    };
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, &options);
    sim.run_now();
    let mut answer = reply(4);
    answer[16] &= !0x40;
    sim.raw[peer].send(&answer);
    sim.run_now();
    let region = sim.hosts[0].share(&vec![0; SLOT * 2], all_rights());
    let (octets, sent) = writes(&mut Writer::new(false), &region, &[1000, 1000]);
    let (first, second) = octets.split_at(sent[0].end);
    sim.raw[peer].send_ahead(first.len() as u32, second);
    sim.run_now();
    assert!(!is_placed(&region.content(), 1, &sent[1].data));
    sim.raw[peer].send(first);
    sim.run_now();
    let content = region.content();
    assert!(is_placed(&content, 0, &sent[0].data) && is_placed(&content, 1, &sent[1].data));
}

/// An FPDU whose CRC or marker is wrong is not placed, and ends the stream in order.
#[test]
fn an_error_ahead_of_order_is_reported_in_order() {
    // rfc: 5044-38, 5044-87, 5044-s18, 5044-s19
    for wrong_marker in [false, true] {
        let mut sim = simulation();
        let (raw, mut writer) = connect(&mut sim, true, &requiring());
        let region = sim.hosts[0].share(&vec![0; SLOT * 2], all_rights());
        let (mut octets, sent) = writes(&mut writer, &region, &[400]);
        let header = write_header(region.stag, SLOT as u64);
        let pointer = |at, distance| {
            if wrong_marker && at == 1024 {
                distance - 8
            } else {
                distance
            }
        };
        octets.extend(writer.fpdu_with(&ddp(header, &pattern(1200)), pointer));
        if !wrong_marker {
            octets[1100] ^= 1;
        }
        let first = sent[0].end;
        sim.raw[raw.peer].send_ahead(first as u32, &octets[first..]);
        sim.run_now();
        assert_eq!(placed_early(&mut sim), 0);
        assert_eq!(terminate(&mut sim, raw.peer), None, "not yet");
        sim.raw[raw.peer].send(&octets[..first]);
        sim.run_now();
        let code = if wrong_marker { 3 } else { 2 };
        assert_eq!(terminate(&mut sim, raw.peer), Some((2, 0, code)));
        let content = region.content();
        assert!(is_placed(&content, 0, &sent[0].data));
        assert_eq!(content[SLOT..], [0; SLOT]);
    }
}

/// The writer of these tests against their reader.
#[test]
fn what_is_written_here_reads_the_same() {
    let mut writer = Writer::new(true);
    let ulpdus: Vec<Vec<u8>> = (0..600).map(|len| pattern(len * 3 % 1500)).collect();
    let octets: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| writer.fpdu(ulpdu)).collect();
    let found = read(&octets);
    assert!(found.iter().map(|(_, ulpdu)| ulpdu).eq(&ulpdus));
}

/// FPDUs whose records would take more memory than their octets, arriving from both ends to the
/// middle: they stay in the out-of-order queue, for which the window accounts, and are taken in
/// order.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn short_fpdus_wait_for_their_turn() {
    for (len, record) in [(0, false), (4, false), (300, true)] {
        let mut sim = simulation();
        let (mut raw, mut writer) = connect(&mut sim, true, &requiring());
        let region = sim.hosts[0].share(&[0; SLOT], all_rights());
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(7));
        let base = writer.position;
        let mut octets = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..800 {
            octets.extend(writer.fpdu(&ddp(write_header(region.stag, 0), &pattern(len))));
            ends.push(writer.position - base);
        }
        octets.extend(writer.fpdu(&ddp(send_header(1), &[])));
        ends.push(octets.len());
        // All but the first.
        let count = ends.len() - 1;
        let mut ahead = 0;
        for n in 0..count {
            let index = if n % 2 == 0 { n / 2 } else { count - 1 - n / 2 };
            let segment = ends[index]..ends[index + 1];
            sim.raw[raw.peer].send_ahead(segment.start as u32, &octets[segment.clone()]);
            sim.run_now();
            ahead += segment.len();
            let snapshot = sim.hosts[0].snapshot(sim.now);
            let kept = snapshot.connections[0].buffered;
            assert!(kept <= ahead, "{kept} of {ahead}");
            assert!(record || kept == ahead, "{kept} of {ahead}");
        }
        assert_eq!(placed_early(&mut sim) > 0, record, "{len}");
        sim.raw[raw.peer].send(&octets[..ends[0]]);
        sim.run_now();
        let received = (7, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut raw.qp), [received], "{len}");
        assert_eq!(region.content()[..len], pattern(len), "{len}");
    }
}
