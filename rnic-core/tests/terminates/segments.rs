//! Segments that DDP or RDMAP refuse.

use crate::common::*;
use crate::scene::{IRD, LEN, Quotes, at, scene};
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::memory::table::{Access, Scope};
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::verbs::{
    status::WcStatus,
    wr::{SendWr, WcOpcode},
};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset, UntaggedHeader};
use rnic_core::wire::rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate,
    TerminateControl,
};

#[test]
fn writes_to_memory_that_the_peer_may_not_write() {
    // rfc: 5040-88b, 5040-90, 5040-s4, 5041-73a, 5041-73b, 5041-73d, 5041-73e, 5041-74, 5041-76
    // rfc: 5041-s11
    let cases = [
        ("no such STag", 0, LEN, (1, 1, 0)),
        ("STag 0", 0, LEN, (1, 1, 0)),
        ("beyond the end", 1, LEN + 1, (1, 1, 1)),
        ("no right", 0, LEN, (1, 1, 0)),
        ("another domain", 0, LEN, (1, 1, 2)),
    ];
    for (at, (name, offset, len, numbers)) in cases.into_iter().enumerate() {
        let scene = scene(1);
        let stag = match at {
            0 => Stag(scene.open.stag.0 ^ 1),
            1 => Stag(0),
            2 => scene.open.stag,
            3 => scene.shut.stag,
            _ => scene.foreign.stag,
        };
        let ulpdu = ddp(write_header(stag, offset), &vec![0xee; len]);
        let (open, shut) = (scene.open.region.clone(), scene.shut.region.clone());
        scene.wrong(name, &ulpdu, numbers, Quotes::Segment);
        let mut content = [0; LEN];
        open.read(0, &mut content).unwrap();
        assert_eq!(content[..], pattern(LEN), "{name}: something was written");
        shut.read(0, &mut content).unwrap();
        assert_eq!(content, [0; LEN], "{name}: something was written");
    }
    let scene = scene(0);
    let ulpdu = ddp(write_header(scene.open.stag, u64::MAX - 3), &[0; 8]);
    scene.wrong("offsets wrap", &ulpdu, (1, 1, 3), Quotes::Segment);
}

#[test]
fn reads_of_memory_that_the_peer_may_not_read() {
    // rfc: 5040-88c
    let cases = [
        ("no such STag", 0, LEN, (0, 1, 0)),
        ("beyond the end", 1, LEN, (0, 1, 1)),
        ("no right", 0, LEN, (0, 1, 2)),
        ("another domain", 0, LEN, (0, 1, 3)),
        ("offsets wrap", u64::MAX - 3, LEN, (0, 1, 4)),
    ];
    for (at, (name, offset, len, numbers)) in cases.into_iter().enumerate() {
        let scene = scene(1);
        let stag = match at {
            0 => Stag(scene.open.stag.0 ^ 1),
            1 | 4 => scene.open.stag,
            2 => scene.shut.stag,
            _ => scene.foreign.stag,
        };
        let request = read_of(stag, offset, len);
        let ulpdu = read_request(1, &request);
        let quotes = Quotes::SegmentAndRead(request);
        scene.wrong(name, &ulpdu, numbers, quotes);
    }
}

fn read_of(source_stag: Stag, offset: u64, len: usize) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0x1234),
        sink_offset: TaggedOffset(0x5678),
        length: len as u32,
        source_stag,
        source_offset: TaggedOffset(offset),
    }
}

fn read_request(msn: u32, request: &ReadRequest) -> Vec<u8> {
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn, true);
    ddp(DdpHeader::Untagged(header), &octets)
}

#[test]
fn sends_that_find_no_buffer_for_them() {
    let none = scene(0);
    let ulpdu = ddp(send_header(1), b"hello");
    none.wrong("no receive", &ulpdu, (1, 2, 2), Quotes::Segment);
    let empty = ddp(send_header(1), &[]);
    scene(0).wrong("no receive for nothing", &empty, (1, 2, 2), Quotes::Segment);
    let long = ddp(send_header(1), &[0; LEN + 1]);
    scene(1).wrong("too long", &long, (1, 2, 5), Quotes::Segment);
}

