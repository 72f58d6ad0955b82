//! Answers: a peer's segments with data that acknowledge all that was in flight, as each message
//! gets where a sender waits for the other side's. The fast path `whole_message` handles them, and
//! must have the outcome of the ordinary way.

mod common;

use common::*;
use proptest::prelude::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::ids::PdId;
use rnic_core::memory::table::Access;
use rnic_core::testing::raw_peer;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{
    SendWr, WrOpcode,
    sge::Sge,
    status::WcStatus,
    wr::{RecvWr, WcOpcode, send_flags},
};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, QueueNumber, Stag, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::mpa::CRC_LEN;
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

/// A peer that acknowledges only with its answers. Sends were sent to it, and answered.
struct Scene {
    sim: Simulation,
    peer: usize,
    qp: TestQp,
}

impl Scene {
    fn new() -> Self {
        let mut sim = simulation();
        let qp = sim.hosts[0].create_qp();
        let peer = sim.add_raw_peer(0, RAW_PORT);
        sim.raw[peer].sack = true;
        accept_peer(&mut sim, peer, &qp, &ConnectionOptions::default());
        sim.raw[peer].send_ddp(nothing(), &[]);
        sim.run_now();
        sim.raw[peer].acknowledges = false;
        let mut scene = Self { sim, peer, qp };
        for id in 1..=3 {
            scene.sim.hosts[0].post_send(&mut scene.qp, inline_send(id, b"ask"));
            scene.sim.run_now();
            assert!(scene.sim.raw[peer].take_ddp().is_some());
            scene.sim.raw[peer].send_ddp(nothing(), &[]);
            scene.sim.run_now();
            let done = (id, WcOpcode::Send, WcStatus::Success);
            assert_eq!(outcomes(&mut scene.qp), [done]);
        }
        scene
    }

    /// Returns the octets of the peer that were acknowledged.
    fn acknowledged(&self) -> u32 {
        self.sim.raw[self.peer].acknowledged
    }
}

/// Data with PSH are acknowledged in the next turn, and data without when the delayed ACK is due.
#[test]
fn an_answer_that_is_not_pushed_is_acknowledged_too() {
    let mut scene = Scene::new();
    let before = scene.acknowledged();
    let ask = inline_send(4, b"ask");
    scene.sim.hosts[0].post_send(&mut scene.qp, ask);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let fpdu = peer.fpdu(&rnic_core::testing::raw_peer::ddp(nothing(), &[]));
    let len = fpdu.len() as u32;
    peer.send_ahead(0, &fpdu);
    peer.skip(len);
    scene.sim.run_for(SECOND);
    assert_eq!(scene.acknowledged(), before + len);
}

/// A request behind a fence goes as soon as the answer to the one before has come.
#[test]
fn a_request_behind_a_fence_goes_when_the_answer_has_come() {
    let mut scene = Scene::new();
    let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
    let host = &scene.sim.hosts[0];
    host.post_send(&mut scene.qp, read(4, &sink, Stag(0x100), 8));
    let fenced = inline_send(5, b"behind").with_flags(send_flags::SIGNALED | send_flags::FENCE);
    host.post_send(&mut scene.qp, fenced);
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let (header, octets) = peer.take_ddp().expect("a Read Request");
    assert!(
        matches!(header, DdpHeader::Untagged(header) if header.queue == QueueNumber::READ_REQUEST)
    );
    assert_eq!(peer.take_ddp(), None);
    let asked = ReadRequest::parse(&octets).unwrap();
    let response = tagged(
        Opcode::ReadResponse,
        asked.sink_stag,
        asked.sink_offset.0,
        true,
    );
    peer.send_ddp(response, b"answered");
    scene.sim.run_now();
    let read = (4, WcOpcode::Read, WcStatus::Success);
    assert_eq!(outcomes(&mut scene.qp), [read]);
    assert_eq!(sink.content(), b"answered");
    let behind = scene.sim.raw[scene.peer].take_ddp().expect("what waited");
    assert_eq!(behind.1, b"behind");
}

