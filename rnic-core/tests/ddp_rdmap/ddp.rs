//! Every check of RFC 5041 section 7.1, its number of section 7.2, and that nothing is placed when
//! it fails.

use rnic_core::ddp::DdpError;
use rnic_core::ids::StreamId;
use rnic_core::memory::{
    error::TagError,
    table::{Access, Scope},
};
use rnic_core::verbs::{RecvWr, Sge, WcStatus};
use rnic_core::wire::ddp::{DdpWireError, MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{
    BASE, End, MEMORY, OTHER_PD, PD, Refused, STREAM, all_rights, pattern, send, tagged, untagged,
};

const SEND: QueueNumber = QueueNumber::SEND;

/// Receives a segment in order that must be refused, and checks that nothing is placed.
fn refused(end: &mut End, ulpdu: &[u8]) -> Refused {
    let before = end.memory(0, MEMORY);
    let refused = end.receive(ulpdu).unwrap_err();
    assert!(end.memory(0, MEMORY) == before, "{refused:?} was placed");
    refused
}

/// Returns the completions of receives that are flushed.
fn flushed(ids: std::ops::Range<u64>) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::WrFlushed)).collect()
}

/// Receives a segment in order that must be refused. Returns the numbers of the Terminate.
fn numbers(end: &mut End, ulpdu: &[u8]) -> (u8, u8, u8) {
    refused(end, ulpdu).numbers
}

fn write(stag: Stag, offset: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::Write, true, stag, offset, payload)
}

fn end_with_receives(count: u64) -> End {
    let mut end = End::new(4, 4);
    for wr_id in 0..count {
        end.post_receive(wr_id, wr_id as usize * 100, 100);
    }
    end
}

#[test]
fn a_write_lands_where_it_says() {
    // rfc: 5040-26, 5041-15, 5041-52
    let mut end = End::new(0, 0);
    let ulpdu = write(end.stag, BASE + 1000, b"placed");
    end.receive(&ulpdu).unwrap();
    assert_eq!(end.memory(999, 8), b"\0placed\0");
    assert!(end.received().is_empty());
}

#[test]
fn tagged_invalid_stag() {
    // rfc: 5041-30, 5041-73a, 5041-83
    let mut end = End::new(0, 0);
    let unknown = Stag(end.stag.0 ^ 1);
    let error = refused(&mut end, &write(unknown, BASE, b"x"));
    error.assert_is(DdpError::Tagged(TagError::InvalidStag(unknown)));
    assert_eq!(error.numbers, (1, 1, 0));
}

#[test]
fn tagged_stag_zero_is_never_valid() {
    let mut end = End::new(0, 0);
    assert_eq!(numbers(&mut end, &write(Stag(0), BASE, b"x")), (1, 1, 0));
}

#[test]
fn tagged_revoked_stag() {
    // rfc: 5040-108, 5041-80, 5041-81, 5041-89, 5041-91
    let mut end = End::new(0, 0);
    let stag = end.register(0, 100, all_rights(), PD);
    end.receive(&write(stag, BASE, b"x")).unwrap();
    end.table().revoke(stag).unwrap();
    assert_eq!(numbers(&mut end, &write(stag, BASE, b"y")), (1, 1, 0));
}

#[test]
fn tagged_without_remote_write() {
    // rfc: 5041-73b, 5041-90
    let rights = [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::REMOTE_READ];
    for right in rights {
        let mut end = End::new(0, 0);
        let stag = end.register(0, 100, right, PD);
        let error = refused(&mut end, &write(stag, BASE, b"x"));
        let need = Access::REMOTE_WRITE;
        error.assert_is(DdpError::Tagged(TagError::AccessViolation { stag, need }));
        assert_eq!(error.numbers, (1, 1, 0));
    }
}

