//! A hostile peer, with one kind of attack in each test. It gets a Terminate, its connection ends,
//! and nothing else happens: neither to memory that it may not reach, nor to other connections.
//!
//! More attacks stand with their subject: `segments` (STags, queues, versions, opcodes, Immediate
//! Data, depth), `endings` (CRCs, lengths, several errors), and `table`, which goes through all
//! numbers of errors.

use crate::common::*;
use crate::scene::{LEN, Quotes, Scene, at, scene};
use rnic_core::connection::EndReason;
use rnic_core::memory::table::Access;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::SharedRegion;
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, ReadRequest, TerminateControl};

/// Octets that the host's application reads.
const ASKED: usize = 16;

/// The host has asked the peer for [`ASKED`] octets, to go to the start of a region that is larger
/// and that the peer has no right to.
fn reading() -> (Scene, SharedRegion) {
    let mut scene = scene(1);
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let sink = scene.sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
    let wr = read(5, &sink, Stag(0x77), ASKED);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.run_now();
    let (_, asked) = scene.sim.raw[scene.peer].take_ddp().expect("a Request");
    assert_eq!(asked.len(), ReadRequest::LEN);
    (scene, sink)
}

fn response(stag: Stag, offset: usize, len: usize, last: bool) -> Vec<u8> {
    let header = tagged(Opcode::ReadResponse, stag, offset as u64, last);
    ddp(header, &vec![0xee; len])
}

/// Segments that are in order come before the one that is wrong.
fn wrong_behind(
    mut scene: Scene,
    name: &str,
    before: &[Vec<u8>],
    wrong: &[u8],
    numbers: (u8, u8, u8),
) {
    for ulpdu in before {
        let octets = fpdu(ulpdu, true);
        scene.sim.raw[scene.peer].send(&octets);
    }
    scene.sim.run_now();
    let reason = scene.sim.hosts[0].end_of(scene.qp.number);
    assert_eq!(reason, None, "{name}: it was to be in order so far");
    scene.wrong(name, wrong, numbers, Quotes::Segment);
}

#[test]
fn a_read_response_longer_than_asked() {
    let (scene, sink) = reading();
    let long = response(sink.stag, 0, ASKED + 1, true);
    scene.wrong("at once", &long, (1, 1, 1), Quotes::Segment);
    assert_eq!(sink.content(), [0; LEN]);

    let (scene, sink) = reading();
    let whole = response(sink.stag, 0, ASKED, false);
    let more = response(sink.stag, ASKED, 8, true);
    wrong_behind(scene, "then more", &[whole], &more, (1, 1, 1));
    assert_eq!(sink.content()[ASKED..], [0; LEN - ASKED]);
}

#[test]
fn a_read_response_that_ends_too_early() {
    let (scene, sink) = reading();
    let short = response(sink.stag, 0, ASKED - 1, true);
    scene.wrong("too short", &short, (1, 1, 1), Quotes::Segment);
    let (scene, sink) = reading();
    let nothing = response(sink.stag, 0, 0, true);
    scene.wrong("without octets", &nothing, (1, 1, 1), Quotes::Segment);
}

#[test]
fn a_read_response_to_no_read() {
    let scene = scene(1);
    let none = response(scene.open.stag, 0, LEN, true);
    scene.wrong("never asked", &none, (0, 2, 6), Quotes::Segment);
    let (scene, sink) = reading();
    let answer = response(sink.stag, 0, ASKED, true);
    let again = answer.clone();
    wrong_behind(scene, "answered before", &[answer], &again, (0, 2, 6));
}

#[test]
fn a_read_response_to_another_stag() {
    for part in 0..2 {
        let (scene, sink) = reading();
        let stags = [scene.open.stag, scene.shut.stag, scene.foreign.stag];
        let before = [response(sink.stag, 0, 8, false)];
        let wrong = response(stags[part], part * 8, ASKED - part * 8, true);
        wrong_behind(scene, "another STag", &before[..part], &wrong, (1, 1, 0));
    }
}

