//! Segments that cannot be of one message, and messages that another interrupts. Nothing is
//! delivered of them, so that no receive completes with octets that were never written.

use crate::common::*;
use crate::scene::{LEN, Quotes, Scene, at, scene};
use rnic_core::connection::ConnectionOptions;
use rnic_core::memory::table::{Access, Scope};
use rnic_core::testing::raw_peer::{ddp, fpdu};
use rnic_core::testing::simulation::{PD, QpSettings, SharedRegion};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, QueueNumber, Stag, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::rdmap::{
    AtomicOperation, AtomicRequest, Control, Opcode, ReadRequest, TerminateControl,
};

/// The numbers of an unexpected opcode.
const OPCODE: (u8, u8, u8) = (0, 2, 6);

/// The content of the application's buffers before anything arrives.
const SECRET: u8 = 0x5a;

/// A segment of the first message of queue 0.
fn part(opcode: Opcode, offset: usize, payload: &[u8], last: bool) -> Vec<u8> {
    let header = UntaggedHeader {
        last,
        ulp: Control::new(opcode).into(),
        offset: MessageOffset(offset as u32),
        ..at(0, 1, 0)
    };
    ddp(DdpHeader::Untagged(header), payload)
}

/// Segments of one message with different opcodes. The last one that is listed is refused.
fn mixtures() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    use Opcode::{Immediate, ImmediateSolicited, Send, SendSolicited};
    let eight = [0xee; 8];
    let mut mixtures = vec![
        (
            "Immediate, then Send",
            vec![
                part(Immediate, 0, &eight, false),
                part(Send, 8, &eight, true),
            ],
        ),
        (
            "Immediate with solicited event, then Send",
            vec![
                part(ImmediateSolicited, 0, &eight, false),
                part(Send, 8, &eight, true),
            ],
        ),
        (
            "Send, then Immediate",
            vec![
                part(Send, 0, &eight, false),
                part(Immediate, 8, &eight, false),
            ],
        ),
        (
            "Send, then Immediate without octets",
            vec![part(Send, 0, &eight, false), part(Immediate, 8, &[], true)],
        ),
        (
            "Send without octets, then Immediate",
            vec![part(Send, 0, &[], false), part(Immediate, 0, &eight, true)],
        ),
        (
            "Immediate of both kinds",
            vec![
                part(Immediate, 0, &eight[..4], false),
                part(ImmediateSolicited, 4, &eight[4..], true),
            ],
        ),
        (
            "Sends of two kinds",
            vec![
                part(Send, 0, &eight, false),
                part(SendSolicited, 8, &eight, true),
            ],
        ),
    ];
    let mut many: Vec<_> = (0..500)
        .map(|n| part(Immediate, 8 * n, &eight, false))
        .collect();
    many.push(part(Send, 4000, &[], true));
    mixtures.push(("4000 octets of Immediate, and an empty Send", many));
    mixtures
}

/// Makes a scene whose receive buffers are as large as the longest of these messages, and full of
/// [`SECRET`].
fn scene_with_secret() -> (Scene, SharedRegion) {
    let mut scene = scene(0);
    let secret = scene.sim.hosts[0].share(&[SECRET; 4096], Access::LOCAL_WRITE);
    for id in 0..2 {
        let receive = recv(id, &secret, 4096);
        scene.sim.hosts[0].post_recv(&mut scene.qp, receive);
    }
    (scene, secret)
}

fn send_all(scene: &mut Scene, ulpdus: &[Vec<u8>]) {
    for ulpdu in ulpdus {
        let octets = fpdu(ulpdu, true);
        scene.sim.raw[scene.peer].send(&octets);
    }
    scene.sim.run_now();
}