#[test]
fn tagged_base_and_bounds_violation() {
    // rfc: 5041-73c, 5041-73d, 5041-80, 5041-88
    let outside = [
        (BASE + 99, 1),
        (BASE + 200, 1),
        (BASE + 150, 51),
        (0, 1),
        (BASE + 100, 101),
    ];
    for (offset, len) in outside {
        let mut end = End::new(0, 0);
        let stag = end.register(100, 100, all_rights(), PD);
        let error = refused(&mut end, &write(stag, offset, &vec![1; len]));
        assert_eq!(error.numbers, (1, 1, 1), "{offset:#x} {len}");
    }
    for (offset, len) in [(BASE + 100, 100), (BASE + 199, 1), (BASE + 150, 50)] {
        let mut end = End::new(0, 0);
        let stag = end.register(100, 100, all_rights(), PD);
        end.receive(&write(stag, offset, &vec![1; len])).unwrap();
    }
}

#[test]
fn tagged_of_another_protection_domain() {
    // rfc: 5040-105, 5041-77, 5041-79, 5041-86
    let mut end = End::new(0, 0);
    let stag = end.register(0, 100, all_rights(), OTHER_PD);
    let error = refused(&mut end, &write(stag, BASE, b"x"));
    error.assert_is(DdpError::Tagged(TagError::NotAssociated { stag, pd: PD }));
    assert_eq!(error.numbers, (1, 1, 2));
}

#[test]
fn tagged_of_another_stream() {
    // rfc: 5040-106, 5041-78, 5041-79, 5041-82, 5041-87
    let mut end = End::new(0, 0);
    let stag = end.register(0, 100, all_rights(), Scope::Stream(PD, StreamId(99)));
    assert_eq!(numbers(&mut end, &write(stag, BASE, b"x")), (1, 1, 2));
    let mut end = End::new(0, 0);
    let own = end.register(0, 100, all_rights(), Scope::Stream(PD, STREAM));
    end.receive(&write(own, BASE, b"x")).unwrap();
}

#[test]
fn tagged_offset_wraps() {
    // rfc: 5041-73e
    for (offset, len) in [(u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 9, 10_usize)] {
        let mut end = End::new(0, 0);
        let stag = end.stag;
        let error = refused(&mut end, &write(stag, offset, &vec![1; len]));
        let offset = TaggedOffset(offset);
        error.assert_is(DdpError::Tagged(TagError::OffsetWrap { offset, len }));
        assert_eq!(error.numbers, (1, 1, 3));
    }
}

#[test]
fn tagged_without_payload_is_not_checked() {
    // rfc: 5041-57, 5041-58
    let mut end = End::new(0, 0);
    for (stag, offset) in [
        (Stag(0), 0),
        (Stag(0xdead_beef), u64::MAX),
        (end.stag, 1 << 60),
    ] {
        end.receive(&write(stag, offset, b"")).unwrap();
    }
}

#[test]
fn version_numbers() {
    // rfc: 5041-23
    for (ulpdu, tagged, code) in [
        (write(Stag(1), 0, b"x"), true, (1, 1, 4)),
        (send(1, b"x"), false, (1, 2, 6)),
    ] {
        let mut ulpdu = ulpdu;
        ulpdu[0] = ulpdu[0] & !3 | 2;
        let error = refused(&mut end_with_receives(1), &ulpdu);
        error.assert_is(DdpWireError::Version { version: 2, tagged });
        assert_eq!(error.numbers, code);
    }
}

#[test]
fn a_send_fills_the_receives_in_their_order() {
    // rfc: 5041-16, 5040-53
    let mut end = end_with_receives(2);
    end.receive(&send(1, b"first")).unwrap();
    end.receive(&send(2, b"second")).unwrap();
    assert_eq!(end.memory(0, 6), b"first\0");
    assert_eq!(end.memory(100, 7), b"second\0");
    let lengths: Vec<_> = end
        .received()
        .iter()
        .map(|c| (c.wr_id, c.byte_len))
        .collect();
    assert_eq!(lengths, [(0, 5), (1, 6)]);
}

