//! DDP over a transport of records, as RFC 5043 does with SCTP: chunks that arrive in any order,
//! each with its sequence number, no longer than a limit that changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use rnic_core::ddp::{
    DdpError, DdpStream, DdpStreamError, EndpointUlp, ErrorReport, Llp, Placed, Teardown,
};
use rnic_core::ids::StreamId;
use rnic_core::memory::{
    epoch::Worker,
    region::{HugePages, Region},
    table::StagTable,
};
use rnic_core::testing::simulation::{PD, SharedRegion};
use rnic_core::wire::ddp::{DdpHeader, DdpSegment, TaggedOffset};

use crate::common::*;
use crate::flow::{MEMORY, PARCELS, QUEUES, Traffic, untagged_to};
use crate::parcels::{Parcels, parcel};

/// Payload protocol identifiers of RFC 5043 section 5.2.
const SEGMENT: u32 = 16;
const CONTROL: u32 = 17;
/// The function code of DDP Stream Session Terminate.
const TERMINATE: [u8; 2] = [0, 4];
/// The most chunks in flight: far fewer than there are sequence numbers.
const WINDOW: u64 = 40;
/// The least that RFC 5043 section 9 lets a chunk hold.
const MIN_MULPDU: usize = 516;

/// A chunk in flight. Its first two octets are its sequence number (DDP-SSN).
#[derive(Clone)]
struct Chunk {
    protocol: u32,
    octets: Vec<u8>,
}

/// A chunk that has arrived ahead of order.
enum Early {
    /// Its payload is placed.
    Placed(Placed),
    /// It is handled in order.
    Aside(Chunk),
}

/// The sending and the receiving side of such a transport.
struct Records {
    mulpdu: usize,
    /// Chunks sent so far, and which of them the peer has.
    given_out: u64,
    acknowledged: Vec<bool>,
    /// The number of the next chunk in order.
    expected: u64,
    early: BTreeMap<u64, Early>,
    peer_closed: bool,
    close_asked: bool,
    closed: bool,
}

impl Llp for Records {
    fn mulpdu(&self) -> usize {
        self.mulpdu
    }

    fn transferred(&self) -> u64 {
        let without_gap = self.acknowledged.iter().take_while(|there| **there);
        without_gap.count() as u64
    }

    fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    fn close(&mut self) {
        self.close_asked = true;
    }
}

/// One end: stream, ULP and transport.
struct End {
    layer: Parcels,
    stream: DdpStream,
    llp: Records,
    table: Arc<StagTable>,
    worker: Worker,
}

impl End {
    fn new() -> Self {
        let table = Arc::new(StagTable::new(16, [3; 32]));
        Self {
            layer: Parcels::with_queues(&QUEUES),
            stream: DdpStream::new((PD, StreamId(1)).into(), 1),
            llp: Records {
                mulpdu: 1400,
                given_out: 0,
                acknowledged: Vec::new(),
                expected: 0,
                early: BTreeMap::new(),
                peer_closed: false,
                close_asked: false,
                closed: false,
            },
            worker: table.worker(),
            table,
        }
    }

    fn share(&self) -> SharedRegion {
        let region = Arc::new(Region::allocate_unlocked(MEMORY, HugePages::None).unwrap());
        let (whole, base) = (0..region.len(), TaggedOffset(0));
        let stag = self
            .table
            .register(region.clone(), whole, base, all_rights(), PD)
            .unwrap();
        SharedRegion { region, stag }
    }

    fn number(&mut self, protocol: u32, rest: &[u8]) -> Chunk {
        let mut octets = (self.llp.given_out as u16).to_be_bytes().to_vec();
        octets.extend_from_slice(rest);
        self.llp.given_out += 1;
        self.llp.acknowledged.push(false);
        Chunk { protocol, octets }
    }

