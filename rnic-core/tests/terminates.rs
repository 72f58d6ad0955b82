//! Errors that end a stream: which Terminate goes out, what both applications are told, and that nobody else is
//! hurt. The peer is a raw one, which does wrong by the octet.

mod common;

use common::*;
use rnic_core::engine::{ConnectionOptions, EndReason};
use rnic_core::memory::table::{Access, Scope};
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::qp::PdId;
use rnic_core::verbs::wr::{WcOpcode, WcStatus};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::rdmap::{BitOrder, Opcode, ReadRequest, Terminate, TerminateControl};

/// Octets of each region and of each receive.
const LEN: usize = 64;

/// Reads that the raw peer may have outstanding.
const IRD: u16 = 4;

/// A connection to a raw peer, memory of all kinds, and another connection that must not notice anything.
struct Scene {
    sim: Simulation,
    peer: usize,
    qp: TestQp,
    /// The peer may do everything to it.
    open: SharedRegion,
    /// The peer may do nothing to it.
    shut: SharedRegion,
    /// It belongs to another protection domain.
    foreign: SharedRegion,
    bystanders: (TestQp, TestQp),
}

fn scene(receives: u64) -> Scene {
    let mut sim = simulation();
    let options = ConnectionOptions {
        ird: IRD,
        ..ConnectionOptions::default()
    };
    let bystanders = sim.connect(&options).unwrap();
    let RawConnection { peer, mut qp } = accept_raw(&mut sim, &options);
    let open = sim.hosts[0].share(&pattern(LEN), all_rights());
    let shut = sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
    let foreign = sim.hosts[0].share_with(&[0; LEN], all_rights(), PdId(9));
    for id in 0..receives {
        let receive = recv(id, &shut, LEN);
        sim.hosts[0].post_recv(&mut qp, receive);
    }
    sim.run_now();
    Scene {
        sim,
        peer,
        qp,
        open,
        shut,
        foreign,
        bystanders,
    }
}

/// What a Terminate is to quote of the segment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quotes {
    Nothing,
    Segment,
    SegmentAndRead(ReadRequest),
}

impl Scene {
    /// Sends a ULPDU, which is wrong.
    fn wrong(self, name: &str, ulpdu: &[u8], numbers: (u8, u8, u8), quotes: Quotes) {
        let octets = fpdu(ulpdu, true);
        self.wrong_octets(name, &octets, ulpdu, numbers, quotes);
    }

    fn wrong_octets(
        mut self,
        name: &str,
        octets: &[u8],
        ulpdu: &[u8],
        numbers: (u8, u8, u8),
        quotes: Quotes,
    ) {
        self.sim.raw[self.peer].send(octets);
        self.sim.run_now();
        // More of the same changes nothing.
        self.sim.raw[self.peer].send(octets);
        self.sim.run_now();
        self.assert_terminated(name, ulpdu, numbers, quotes);
        self.assert_bystanders_unhurt(name);
    }

