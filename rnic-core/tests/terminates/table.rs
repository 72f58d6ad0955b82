//! Every number of an error that the standards define, cell by cell (RFC 5040 figure 9, RFC 5041
//! section 7.2, RFC 5044 section 8, RFC 6581 section 8): a peer's mistake that makes us send it, or
//! why there is none; and what becomes of a connection whose peer sends it.

use crate::common::decoder::terminate::is_known;
use crate::common::*;
use crate::scene::{IRD, LEN, Quotes, at, scene};
use crate::stream::Writer;
use Sent::{Never, When};
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::memory::table::Scope;
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::PD;
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset, UntaggedHeader};
use rnic_core::wire::rdmap::{Opcode, ReadRequest, Terminate, TerminateControl};

/// Layer, error type, error code.
type Numbers = (u8, u8, u8);

enum Sent {
    /// It is sent when this happens; the function makes it happen, and demands the Terminate and
    /// nothing after it.
    When(fn(&str, Numbers)),
    /// It is never sent, because of this.
    Never(&'static str),
}

struct Cell {
    numbers: Numbers,
    name: &'static str,
    sent: Sent,
}

const fn cell(numbers: Numbers, name: &'static str, sent: Sent) -> Cell {
    Cell {
        numbers,
        name,
        sent,
    }
}

/// The table. The code of a local catastrophe may be any: it is zero here.
const CELLS: [Cell; 33] = [
    cell(
        (0, 0, 0x00),
        "RDMA: local catastrophe",
        When(a_source_that_is_gone),
    ),
    cell(
        (0, 1, 0x00),
        "remote protection: invalid STag",
        When(a_read_of_no_stag),
    ),
    cell(
        (0, 1, 0x01),
        "remote protection: base or bounds",
        When(a_read_beyond),
    ),
    cell(
        (0, 1, 0x02),
        "remote protection: access rights",
        When(a_read_without_a_right),
    ),
    cell(
        (0, 1, 0x03),
        "remote protection: another stream's STag",
        When(a_read_of_others),
    ),
    cell(
        (0, 1, 0x04),
        "remote protection: TO wrap",
        When(a_read_that_wraps),
    ),
    cell(
        (0, 1, 0x09),
        "remote protection: no invalidation",
        When(an_invalidation_of_shared),
    ),
    cell(
        (0, 1, 0xff),
        "remote protection: unspecified",
        Never("each has a number of its own"),
    ),
    cell(
        (0, 2, 0x05),
        "remote operation: RDMAP version",
        When(another_rdmap_version),
    ),
    cell(
        (0, 2, 0x06),
        "remote operation: opcode",
        When(an_opcode_that_is_none),
    ),
    cell(
        (0, 2, 0x07),
        "remote operation: catastrophe of the stream",
        When(too_many_reads),
    ),
    cell(
        (0, 2, 0x08),
        "remote operation: catastrophe of all streams",
        Never("no peer can bring about an error of more than its own stream"),
    ),
    cell(
        (0, 2, 0x09),
        "remote operation: no invalidation",
        Never("RFC 5040 lists it twice; it is sent as an error of protection"),
    ),
    cell(
        (0, 2, 0xff),
        "remote operation: unspecified",
        When(half_a_read_request),
    ),
    cell(
        (1, 0, 0x00),
        "DDP: local catastrophe",
        When(a_receive_that_is_gone),
    ),
    cell(
        (1, 1, 0x00),
        "tagged: invalid STag",
        When(a_write_to_no_stag),
    ),
    cell((1, 1, 0x01), "tagged: base or bounds", When(a_write_beyond)),
    cell(
        (1, 1, 0x02),
        "tagged: another stream's STag",
        When(a_write_to_others),
    ),
    cell((1, 1, 0x03), "tagged: TO wrap", When(a_write_that_wraps)),
    cell(
        (1, 1, 0x04),
        "tagged: DDP version",
        When(another_version_of_tagged),
    ),
    cell((1, 2, 0x01), "untagged: queue", When(a_queue_that_is_none)),
    cell(
        (1, 2, 0x02),
        "untagged: no buffer",
        When(a_send_without_a_receive),
    ),
    cell((1, 2, 0x03), "untagged: MSN", When(a_message_out_of_turn)),
    cell(
        (1, 2, 0x04),
        "untagged: MO",
        When(a_message_that_begins_late),
    ),
    cell((1, 2, 0x05), "untagged: too long", When(a_send_too_long)),
    cell(
        (1, 2, 0x06),
        "untagged: DDP version",
        When(another_version_of_untagged),
    ),
    cell(
        (2, 0, 0x01),
        "MPA: connection lost",
        Never("there is no connection to tell it on"),
    ),
    cell((2, 0, 0x02), "MPA: CRC", When(an_fpdu_with_a_bad_crc)),
    cell(
        (2, 0, 0x03),
        "MPA: where an FPDU starts",
        When(a_marker_that_points_elsewhere),
    ),
    cell(
        (2, 0, 0x04),
        "MPA: start-up frame",
        Never("RFC 5044 section 8 has the connection closed at once"),
    ),
    cell(
        (2, 0, 0x05),
        "MPA: local catastrophe",
        When(giving_up_before_the_reply),
    ),
    cell(
        (2, 0, 0x06),
        "MPA: too few inbound Reads",
        When(a_reply_with_too_many_reads),
    ),
    cell(
        (2, 0, 0x07),
        "MPA: no way to begin",
        When(a_reply_that_begins_otherwise),
    ),
];

/// Sends a read request for `len` octets of an STag, which is refused.
fn refused_read(name: &str, numbers: Numbers, stag: fn(&crate::scene::Scene) -> Stag, offset: u64) {
    let scene = scene(1);
    let request = ReadRequest {
        sink_stag: Stag(0x1234),
        sink_offset: TaggedOffset(0x5678),
        length: LEN as u32,
        source_stag: stag(&scene),
        source_offset: TaggedOffset(offset),
    };
    let ulpdu = read_request(1, &request);
    scene.wrong(name, &ulpdu, numbers, Quotes::SegmentAndRead(request));
}

fn read_request(msn: u32, request: &ReadRequest) -> Vec<u8> {
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn, true);
    ddp(DdpHeader::Untagged(header), &octets)
}