#[test]
fn a_read_response_to_another_place() {
    for offset in [1, ASKED, LEN, usize::MAX] {
        let (scene, sink) = reading();
        let astray = response(sink.stag, offset, 4, false);
        scene.wrong("astray", &astray, (1, 1, 1), Quotes::Segment);
        assert_eq!(sink.content()[ASKED..], [0; LEN - ASKED]);
    }
    for (name, offset) in [("a hole", 9), ("an overlap", 7)] {
        let (scene, sink) = reading();
        let first = response(sink.stag, 0, 8, false);
        let second = response(sink.stag, offset, ASKED - 8, true);
        wrong_behind(scene, name, &[first], &second, (1, 1, 1));
    }
}

#[test]
fn a_message_that_was_delivered_comes_again() {
    let scene = scene(3);
    let hello = ddp(send_header(1), &[]);
    let again = ddp(send_header(1), b"again");
    wrong_behind(scene, "again", &[hello], &again, (1, 2, 3));
}

#[test]
fn a_message_far_ahead_of_its_turn() {
    for msn in [2, 3, 4, 1 << 31, u32::MAX] {
        let ahead = ddp(DdpHeader::Untagged(at(0, msn, 0)), b"hello");
        scene(3).wrong("ahead", &ahead, (1, 2, 3), Quotes::Segment);
    }
}

/// Ahead of order it changes nothing; in order it is an error.
#[test]
fn a_message_far_ahead_that_overtakes_what_comes_before() {
    let mut scene = scene(3);
    let hello = fpdu(&ddp(send_header(1), &[]), true);
    let ahead = ddp(DdpHeader::Untagged(at(0, 9, 0)), b"hello");
    let octets = fpdu(&ahead, true);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ahead(hello.len() as u32, &octets);
    scene.sim.run_now();
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None);
    scene.assert_memory_untouched("ahead");
    scene.sim.raw[scene.peer].send(&hello);
    scene.sim.run_now();
    scene.assert_terminated("ahead", &ahead, (1, 2, 3), Quotes::Segment);
    scene.assert_bystanders_unhurt("ahead");
}

/// The rest of the response is not sent, and the Terminate says how far it came.
#[test]
fn a_read_of_memory_that_is_revoked_under_way() {
    const ALL: usize = 400_000;
    let mut scene = scene(1);
    let source = scene.sim.hosts[0].share(&pattern(ALL), all_rights());
    let request = ReadRequest {
        sink_stag: Stag(0x1234),
        sink_offset: TaggedOffset(0x5000),
        length: ALL as u32,
        source_stag: source.stag,
        source_offset: TaggedOffset(0),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    let ulpdu = ddp(DdpHeader::Untagged(header), &octets);
    // Part of the response is in flight, and the window holds back the rest.
    scene.sim.raw[scene.peer].acknowledges = false;
    let asked = fpdu(&ulpdu, true);
    scene.sim.raw[scene.peer].send(&asked);
    scene.sim.run_now();
    scene.sim.hosts[0].revoke(source.stag);
    scene.sim.raw[scene.peer].acknowledges = true;
    scene.sim.raw[scene.peer].acknowledge();
    scene.sim.run_now();
    let mut came = 0;
    let terminate = loop {
        let (header, payload) = scene.sim.raw[scene.peer].take_ddp().expect("a Terminate");
        let DdpHeader::Tagged(header) = header else {
            break payload;
        };
        assert!(!header.last);
        assert_eq!(header.offset.0, 0x5000 + came as u64);
        assert_eq!(payload, pattern(ALL)[came..came + payload.len()]);
        came += payload.len();
    };
    assert!((1000..ALL).contains(&came), "{came} octets");
    // Layer 0, type 1, code 0, with the segment's length and both headers.
    assert_eq!(terminate[..4], [0x01, 0, 0xe0, 0]);
    assert_eq!(terminate[6..24], ulpdu[..18]);
    let rest = ReadRequest {
        sink_offset: TaggedOffset(0x5000 + came as u64),
        source_offset: TaggedOffset(came as u64),
        length: (ALL - came) as u32,
        ..request
    };
    assert_eq!(ReadRequest::parse(&terminate[24..]).unwrap(), rest);
    let peer = &mut scene.sim.raw[scene.peer];
    assert!(peer.take_ulpdu().is_none() && peer.finished);
    assert_eq!(ends(&scene.sim, 0, &scene.qp), 1);
    scene.assert_memory_untouched("revoked");
    scene.assert_bystanders_unhurt("revoked");
}

/// The first copy of an octet counts; later copies are ignored.
#[test]
fn tcp_segments_that_overlap_with_other_octets() {
    let mut scene = scene(2);
    let target = scene.sim.hosts[0].share(&[0; LEN], all_rights());
    let good = fpdu(&ddp(write_header(target.stag, 0), &[1; 32]), true);
    let next = fpdu(&ddp(write_header(target.stag, 32), &[2; 32]), true);
    let lie = fpdu(&ddp(write_header(target.stag, 0), &[9; 32]), true);
    assert_eq!(lie.len(), good.len());
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send(&good);
    // Over what came in order, with what is next behind it.
    let before = 0_u32.wrapping_sub(good.len() as u32);
    peer.send_ahead(before, &[&lie[..], &next].concat());
    peer.skip(next.len() as u32);
    scene.sim.run_now();
    assert_eq!(target.content()[..32], [1; 32]);
    assert_eq!(target.content()[32..], [2; 32]);
    // Over what came ahead of order.
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ahead(good.len() as u32, &good);
    peer.send_ahead(good.len() as u32, &lie);
    peer.send(&next);
    peer.skip(good.len() as u32);
    scene.sim.run_now();
    assert_eq!(target.content()[..32], [1; 32]);
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None);
    scene.assert_memory_untouched("overlaps");
    scene.assert_bystanders_unhurt("overlaps");
}