#[test]
fn untagged_invalid_qn() {
    // rfc: 5041-72a
    for queue in [4, 5, u32::MAX] {
        let mut end = end_with_receives(1);
        let ulpdu = untagged(Opcode::Send, true, QueueNumber(queue), 1, 0, b"x");
        let error = refused(&mut end, &ulpdu);
        error.assert_is(DdpError::InvalidQn(QueueNumber(queue)));
        assert_eq!(error.numbers, (1, 2, 1));
    }
}

#[test]
fn untagged_no_buffer() {
    // rfc: 5041-72b
    for payload in [&b"x"[..], b""] {
        // rfc: 5040-57
        let mut end = end_with_receives(1);
        end.receive(&send(1, b"x")).unwrap();
        let error = refused(&mut end, &send(2, payload));
        error.assert_is(DdpError::NoBuffer {
            queue: SEND,
            msn: Msn(2),
        });
        assert_eq!(error.numbers, (1, 2, 2));
    }
}

#[test]
fn untagged_msn_already_delivered() {
    // rfc: 5041-61
    let mut end = end_with_receives(3);
    end.receive(&send(1, b"x")).unwrap();
    let error = refused(&mut end, &send(1, b"y"));
    error.assert_is(DdpError::MsnRange {
        queue: SEND,
        msn: Msn(1),
        next: Msn(2),
    });
    assert_eq!(error.numbers, (1, 2, 3));
}

#[test]
fn untagged_msn_zero_comes_before_the_first() {
    // rfc: 5041-43
    let mut end = end_with_receives(1);
    assert_eq!(numbers(&mut end, &send(0, b"x")), (1, 2, 3));
}

#[test]
fn untagged_msn_beyond_the_last_buffer() {
    // rfc: 5041-72e
    let mut end = end_with_receives(2);
    assert_eq!(numbers(&mut end, &send(3, b"x")), (1, 2, 3));
}

#[test]
fn untagged_msn_that_leaves_one_out_is_not_delivered() {
    // rfc: 5041-62, 5041-63
    let mut end = end_with_receives(2);
    let error = end.receive(&send(2, b"x")).unwrap_err();
    assert_eq!(error.numbers, (1, 2, 3));
    assert_eq!(end.received_ids(), flushed(0..2));
}

#[test]
fn untagged_mo_outside_of_the_buffer() {
    // rfc: 5041-72c
    let mut end = end_with_receives(1);
    let error = refused(&mut end, &untagged(Opcode::Send, true, SEND, 1, 101, b"x"));
    error.assert_is(DdpError::BeyondBuffer {
        queue: SEND,
        offset: MessageOffset(101),
        room: 100,
    });
    assert_eq!(error.numbers, (1, 2, 4));
    // Where the buffer ends there is nothing of it, either ahead of order or in order.
    let mut end = end_with_receives(1);
    let behind = untagged(Opcode::Send, true, SEND, 1, 100, b"x");
    assert_eq!(numbers(&mut end, &behind), (1, 2, 4));
    let mut end = end_with_receives(1);
    end.receive(&untagged(Opcode::Send, false, SEND, 1, 0, &[1; 100]))
        .unwrap();
    assert_eq!(numbers(&mut end, &behind), (1, 2, 4));
    // A segment without payload has nothing to be placed, and may end the message there.
    let mut end = end_with_receives(1);
    end.receive(&untagged(Opcode::Send, false, SEND, 1, 0, &[1; 100]))
        .unwrap();
    end.receive(&untagged(Opcode::Send, true, SEND, 1, 100, b""))
        .unwrap();
    let mut end = end_with_receives(1);
    let last = untagged(Opcode::Send, true, SEND, 1, u32::MAX, b"x");
    assert_eq!(numbers(&mut end, &last), (1, 2, 4));
}