fn a_read_of_no_stag(name: &str, numbers: Numbers) {
    refused_read(name, numbers, |scene| Stag(scene.open.stag.0 ^ 1), 0);
}

fn a_read_beyond(name: &str, numbers: Numbers) {
    refused_read(name, numbers, |scene| scene.open.stag, 1);
}

fn a_read_without_a_right(name: &str, numbers: Numbers) {
    refused_read(name, numbers, |scene| scene.shut.stag, 0);
}

fn a_read_of_others(name: &str, numbers: Numbers) {
    refused_read(name, numbers, |scene| scene.foreign.stag, 0);
}

fn a_read_that_wraps(name: &str, numbers: Numbers) {
    refused_read(name, numbers, |scene| scene.open.stag, u64::MAX - 3);
}

fn a_source_that_is_gone(name: &str, numbers: Numbers) {
    let mut scene = scene(1);
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    let source = scene.sim.hosts[0].share(&[1; LEN], all_rights());
    scene.sim.hosts[0].revoke(source.stag);
    let wr = send(1, &source, LEN);
    scene.sim.hosts[0].post_send(&mut scene.qp, wr);
    scene.sim.run_now();
    scene.assert_terminated(name, &[], numbers, Quotes::Nothing);
    scene.assert_bystanders_unhurt(name);
}