/// What the peer acknowledged without data has arrived, also where its next data breaks a rule.
#[test]
fn a_write_that_was_acknowledged_alone_succeeds_behind_an_error() {
    let mut scene = Scene::new();
    let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
    let host = &scene.sim.hosts[0];
    host.post_send(&mut scene.qp, read(4, &sink, Stag(0x100), 8));
    let write = SendWr::new(5, WrOpcode::Write)
        .with_remote(Stag(0x100), TaggedOffset(0))
        .with_inline(b"written");
    host.post_send(&mut scene.qp, write.expect("seven octets fit"));
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    peer.acknowledge();
    scene.sim.run_now();
    assert_eq!(outcomes(&mut scene.qp), []);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ddp(tagged(Opcode::Write, Stag(0x100), 0, true), b"nowhere");
    scene.sim.run_now();
    let told = outcomes(&mut scene.qp);
    assert!(
        told.contains(&(5, WcOpcode::Write, WcStatus::Success)),
        "{told:?}"
    );
}

/// An answer may be the beginning of a message. A segment behind it must continue that message.
#[test]
fn no_message_is_delivered_behind_an_answer_that_is_not_whole() {
    // rfc: 5041-62, 5041-63
    for last in [true, false] {
        let mut scene = Scene::new();
        let target = scene.sim.hosts[0].share(&[0; 64], all_rights());
        scene.sim.hosts[0].post_recv(&mut scene.qp, recv(9, &target, 8));
        let header = tagged(Opcode::Write, target.stag, 8, last);
        for (id, answer) in [(4, header), (5, send_header(1))] {
            scene.sim.hosts[0].post_send(&mut scene.qp, inline_send(id, b"ask"));
            scene.sim.run_now();
            scene.sim.raw[scene.peer].send_ddp(answer, &[0xee; 8]);
            scene.sim.run_now();
        }
        let told = outcomes(&mut scene.qp);
        let status = match last {
            true => WcStatus::Success,
            false => WcStatus::WrFlushed,
        };
        assert!(told.contains(&(9, WcOpcode::Recv, status)), "{told:?}");
        let content = target.content();
        assert_eq!(content[8..16], [0xee; 8]);
        assert_eq!(content[..8] == [0xee; 8], last);
    }
}

/// Messages wait behind an MPA Reply that waits for a frame.
#[test]
fn no_message_overtakes_the_reply_to_a_peer_that_does_not_wait_for_it() {
    let mut sim = simulation();
    let mut qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, RAW_PORT);
    // Enough for acknowledgments.
    sim.hosts[0].set_frames(8);
    sim.hosts[0].listen(RAW_PORT);
    sim.raw[peer].connect();
    sim.run_now();
    sim.raw[peer].send(&request(16));
    sim.run_now();
    let asked = last_request(&sim, 0);
    sim.hosts[0].accept(asked, &qp, &ConnectionOptions::default());
    sim.run_now();
    sim.raw[peer].send_ddp(nothing(), &[]);
    sim.hosts[0].post_send(&mut qp, inline_send(1, b"early"));
    sim.run_now();
    assert!(sim.raw[peer].received.is_empty());
    sim.hosts[0].set_frames(100);
    sim.run_now();
    assert!(sim.raw[peer].take_startup().is_some(), "the Reply is first");
    let (_, octets) = sim.raw[peer].take_ddp().expect("then the message");
    assert_eq!(octets, b"early");
}

/// A message of the peer in one FPDU.
#[derive(Clone, Debug)]
struct Said {
    header: Header,
    last: bool,
    opcode: Opcode,
    len: usize,
    /// Added to the CRC, and to the control octet of DDP.
    spoilt: u8,
    reserved: u8,
}

#[derive(Clone, Copy, Debug)]
enum Header {
    /// Which of the [buffers](Talk::stags) it goes to.
    Tagged { buffer: usize, offset: u64 },
    /// The distance of its MSN from that of the next message.
    Untagged { queue: u32, ahead: u32, offset: u32 },
}

/// Octets of each buffer, and of each receive.
const ROOM: usize = 256;
const PIECE: usize = 48;