#[test]
fn immediate_data_of_a_wrong_length() {
    // rfc: 7306-53, 7306-54b, 7306-58
    let header = |queue| {
        let header = untagged(Opcode::Immediate, QueueNumber(queue), 1, true);
        DdpHeader::Untagged(header)
    };
    let good = ddp(header(0), &[1; 8]);
    scene(0).wrong("no receive", &good, (1, 2, 2), Quotes::Segment);
    let short = ddp(header(0), &[1; 7]);
    scene(1).wrong("too short", &short, (0, 2, 0xff), Quotes::Segment);
    let long = ddp(header(0), &[1; 9]);
    scene(1).wrong("too long", &long, (0, 2, 0xff), Quotes::Segment);
    let astray = ddp(header(1), &[1; 8]);
    scene(1).wrong("another queue", &astray, (0, 2, 6), Quotes::Segment);
    let mut newer = good;
    newer[1] |= 0x80;
    scene(1).wrong("another version", &newer, (0, 2, 5), Quotes::Segment);
}

/// The receive that was too short completes with its own status, the others flushed.
#[test]
fn a_receive_that_is_too_short_says_so() {
    let mut scene = scene(3);
    let long = fpdu(&ddp(send_header(1), &[0; LEN + 1]), true);
    scene.sim.raw[scene.peer].send(&long);
    scene.sim.run_now();
    let wanted = [
        (0, WcOpcode::Recv, WcStatus::LocalLengthError),
        (1, WcOpcode::Recv, WcStatus::WrFlushed),
        (2, WcOpcode::Recv, WcStatus::WrFlushed),
    ];
    assert_eq!(outcomes(&mut scene.qp), wanted);
}

/// Returns a segment with its reserved bits set.
fn reserved_set(mut ulpdu: Vec<u8>) -> Vec<u8> {
    ulpdu[0] |= 0x3c;
    ulpdu[1] |= 0x30;
    ulpdu
}

/// The access of a request is checked when its response is made: the segment is gone by then.
#[test]
fn a_request_is_quoted_as_received() {
    // rfc: 5041-s11, 5040-20, 5040-22
    let shut = scene(1);
    let request = read_of(shut.shut.stag, 0, LEN);
    let quotes = Quotes::SegmentAndRead(request);
    let ulpdu = reserved_set(read_request(1, &request));
    shut.wrong("a Read", &ulpdu, (0, 1, 2), quotes);

    // Of a request in two segments, the last. The decoder wants one.
    let mut shut = scene(1);
    shut.sim.tap = None;
    let request = read_of(shut.shut.stag, 0, LEN);
    let whole = read_request(1, &request);
    let (mut first, mut second) = (whole[..18 + 20].to_vec(), whole[..18].to_vec());
    first[0] &= !0x40;
    second[17] = 20;
    second.extend(&whole[18 + 20..]);
    let second = reserved_set(second);
    let octets = fpdu(&first, true);
    shut.sim.raw[shut.peer].send(&octets);
    let quotes = Quotes::SegmentAndRead(request);
    shut.wrong("a Read in two", &second, (0, 1, 2), quotes);

    let shut = scene(1);
    let request = AtomicRequest {
        identifier: 0,
        stag: shut.shut.stag,
        offset: TaggedOffset(0),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    let mut octets = [0; AtomicRequest::LEN];
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    let header = untagged(Opcode::AtomicRequest, queue, 1, true);
    let ulpdu = reserved_set(ddp(DdpHeader::Untagged(header), &octets));
    shut.wrong("an atomic", &ulpdu, (0, 1, 2), Quotes::Segment);
}

/// What was placed ahead of order is found to be in error in order.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_segment_ahead_of_order_is_quoted_as_received() {
    // rfc: 5041-s11
    let mut scene = scene(0);
    let options = ConnectionOptions {
        markers: true,
        ..ConnectionOptions::default()
    };
    let RawConnection { peer, qp } = accept_raw(&mut scene.sim, &options);
    (scene.peer, scene.qp) = (peer, qp);
    let memory = scene.sim.hosts[0].share(&[0; 1000], all_rights());
    for id in 0..2 {
        let receive = recv(id, &memory, 1000);
        scene.sim.hosts[0].post_recv(&mut scene.qp, receive);
    }
    // The second message has no first segment.
    let mut header = at(0, 2, 8);
    header.ulp32 = 0x1234_5678;
    let wrong = reserved_set(ddp(DdpHeader::Untagged(header), &[0xee; 900]));
    let raw = &mut scene.sim.raw[peer];
    raw.markers_from = Some(request(16).len() as u32);
    let good = raw.fpdu(&ddp(send_header(1), &[1; 100]));
    let len = good.len() as u32;
    raw.skip(len);
    let early = raw.fpdu(&wrong);
    raw.send_ahead(0, &early);
    raw.skip(0_u32.wrapping_sub(len));
    scene.sim.run_now();
    let rdma = scene.sim.hosts[0].snapshot(scene.sim.now).rdma;
    assert_eq!(rdma.octets_placed_early, 900);
    scene.sim.raw[peer].send(&good);
    scene.sim.run_now();
    scene.assert_terminated("early", &wrong, (1, 2, 4), Quotes::Segment);
}