    fn assert_terminated(
        &mut self,
        name: &str,
        ulpdu: &[u8],
        (layer, error_type, code): (u8, u8, u8),
        quotes: Quotes,
    ) {
        let control = TerminateControl {
            layer,
            error_type,
            code,
        };
        let raw = &mut self.sim.raw[self.peer];
        let (header, payload) = raw
            .take_ddp()
            .unwrap_or_else(|| panic!("{name}: no answer"));
        let expected = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        assert_eq!(header, DdpHeader::Untagged(expected), "{name}");
        let terminate = Terminate::parse(&payload).unwrap();
        assert_eq!(terminate.control, control, "{name}: {}", terminate.control);
        assert_eq!(terminate.len(), payload.len(), "{name}");
        // rfc: 5040-20, 5040-21, 5040-22, 5040-23
        let tagged = ulpdu.first().is_some_and(|first| first & 0x80 != 0);
        let header = ulpdu.get(..if tagged { 14 } else { 18 });
        let (segment, request) = match quotes {
            Quotes::Nothing => (None, None),
            Quotes::Segment => (header, None),
            Quotes::SegmentAndRead(request) => (header, Some(request)),
        };
        assert_eq!(terminate.ddp_header, segment, "{name}");
        let len = segment.map(|_| ulpdu.len() as u16);
        assert_eq!(terminate.ddp_segment_length, len, "{name}");
        let quoted = terminate
            .rdma_header
            .map(|octets| ReadRequest::parse(octets).unwrap());
        assert_eq!(quoted, request, "{name}");
        // rfc: 5040-68
        assert_eq!(raw.take_ulpdu(), None, "{name}: more after the Terminate");
        assert!(raw.finished && !raw.reset, "{name}");

        let number = self.qp.number;
        let reason = self.sim.hosts[0].end_of(number);
        assert!(
            matches!(&reason, Some(EndReason::TerminateSent { control: sent, .. }) if *sent == control),
            "{name}: {reason:?}"
        );
        assert_eq!(ends(&self.sim, 0, &self.qp), 1, "{name}");
        let rdma = self.sim.hosts[0].snapshot(self.sim.now).rdma;
        assert_eq!(rdma.terminates_sent, 1, "{name}");
        self.sim.raw[self.peer].close();
        self.sim.run_now();
        let later = empty_recv(99);
        self.sim.hosts[0].post_recv(&mut self.qp, later);
        self.sim.run_now();
        let flushed = (99, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut self.qp).last(), Some(&flushed), "{name}");
    }

    fn assert_bystanders_unhurt(&mut self, name: &str) {
        let (active, passive) = &mut self.bystanders;
        let target = self.sim.hosts[1].share(&[0; LEN], all_rights());
        self.sim.hosts[1].post_recv(passive, empty_recv(1));
        let wr = write(1, &self.open, target.stag, LEN);
        self.sim.hosts[0].post_send(active, wr);
        self.sim.hosts[0].post_send(active, inline_send(2, &[]));
        let sent = completions(&mut self.sim, active, 2, SECOND);
        assert!(
            sent.iter().all(|c| c.status() == WcStatus::Success),
            "{name}"
        );
        assert_eq!(target.content(), self.open.content(), "{name}");
        assert_eq!(ends(&self.sim, 0, active), 0, "{name}");
    }
}

/// A segment to a queue with an MSN and an MO, as the last of its message.
fn at(queue: u32, msn: u32, offset: u32) -> UntaggedHeader {
    UntaggedHeader {
        offset: MessageOffset(offset),
        msn: Msn(msn),
        ..untagged(Opcode::Send, QueueNumber(queue), 1, true)
    }
}