    /// Returns the next chunk to be sent.
    fn next_chunk(&mut self) -> Option<Chunk> {
        self.stream.follow_llp(&mut self.llp, &mut self.layer);
        if self.llp.given_out >= self.llp.transferred() + WINDOW || self.llp.closed {
            return None;
        }
        let guard = self.worker.enter();
        let output = self.stream.has_output(&mut self.layer, &guard).unwrap();
        if !output {
            drop(guard);
            self.llp.closed = self.llp.close_asked;
            return self.llp.closed.then(|| self.number(CONTROL, &TERMINATE));
        }
        let mulpdu = self.llp.mulpdu();
        let mut room = vec![0; mulpdu];
        let built = self
            .stream
            .next_segment(mulpdu, &mut room, &mut self.layer, &guard)
            .unwrap()
            .expect("there is a message, and room");
        drop(guard);
        let chunk = self.number(SEGMENT, &room[..built.len]);
        let last = self.stream.posted(self.llp.given_out, &mut self.layer);
        assert_eq!(last, built.last);
        Some(chunk)
    }

    /// Handles a chunk that has arrived. Returns its number, as the acknowledgment.
    fn handle(&mut self, chunk: Chunk) -> u64 {
        let number = u16::from_be_bytes([chunk.octets[0], chunk.octets[1]]);
        let ahead = number.wrapping_sub(self.llp.expected as u16);
        if ahead >= 0x8000 {
            // A duplicate: it was delivered.
            return self.llp.expected - u64::from(ahead.wrapping_neg());
        }
        let turn = self.llp.expected + u64::from(ahead);
        if ahead == 0 {
            self.take(chunk);
            while let Some(early) = self.llp.early.remove(&self.llp.expected) {
                match early {
                    Early::Aside(chunk) => self.take(chunk),
                    Early::Placed(placed) => self.turn_of(placed),
                }
            }
        } else if !self.llp.early.contains_key(&turn) {
            let early = match self.place(&chunk) {
                Some(placed) => Early::Placed(placed),
                None => Early::Aside(chunk),
            };
            self.llp.early.insert(turn, early);
        }
        turn
    }

    fn place(&mut self, chunk: &Chunk) -> Option<Placed> {
        if chunk.protocol != SEGMENT || self.stream.has_failed() {
            return None;
        }
        let guard = self.worker.enter();
        let placed = self
            .stream
            .place(&chunk.octets[2..], &mut self.layer, &guard);
        placed.ok()
    }

    /// Delivers a placed segment, which is the next in order.
    fn turn_of(&mut self, placed: Placed) {
        self.llp.expected += 1;
        if !self.may_come() {
            return;
        }
        let guard = self.worker.enter();
        let delivered = self.stream.deliver(placed, &mut self.layer, &guard);
        drop(guard);
        if let Err(fault) = delivered {
            self.fail(ErrorReport::without_segment(fault));
        }
    }

    /// Handles a chunk in order.
    fn take(&mut self, chunk: Chunk) {
        self.llp.expected += 1;
        if !self.may_come() {
            return;
        }
        let (protocol, segment) = (chunk.protocol, &chunk.octets[2..]);
        if protocol == CONTROL {
            assert_eq!(segment, TERMINATE);
            self.llp.peer_closed = true;
            return;
        }
        let guard = self.worker.enter();
        let received = self.stream.receive(segment, &mut self.layer, &guard);
        drop(guard);
        if let Err(fault) = received {
            self.fail(ErrorReport::about(fault, segment));
        }
    }

    /// Returns whether chunks may still arrive: not after an error, and not after the end, which
    /// would be an error.
    fn may_come(&mut self) -> bool {
        if self.llp.peer_closed && !self.stream.has_failed() {
            let fault = DdpStreamError::Llp("data behind the end of the stream".into());
            self.fail(ErrorReport::without_segment(fault));
            self.layer.handle_end(Teardown::Abortive);
        }
        !self.stream.has_failed()
    }

    fn fail(&mut self, report: ErrorReport) {
        self.stream.fail();
        self.layer.handle_error(&report);
    }
}

/// Two ends, and chunks in flight to each, which arrive in any order and some of them twice.
struct Pair {
    ends: [End; 2],
    underway: [Vec<Chunk>; 2],
    rng: Rng,
}

impl Pair {
    fn new(seed: u64) -> Self {
        Self {
            ends: [End::new(), End::new()],
            underway: [Vec::new(), Vec::new()],
            rng: Rng::with_seed(seed),
        }
    }