#[test]
fn a_receive_succeeds_only_with_octets_that_came() {
    // rfc: 5041-38, 5041-64
    for (name, ulpdus) in mixtures() {
        let (mut scene, _secret) = scene_with_secret();
        send_all(&mut scene, &ulpdus);
        scene.assert_terminated(name, ulpdus.last().unwrap(), OPCODE, Quotes::Segment);
        scene.assert_bystanders_unhurt(name);
    }
    for (name, ulpdus) in mixtures() {
        let (mut scene, _secret) = scene_with_secret();
        send_all(&mut scene, &ulpdus);
        let flushed = [0, 1].map(|id| (id, WcOpcode::Recv, WcStatus::WrFlushed));
        assert_eq!(outcomes(&mut scene.qp), flushed, "{name}");
    }
}

/// What one stream has written to a receive of a shared queue is not delivered on another.
#[test]
fn a_shared_receive_succeeds_only_with_octets_that_came() {
    for (name, ulpdus) in mixtures() {
        let mut sim = simulation();
        let mut srq = sim.hosts[0].create_srq(4, 4);
        let secret = sim.hosts[0].share(&[SECRET; 4096], Access::LOCAL_WRITE);
        sim.hosts[0].post_shared(&mut srq, recv(7, &secret, 4096));
        let mut qp = sim.hosts[0].create_qp_on(&srq, QpSettings::default());
        let peer = accept_raw_with(&mut sim, &qp, &ConnectionOptions::default());
        for ulpdu in &ulpdus {
            let octets = fpdu(ulpdu, true);
            sim.raw[peer].send(&octets);
        }
        sim.run_now();
        let flushed = (7, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut qp), [flushed], "{name}");
    }
}

/// A message of one opcode may have several segments, Immediate Data too, and its reserved bits may
/// change.
#[test]
fn segments_of_one_message_are_taken() {
    // rfc: 5040-11, 5040-12, 7306-53
    let (mut scene, secret) = scene_with_secret();
    let mut send = [
        part(Opcode::Send, 0, b"one ", false),
        part(Opcode::Send, 4, b"two ", false),
        part(Opcode::Send, 8, &[], false),
        part(Opcode::Send, 8, b"three", true),
    ];
    // Reserved bits, and the Invalidate STag of a Send that has none.
    send[1][1] |= 0x30;
    send[2][2] = 0xff;
    let mut immediate = [
        part(Opcode::Immediate, 0, &[], false),
        part(Opcode::Immediate, 0, b"imme", false),
        part(Opcode::Immediate, 4, b"diat", true),
    ];
    for segment in &mut immediate {
        segment[13] = 2;
    }
    send_all(&mut scene, &send);
    send_all(&mut scene, &immediate);
    let told = scene.qp.poll();
    assert_eq!(
        outcome(&told[0]),
        (0, WcOpcode::Recv, WcStatus::Success),
        "{told:?}"
    );
    assert_eq!(told[0].byte_len, 13);
    assert_eq!(secret.content()[..14], *b"one two threeZ");
    let immediate = (1, WcOpcode::RecvImmediate, WcStatus::Success);
    assert_eq!(outcome(&told[1]), immediate);
    assert_eq!(&told[1].immediate, b"immediat");
}

/// All segments of a message name the same STag to be invalidated.
#[test]
fn a_send_does_not_change_what_it_invalidates() {
    // rfc: 5041-38
    for opcode in [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate] {
        let mut scene = scene(1);
        let stags = [1, 2].map(|_| {
            let scope = Scope::Stream(PD, scene.qp.stream);
            let shared = scene.sim.hosts[0].share_with(&[0; LEN], all_rights(), scope);
            shared.stag
        });
        let segment = |number: usize, last| {
            let mut segment = part(opcode, 8 * number, &[0xee; 8], last);
            segment[2..6].copy_from_slice(&stags[number].0.to_be_bytes());
            segment
        };
        let ulpdus = [segment(0, false), segment(1, true)];
        send_all(&mut scene, &ulpdus);
        scene.assert_terminated("another STag", &ulpdus[1], (0, 2, 0xff), Quotes::Segment);
        assert!(stags.map(|stag| scene.sim.hosts[0].is_valid(stag)) == [true; 2]);
    }
}