#[test]
fn writes_to_where_the_peer_may_not() {
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
fn reads_of_what_the_peer_may_not() {
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

#[test]
fn messages_out_of_sequence() {
    let ulpdu = |header| ddp(DdpHeader::Untagged(header), b"hello");
    let cases = [
        ("no such queue", at(3, 1, 0), (1, 2, 1)),
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
    for opcode in 7..16 {
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
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    let short = ddp(DdpHeader::Untagged(header), &[0; ReadRequest::LEN - 1]);
    scene(1).wrong("too short", &short, (0, 2, 0xff), Quotes::Segment);
    let long = ddp(DdpHeader::Untagged(header), &[0; ReadRequest::LEN + 1]);
    scene(1).wrong("too long", &long, (1, 2, 5), Quotes::Segment);
}

// rfc: 5040-81
#[test]
fn more_reads_than_agreed() {
    let mut scene = scene(1);
    let request = read_of(scene.open.stag, 0, LEN);
    // The answers to the first are not taken, so that they stay outstanding: there is no room for them.
    let peer = scene.peer;
    scene.sim.raw[peer].send_ddp(nothing(), &[]);
    scene.sim.run_now();
    scene.sim.raw[peer].window = 0;
    scene.sim.raw[peer].acknowledge();
    scene.sim.run_now();
    let mut octets = Vec::new();
    // One is answered into TCP at once, the depth waits, and one is too many.
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
    // The window opens: the Terminate comes behind what was answered.
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
        // The sink is memory that the peer has no right to: the Read alone lets it in.
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

#[test]
fn an_fpdu_that_was_altered_above_tcp() {
    let ulpdu = ddp(send_header(1), b"hello");
    let good = fpdu(&ulpdu, true);
    // The length field is left out: it would only make the peer wait for more.
    for at in 2..good.len() {
        let mut octets = good.clone();
        octets[at] ^= 0x04;
        let scene = scene(1);
        let content = scene.shut.region.clone();
        scene.wrong_octets("altered", &octets, &ulpdu, (2, 0, 2), Quotes::Nothing);
        let mut placed = [0; LEN];
        content.read(0, &mut placed).unwrap();
        assert_eq!(placed, [0; LEN], "placed before its CRC was checked");
    }
}

#[test]
fn an_fpdu_too_short_for_its_header() {
    for ulpdu in [&[][..], &[0xc1], &[0xc1; 13], &[0x41; 17]] {
        let name = format!("{} octets", ulpdu.len());
        scene(1).wrong(&name, ulpdu, (2, 0, 3), Quotes::Nothing);
    }
}

// rfc: 5040-89
#[test]
fn the_first_of_several_errors_is_told() {
    let first = ddp(DdpHeader::Untagged(at(3, 1, 0)), b"hello");
    let second = ddp(write_header(Stag(1), 0), b"hello");
    let mut altered = fpdu(&second, true);
    altered[5] ^= 1;
    let octets = [fpdu(&first, true), fpdu(&second, true), altered].concat();
    scene(1).wrong_octets("several", &octets, &first, (1, 2, 1), Quotes::Segment);
}

/// A crafted "FPDU" inside another, which TCP delivers ahead of the front of the one around it.
#[test]
fn what_looked_like_an_fpdu_ahead_of_order_and_was_none() {
    let mut scene = scene(2);
    let inner = fpdu(&ddp(write_header(scene.open.stag, 0), &[0x55; 8]), true);
    let mut payload = vec![0; 30];
    payload.extend(&inner);
    let outer = fpdu(&ddp(send_header(1), &payload), true);
    let start = outer.windows(inner.len()).position(|w| w == inner).unwrap();
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ahead(start as u32, &inner);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send(&outer[..start]);
    scene.sim.run_now();
    scene.assert_terminated("no FPDU", &inner[2..], (2, 0, 3), Quotes::Nothing);
}

#[test]
fn the_peers_terminate_is_told_and_answered_by_closing() {
    for order in [BitOrder::Rfc, BitOrder::Swapped] {
        let mut scene = scene(2);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        let wr = send(1, &scene.open, LEN);
        scene.sim.hosts[0].post_send(&mut scene.qp, wr);
        scene.sim.raw[scene.peer].acknowledges = false;
        scene.sim.run_now();
        let control = TerminateControl {
            layer: 1,
            error_type: 2,
            code: 1,
        };
        let terminate = Terminate {
            control,
            ddp_segment_length: None,
            ddp_header: None,
            rdma_header: None,
        };
        let mut octets = vec![0; terminate.len()];
        terminate.emit_as(order, &mut octets);
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.acknowledges = true;
        peer.send_ddp(DdpHeader::Untagged(header), &octets);
        peer.send_ddp(DdpHeader::Untagged(header), &octets);
        scene.sim.run_now();
        let number = scene.qp.number;
        let reason = scene.sim.hosts[0].end_of(number);
        assert_eq!(reason, Some(EndReason::TerminateReceived { control }));
        assert_eq!(ends(&scene.sim, 0, &scene.qp), 1);
        let rdma = scene.sim.hosts[0].snapshot(scene.sim.now).rdma;
        assert_eq!((rdma.terminates_received, rdma.terminates_sent), (1, 0));
        assert!(scene.sim.raw[scene.peer].finished);
        let mut statuses = outcomes(&mut scene.qp);
        statuses.sort_by_key(|(id, opcode, _)| (*opcode as u8, *id));
        assert_eq!(statuses.len(), 3);
        assert!(statuses.iter().all(|(.., s)| *s != WcStatus::Success));
        scene.assert_bystanders_unhurt("Terminate received");
    }
}

/// A Terminate of the peer ends what is half sent, too.
#[test]
fn nothing_is_sent_on_after_the_peers_terminate() {
    let mut scene = scene(0);
    let long = scene.sim.hosts[0].share(&pattern(1_000_000), all_rights());
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let wr = send(1, &long, 1_000_000);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.raw[scene.peer].acknowledges = false;
    scene.sim.run_now();
    let begun = scene.sim.raw[scene.peer].received.len();
    let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.acknowledges = true;
    peer.send_ddp(DdpHeader::Untagged(header), &[0x10, 0, 0, 0]);
    scene.sim.run_for(SECOND / 10);
    let peer = &scene.sim.raw[scene.peer];
    assert!(peer.received.len() < begun + 3000 && peer.finished);
}

/// A request of the application that cannot be carried out is told to the peer, even where nothing else is on its
/// way that would make the worker look again.
// rfc: 5040-87, 5040-88
#[test]
fn a_local_error_is_told_to_the_peer_at_once() {
    for bad_from_the_start in [true, false] {
        let mut scene = scene(1);
        scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
        scene.sim.run_now();
        let len = 100_000;
        let source = scene.sim.hosts[0].share(&pattern(len), all_rights());
        let wr = send(1, &source, len);
        if bad_from_the_start {
            scene.sim.hosts[0].revoke(source.stag);
        }
        scene.sim.hosts[0].post_send(&mut scene.qp, wr);
        scene.sim.raw[scene.peer].acknowledges = false;
        scene.sim.run_now();
        if !bad_from_the_start {
            assert!(scene.sim.hosts[0].end_of(scene.qp.number).is_none());
            scene.sim.hosts[0].revoke(source.stag);
        }
        let peer = &mut scene.sim.raw[scene.peer];
        peer.acknowledges = true;
        let early = peer.take_ddp();
        let is_terminate = |(header, _): &(DdpHeader, _)| matches!(header, DdpHeader::Untagged(h) if h.queue == QueueNumber::TERMINATE);
        assert_eq!(
            early.as_ref().is_some_and(is_terminate),
            bad_from_the_start,
            "it waits for no acknowledgment"
        );
        peer.acknowledge();
        scene.sim.run_now();
        let failed = (1, WcOpcode::Send, WcStatus::LocalProtectionError);
        assert_eq!(outcomes(&mut scene.qp)[0], failed);
        let peer = &mut scene.sim.raw[scene.peer];
        let mut last = early;
        while let Some(segment) = peer.take_ddp() {
            last = Some(segment);
        }
        let last = last.filter(is_terminate).expect("a Terminate");
        let terminate = Terminate::parse(&last.1).unwrap();
        let control = terminate.control;
        assert_eq!((control.layer, control.error_type, control.code), (0, 0, 0));
        assert_eq!((terminate.ddp_header, terminate.rdma_header), (None, None));
        assert!(peer.finished);
    }
}

/// Nobody can make a connection that has failed stay: not by taking nothing of the Terminate, nor by staying open.
#[test]
fn a_peer_that_takes_no_terminate_is_cut_off() {
    for window_closed in [true, false] {
        let mut scene = scene(1);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.send_ddp(nothing(), &[]);
        peer.window = if window_closed { 0 } else { u16::MAX };
        peer.send(&fpdu(&[0; 30], true));
        scene.sim.run_for(SECOND * 4);
        assert!(!scene.sim.raw[scene.peer].reset);
        assert!(scene.sim.hosts[0].end_of(scene.qp.number).is_some());
        scene.sim.run_for(SECOND * 4);
        assert!(
            scene.sim.raw[scene.peer].reset,
            "window closed: {window_closed}"
        );
    }
}