/// A message that is too long for another queue, or ahead of order, does not affect the first
/// posted receive.
#[test]
fn a_receive_that_the_error_is_not_about_is_flushed() {
    let to = |opcode, queue, msn| DdpHeader::Untagged(untagged(opcode, queue, msn, true));
    let cases = [
        (
            to(Opcode::Terminate, QueueNumber::TERMINATE, 1),
            Terminate::MAX_LEN,
            (1, 2, 5),
        ),
        (
            to(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1),
            AtomicRequest::LEN,
            (1, 2, 5),
        ),
        (
            to(Opcode::AtomicResponse, QueueNumber::ATOMIC_RESPONSE, 1),
            AtomicResponse::LEN,
            (1, 2, 5),
        ),
        (to(Opcode::Send, QueueNumber::SEND, 2), LEN, (1, 2, 3)),
    ];
    for (header, most, numbers) in cases {
        let name = format!("{header:?}");
        let mut scene = scene(2);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
        let one = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        let atomic = SendWr::atomic(5, one, sge(&sink, 8)).with_remote(Stag(7), TaggedOffset(0));
        scene.sim.hosts[0].post_send(&mut scene.qp, atomic);
        scene.sim.run_now();
        scene.sim.raw[scene.peer].take_ddp().expect("a request");
        let ulpdu = ddp(header, &vec![0; most + 1]);
        let octets = fpdu(&ulpdu, true);
        scene.sim.raw[scene.peer].send(&octets);
        scene.sim.run_now();
        let flushed = [
            (5, WcOpcode::FetchAdd),
            (0, WcOpcode::Recv),
            (1, WcOpcode::Recv),
        ];
        let flushed = flushed.map(|(id, opcode)| (id, opcode, WcStatus::WrFlushed));
        assert_eq!(outcomes(&mut scene.qp), flushed, "{name}");
        scene.assert_terminated(&name, &ulpdu, numbers, Quotes::Segment);
    }
}

#[test]
fn messages_out_of_sequence() {
    // rfc: 5040-90, 5041-72a, 5041-72c, 5041-72d, 5041-72e, 5041-76
    let ulpdu = |header| ddp(DdpHeader::Untagged(header), b"hello");
    let cases = [
        ("no such queue", at(4, 1, 0), (1, 2, 1)),
        ("a queue far away", at(u32::MAX, 1, 0), (1, 2, 1)),
        ("the message after the next", at(0, 2, 0), (1, 2, 3)),
        ("a message that was", at(0, 0, 0), (1, 2, 3)),
        ("a message beyond the receives", at(0, 9, 0), (1, 2, 3)),
        ("not at its start", at(0, 1, 4), (1, 2, 4)),
        ("beyond the receive", at(0, 1, LEN as u32 + 1), (1, 2, 4)),
        ("at the end of all offsets", at(0, 1, u32::MAX), (1, 2, 4)),
    ];
    for (name, header, numbers) in cases {
        scene(3).wrong(name, &ulpdu(header), numbers, Quotes::Segment);
    }
}

#[test]
fn versions_and_opcodes_that_are_not_known() {
    let tagged_write = |stag| ddp(write_header(stag, 0), b"hello");
    let with = |mut ulpdu: Vec<u8>, at: usize, octet: u8| {
        ulpdu[at] = octet;
        ulpdu
    };
    let hello = ddp(send_header(1), b"hello");
    let quotes = Quotes::Segment;
    for version in [0, 2, 3] {
        let name = format!("DDP version {version}");
        let open = scene(1);
        let write = with(tagged_write(open.open.stag), 0, 0xc0 | version);
        open.wrong(&name, &write, (1, 1, 4), quotes);
        scene(1).wrong(
            &name,
            &with(hello.clone(), 0, 0x40 | version),
            (1, 2, 6),
            quotes,
        );
    }
    for version in [2, 3] {
        let name = format!("RDMAP version {version}");
        let octet = version << 6 | Opcode::Send as u8;
        scene(1).wrong(&name, &with(hello.clone(), 1, octet), (0, 2, 5), quotes);
    }
    for opcode in (7..16).filter(|opcode| !matches!(opcode, 8 | 9)) {
        let name = format!("opcode {opcode} as a Send");
        let octet = 0x40 | opcode;
        scene(1).wrong(&name, &with(hello.clone(), 1, octet), (0, 2, 6), quotes);
    }
    for opcode in [0, 1, 2] {
        let name = format!("opcode {opcode} in queue 0");
        scene(1).wrong(
            &name,
            &with(hello.clone(), 1, 0x40 | opcode),
            (0, 2, 6),
            quotes,
        );
    }
    for opcode in (3..16).chain([1]) {
        let name = format!("opcode {opcode} to a tagged buffer");
        let open = scene(1);
        let write = with(tagged_write(open.open.stag), 1, 0x40 | opcode);
        open.wrong(&name, &write, (0, 2, 6), quotes);
    }
    let in_read_queue = ddp(DdpHeader::Untagged(at(1, 1, 0)), b"hello");
    scene(1).wrong("a Send in queue 1", &in_read_queue, (0, 2, 6), quotes);
}

