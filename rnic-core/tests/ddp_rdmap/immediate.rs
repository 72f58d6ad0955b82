//! Immediate Data (RFC 7306 section 6): eight octets that a completion tells.

use rnic_core::ddp::DdpError;
use rnic_core::verbs::wr::completion_flags::{SOLICITED as CAME_SOLICITED, WITH_IMMEDIATE};
use rnic_core::verbs::wr::send_flags::{SIGNALED, SOLICITED};
use rnic_core::verbs::{RecvWr, SendWr, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{Msn, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

use crate::fixture::{BASE, End, Settings, Ulpdu, header, pump, send, tagged, untagged};

const DATA: [u8; 8] = *b"\x01\x02\x03\x04\xfc\xfd\xfe\xff";

fn alone(wr_id: u64) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Immediate).with_immediate(DATA)
}

fn behind_write(end: &End, wr_id: u64, to: Stag, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::WriteImmediate)
        .with_sges(&[end.sge(0, len)])
        .unwrap()
        .with_remote(to, TaggedOffset(BASE))
        .with_immediate(DATA)
}

fn immediate(msn: u32, octets: &[u8]) -> Ulpdu {
    untagged(Opcode::Immediate, true, QueueNumber::SEND, msn, 0, octets)
}

/// RFC 7306 appendix A.3.
#[test]
fn the_segment_is_that_of_the_figure() {
    // rfc: 7306-46, 7306-47, 7306-50, 7306-51
    for (flags, control) in [(0, 0x48), (SOLICITED, 0x49)] {
        let mut end = End::new(0, 0);
        end.post(alone(1).with_flags(flags));
        #[rustfmt::skip]
        let figure = [
            0x41, control,
            0, 0, 0, 0,
            0, 0, 0, 0,
            0, 0, 0, 1,
            0, 0, 0, 0,
            0x01, 0x02, 0x03, 0x04,
            0xfc, 0xfd, 0xfe, 0xff,
        ];
        assert_eq!(end.next_segment().unwrap(), figure);
        assert_eq!(end.next_segment(), None);
    }
}