/// The messages of a peer, and their outcome.
struct Talk {
    scene: Scene,
    buffers: [SharedRegion; 4],
    sends: u32,
}

impl Talk {
    /// Makes a connection with receives of so many pieces each.
    fn open(receives: &[usize]) -> Self {
        let mut scene = Scene::new();
        let host = &scene.sim.hosts[0];
        let no_write = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let buffers = [
            host.share(&[0; ROOM], all_rights()),
            host.share(&[0; ROOM], no_write),
            host.share_with(&[0; ROOM], all_rights(), PdId(77)),
            host.share(&[0; ROOM], all_rights()),
        ];
        for (number, pieces) in receives.iter().enumerate() {
            let sges: Vec<_> = (0..*pieces)
                .map(|piece| Sge {
                    offset: (piece * PIECE) as u64,
                    length: PIECE as u32,
                    lkey: buffers[number % 2].stag.0,
                })
                .collect();
            let wr = RecvWr::new(100 + number as u64, &sges).unwrap();
            scene.sim.hosts[0].post_recv(&mut scene.qp, wr);
        }
        Self {
            scene,
            buffers,
            sends: 0,
        }
    }

    /// Lets the peer answer a Send with this message, which may take the fast path if it has PSH.
    fn say(&mut self, said: &Said, pushed: bool) {
        let ask = inline_send(4, b"ask");
        self.scene.sim.hosts[0].post_send(&mut self.scene.qp, ask);
        self.scene.sim.run_now();
        let stags = self.buffers.each_ref().map(|buffer| buffer.stag);
        let header = match said.header {
            Header::Tagged { buffer, offset } => {
                let none = stags[0].0 ^ 1;
                let stag = stags.get(buffer).copied().unwrap_or(Stag(none));
                tagged(said.opcode, stag, offset, said.last)
            }
            Header::Untagged {
                queue,
                ahead,
                offset,
            } => {
                let msn = (self.sends + 1).wrapping_add(ahead);
                let header = untagged(said.opcode, QueueNumber(queue), msn, said.last);
                let offset = MessageOffset(offset);
                DdpHeader::Untagged(UntaggedHeader { offset, ..header })
            }
        };
        self.sends += u32::from(matches!(said.header, Header::Untagged { .. }) && said.last);
        let payload: Vec<_> = pattern(ROOM + said.len)[ROOM..].to_vec();
        let mut ulpdu = raw_peer::ddp(header, &payload);
        ulpdu[0] ^= said.reserved;
        let peer = &mut self.scene.sim.raw[self.scene.peer];
        let mut fpdu = peer.fpdu(&ulpdu);
        *fpdu.last_mut().unwrap() ^= said.spoilt;
        if pushed {
            peer.send(&fpdu);
        } else {
            peer.send_ahead(0, &fpdu);
            peer.skip(fpdu.len() as u32);
        }
        self.scene.sim.run_for(SECOND);
    }

    /// Returns all that can be seen of the outcome.
    fn outcome(mut self) -> impl std::fmt::Debug + PartialEq {
        let now = self.scene.sim.now;
        let host = &mut self.scene.sim.hosts[0];
        let snapshot = host.snapshot(now);
        let peer = &self.scene.sim.raw[self.scene.peer];
        let heard = (peer.received.clone(), peer.acknowledged, peer.reset);
        let tcp = (
            snapshot.tcp.octets_received,
            snapshot.tcp.segments_received,
            snapshot.tcp.octets_sent,
        );
        let ends: Vec<_> = self.scene.sim.hosts[0]
            .events
            .iter()
            .map(|event| format!("{event:?}"))
            .collect();
        (
            self.scene.qp.poll(),
            self.buffers.map(|buffer| buffer.content()),
            (heard, tcp, snapshot.rdma),
            ends,
        )
    }
}