#[test]
fn a_read_request_of_the_wrong_length() {
    // rfc: 5040-13
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    let short = ddp(DdpHeader::Untagged(header), &[0; ReadRequest::LEN - 1]);
    scene(1).wrong("too short", &short, (0, 2, 0xff), Quotes::Segment);
    let long = ddp(DdpHeader::Untagged(header), &[0; ReadRequest::LEN + 1]);
    scene(1).wrong("too long", &long, (0, 2, 0xff), Quotes::Segment);
    // Longer than anything that may come in this queue.
    let longest = ddp(DdpHeader::Untagged(header), &[0; AtomicRequest::LEN + 1]);
    scene(1).wrong("far too long", &longest, (1, 2, 5), Quotes::Segment);
}

/// A peer fills the queue of its Read Requests. That of another stream still has all its room.
#[test]
fn the_reads_of_a_stream_take_no_room_from_those_of_another() {
    // Streams share no queue of Read Requests.
    let mut scene = scene(1);
    scene.assert_bystanders_unhurt("before");
    let request = read_of(scene.open.stag, 0, LEN);
    let peer = scene.peer;
    scene.sim.raw[peer].send_ddp(nothing(), &[]);
    scene.sim.run_now();
    // The window has no room for the responses, so that as many requests wait as may.
    scene.sim.raw[peer].window = 0;
    scene.sim.raw[peer].acknowledge();
    scene.sim.run_now();
    for msn in 1..=u32::from(IRD) {
        let octets = fpdu(&read_request(msn, &request), true);
        scene.sim.raw[peer].send(&octets);
    }
    scene.sim.run_now();
    assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None);
    let (_, reader) = &mut scene.bystanders;
    for id in 0..u64::from(IRD) {
        let into = scene.sim.hosts[1].share(&[0; LEN], Access::LOCAL_WRITE);
        let wr = read(id, &into, scene.open.stag, LEN);
        scene.sim.hosts[1].post_send(reader, wr);
    }
    let reads = completions(&mut scene.sim, reader, IRD.into(), SECOND);
    let read = reads.iter().filter(|c| c.opcode() == Ok(WcOpcode::Read));
    assert!(reads.iter().all(|c| c.status() == WcStatus::Success));
    assert_eq!(read.count(), usize::from(IRD));
}

// rfc: 5040-81, 5040-s8, 5042-s6
#[test]
fn more_reads_than_agreed() {
    let mut scene = scene(1);
    let request = read_of(scene.open.stag, 0, LEN);
    // The responses to the first are not acknowledged, so that they stay outstanding: the window
    // has no room for them.
    let peer = scene.peer;
    scene.sim.raw[peer].send_ddp(nothing(), &[]);
    scene.sim.run_now();
    scene.sim.raw[peer].window = 0;
    scene.sim.raw[peer].acknowledge();
    scene.sim.run_now();
    let mut octets = Vec::new();
    // One response is with TCP at once, as many as the IRD wait, and one is too many.
    let count = u32::from(IRD) + 2;
    for msn in 1..=count {
        octets.extend(fpdu(&read_request(msn, &request), true));
    }
    scene.sim.raw[peer].send(&octets);
    scene.sim.run_now();
    let reason = scene.sim.hosts[0].end_of(scene.qp.number);
    let control = TerminateControl {
        layer: 0,
        error_type: 2,
        code: 7,
    };
    assert!(
        matches!(&reason, Some(EndReason::TerminateSent { control: sent, .. }) if *sent == control),
        "{reason:?}"
    );
    // The window opens: the Terminate is sent behind the responses.
    scene.sim.raw[peer].window = u16::MAX;
    scene.sim.raw[peer].acknowledge();
    scene.sim.run_for(SECOND * 2);
    let mut answers = 0;
    let (header, payload) = loop {
        let (header, payload) = scene.sim.raw[peer].take_ddp().expect("a Terminate");
        match header {
            DdpHeader::Tagged(_) => answers += 1,
            DdpHeader::Untagged(_) => break (header, payload),
        }
    };
    assert!(answers <= 1);
    assert!(
        matches!(header, DdpHeader::Untagged(header) if header.queue == QueueNumber::TERMINATE)
    );
    let terminate = Terminate::parse(&payload).unwrap();
    assert_eq!(terminate.control, control);
    let offending = read_request(terminate_msn(&terminate), &request);
    assert_eq!(terminate.ddp_header, Some(&offending[..18]));
    // rfc: 5040-88c
    assert_eq!(terminate.rdma_header, Some(&offending[18..]));
    scene.assert_bystanders_unhurt("too many Reads");
}