#[test]
fn untagged_mo_that_does_not_continue() {
    // rfc: 5041-20, 5041-47, 5041-53
    for (offset, payload) in [(0, &b"xy"[..]), (5, b"x"), (9, b"x"), (11, b"x"), (11, b"")] {
        let mut end = end_with_receives(1);
        end.receive(&untagged(Opcode::Send, false, SEND, 1, 0, b"0123456789"))
            .unwrap();
        let next = untagged(Opcode::Send, true, SEND, 1, offset, payload);
        let error = end.receive(&next).unwrap_err();
        assert_eq!(error.numbers, (1, 2, 4));
        assert_eq!(end.received_ids(), flushed(0..1));
    }
    let mut end = end_with_receives(1);
    let first = untagged(Opcode::Send, true, SEND, 1, 1, b"x");
    assert_eq!(end.receive(&first).unwrap_err().numbers, (1, 2, 4));
}

#[test]
fn untagged_message_too_long() {
    // rfc: 5041-72d
    let mut end = end_with_receives(1);
    let error = refused(&mut end, &send(1, &[1; 101]));
    error.assert_is(DdpError::TooLong {
        queue: SEND,
        length: 101,
        room: 100,
    });
    assert_eq!(error.numbers, (1, 2, 5));
    let mut end = end_with_receives(1);
    end.receive(&untagged(Opcode::Send, false, SEND, 1, 0, &[1; 60]))
        .unwrap();
    let second = untagged(Opcode::Send, true, SEND, 1, 60, &[1; 41]);
    assert_eq!(numbers(&mut end, &second), (1, 2, 5));
    // The receive in question says what happened to it; the next is flushed.
    end.post_receive(9, 500, 100);
    let expected = [(0, WcStatus::LocalLengthError), (9, WcStatus::WrFlushed)];
    assert_eq!(end.received_ids(), expected);
}

#[test]
fn untagged_message_that_fits_exactly() {
    let mut end = end_with_receives(1);
    end.receive(&send(1, &[7; 100])).unwrap();
    assert_eq!(end.memory(0, 101), [&[7; 100][..], &[0]].concat());
    assert_eq!(end.received()[0].byte_len, 100);
}

#[test]
fn a_receive_into_memory_of_somebody_else_is_a_local_error() {
    let cases = [
        (OTHER_PD, all_rights()),
        (PD, Access::REMOTE_READ | Access::REMOTE_WRITE),
    ];
    for (pd, rights) in cases {
        let mut end = End::new(0, 0);
        let lkey = end.register(0, 100, rights, pd).0;
        let sge = Sge {
            offset: BASE,
            length: 100,
            lkey,
        };
        end.post_receive_wr(RecvWr::new(1, &[sge]).unwrap());
        let error = refused(&mut end, &send(1, b"x"));
        assert_eq!((error.numbers.1, error.numbers.2), (0, 0));
        assert_eq!(end.received_ids(), [(1, WcStatus::LocalProtectionError)]);
    }
}

#[test]
fn a_message_scatters_over_the_pieces_of_its_receive() {
    let mut end = End::new(0, 0);
    let sges = [
        end.sge(0, 3),
        end.sge(50, 0),
        end.sge(100, 4),
        end.sge(200, 10),
    ];
    end.post_receive_wr(RecvWr::new(5, &sges).unwrap());
    end.receive(&untagged(Opcode::Send, false, SEND, 1, 0, b"abcde"))
        .unwrap();
    end.receive(&untagged(Opcode::Send, true, SEND, 1, 5, b"fghi"))
        .unwrap();
    assert_eq!(end.memory(0, 4), b"abc\0");
    assert_eq!(end.memory(100, 5), b"defg\0");
    assert_eq!(end.memory(200, 3), b"hi\0");
    assert_eq!(end.received()[0].byte_len, 9);
}

#[test]
fn a_send_without_payload_takes_a_receive() {
    // rfc: 5040-57
    let mut end = end_with_receives(2);
    end.receive(&send(1, b"")).unwrap();
    end.receive(&send(2, b"x")).unwrap();
    let lengths: Vec<_> = end
        .received()
        .iter()
        .map(|c| (c.wr_id, c.byte_len))
        .collect();
    assert_eq!(lengths, [(0, 0), (1, 1)]);
}