fn an_invalidation_of_shared(name: &str, numbers: Numbers) {
    let scene = scene(1);
    let header = UntaggedHeader {
        ulp32: scene.open.stag.0,
        ..untagged(Opcode::SendInvalidate, QueueNumber::SEND, 1, true)
    };
    let ulpdu = ddp(DdpHeader::Untagged(header), &[]);
    scene.wrong(name, &ulpdu, numbers, Quotes::Segment);
}

/// Sends a Send whose header has one wrong octet.
fn altered_send(name: &str, numbers: Numbers, at: usize, octet: u8) {
    let mut ulpdu = ddp(send_header(1), &[]);
    ulpdu[at] = octet;
    scene(1).wrong(name, &ulpdu, numbers, Quotes::Segment);
}

fn another_rdmap_version(name: &str, numbers: Numbers) {
    altered_send(name, numbers, 1, 0x83);
}

fn an_opcode_that_is_none(name: &str, numbers: Numbers) {
    altered_send(name, numbers, 1, 0x4f);
}

fn another_version_of_untagged(name: &str, numbers: Numbers) {
    altered_send(name, numbers, 0, 0x42);
}

fn too_many_reads(name: &str, numbers: Numbers) {
    let mut scene = scene(1);
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    scene.sim.run_now();
    // Nothing is acknowledged and all arrive together, so that no response is sent in between.
    scene.sim.raw[scene.peer].window = 0;
    scene.sim.raw[scene.peer].acknowledge();
    scene.sim.run_now();
    let request = ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(0),
        length: LEN as u32,
        source_stag: scene.open.stag,
        source_offset: TaggedOffset(0),
    };
    let last = u32::from(IRD) + 1;
    for msn in 1..=last {
        let octets = fpdu(&read_request(msn, &request), true);
        scene.sim.raw[scene.peer].send(&octets);
    }
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    peer.window = u16::MAX;
    peer.acknowledge();
    scene.sim.run_for(SECOND * 2);
    let offending = read_request(last, &request);
    scene.assert_terminated(name, &offending, numbers, Quotes::SegmentAndRead(request));
    scene.assert_bystanders_unhurt(name);
}

fn half_a_read_request(name: &str, numbers: Numbers) {
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    let ulpdu = ddp(DdpHeader::Untagged(header), &[0; ReadRequest::LEN / 2]);
    scene(1).wrong(name, &ulpdu, numbers, Quotes::Segment);
}

/// A Write of one octet too many for the region, at an offset.
fn refused_write(
    name: &str,
    numbers: Numbers,
    stag: fn(&crate::scene::Scene) -> Stag,
    offset: u64,
) {
    let scene = scene(1);
    let ulpdu = ddp(write_header(stag(&scene), offset), &[0xee; 4]);
    scene.wrong(name, &ulpdu, numbers, Quotes::Segment);
}

fn a_write_to_no_stag(name: &str, numbers: Numbers) {
    refused_write(name, numbers, |scene| Stag(scene.open.stag.0 ^ 1), 0);
}

fn a_write_beyond(name: &str, numbers: Numbers) {
    refused_write(name, numbers, |scene| scene.open.stag, LEN as u64 - 3);
}

fn a_write_that_wraps(name: &str, numbers: Numbers) {
    refused_write(name, numbers, |scene| scene.open.stag, u64::MAX - 2);
}

/// Writes to memory of the same protection domain that is for another stream alone.
fn a_write_to_others(name: &str, numbers: Numbers) {
    let scene = scene(1);
    let other = Scope::Stream(PD, scene.bystanders.0.stream);
    let theirs = scene.sim.hosts[0].share_with(&[0; LEN], all_rights(), other);
    let ulpdu = ddp(write_header(theirs.stag, 0), &[0xee; 4]);
    scene.wrong(name, &ulpdu, numbers, Quotes::Segment);
    assert_eq!(theirs.content(), [0; LEN]);
}