fn to_queue(opcode: Opcode, queue: QueueNumber, octets: &[u8]) -> Vec<u8> {
    ddp(
        DdpHeader::Untagged(untagged(opcode, queue, 1, true)),
        octets,
    )
}

/// A Write of eight octets to the start of memory that is open to the peer.
fn part_of_write(scene: &Scene, last: bool) -> Vec<u8> {
    ddp(
        tagged(Opcode::Write, scene.open.stag, 0, last),
        &pattern(LEN)[..8],
    )
}

fn read_request(scene: &Scene) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(0),
        length: 8,
        source_stag: scene.open.stag,
        source_offset: TaggedOffset(0),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    to_queue(Opcode::ReadRequest, QueueNumber::READ_REQUEST, &octets)
}

/// An atomic that would change memory.
fn atomic_request(scene: &Scene) -> Vec<u8> {
    let request = AtomicRequest {
        identifier: 0,
        stag: scene.open.stag,
        offset: TaggedOffset(0),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    let mut octets = [0; AtomicRequest::LEN];
    request.emit(&mut octets);
    to_queue(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, &octets)
}

/// What a peer may send, as one segment: the first of a message, or the whole of it.
type Make = fn(&Scene, bool) -> Vec<u8>;

const MESSAGES: [(&str, Make); 4] = [
    ("a Send", |_, last| part(Opcode::Send, 0, &[0xee; 8], last)),
    ("a Write", part_of_write),
    ("a Read Request", |scene, last| {
        let mut ulpdu = read_request(scene);
        cut(&mut ulpdu, last);
        ulpdu
    }),
    ("an Atomic Request", |scene, last| {
        let mut ulpdu = atomic_request(scene);
        cut(&mut ulpdu, last);
        ulpdu
    }),
];

/// Leaves the first octets of a message if that is not to be all of it.
fn cut(ulpdu: &mut Vec<u8>, last: bool) {
    if !last {
        ulpdu[0] &= !0x40;
        ulpdu.truncate(18 + 8);
    }
}

/// Messages are delivered in the order sent, so none is delivered before the last segment of
/// another.
#[test]
fn no_message_comes_between_the_segments_of_another() {
    // rfc: 5041-21, 5041-62, 5041-63, 5040-71, 5040-76, 7306-41, 7306-42
    for (begun, begin) in MESSAGES {
        for (other, make) in MESSAGES {
            // Two of a kind look like one message.
            if begun == other {
                continue;
            }
            let name = format!("{other} in {begun}");
            let mut scene = scene(2);
            let ulpdus = [begin(&scene, false), make(&scene, true)];
            send_all(&mut scene, &ulpdus[..1]);
            assert_eq!(scene.sim.hosts[0].end_of(scene.qp.number), None, "{name}");
            send_all(&mut scene, &ulpdus[1..]);
            let flushed = [0, 1].map(|id| (id, WcOpcode::Recv, WcStatus::WrFlushed));
            assert_eq!(outcomes(&mut scene.qp), flushed, "{name}");
            scene.assert_terminated(&name, &ulpdus[1], OPCODE, Quotes::Segment);
            scene.assert_memory_untouched(&name);
            scene.assert_bystanders_unhurt(&name);
        }
    }
}

/// The two messages of queue 1 are told apart by their opcodes alone.
#[test]
fn a_request_has_one_opcode() {
    // rfc: 5041-38
    let mut scene = scene(1);
    let mut first = atomic_request(&scene);
    cut(&mut first, false);
    let mut second = read_request(&scene);
    second.splice(18.., [0; ReadRequest::LEN - 8]);
    second[17] = 8;
    send_all(&mut scene, &[first, second.clone()]);
    scene.assert_terminated("half of each", &second, OPCODE, Quotes::Segment);
    scene.assert_memory_untouched("half of each");
}

/// Only L shows where a tagged message ends.
#[test]
fn a_tagged_message_keeps_its_stag_and_its_opcode() {
    // rfc: 5041-28, 5041-33
    let write = |stag, offset, len, last| {
        let payload = vec![0xee; len];
        ddp(tagged(Opcode::Write, stag, offset, last), &payload)
    };
    // Another place in the same buffer is allowed: only a recommendation is broken. So is any STag
    // without payload.
    let mut good = scene(1);
    let target = good.sim.hosts[0].share(&[0; LEN], all_rights()).stag;
    let ulpdus = [
        write(Stag(7), 0, 0, false),
        write(target, 8, 8, false),
        write(Stag(9), 0, 0, false),
        write(target, 0, 8, false),
        write(Stag(0), 0, 0, true),
        ddp(send_header(1), &[]),
    ];
    send_all(&mut good, &ulpdus);
    let done = (0, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(outcomes(&mut good.qp), [done]);

    for (first, between) in [(8, None), (8, Some(0)), (0, Some(8))] {
        let mut bad = scene(1);
        let [one, other] = [1, 2].map(|_| bad.sim.hosts[0].share(&[0; LEN], all_rights()));
        let mut ulpdus = vec![write(one.stag, 0, first, false)];
        ulpdus.extend(between.map(|len| write(one.stag, 8, len, false)));
        ulpdus.push(write(other.stag, 16, 8, true));
        send_all(&mut bad, &ulpdus);
        let wrong = ulpdus.last().unwrap();
        bad.assert_terminated("another STag", wrong, (1, 1, 0), Quotes::Segment);
        assert_eq!(other.content(), [0; LEN]);
    }
    let mut bad = scene(1);
    let target = bad.sim.hosts[0].share(&[0; LEN], all_rights());
    let sink = bad.sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
    bad.sim.raw[bad.peer].send_ddp(nothing(), &[]);
    let wr = read(5, &sink, Stag(0x77), 16);
    bad.sim.hosts[0].post_send(&mut bad.qp, wr);
    bad.sim.run_now();
    bad.sim.raw[bad.peer].take_ddp().expect("a Read Request");
    let answer = |offset, last| {
        let header = tagged(Opcode::ReadResponse, sink.stag, offset, last);
        ddp(header, &[0xee; 8])
    };
    let ulpdus = [answer(0, false), write(target.stag, 0, 8, true)];
    send_all(&mut bad, &ulpdus);
    let flushed = [(5, WcOpcode::Read), (0, WcOpcode::Recv)];
    let flushed = flushed.map(|(id, opcode)| (id, opcode, WcStatus::WrFlushed));
    assert_eq!(outcomes(&mut bad.qp), flushed);
    bad.assert_terminated("a Write in a Response", &ulpdus[1], OPCODE, Quotes::Segment);
    assert_eq!(target.content(), [0; LEN]);
}

/// Segments of a coalesced run go through other code than the rest.
#[test]
fn no_send_is_delivered_behind_a_write_that_is_not_whole() {
    // rfc: 5041-62, 5041-63
    for segments in [1, 2, 3, 12] {
        for last in [true, false] {
            for at_once in [true, false] {
                let name = format!("{segments} segments, last {last}, {at_once}");
                let mut sim = simulation();
                let RawConnection { peer, mut qp } =
                    accept_raw(&mut sim, &ConnectionOptions::default());
                let target = sim.hosts[0].share(&[0; 4096], all_rights());
                sim.hosts[0].post_recv(&mut qp, recv(0, &target, 64));
                sim.raw[peer].send_ddp(nothing(), &[]);
                sim.run_now();
                for number in 0..segments {
                    let (at, last) = (256 * number as u64, last && number == segments - 1);
                    let header = tagged(Opcode::Write, target.stag, 256 + at, last);
                    sim.raw[peer].send_ddp(header, &[number + 1; 256]);
                    if !at_once {
                        sim.run_now();
                    }
                }
                sim.raw[peer].send_ddp(send_header(1), &[0xee; 64]);
                sim.run_now();
                let status = match last {
                    true => WcStatus::Success,
                    false => WcStatus::WrFlushed,
                };
                let received = (0, WcOpcode::Recv, status);
                assert_eq!(outcomes(&mut qp), [received], "{name}");
                let content = target.content();
                for number in 0..segments {
                    let at = 256 * (usize::from(number) + 1);
                    assert_eq!(content[at..at + 256], [number + 1; 256], "{name}");
                }
                assert_eq!(content[0] == 0xee, last, "{name}");
            }
        }
    }
}

/// What was placed ahead of order is checked again in order.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn what_was_placed_ahead_of_order_is_not_delivered_within_another_message() {
    // rfc: 5041-21, 5041-62, 5041-63
    let cases: [(&str, Make, Make); 3] = [
        ("a Send, of a Write", part_of_write, |_, _| {
            part(Opcode::Send, 0, &[0xee; 1000], true)
        }),
        (
            "a Write, of a Send",
            |_, last| part(Opcode::Send, 0, &[0xee; 8], last),
            |scene, _| {
                let header = write_header(scene.inbox.stag, 2000);
                ddp(header, &[0xee; 1000])
            },
        ),
        (
            "the rest of a Send, of Immediate Data",
            |_, last| part(Opcode::Immediate, 0, &[0xee; 8], last),
            |_, _| part(Opcode::Send, 8, &[0xee; 1000], true),
        ),
    ];
    for (name, first, second) in cases {
        for last in [true, false] {
            // One message may end and another begin there, but a Send must have its first segment.
            let good = last && !name.starts_with("the rest");
            let mut scene = scene(0);
            let sim = &mut scene.sim;
            let options = ConnectionOptions {
                markers: true,
                ..ConnectionOptions::default()
            };
            let RawConnection { peer, qp } = accept_raw(sim, &options);
            (scene.peer, scene.qp) = (peer, qp);
            scene.inbox = sim.hosts[0].share(&[SECRET; 4096], all_rights());
            for id in 0..2 {
                let receive = recv(id, &scene.inbox, 2000);
                scene.sim.hosts[0].post_recv(&mut scene.qp, receive);
            }
            let ulpdus = [first(&scene, last), second(&scene, true)];
            let raw = &mut scene.sim.raw[peer];
            raw.markers_from = Some(request(16).len() as u32);
            let begin = raw.fpdu(&ulpdus[0]);
            let len = begin.len() as u32;
            raw.skip(len);
            let early = raw.fpdu(&ulpdus[1]);
            raw.skip(0_u32.wrapping_sub(len));
            raw.send_ahead(len, &early);
            scene.sim.run_now();
            let rdma = scene.sim.hosts[0].snapshot(scene.sim.now).rdma;
            assert_eq!(rdma.octets_placed_early, 1000, "{name}");
            scene.sim.raw[peer].send(&begin);
            scene.sim.run_now();
            let end = scene.sim.hosts[0].end_of(scene.qp.number);
            assert_eq!(end.is_none(), good, "{name}: {end:?}");
            if !last {
                let flushed = [0, 1].map(|id| (id, WcOpcode::Recv, WcStatus::WrFlushed));
                assert_eq!(outcomes(&mut scene.qp), flushed, "{name}");
                scene.assert_terminated(name, &ulpdus[1], OPCODE, Quotes::Segment);
            }
        }
    }
}

/// A Terminate may interrupt a message that is not finished.
#[test]
fn a_terminate_takes_the_place_of_what_is_left_of_a_message() {
    // rfc: 5040-66, 5041-63
    for (name, begin) in MESSAGES {
        let mut scene = scene(1);
        let control = TerminateControl {
            layer: 0,
            error_type: 0,
            code: 0,
        };
        let begun = begin(&scene, false);
        let terminate = to_queue(Opcode::Terminate, QueueNumber::TERMINATE, &[0; 4]);
        send_all(&mut scene, &[begun, terminate]);
        scene.assert_peer_terminated(name, control);
    }
}