#[test]
fn untagged_segments_that_overlap_or_leave_a_hole() {
    let part = |offset, last| {
        let mut header = at(0, 1, offset);
        header.last = last;
        ddp(DdpHeader::Untagged(header), &[0; 8])
    };
    for offset in [0, 7, 9, 16] {
        let first = [part(0, false)];
        let second = part(offset, true);
        wrong_behind(scene(1), "astray", &first, &second, (1, 2, 4));
    }
}

/// Tagged segments may go anywhere in a region that is open, in any order and twice.
#[test]
fn tagged_segments_that_overlap_are_right() {
    let mut scene = scene(1);
    let target = scene.sim.hosts[0].share(&[0; LEN], all_rights());
    for (offset, octet) in [(0, 1), (16, 2), (8, 3)] {
        let header = write_header(target.stag, offset);
        scene.sim.raw[scene.peer].send_ddp(header, &[octet; 16]);
    }
    scene.sim.run_now();
    let wanted = [
        [1; 8], [3; 8], [3; 8], [2; 8], [0; 8], [0; 8], [0; 8], [0; 8],
    ]
    .concat();
    assert_eq!(target.content(), wanted);
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None);
    scene.assert_memory_untouched("overlaps");
}

#[test]
fn a_write_whose_offset_wraps() {
    for offset in [u64::MAX, u64::MAX - 6, 0_u64.wrapping_sub(1)] {
        let scene = scene(0);
        let wraps = ddp(write_header(scene.open.stag, offset), &[0; 8]);
        scene.wrong("wraps", &wraps, (1, 1, 3), Quotes::Segment);
    }
}