fn another_version_of_tagged(name: &str, numbers: Numbers) {
    let scene = scene(1);
    let mut ulpdu = ddp(write_header(scene.open.stag, 0), &[0xee; 4]);
    ulpdu[0] = 0xc2;
    scene.wrong(name, &ulpdu, numbers, Quotes::Segment);
}

fn refused_message(name: &str, numbers: Numbers, header: UntaggedHeader, receives: u64) {
    let ulpdu = ddp(DdpHeader::Untagged(header), &[0xee; 4]);
    scene(receives).wrong(name, &ulpdu, numbers, Quotes::Segment);
}

fn a_queue_that_is_none(name: &str, numbers: Numbers) {
    refused_message(name, numbers, at(99, 1, 0), 1);
}

fn a_send_without_a_receive(name: &str, numbers: Numbers) {
    refused_message(name, numbers, at(0, 1, 0), 0);
}

fn a_message_out_of_turn(name: &str, numbers: Numbers) {
    refused_message(name, numbers, at(0, 2, 0), 2);
}

fn a_message_that_begins_late(name: &str, numbers: Numbers) {
    refused_message(name, numbers, at(0, 1, 4), 1);
}

fn a_send_too_long(name: &str, numbers: Numbers) {
    let ulpdu = ddp(send_header(1), &[0xee; LEN + 1]);
    scene(1).wrong(name, &ulpdu, numbers, Quotes::Segment);
}

fn an_fpdu_with_a_bad_crc(name: &str, numbers: Numbers) {
    let ulpdu = ddp(send_header(1), b"hello");
    let mut octets = fpdu(&ulpdu, true);
    octets[21] ^= 1;
    let mut scene = scene(1);
    // The first FPDU of an initiator is another matter.
    scene.sim.raw[scene.peer].send_ddp(nothing(), &[]);
    scene.sim.run_now();
    scene.wrong_octets(name, &octets, &ulpdu, numbers, Quotes::Nothing);
}

fn a_marker_that_points_elsewhere(name: &str, numbers: Numbers) {
    let mut scene = scene(0);
    let options = ConnectionOptions {
        markers: true,
        ..ConnectionOptions::default()
    };
    let RawConnection { peer, qp } = accept_raw(&mut scene.sim, &options);
    (scene.peer, scene.qp) = (peer, qp);
    let target = scene.sim.hosts[0].share(&[0; 1000], all_rights());
    let ulpdu = ddp(write_header(target.stag, 0), &[0xee; 1000]);
    let mut writer = Writer::new(true);
    let first = writer.fpdu(&ddp(nothing(), &[]));
    scene.sim.raw[peer].send(&first);
    scene.sim.run_now();
    let octets = writer.fpdu_with(
        &ulpdu,
        |at, distance| {
            if at == 0 { distance } else { distance + 4 }
        },
    );
    scene.wrong_octets(name, &octets, &ulpdu, numbers, Quotes::Nothing);
}

/// Sends into a receive whose memory was revoked. That is not the peer's error, and its message is
/// not quoted.
fn a_receive_that_is_gone(name: &str, numbers: Numbers) {
    let mut scene = scene(0);
    let memory = scene.sim.hosts[0].share(&[0; LEN], all_rights());
    let receive = recv(0, &memory, LEN);
    scene.sim.hosts[0].post_recv(&mut scene.qp, receive);
    scene.sim.hosts[0].revoke(memory.stag);
    let ulpdu = ddp(send_header(1), b"hello");
    scene.wrong(name, &ulpdu, numbers, Quotes::Nothing);
}