#[test]
fn immediate_data_use_up_a_receive_and_leave_its_buffer() {
    // rfc: 7306-48
    for solicited in [false, true] {
        let (mut a, mut b) = (End::new(0, 0), End::new(0, 0));
        b.fill(0, &[0xee; 8]);
        b.post_receive(10, 0, 8);
        b.post_receive_wr(RecvWr::new(11, &[]).unwrap());
        let flag = if solicited { SOLICITED } else { 0 };
        b.qp.arming.arm(true);
        a.post(alone(1).with_flags(SIGNALED | flag));
        a.post(alone(2).with_flags(flag));
        pump(&mut a, &mut b);
        assert_eq!(b.qp.arming.is_armed(), !solicited);
        let came = if solicited { CAME_SOLICITED } else { 0 };
        for (done, wr_id) in b.received().iter().zip([10, 11]) {
            assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
            assert_eq!(done.opcode(), Ok(WcOpcode::RecvImmediate));
            assert_eq!(done.flags, WITH_IMMEDIATE | came);
            assert_eq!((done.immediate, done.byte_len), (DATA, 0));
        }
        b.raw().abort();
        assert_eq!(b.received_ids(), [], "no receive is left to be flushed");
        assert_eq!(b.memory(0, 8), [0xee; 8]);
        assert_eq!(a.sent_ids(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn a_write_with_immediate_data_is_two_messages_and_one_request() {
    // rfc: 7306-52
    let mut end = Settings::new(0, 0).small().connect();
    end.post(behind_write(&end, 1, Stag(0x99), 150));
    end.post(SendWr::new(2, WrOpcode::Send));
    let segments: Vec<_> = std::iter::from_fn(|| {
        let segment = end.next_segment()?;
        Some((segment, end.stream))
    })
    .collect();
    let controls: Vec<_> = segments.iter().map(|(ulpdu, _)| ulpdu[1]).collect();
    assert_eq!(controls, [0x40, 0x40, 0x48, 0x43]);
    let msn = |at: usize| segments[at].0[13];
    assert_eq!((msn(2), msn(3)), (1, 2));
    // The Write alone is not the request.
    end.acked(segments[1].1);
    assert!(end.sent().is_empty());
    end.acked(segments[2].1);
    let [done] = end.sent()[..] else {
        panic!("one request is done");
    };
    assert_eq!((done.wr_id, done.opcode()), (1, Ok(WcOpcode::Write)));
    assert_eq!((done.status(), done.byte_len), (WcStatus::Success, 150));
    end.acked(segments[3].1);
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    assert!(end.closes());
}

#[test]
fn immediate_data_complete_in_the_order_of_their_posting() {
    // rfc: 7306-49, 7306-52
    let (mut a, mut b) = (End::new(0, 0), End::new(0, 0));
    a.fill(0, b"written");
    for wr_id in 1..=4 {
        b.post_receive(wr_id, 100, 8);
    }
    a.post(alone(1));
    a.post(SendWr::new(2, WrOpcode::Send).with_inline(b"sent").unwrap());
    a.post(behind_write(&a, 3, b.stag, 7));
    a.post(SendWr::new(4, WrOpcode::Send));
    pump(&mut a, &mut b);
    let received: Vec<_> = b
        .received()
        .iter()
        .map(|done| (done.wr_id, done.opcode().unwrap(), done.immediate))
        .collect();
    let (recv, told) = (WcOpcode::Recv, WcOpcode::RecvImmediate);
    assert_eq!(
        received,
        [
            (1, told, DATA),
            (2, recv, [0; 8]),
            (3, told, DATA),
            (4, recv, [0; 8])
        ]
    );
    assert_eq!(b.memory(0, 7), b"written");
}

#[test]
fn immediate_data_may_arrive_ahead_of_order_and_in_pieces() {
    // rfc: 7306-49
    let mut end = End::with_markers(0, 0);
    end.post_receive(1, 0, 8);
    end.post_receive(2, 0, 8);
    let piece = |last, offset, octets: &[u8]| {
        let queue = QueueNumber::SEND;
        untagged(Opcode::Immediate, last, queue, 1, offset, octets)
    };
    let stretch = [
        piece(false, 0, &DATA[..3]),
        piece(true, 3, &DATA[3..]),
        immediate(2, b"SECOND.."),
    ];
    let mut early = end.lay_out(1, &stretch);
    early.place(&mut end, 2);
    early.place(&mut end, 1);
    assert!(end.received().is_empty());
    early.deliver(&mut end).unwrap();
    let told: Vec<_> = end.received().iter().map(|done| done.immediate).collect();
    assert_eq!(told, [DATA, *b"SECOND.."]);
    assert_eq!(end.memory(0, 8), [0; 8]);
}

#[test]
fn immediate_data_are_eight_octets_or_refused() {
    // rfc: 7306-53, 7306-54b
    for len in [0, 1, 7, 9, 16, 1000] {
        let mut end = End::new(0, 0);
        end.post_receive(1, 0, 1000);
        let error = end.receive(&immediate(1, &vec![1; len])).unwrap_err();
        assert_eq!(error.numbers, (0, 2, 0xff), "{len} octets");
        assert_eq!(end.memory(0, 1000), [0; 1000]);
        assert_eq!(end.received_ids(), [(1, WcStatus::WrFlushed)]);
    }
}

#[test]
fn immediate_data_need_a_receive() {
    // rfc: 7306-48, 7306-56
    let mut end = End::new(0, 0);
    let error = end.receive(&immediate(1, &DATA)).unwrap_err();
    let (queue, msn) = (QueueNumber::SEND, Msn::FIRST);
    error.assert_is(DdpError::NoBuffer { queue, msn });
    assert_eq!(error.numbers, (1, 2, 2));
    // A receive serves one message only.
    let mut end = End::new(0, 0);
    end.post_receive(1, 0, 8);
    end.receive(&immediate(1, &DATA)).unwrap();
    assert!(end.receive(&send(2, b"")).is_err());
}

#[test]
fn immediate_data_belong_to_the_queue_of_sends() {
    // rfc: 7306-46, 7306-50, 7306-56, 7306-57, 7306-58
    let segment = |queue| untagged(Opcode::Immediate, true, QueueNumber(queue), 1, 0, &DATA);
    let mut version = segment(0);
    version[1] = 0x88;
    let mut replayed = segment(0);
    replayed[13] = 0;
    let mut shifted = segment(0);
    shifted[17] = 1;
    let refused = |ulpdu: &Ulpdu| {
        let mut end = End::new(1, 1);
        end.post_receive(1, 0, 100);
        end.receive(ulpdu).unwrap_err().numbers
    };
    let end = End::new(1, 1);
    let in_tagged = tagged(Opcode::Immediate, true, end.stag, BASE, &DATA);
    for ulpdu in [segment(1), segment(2), segment(3), in_tagged] {
        assert_eq!(refused(&ulpdu), (0, 2, 6));
    }
    assert_eq!(refused(&version), (0, 2, 5));
    assert_eq!(refused(&segment(4)), (1, 2, 1));
    assert_eq!(refused(&replayed), (1, 2, 3));
    assert_eq!(refused(&shifted), (1, 2, 4));
}

#[test]
fn a_request_with_immediate_data_and_payload_is_refused() {
    // rfc: 7306-51, 7306-54a
    let mut end = End::new(0, 0);
    end.post(alone(1).with_inline(b"more").unwrap());
    assert_eq!(end.refused().unwrap().numbers, (0, 0, 0));
    assert_eq!(end.sent_ids(), [(1, WcStatus::LocalLengthError)]);
}

#[test]
fn a_terminate_that_names_immediate_data_fails_their_write() {
    let mut end = End::new(0, 0);
    end.post(behind_write(&end, 1, Stag(0x99), 10));
    end.post(alone(2));
    assert_eq!(end.segments().len(), 3);
    let offending = immediate(1, &[]);
    let said = Terminate {
        control: TerminateControl {
            layer: 1,
            error_type: 2,
            code: 2,
        },
        ddp_segment_length: Some(26),
        ddp_header: Some(&offending),
        rdma_header: None,
    };
    let mut octets = [0; Terminate::MAX_LEN];
    let len = said.emit(&mut octets);
    let queue = QueueNumber::TERMINATE;
    let terminate = untagged(Opcode::Terminate, true, queue, 1, 0, &octets[..len]);
    end.receive(&terminate).unwrap();
    let ids = end.sent_ids();
    assert_eq!(ids[1], (2, WcStatus::WrFlushed));
    assert!(!matches!(ids[0].1, WcStatus::WrFlushed | WcStatus::Success));
}

/// Between a Write and its Immediate Data the memory may be gone: then neither the rest nor they
/// are sent.
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_write_that_fails_half_way_has_no_immediate_data() {
    // rfc: 7306-54a
    let mut end = Settings::new(0, 0).small().connect();
    end.post(behind_write(&end, 1, Stag(0x99), 5000));
    assert!(!header(&end.segments().pop().unwrap()).last());
    end.table().revoke(end.stag).unwrap();
    end.acked_all();
    let [terminate] = &end.segments()[..] else {
        panic!("a Terminate, and nothing else");
    };
    assert_eq!(terminate[1], 0x47);
    assert_eq!(end.sent_ids(), [(1, WcStatus::LocalProtectionError)]);
}

/// Whatever the peer says of its Write: what counts is what was placed of it.
#[test]
fn immediate_data_tell_how_much_was_written_before_them() {
    let mut end = Settings::new(4, 4).connect();
    (1..=7).for_each(|wr_id| end.post_receive(wr_id, 0, 64));
    let write = |at, last, len| tagged(Opcode::Write, last, end.stag, BASE + at, &vec![1; len]);
    let (first, second, third) = (
        write(0, false, 100),
        write(100, false, 60),
        write(160, true, 3),
    );
    let (short, empty) = (write(0, true, 5), write(0, true, 0));
    let send = |msn| untagged(Opcode::Send, true, QueueNumber::SEND, msn, 0, b"x");
    let said = 0xdead_beef_u32.to_be_bytes();
    let told = |msn| immediate(msn, &[[7; 4], said].concat());
    let stream = [
        // Nothing was written. A Write of three segments. None was written since.
        told(1),
        first,
        second,
        third,
        told(2),
        told(3),
        // The last of several Writes, and one that is empty.
        short.clone(),
        short.clone(),
        told(4),
        short.clone(),
        empty,
        told(5),
        // What came before a Send is not told.
        short,
        send(6),
        told(7),
    ];
    for ulpdu in &stream {
        end.receive(ulpdu).unwrap();
    }
    let lengths: Vec<_> = end.received().iter().map(|done| done.byte_len).collect();
    assert_eq!(lengths, [0, 163, 0, 5, 0, 1, 0]);
}
