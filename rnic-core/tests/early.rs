//! With markers payload is placed out of order, and without them it is not. The tests look at
//! memory while octets in front are missing.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use common::decoder::{Decoder, frame};
use common::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{Simulation, TapPoint};
use rnic_core::verbs::{sge::Sge, wr::RecvWr};

/// Octets of each message, and how many there are.
const MESSAGE: usize = 60_000;
const MESSAGES: usize = 80;

/// A whole FPDU that arrived while octets in front of it were missing.
#[derive(Clone, Copy, Debug)]
struct Early {
    /// Where it begins in the stream.
    start: u64,
    /// The place of its payload in the target, and its length.
    place: usize,
    len: usize,
}

/// What has arrived at host 1, as a tap on the link records it.
#[derive(Default)]
struct Arrivals {
    isn: u32,
    /// Whether there are markers.
    markers: bool,
    /// Where the FPDUs begin: behind the MPA Request, which comes in one segment.
    origin: u64,
    /// All octets before it have arrived.
    front: u64,
    /// Ranges that have arrived ahead of order: begin and end.
    beyond: BTreeMap<u64, u64>,
    early: Vec<Early>,
}

impl Arrivals {
    fn arrive(&mut self, octets: &[u8]) {
        let Ok(Some(tcp)) = frame::parse(octets, true) else {
            return;
        };
        if tcp.syn {
            self.isn = tcp.seq;
            return;
        }
        // The stream is shorter than 2^32 octets.
        let start = u64::from(tcp.seq.wrapping_sub(self.isn).wrapping_sub(1));
        let end = start + tcp.payload.len() as u64;
        if start == 0 {
            self.origin = end;
        }
        let is_new = start >= self.front && !self.beyond.contains_key(&start);
        if is_new
            && start > self.front
            && let Some((place, len)) = place_of(&self.without_markers(start, tcp.payload))
        {
            self.early.push(Early { start, place, len });
        }
        if end > self.front {
            self.beyond.insert(start, end);
        }
        while let Some((&start, &end)) = self.beyond.first_key_value()
            && start <= self.front
        {
            self.front = self.front.max(end);
            self.beyond.remove(&start);
        }
    }

    /// Returns a segment without its markers.
    fn without_markers(&self, start: u64, segment: &[u8]) -> Vec<u8> {
        let positions = start.wrapping_sub(self.origin)..;
        let octets = positions.zip(segment);
        octets
            .filter(|(position, _)| !self.markers || position % 512 >= 4)
            .map(|(_, octet)| *octet)
            .collect()
    }
}

/// Returns place and length of the payload of an FPDU that fills a segment: at a Write's TO, or in
/// a Send's buffer.
fn place_of(segment: &[u8]) -> Option<(usize, usize)> {
    let field = |at: usize, len: usize| -> Option<usize> {
        let octets = segment.get(at..at + len)?;
        Some(
            octets
                .iter()
                .fold(0, |value, octet| value << 8 | usize::from(*octet)),
        )
    };
    let ulpdu_len = field(0, 2)?;
    if (2 + ulpdu_len).next_multiple_of(4) + 4 != segment.len() {
        return None;
    }
    match segment[3] & 15 {
        0 => Some((field(8, 8)?, ulpdu_len - 14)),
        3 => Some((
            (field(12, 4)? - 1) * MESSAGE + field(16, 4)?,
            ulpdu_len - 18,
        )),
        _ => None,
    }
}

/// Sends messages with a loss of 1 %. Returns how many octets could have been placed ahead of
/// order, and how many were.
fn run(sends: bool, markers: bool, crc: bool) -> (usize, usize) {
    let options = ConnectionOptions {
        markers,
        crc,
        ..ConnectionOptions::default()
    };
    let link = Impairments {
        delay: Duration::from_micros(200),
        ..Impairments::default()
    };
    let mut sim = Simulation::new(&EngineConfig::default(), link, 5);
    let arrivals = Rc::new(RefCell::new(Arrivals {
        markers,
        ..Arrivals::default()
    }));
    let (seen, mut decoder) = (arrivals.clone(), Decoder::default());
    sim.tap = Some(Box::new(move |point, octets| match point {
        TapPoint::Arrived(1) => seen.borrow_mut().arrive(octets),
        TapPoint::Sent(_) => decoder.insist(true, octets),
        _ => {}
    }));
    let (mut active, mut passive) = sim.connect(&options).unwrap();
    sim.link.set_impairments(Impairments { loss: 10, ..link });
    // The source has no zero octet, and the target has zeros where nothing was placed.
    let data: Vec<u8> = (0..MESSAGE * MESSAGES)
        .map(|at| (at % 251) as u8 + 1)
        .collect();
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    let part = |stag: u32, message: usize| Sge {
        offset: (message * MESSAGE) as u64,
        length: MESSAGE as u32,
        lkey: stag,
    };
    for message in 0..MESSAGES {
        let id = message as u64;
        let mut wr = if sends {
            let wr = RecvWr::new(id, &[part(target.stag.0, message)]).unwrap();
            sim.hosts[1].post_recv(&mut passive, wr);
            send(id, &source, MESSAGE)
        } else {
            write(id, &source, target.stag, MESSAGE)
        };
        wr.remote_offset = (message * MESSAGE) as u64;
        wr = wr.with_sges(&[part(source.stag.0, message)]).unwrap();
        sim.hosts[0].post_send(&mut active, wr);
    }
    let (mut could, mut were, mut done) = (0, 0, 0);
    while done < MESSAGES {
        assert!(sim.step(), "it stalls");
        done += active.poll().len();
        let mut arrivals = arrivals.borrow_mut();
        let front = arrivals.front;
        for early in std::mem::take(&mut arrivals.early) {
            // A frame that came at the same time may have filled the hole.
            if early.start > front {
                let mut placed = vec![0; early.len];
                target.region.read(early.place, &mut placed).unwrap();
                could += early.len;
                if placed == data[early.place..early.place + early.len] {
                    were += early.len;
                }
            }
        }
    }
    assert!(target.content() == data);
    (could, were)
}

#[test]
fn what_arrives_behind_a_hole_is_in_place_before_the_hole_is_filled() {
    // rfc: 5041-7, 5044-1, 5044-s2
    for sends in [false, true] {
        let (could, were) = run(sends, true, true);
        println!("Sends: {sends}: {were} of {could} octets were placed early");
        assert!(could > 200_000, "hardly anything was lost: {could}");
        assert!(
            were * 100 > could * 80,
            "{were} of {could} octets, Sends: {sends}"
        );
    }
}

/// A segment that looks like an FPDU may be octets of a payload.
#[test]
fn without_markers_nothing_is_placed_ahead_of_order() {
    // rfc: 5044-45, 5044-46a, 5044-46b, 5044-47
    for sends in [false, true] {
        let (could, were) = run(sends, false, true);
        assert!(could > 200_000 && were == 0, "{were} of {could} octets");
    }
}

/// Only the CRC verifies a marker, and the FPDU that it shows.
#[test]
fn without_crcs_nothing_is_placed_ahead_of_order() {
    // rfc: 5044-s7
    for markers in [false, true] {
        let (could, were) = run(false, markers, false);
        assert!(could > 200_000 && were == 0, "{were} of {could} octets");
    }
}