/// Checks that an initiator which receives this Reply, or gives up before, sends a Terminate last.
fn assert_start_fails(name: &str, numbers: Numbers, options: &ConnectionOptions, reply: &[u8]) {
    let mut sim = simulation();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, options);
    sim.run_now();
    sim.raw[peer].take_startup().expect("a Request");
    if reply.is_empty() {
        sim.hosts[0].command(Command::Abort(qp.number));
    } else {
        sim.raw[peer].send(reply);
    }
    sim.run_now();
    let (header, payload) = sim.raw[peer].take_ddp().expect("a Terminate");
    let wanted = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
    assert_eq!(header, DdpHeader::Untagged(wanted), "{name}");
    let (layer, error_type, code) = numbers;
    assert_eq!(payload, [layer << 4 | error_type, code, 0, 0], "{name}");
    assert_eq!(sim.raw[peer].take_ulpdu(), None, "{name}");
    assert!(sim.hosts[0].failure_of(qp.number).is_some(), "{name}");
    sim.raw[peer].close();
    assert_nothing_left(&mut sim);
}

fn giving_up_before_the_reply(name: &str, numbers: Numbers) {
    assert_start_fails(name, numbers, &ConnectionOptions::default(), &[]);
}

fn a_reply_with_too_many_reads(name: &str, numbers: Numbers) {
    let options = ConnectionOptions::default();
    assert_start_fails(name, numbers, &options, &reply(0x3000));
}

fn a_reply_that_begins_otherwise(name: &str, numbers: Numbers) {
    let options = ConnectionOptions {
        peer_to_peer: true,
        ..ConnectionOptions::default()
    };
    // A alone: the peer takes none of the messages with which a connection begins.
    let mut answer = reply(4);
    answer[20] |= 0x80;
    assert_start_fails(name, numbers, &options, &answer);
}

#[test]
fn the_table_lists_every_number_once() {
    let mut listed: Vec<Numbers> = CELLS.iter().map(|cell| cell.numbers).collect();
    listed.sort_unstable();
    // What the decoder knows from the standards, and the two that never stand in a Terminate.
    let mut known = vec![(2, 0, 1), (2, 0, 4)];
    for layer in 0..16 {
        for error_type in 0..16 {
            let any_code = (layer, error_type) == (0, 0);
            let codes = if any_code { 0..=0 } else { 0..=255 };
            let codes = codes.filter(|code| is_known(layer, error_type, *code));
            known.extend(codes.map(|code| (layer, error_type, code)));
        }
    }
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn each_error_is_told_by_its_number_and_nothing_after_it() {
    // rfc: 5040-18, 5040-68, 5040-85, 5041-76, 5044-85b, 5044-85c, 6581-16, 6581-33
    let mut provoked = 0;
    for cell in &CELLS {
        match cell.sent {
            When(provoke) => {
                provoke(cell.name, cell.numbers);
                provoked += 1;
            }
            Never(why) => assert!(!why.is_empty()),
        }
    }
    assert_eq!(provoked, 28);
}

/// The application is told the numbers as received, even those that no standard has. The connection
/// ends without another Terminate.
#[test]
fn each_number_that_a_peer_sends_ends_the_connection_without_another() {
    // rfc: 5040-66, 5040-67, 5040-s5
    let unknown = [
        (0, 1, 7),
        (0, 9, 1),
        (1, 3, 0),
        (2, 0, 0xaa),
        (3, 0, 0),
        (15, 15, 255),
    ];
    for (layer, error_type, code) in CELLS.iter().map(|cell| cell.numbers).chain(unknown) {
        let name = format!("{layer}/{error_type}/{code:02x}");
        let control = TerminateControl {
            layer,
            error_type,
            code,
        };
        let terminate = Terminate {
            control,
            ddp_segment_length: None,
            ddp_header: None,
            rdma_header: None,
        };
        let mut octets = [0; 4];
        terminate.emit(&mut octets);
        assert_eq!(octets, [layer << 4 | error_type, code, 0, 0]);
        let mut scene = scene(1);
        let header = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        let peer = &mut scene.sim.raw[scene.peer];
        peer.send_ddp(DdpHeader::Untagged(header), &octets);
        // An error behind it does not count.
        peer.send(&[0xff; 100]);
        scene.sim.run_now();
        scene.assert_peer_terminated(&name, control);
    }
}