    /// Lets both ends send, and one chunk arrive at each. Returns whether anything happened.
    fn step(&mut self) -> bool {
        let mut any = false;
        for from in 0..2 {
            let to = 1 - from;
            while let Some(chunk) = self.ends[from].next_chunk() {
                assert!(chunk.octets.len() - 2 <= self.ends[from].llp.mulpdu);
                self.underway[to].push(chunk);
                // The MULPDU changes within a message.
                self.ends[from].llp.mulpdu = self.rng.usize(MIN_MULPDU..1400);
            }
            if self.underway[to].is_empty() {
                continue;
            }
            any = true;
            let which = self.rng.usize(..self.underway[to].len());
            let chunk = if self.rng.u8(..8) == 0 {
                self.underway[to][which].clone()
            } else {
                self.underway[to].swap_remove(which)
            };
            let turn = self.ends[to].handle(chunk);
            self.ends[from].llp.acknowledged[turn as usize] = true;
        }
        any
    }

    fn run(&mut self) {
        while self.step() {}
    }
}

#[test]
fn parcels_and_pages_pass_a_transport_of_records_in_any_order() {
    // rfc: 5041-3, 5041-7, 5041-9, 5041-14, 5041-49, 5041-52, 5041-61, 5041-62, 5041-63
    for seed in 0..8 {
        let mut pair = Pair::new(seed);
        let layers = [0, 1].map(|end| pair.ends[end].layer.clone());
        let memory = [0, 1].map(|end| [pair.ends[end].share(), pair.ends[end].share()]);
        let [memory0, memory1] = memory;
        let rng = &mut Rng::with_seed(seed);
        let there = Traffic::new(memory1, &layers[0], &layers[1], rng);
        let back = Traffic::new(memory0, &layers[1], &layers[0], rng);
        pair.run();
        there.check(&layers[1].take_arrived());
        back.check(&layers[0].take_arrived());
        for layer in layers {
            assert_eq!(layer.state().transferred, PARCELS);
            assert_eq!(layer.state().reports, []);
        }
    }
}

/// Segments made for the old MULPDU are sent as they are; the rest of the message is segmented for
/// the new one.
#[test]
fn the_rest_of_a_message_is_segmented_by_a_changed_mulpdu() {
    // rfc: 5041-3, 5041-4, 5041-49
    let mut end = End::new();
    end.layer.send(parcel(7, 1, 2), &pattern(7000));
    let mut cut = Vec::new();
    for mulpdu in [1400, 1400, 516, 1000, 600, 1200, 1400] {
        end.llp.mulpdu = mulpdu;
        cut.extend(end.next_chunk().map(|chunk| chunk.octets));
    }
    let lengths: Vec<usize> = cut.iter().map(|octets| octets.len() - 2).collect();
    let rest = 7000 + 7 * 18 - (1400 + 1400 + 516 + 1000 + 600 + 1200);
    assert_eq!(lengths, [1400, 1400, 516, 1000, 600, 1200, rest]);
    let mut octets = Vec::new();
    for chunk in &cut {
        let segment = DdpSegment::parse(&chunk[2..]).unwrap();
        let DdpHeader::Untagged(header) = segment.header else {
            panic!("{:?}", segment.header);
        };
        assert_eq!(header.offset.0 as usize, octets.len());
        octets.extend_from_slice(segment.payload);
        assert_eq!(header.last, octets.len() == 7000);
    }
    assert!(octets == pattern(7000));
}