#[test]
fn a_receive_without_pieces_takes_a_send_without_payload() {
    let mut end = End::new(0, 0);
    end.post_receive_wr(RecvWr::new(1, &[]).unwrap());
    end.post_receive_wr(RecvWr::new(2, &[]).unwrap());
    end.receive(&send(1, b"")).unwrap();
    // No MO lies inside it.
    assert_eq!(numbers(&mut end, &send(2, b"x")), (1, 2, 4));
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn segments_are_placed_out_of_order_and_delivered_in_order() {
    // rfc: 5040-75, 5041-21, 5041-61, 5041-62, 5041-63
    let mut end = End::with_markers(4, 4);
    for wr_id in 0..2 {
        end.post_receive(wr_id, wr_id as usize * 2000, 2000);
    }
    // Each is long enough for a record of its own, and holds a marker.
    let [written, one, more, two] = [1, 2, 3, 4].map(|seed| pattern(seed, 600));
    let stream = [
        write(end.stag, BASE + 5000, &written),
        untagged(Opcode::Send, false, SEND, 1, 0, &one),
        untagged(Opcode::Send, true, SEND, 1, 600, &more),
        send(2, &two),
    ];
    let mut early = end.lay_out(0, &stream);
    for which in [3, 2, 1, 0, 2] {
        early.place(&mut end, which);
    }
    assert_eq!(end.memory(0, 1200), [one, more].concat());
    assert_eq!(end.memory(2000, 600), two);
    assert_eq!(end.memory(5000, 600), written);
    assert!(end.received().is_empty(), "placement is not delivery");
    early.deliver(&mut end).unwrap();
    let lengths: Vec<_> = end
        .received()
        .iter()
        .map(|c| (c.wr_id, c.byte_len))
        .collect();
    assert_eq!(lengths, [(0, 1200), (1, 600)]);
}

#[test]
fn what_cannot_be_placed_ahead_of_order_is_placed_in_order() {
    let mut end = End::with_markers(4, 4);
    end.post_receive(0, 0, 100);
    let two = pattern(2, 600);
    let mut early = end.lay_out(1, &[send(1, b"one"), send(2, &two)]);
    early.place(&mut end, 1);
    end.post_receive(7, 300, 600);
    assert_eq!(end.memory(300, 3), [0; 3], "there was no receive for it");
    early.deliver(&mut end).unwrap();
    assert_eq!(end.memory(300, 600), two);
    assert_eq!(
        end.received_ids(),
        [(0, WcStatus::Success), (7, WcStatus::Success)]
    );
}

#[test]
fn read_request_queue_checks_its_buffers() {
    // rfc: 5040-95, 5041-72d
    let request = |msn, offset, payload: &[u8]| {
        let queue = QueueNumber::READ_REQUEST;
        untagged(Opcode::ReadRequest, true, queue, msn, offset, payload)
    };
    for (ulpdu, code) in [
        (request(0, 0, &[0; 28]), (2, 3)),
        // IRD is 4: there is a buffer for the fifth, which RDMAP refuses, and none beyond it.
        (request(6, 0, &[0; 28]), (2, 3)),
        // There is room for an Atomic Request, which is longer.
        (request(1, 53, &[0; 1]), (2, 4)),
        (request(1, 0, &[0; 53]), (2, 5)),
        (request(1, 44, &[0; 9]), (2, 5)),
    ] {
        let mut end = End::new(4, 4);
        let (error_type, code) = code;
        assert_eq!(numbers(&mut end, &ulpdu), (1, error_type, code));
    }
}

#[test]
fn terminate_queue_has_one_buffer() {
    // rfc: 5040-64, 5040-65
    let terminate = |msn, payload: &[u8]| {
        untagged(
            Opcode::Terminate,
            true,
            QueueNumber::TERMINATE,
            msn,
            0,
            payload,
        )
    };
    assert_eq!(
        numbers(&mut End::new(0, 0), &terminate(2, &[0; 4])),
        (1, 2, 3)
    );
    assert_eq!(
        numbers(&mut End::new(0, 0), &terminate(1, &[0; 53])),
        (1, 2, 5)
    );
    End::new(0, 0).receive(&terminate(1, &[0; 52])).unwrap();
}
