//! A segment that looks like an FPDU, and is the end of a longer one: its sender chose what follows
//! from it, and no layer has seen it as a header. No run may begin behind it.

use rnic_core::verbs::wr::RecvWr;
use rnic_core::wire::ddp::{MessageOffset, TaggedOffset, UntaggedHeader};

use super::*;

type Told = Vec<(u64, WcOpcode, WcStatus, u32)>;

/// Sends one FPDU in two segments. The second one looks like an FPDU with this header and [`PIECE`]
/// octets of payload, by all but its CRC.
fn send_disguised(scene: &mut Scene, outer: DdpHeader, inner: DdpHeader) -> usize {
    let mut looks = raw_peer::fpdu(&raw_peer::ddp(inner, &[0xee; PIECE]), true);
    let len = looks.len();
    looks.truncate(len - 4);
    // The FPDU ends with the segment: no pad.
    let in_front = 2 + outer.len() + looks.len();
    let mut payload = vec![0xdd; 120 + in_front.wrapping_neg() % 4];
    payload.extend_from_slice(&looks);
    let fpdu = scene.sim.raw[scene.raw.peer].fpdu(&raw_peer::ddp(outer, &payload));
    let (front, behind) = fpdu.split_at(fpdu.len() - len);
    scene.sim.raw[scene.raw.peer].send(front);
    scene.sim.raw[scene.raw.peer].send(behind);
    payload.len()
}

fn send_at(msn: u32, at: u32, last: bool) -> DdpHeader {
    let mut header: UntaggedHeader = untagged(Opcode::Send, QueueNumber::SEND, msn, last);
    header.offset = MessageOffset(at);
    DdpHeader::Untagged(header)
}

fn receives(scene: &mut Scene, count: u64) {
    for id in 1..=count {
        let wr: RecvWr = recv(id, &scene.other, ROOM);
        scene.sim.hosts[0].post_recv(&mut scene.raw.qp, wr);
    }
}

/// Checks that frames have the same outcome in one batch and one by one.
fn check(run: impl Fn(&mut Scene)) {
    let of = |at_once| {
        let mut scene = Scene::new();
        // Frames are predicted.
        for _ in 0..4 {
            scene.send(nothing(), &[]);
        }
        run(&mut scene);
        scene.arrive(at_once);
        let polled = scene.raw.qp.poll();
        let told: Told = polled
            .iter()
            .map(|wc| (wc.wr_id, wc.opcode().unwrap(), wc.status(), wc.byte_len))
            .collect();
        (told, scene.outcome())
    };
    assert_eq!(of(true), of(false));
}

/// Segments of the Send with MSN 2 are not taken for those of MSN 1.
// rfc: 5041-72e
#[test]
fn a_send_of_another_msn() {
    check(|scene| {
        receives(scene, 2);
        let outer = write_header(scene.target.stag, 0);
        send_disguised(
            scene,
            outer,
            send_at(1, 0u32.wrapping_sub(PIECE as u32), false),
        );
        for number in 0..4 {
            scene.send(
                send_at(2, (number * PIECE) as u32, false),
                &[number as u8 + 1; PIECE],
            );
        }
        scene.send(send_at(1, 4 * PIECE as u32, true), &[9; PIECE]);
    });
}

/// A Write does not interrupt a Send.
// rfc: 5041-62
#[test]
fn a_write_inside_a_send() {
    check(|scene| {
        receives(scene, 2);
        let (stag, outer) = (scene.target.stag, send_at(1, 0, false));
        let len = send_disguised(scene, outer, tagged(Opcode::Write, stag, 0, false));
        for number in 1..5 {
            let header = tagged(Opcode::Write, stag, (number * PIECE) as u64, false);
            scene.send(header, &[number as u8 + 1; PIECE]);
        }
        let header = tagged(Opcode::Write, stag, (5 * PIECE) as u64, true);
        scene.send(header, &[6; PIECE]);
        scene.send(send_at(1, len as u32, true), &[9; PIECE]);
    });
}

/// A completion does not tell octets of two Writes as those of one.
#[test]
fn the_length_of_a_write_with_immediate() {
    check(|scene| {
        receives(scene, 2);
        let stag = scene.target.stag;
        let outer = write_header(stag, 0);
        send_disguised(scene, outer, tagged(Opcode::Write, stag, 0, false));
        for number in 1..5 {
            let header = tagged(Opcode::Write, stag, (number * PIECE) as u64, number == 4);
            scene.send(header, &[number as u8 + 1; PIECE]);
        }
        let header = untagged(Opcode::Immediate, QueueNumber::SEND, 1, true);
        scene.send(DdpHeader::Untagged(header), &[5; 8]);
    });
}

/// A Read Response does not interrupt a Write.
// rfc: 5041-62
#[test]
fn a_read_response_inside_a_write() {
    check(|scene| {
        let mut sink = sge(&scene.other, ROOM - PIECE);
        sink.offset = PIECE as u64;
        let first = SendWr::new(1, WrOpcode::Read)
            .with_remote(Stag(0x1234), TaggedOffset(0))
            .with_sges(&[sink])
            .unwrap();
        let second = read(2, &scene.other, Stag(0x1234), PIECE);
        for wr in [first, second] {
            scene.sim.hosts[0].post_send(&mut scene.raw.qp, wr);
        }
        scene.sim.run_now();
        let (stag, sink) = (scene.target.stag, scene.other.stag);
        let outer = tagged(Opcode::Write, stag, 0, false);
        let len = send_disguised(scene, outer, tagged(Opcode::ReadResponse, sink, 0, false));
        for number in 1..PIECES {
            let header = tagged(Opcode::ReadResponse, sink, (number * PIECE) as u64, false);
            scene.send(header, &[number as u8 + 1; PIECE]);
        }
        scene.send(tagged(Opcode::Write, stag, len as u64, true), &[9; PIECE]);
        let header = tagged(Opcode::ReadResponse, sink, ROOM as u64, true);
        scene.send(header, &[]);
    });
}