/// Nothing is written, so the offset does not matter.
#[test]
fn writes_and_reads_of_nothing_at_the_edge_of_memory_and_beyond() {
    let mut scene = scene(1);
    let revoked = scene.sim.hosts[0].share(&[0; LEN], all_rights());
    scene.sim.hosts[0].revoke(revoked.stag);
    let places = [
        (scene.open.stag, LEN as u64),
        (scene.open.stag, LEN as u64 + 1),
        (scene.open.stag, u64::MAX),
        (scene.shut.stag, 0),
        (scene.foreign.stag, 0),
        (revoked.stag, 0),
        (Stag(0), 0),
    ];
    for (index, (stag, offset)) in places.into_iter().enumerate() {
        scene.sim.raw[scene.peer].send_ddp(write_header(stag, offset), &[]);
        let request = ReadRequest {
            sink_stag: Stag(index as u32),
            sink_offset: TaggedOffset(u64::MAX),
            length: 0,
            source_stag: stag,
            source_offset: TaggedOffset(offset),
        };
        let mut octets = [0; ReadRequest::LEN];
        request.emit(&mut octets);
        let msn = index as u32 + 1;
        let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn, true);
        scene.sim.raw[scene.peer].send_ddp(DdpHeader::Untagged(header), &octets);
        scene.sim.run_now();
        let (header, payload) = scene.sim.raw[scene.peer].take_ddp().expect("a Response");
        let wanted = tagged(Opcode::ReadResponse, request.sink_stag, u64::MAX, true);
        assert_eq!((header, payload.len()), (wanted, 0));
    }
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None);
    scene.assert_memory_untouched("nothing");
    scene.assert_bystanders_unhurt("nothing");
}

#[test]
fn a_send_beyond_its_buffer() {
    for offset in [LEN as u32 + 1, 1 << 31, u32::MAX] {
        let beyond = ddp(DdpHeader::Untagged(at(0, 1, offset)), b"hello");
        scene(1).wrong("MO", &beyond, (1, 2, 4), Quotes::Segment);
    }
    let mut first = at(0, 1, 0);
    first.last = false;
    let whole = ddp(DdpHeader::Untagged(first), &[0; LEN]);
    let more = ddp(DdpHeader::Untagged(at(0, 1, LEN as u32)), &[1]);
    wrong_behind(scene(1), "one more", &[whole], &more, (1, 2, 4));
}

#[test]
fn a_message_that_never_ends_and_one_that_ends_twice() {
    let mut endless = at(0, 1, 0);
    endless.last = false;
    let endless = ddp(DdpHeader::Untagged(endless), &[0; 4]);
    let next = ddp(DdpHeader::Untagged(at(0, 2, 0)), b"next");
    wrong_behind(scene(2), "no L", &[endless], &next, (1, 2, 3));
    let ended = ddp(DdpHeader::Untagged(at(0, 1, 0)), &[0; 4]);
    let mut more = at(0, 1, 0);
    more.offset = MessageOffset(4);
    let more = ddp(DdpHeader::Untagged(more), b"more");
    wrong_behind(scene(2), "L twice", &[ended], &more, (1, 2, 3));
}

#[test]
fn messages_that_have_no_place_in_the_queues_of_rdmap() {
    let segment = |opcode: u8, queue| {
        let mut ulpdu = ddp(DdpHeader::Untagged(at(queue, 1, 0)), &[0; 4]);
        ulpdu[1] = 0x40 | opcode;
        ulpdu
    };
    // A Send or Immediate Data to the queue of Terminates, a Terminate to the others.
    for (opcode, queue) in [(3, 2), (8, 2), (1, 2), (7, 0), (7, 1)] {
        let name = format!("opcode {opcode} to queue {queue}");
        let astray = segment(opcode, queue);
        scene(1).wrong(&name, &astray, (0, 2, 6), Quotes::Segment);
    }
    for queue in [4, 1 << 16, u32::MAX] {
        let name = format!("queue {queue}");
        let astray = segment(3, queue);
        scene(1).wrong(&name, &astray, (1, 2, 1), Quotes::Segment);
    }
}

#[test]
fn a_response_to_an_atomic_never_made() {
    let header = untagged(Opcode::AtomicResponse, QueueNumber(3), 1, true);
    let ulpdu = ddp(DdpHeader::Untagged(header), &[0; 12]);
    scene(1).wrong("never asked", &ulpdu, (0, 2, 6), Quotes::Segment);
    // Nor is it a response to a Read.
    let (scene, sink) = reading();
    scene.wrong("to a Read", &ulpdu, (0, 2, 6), Quotes::Segment);
    assert_eq!(sink.content(), [0; LEN]);
}