fn terminate_msn(terminate: &Terminate<'_>) -> u32 {
    let header = terminate.ddp_header.unwrap();
    u32::from_be_bytes(header[10..14].try_into().unwrap())
}

#[test]
fn read_responses_that_nobody_asked_for() {
    let no_read = scene(1);
    let ulpdu = ddp(
        tagged(Opcode::ReadResponse, no_read.open.stag, 0, true),
        &[1; 8],
    );
    no_read.wrong("no Read", &ulpdu, (0, 2, 6), Quotes::Segment);
    // (STag of the sink or another, offset, octets, last) of a response to a Read of 16 octets.
    let cases = [
        ("another STag", false, 0, 8, true, (1, 1, 0)),
        ("beyond the sink", true, 12, 8, true, (1, 1, 1)),
        ("not at its start", true, 8, 8, true, (1, 1, 1)),
        ("before all of it", true, 0, 8, true, (1, 1, 1)),
        ("too long", true, 0, 17, true, (1, 1, 1)),
    ];
    for (name, right_stag, offset, len, last, numbers) in cases {
        let mut scene = scene(1);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        // The peer has no right to the sink but by the Read.
        let sink = scene.sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
        let wr = read(5, &sink, Stag(0x77), 16);
        scene.sim.hosts[0].post_send(&mut scene.qp, wr);
        scene.sim.run_now();
        let asked = scene.sim.raw[scene.peer]
            .take_ddp()
            .expect("a Read Request");
        assert_eq!(asked.1.len(), ReadRequest::LEN);
        let stag = if right_stag {
            sink.stag
        } else {
            scene.shut.stag
        };
        let header = tagged(Opcode::ReadResponse, stag, offset, last);
        let ulpdu = ddp(header, &vec![1; len]);
        let octets = fpdu(&ulpdu, true);
        scene.sim.raw[scene.peer].send(&octets);
        scene.sim.run_now();
        scene.assert_terminated(name, &ulpdu, numbers, Quotes::Segment);
        scene.assert_bystanders_unhurt(name);
    }
}

#[test]
fn a_stag_that_the_peer_may_not_invalidate() {
    let mut opcodes = [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate].into_iter();
    for opcode in opcodes.by_ref() {
        for shared in [true, false] {
            let scene = scene(2);
            let stag = if shared {
                scene.open.stag
            } else {
                Stag(0xdead_beef)
            };
            let header = UntaggedHeader {
                ulp32: stag.0,
                ..untagged(opcode, QueueNumber::SEND, 1, true)
            };
            let ulpdu = ddp(DdpHeader::Untagged(header), b"bye");
            let open = scene.open.region.clone();
            scene.wrong("not to be invalidated", &ulpdu, (0, 1, 9), Quotes::Segment);
            drop(open);
        }
    }
    // One of another stream.
    let scene = scene(2);
    let other = Scope::Stream(
        rnic_core::testing::simulation::PD,
        scene.bystanders.0.stream,
    );
    let theirs = scene.sim.hosts[0].share_with(&[0; LEN], all_rights(), other);
    let header = UntaggedHeader {
        ulp32: theirs.stag.0,
        ..untagged(Opcode::SendInvalidate, QueueNumber::SEND, 1, true)
    };
    let ulpdu = ddp(DdpHeader::Untagged(header), &[]);
    scene.wrong("another stream's", &ulpdu, (0, 1, 9), Quotes::Segment);
}