/// Programs free what belongs to a request when its answer comes: what the answer acknowledges
/// completes first, on every way that an answer takes.
#[test]
fn a_request_completes_before_its_answer() {
    for opcode in [Opcode::Send, Opcode::SendSolicited, Opcode::Immediate] {
        for (pieces, pushed) in [(1, true), (1, false), (2, true)] {
            let mut talk = Talk::open(&[pieces]);
            let header = Header::Untagged {
                queue: 0,
                ahead: 0,
                offset: 0,
            };
            let said = Said {
                header,
                last: true,
                opcode,
                len: 8,
                spoilt: 0,
                reserved: 0,
            };
            talk.say(&said, pushed);
            let told = outcomes(&mut talk.scene.qp);
            let ids: Vec<_> = told.iter().map(|(id, _, status)| (*id, *status)).collect();
            let done = WcStatus::Success;
            assert_eq!(
                ids,
                [(4, done), (100, done)],
                "{opcode:?} {pieces} {pushed}"
            );
        }
    }
}

/// Generates a Write or Send, mostly without an error.
fn said() -> impl Strategy<Value = Said> {
    let plain = |header, opcode, len| Said {
        header,
        last: true,
        opcode,
        len,
        spoilt: 0,
        reserved: 0,
    };
    let write = (0..200_u64, 1..56_usize).prop_map(move |(offset, len)| {
        plain(Header::Tagged { buffer: 0, offset }, Opcode::Write, len)
    });
    let send = Header::Untagged {
        queue: 0,
        ahead: 0,
        offset: 0,
    };
    let send = (1..=PIECE).prop_map(move |len| plain(send, Opcode::Send, len));
    let right = prop_oneof![write, send];
    prop_oneof![2 => right.clone(), 1 => (right, twist()).prop_map(|(said, twist)| twist(said))]
}

/// Generates an error of a message, or something unusual.
fn twist() -> impl Strategy<Value = fn(Said) -> Said> {
    prop::sample::select(TWISTS)
}

const TWISTS: &[fn(Said) -> Said] = &[
    |said| Said { spoilt: 1, ..said },
    |said| Said {
        reserved: 1,
        ..said
    },
    |said| Said {
        reserved: 4,
        ..said
    },
    |said| Said {
        last: false,
        ..said
    },
    |said| Said { len: 0, ..said },
    |said| Said {
        len: 2 * PIECE,
        ..said
    },
    |said| Said {
        len: PIECE + 1,
        ..said
    },
    |said| of(said, Opcode::Write),
    |said| of(said, Opcode::Send),
    |said| of(said, Opcode::SendSolicited),
    |said| of(said, Opcode::SendInvalidate),
    |said| of(said, Opcode::ReadResponse),
    |said| of(said, Opcode::Immediate),
    |said| of(said, Opcode::Terminate),
    |said| elsewhere(said, 1, 0),
    |said| elsewhere(said, 2, 0),
    |said| elsewhere(said, 3, 0),
    |said| elsewhere(said, 4, 0),
    |said| elsewhere(said, 0, ROOM as u64 - 1),
    |said| elsewhere(said, 0, u64::MAX),
    |said| out_of_turn(said, 1, 0, 0),
    |said| out_of_turn(said, 0, 1, 0),
    |said| out_of_turn(said, 0, u32::MAX, 0),
    |said| out_of_turn(said, 0, 0, 1),
];

fn of(said: Said, opcode: Opcode) -> Said {
    Said { opcode, ..said }
}

/// Makes a Write to another place.
fn elsewhere(said: Said, buffer: usize, offset: u64) -> Said {
    Said {
        header: Header::Tagged { buffer, offset },
        ..of(said, Opcode::Write)
    }
}

/// Makes a Send to another queue, with another MSN, or with another offset.
fn out_of_turn(said: Said, queue: u32, ahead: u32, offset: u32) -> Said {
    Said {
        header: Header::Untagged {
            queue,
            ahead,
            offset,
        },
        ..of(said, Opcode::Send)
    }
}