#[test]
fn a_stream_of_records_closes_by_halves() {
    // rfc: 5041-67, 5041-69, 5041-s2, 5041-s3, 5041-s5
    let mut pair = Pair::new(1);
    let memory = pair.ends[0].share();
    let layers = [0, 1].map(|end| pair.ends[end].layer.clone());
    for number in 0..3 {
        let buffer = rnic_core::verbs::RecvWr::new(number, &[sge(&memory, 10)]).unwrap();
        layers[0].post(0, buffer);
    }
    layers[1].send(parcel(0, 1, 1), b"first");
    pair.ends[0].layer.handle_finish();
    pair.ends[0].stream.finish();
    pair.run();
    assert!(layers[1].state().half_closed && !layers[0].state().half_closed);
    layers[1].send(parcel(0, 1, 1), b"second");
    pair.run();
    layers[1].send(parcel(0, 1, 1), b"third");
    pair.ends[1].stream.finish();
    pair.run();
    assert!(layers[0].state().half_closed);
    assert_eq!(layers[0].take_arrived().len(), 3);
    assert!(
        pair.ends
            .iter()
            .all(|end| end.llp.closed && end.llp.peer_closed)
    );
    layers[1].send(parcel(0, 1, 1), b"fourth");
    pair.run();
    assert_eq!(layers[0].take_arrived(), []);
}

/// DDP itself looks, whatever the LLP does with what comes behind the end that it has told of.
#[test]
fn ddp_takes_nothing_behind_the_peers_half_close() {
    // rfc: 5041-68
    let mut end = End::new();
    let memory = end.share();
    let buffer = rnic_core::verbs::RecvWr::new(0, &[sge(&memory, 10)]).unwrap();
    end.layer.post(0, buffer);
    let ddp = rnic_core::testing::raw_peer::ddp;
    let message = |msn, octets| ddp(DdpHeader::Untagged(untagged_to(0, msn)), octets);
    let page = ddp(write_header(memory.stag, 0), b"page");
    let guard = end.worker.enter();
    let early = end
        .stream
        .place(&message(1, b"early"), &mut end.layer, &guard);
    let early = early.unwrap();
    end.llp.peer_closed = true;
    end.stream.follow_llp(&mut end.llp, &mut end.layer);
    assert!(end.layer.state().half_closed);
    let refused = DdpStreamError::Ddp(DdpError::AfterClose);
    for late in [message(1, b"late"), message(1, b""), page] {
        let received = end.stream.receive(&late, &mut end.layer, &guard);
        assert_eq!(received, Err(refused.clone()));
        let placed = end.stream.place(&late, &mut end.layer, &guard);
        assert_eq!(placed, Err(refused.clone()));
    }
    let delivered = end.stream.deliver(early, &mut end.layer, &guard);
    assert_eq!(delivered, Err(refused));
    assert!(end.stream.writer(all_rights(), &guard).is_none());
    assert_eq!(end.layer.take_arrived(), []);
    assert_eq!(memory.content()[..5], *b"early");
}

#[test]
fn a_segment_behind_the_end_of_a_stream_of_records_cuts_it_off() {
    let mut end = End::new();
    let late = rnic_core::testing::raw_peer::ddp(DdpHeader::Untagged(untagged_to(0, 1)), b"late");
    let chunk = |protocol, number: u8, rest: &[u8]| Chunk {
        protocol,
        octets: [&[0, number][..], rest].concat(),
    };
    // It is ahead of order, and belongs behind the end.
    end.handle(chunk(SEGMENT, 1, &late));
    end.handle(chunk(CONTROL, 0, &TERMINATE));
    assert_eq!(end.layer.state().ended, Some(Teardown::Abortive));
    assert_eq!(end.layer.take_arrived(), []);
}

#[test]
fn an_error_on_a_stream_of_records_leaves_one_message_to_be_sent() {
    // rfc: 5041-71, 5041-75, 5041-s7, 5041-s11, 5041-s12
    let mut pair = Pair::new(5);
    let [here, there] = [0, 1].map(|end| pair.ends[end].layer.clone());
    here.send(parcel(1234, 1, 1), b"to no queue");
    here.send(parcel(0, 1, 1), b"behind it");
    pair.run();
    let reports = there.state().reports.clone();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].fault.number(), (2, 1));
    assert_eq!(reports[0].segment_len, Some(18 + 11));
    assert_eq!(reports[0].header.as_ref().map(Vec::len), Some(18));
    assert_eq!(there.take_arrived(), []);
    there.send(parcel(1235, 9, 9), b"syndrome");
    pair.run();
    assert_eq!(there.state().transferred, 1);
    assert_eq!(here.state().reports[0].segment_len, Some(18 + 8));
}
