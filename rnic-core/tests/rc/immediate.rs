//! Send with Immediate, and Write with Immediate Data of no octets.

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::status::WcStatus::{LocalQpOperationError, Success, WrFlushed};
use rnic_core::verbs::wr::WcOpcode::{Recv, RecvImmediate, Send, Write};
use rnic_core::verbs::wr::completion_flags::{SOLICITED, WITH_IMMEDIATE};
use rnic_core::verbs::{Completion, SendWr, WrOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, QueueNumber, Stag, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::rdmap::{Opcode, TerminateControl};

use crate::common::*;
use crate::scene::*;

const DATA: [u8; 8] = [0xfe, 0xdc, 0xba, 0x98, 0, 0, 0, 0];

fn send_immediate(id: u64) -> SendWr {
    SendWr::new(id, WrOpcode::SendImmediate).with_immediate(DATA)
}

/// The header of a Send with Immediate of one segment.
fn header(opcode: Opcode, msn: u32, last: bool) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader {
        ulp32: 0xfedc_ba98,
        ..untagged(opcode, QueueNumber::SEND, msn, last)
    })
}

fn flags(completion: &Completion) -> (u16, [u8; 8], u32) {
    (completion.flags, completion.immediate, completion.byte_len)
}

#[test]
fn the_data_come_with_the_completion_of_the_receive() {
    let (mut sim, mut active, mut passive) = connected();
    let text = pattern(5000);
    let source = sim.hosts[0].share(&text, all_rights());
    let target = sim.hosts[1].share(&[0; 5000], all_rights());
    for id in 1..=4 {
        sim.hosts[1].post_recv(&mut passive, recv(id, &target, 5000));
    }
    let long = send_immediate(1).with_sges(&[sge(&source, 5000)]).unwrap();
    let inline = send_immediate(2).with_inline(b"inline").unwrap();
    let nothing = solicited(send_immediate(3));
    for wr in [long, inline, nothing, inline_send(4, b"plain")] {
        sim.hosts[0].post_send(&mut active, wr);
    }
    let received = completions(&mut sim, &mut passive, 4, SECOND);
    let told: Vec<_> = received.iter().map(outcome).collect();
    assert_eq!(told, [1, 2, 3, 4].map(|id| (id, Recv, Success)));
    let details: Vec<_> = received.iter().map(flags).collect();
    let wanted = [
        (WITH_IMMEDIATE, DATA, 5000),
        (WITH_IMMEDIATE, DATA, 6),
        (WITH_IMMEDIATE | SOLICITED, DATA, 0),
        (0, [0; 8], 5),
    ];
    assert_eq!(details, wanted);
    assert_eq!(target.content()[6..], text[6..]);
    let sent = completions(&mut sim, &mut active, 4, SECOND);
    let sent: Vec<_> = sent.iter().map(outcome).collect();
    assert_eq!(sent, [1, 2, 3, 4].map(|id| (id, Send, Success)));
}

#[test]
fn the_octets_stand_where_an_stag_to_be_invalidated_would() {
    let mut sim = rc_hosts();
    let mut raw = with_raw_peer(&mut sim);
    sim.hosts[0].post_send(&mut raw.qp, send_immediate(1).with_inline(b"x").unwrap());
    sim.hosts[0].post_send(&mut raw.qp, solicited(send_immediate(2)));
    sim.run_now();
    let ulpdu = sim.raw[raw.peer].take_ulpdu().unwrap();
    #[rustfmt::skip]
    let segment = [
        0x41, 0x4c,
        0xfe, 0xdc, 0xba, 0x98,
        0, 0, 0, 0,
        0, 0, 0, 1,
        0, 0, 0, 0,
        b'x',
    ];
    assert_eq!(ulpdu, segment);
    let ulpdu = sim.raw[raw.peer].take_ulpdu().unwrap();
    assert_eq!(ulpdu[1..6], [0x4d, 0xfe, 0xdc, 0xba, 0x98]);
}

fn refused(sim: &Simulation, raw: &RawConnection) -> TerminateControl {
    match sim.hosts[0].end_of(raw.qp.number) {
        Some(EndReason::TerminateSent { control, .. }) => control,
        other => panic!("{other:?}"),
    }
}

const UNEXPECTED: TerminateControl = TerminateControl {
    layer: 0,
    error_type: 2,
    code: 6,
};