proptest! {
    /// Without PSH no message takes the fast path.
    // rfc: 5044-37, 5041-42, 5041-61, 5041-72b, 5041-72c, 5041-72d, 5041-72e, 5041-73a, 5041-73c
    // rfc: 5041-73d
    #[test]
    fn an_answer_does_what_it_would_do_if_it_were_none(
        says in prop::collection::vec(said(), 1..7), receives in prop::collection::vec(0..3_usize, 0..6),
    ) {
        let outcome = |pushed| {
            let mut talk = Talk::open(&receives);
            for said in &says {
                talk.say(said, pushed);
            }
            talk.outcome()
        };
        prop_assert_eq!(outcome(true), outcome(false));
    }
}

/// Octets of a message may look like another message, and must not be treated as one.
// rfc: 5044-43
#[test]
fn an_fpdu_inside_another_is_no_answer() {
    let mut talk = Talk::open(&[]);
    let (peer, stag) = (talk.scene.peer, talk.buffers[0].stag);
    let raw = &talk.scene.sim.raw[peer];
    let inner = raw.fpdu(&raw_peer::ddp(write_header(stag, 200), &[9; 20]));
    let outer = raw.fpdu(&raw_peer::ddp(write_header(stag, 0), &inner));
    let (front, rest) = outer.split_at(outer.len() - inner.len() - CRC_LEN);
    let (middle, end) = rest.split_at(inner.len());
    assert_eq!(middle, inner);
    for piece in [front, middle, end] {
        let ask = inline_send(4, b"ask");
        talk.scene.sim.hosts[0].post_send(&mut talk.scene.qp, ask);
        talk.scene.sim.run_now();
        talk.scene.sim.raw[peer].send(piece);
        talk.scene.sim.run_now();
    }
    let content = talk.buffers[0].content();
    assert_eq!(content[..inner.len()], inner);
    assert_eq!(content[inner.len()..], [0; ROOM][inner.len()..]);
}

/// A side that has asked to end waits only for the answer.
#[test]
fn the_last_answer_lets_a_connection_end() {
    let mut scene = Scene::new();
    let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
    let ask = inline_send(4, b"ask");
    scene.sim.hosts[0].post_send(&mut scene.qp, ask);
    scene.sim.run_now();
    let qp = scene.qp.number;
    scene.sim.hosts[0].command(Command::Disconnect(qp));
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    assert!(!peer.finished);
    peer.send_ddp(write_header(sink.stag, 0), b"answered");
    scene.sim.run_now();
    assert!(scene.sim.raw[scene.peer].finished);
    assert_eq!(sink.content(), b"answered");
}

/// A side that ends closes behind the last answer that it waits for. It does not carry out a
/// request that came with it.
#[test]
fn a_request_behind_the_last_answer_does_not_delay_the_end() {
    let mut scene = Scene::new();
    let sink = scene.sim.hosts[0].share(&[0; 8], all_rights());
    let host = &scene.sim.hosts[0];
    host.post_send(&mut scene.qp, read(4, &sink, Stag(0x100), 8));
    scene.sim.run_now();
    let peer = &mut scene.sim.raw[scene.peer];
    let (_, octets) = peer.take_ddp().expect("a Read Request");
    peer.acknowledge();
    scene.sim.run_now();
    let qp = scene.qp.number;
    scene.sim.hosts[0].command(Command::Disconnect(qp));
    scene.sim.run_now();
    let asked = ReadRequest::parse(&octets).unwrap();
    let (stag, offset) = (asked.sink_stag, asked.sink_offset.0);
    let response = tagged(Opcode::ReadResponse, stag, offset, true);
    let request = ReadRequest {
        sink_stag: Stag(0x200),
        source_stag: sink.stag,
        ..asked
    };
    let mut ulpdu = [0; ReadRequest::LEN];
    request.emit(&mut ulpdu);
    let peer = &mut scene.sim.raw[scene.peer];
    peer.send_ddp(nothing(), &[]);
    peer.send_ddp(response, b"answered");
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    peer.send_ddp(DdpHeader::Untagged(header), &ulpdu);
    scene.sim.run_now();
    assert_eq!(sink.content(), b"answered");
    let peer = &mut scene.sim.raw[scene.peer];
    assert_eq!(peer.take_ddp(), None, "no response");
    assert!(peer.finished);
}