#[test]
fn a_terminate_out_of_form() {
    let terminate = |msn, offset, last, payload: &[u8]| {
        let mut header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, msn, last);
        header.offset = MessageOffset(offset);
        ddp(DdpHeader::Untagged(header), payload)
    };
    let cases = [
        ("without octets", (1, 0, true), vec![], (0, 2, 0xff)),
        ("three octets", (1, 0, true), vec![0x11, 0, 0], (0, 2, 0xff)),
        ("the second", (2, 0, true), vec![0x11, 0, 0, 0], (1, 2, 3)),
        (
            "in its middle",
            (1, 4, true),
            vec![0x11, 0, 0, 0],
            (1, 2, 4),
        ),
        ("too long", (1, 0, true), vec![0x11; 100], (1, 2, 5)),
    ];
    for (name, (msn, offset, last), payload, numbers) in cases {
        let ulpdu = terminate(msn, offset, last, &payload);
        scene(1).wrong(name, &ulpdu, numbers, Quotes::Segment);
    }
}

/// Whatever a Terminate quotes, it ends the stream, and nothing is sent in return.
#[test]
fn a_terminate_that_quotes_what_cannot_be() {
    let inner = {
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        ddp(DdpHeader::Untagged(header), &[0x11, 0, 0, 0])
    };
    let quoting = |counts: u8, rest: &[u8]| [&[0x12, 0x05, counts, 0], rest].concat();
    let cases = [
        ("nothing", quoting(0, &[])),
        ("all announced, nothing there", quoting(0xe0, &[])),
        ("half a length", quoting(0xe0, &[0xff])),
        ("a length and no header", quoting(0xe0, &[0xff, 0xff])),
        ("half a header", quoting(0xe0, &[0xff, 0xff, 0xc1, 0x40, 1])),
        ("an RDMA header alone", quoting(0x20, &[1; 28])),
        ("a header of no version", quoting(0xc0, &[0xff; 20])),
        ("more than announced", quoting(0, &[0xaa; 48])),
        (
            "a Terminate",
            quoting(0xc0, &[&[0, 22], &inner[..18]].concat()),
        ),
        (
            "a Terminate and its content",
            quoting(0xc0, &[&[0, 22], &inner[..]].concat()),
        ),
    ];
    for (name, payload) in cases {
        let mut scene = scene(2);
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.send_ddp(DdpHeader::Untagged(header), &payload);
        scene.sim.run_now();
        let control = TerminateControl {
            layer: 1,
            error_type: 2,
            code: 5,
        };
        scene.assert_peer_terminated(name, control);
    }
}

/// It has as many Reads outstanding as it may, receives no response, and sends one more; its own
/// responses go on.
#[test]
fn a_peer_that_hoards_reads_keeps_nothing_of_others() {
    let mut scene = scene(1);
    let peer = scene.peer;
    scene.sim.raw[peer].send_ddp(nothing(), &[]);
    scene.sim.raw[peer].window = 0;
    scene.sim.raw[peer].acknowledge();
    scene.sim.run_now();
    let request = ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(0),
        length: LEN as u32,
        source_stag: scene.open.stag,
        source_offset: TaggedOffset(0),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    for msn in 1..=100 {
        let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn, true);
        scene.sim.raw[peer].send_ddp(DdpHeader::Untagged(header), &octets);
    }
    scene.sim.run_now();
    let reason = scene.sim.hosts[0].end_of(scene.qp.number);
    assert!(
        matches!(
            &reason,
            Some(EndReason::TerminateSent { control, .. })
                if (control.layer, control.error_type, control.code) == (0, 2, 7)
        ),
        "{reason:?}"
    );
    scene.assert_memory_untouched("hoards");
    scene.assert_bystanders_unhurt("hoards");
    let flushed = (0, WcOpcode::Recv, WcStatus::WrFlushed);
    assert_eq!(outcomes(&mut scene.qp), [flushed]);
}