#[test]
fn the_data_are_the_same_in_all_segments() {
    let mut sim = rc_hosts();
    let mut raw = with_raw_peer(&mut sim);
    let region = sim.hosts[0].share(&[0; 100], all_rights());
    sim.hosts[0].post_recv(&mut raw.qp, recv(1, &region, 100));
    let DdpHeader::Untagged(second) = header(Opcode::SendImmediate, 1, true) else {
        panic!("a Send is untagged");
    };
    let second = UntaggedHeader {
        ulp32: 1,
        offset: MessageOffset(5),
        ..second
    };
    sim.raw[raw.peer].send_ddp(header(Opcode::SendImmediate, 1, false), b"first");
    sim.raw[raw.peer].send_ddp(DdpHeader::Untagged(second), b"other");
    sim.run_now();
    assert_eq!(outcomes(&mut raw.qp), [(1, Recv, WrFlushed)]);
    let malformed = TerminateControl {
        code: 0xff,
        ..UNEXPECTED
    };
    assert_eq!(refused(&sim, &raw), malformed);
}

/// Without RC the opcodes stay free, as the RFCs have it, and so do the others with it.
#[test]
fn others_do_not_know_the_opcodes() {
    for opcode in [Opcode::SendImmediate, Opcode::SendSolicitedImmediate] {
        let mut sim = rc_hosts();
        let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(1));
        sim.raw[raw.peer].send_ddp(header(opcode, 1, true), &[]);
        sim.run_now();
        assert_eq!(outcomes(&mut raw.qp), [(1, Recv, WrFlushed)]);
        assert_eq!(refused(&sim, &raw), UNEXPECTED);
    }
    let queue = QueueNumber::READ_REQUEST;
    let misplaced = [
        DdpHeader::Untagged(untagged(Opcode::SendImmediate, queue, 1, true)),
        DdpHeader::Untagged(untagged(Opcode::SendImmediate, QueueNumber(7), 1, true)),
        tagged(Opcode::SendImmediate, Stag(1), 0, true),
    ];
    for header in misplaced {
        let mut sim = rc_hosts();
        let raw = with_raw_peer(&mut sim);
        sim.raw[raw.peer].send_ddp(header, &[]);
        sim.run_now();
        assert_eq!(refused(&sim, &raw), UNEXPECTED);
    }
}

/// The request fails here, behind those in front of it, and nothing of it is sent.
#[test]
fn the_request_fails_where_the_peer_has_no_such_message() {
    let mut sim = rc_hosts();
    let mut raw = accept_raw(&mut sim, &ConnectionOptions::default());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"sent"));
    sim.hosts[0].post_send(&mut raw.qp, send_immediate(2).with_inline(b"not").unwrap());
    sim.hosts[0].post_send(&mut raw.qp, inline_send(3, b"behind"));
    sim.run_now();
    let wanted = [
        (1, Send, Success),
        (2, Send, LocalQpOperationError),
        (3, Send, WrFlushed),
    ];
    assert_eq!(outcomes(&mut raw.qp), wanted);
    let (_, text) = sim.raw[raw.peer].take_ddp().unwrap();
    assert_eq!(text, b"sent");
    let (terminate, _) = sim.raw[raw.peer].take_ddp().unwrap();
    assert!(
        matches!(terminate, DdpHeader::Untagged(header) if header.queue == QueueNumber::TERMINATE)
    );
    assert_eq!(sim.raw[raw.peer].take_ddp(), None);
}

/// As NCCL does: it takes a receive without elements, and no memory is named.
#[test]
fn a_write_of_nothing_with_immediate_data_takes_a_receive() {
    let (mut sim, mut active, mut passive) = connected();
    sim.hosts[1].post_recv(&mut passive, empty_recv(5));
    let wr = SendWr::new(1, WrOpcode::WriteImmediate)
        .with_remote(Stag(0), TaggedOffset(0))
        .with_immediate(DATA);
    sim.hosts[0].post_send(&mut active, wr);
    let received = completions(&mut sim, &mut passive, 1, SECOND);
    assert_eq!(outcome(&received[0]), (5, RecvImmediate, Success));
    assert_eq!(flags(&received[0]), (WITH_IMMEDIATE, DATA, 0));
    let sent = completions(&mut sim, &mut active, 1, SECOND);
    assert_eq!(outcome(&sent[0]), (1, Write, Success));
}
