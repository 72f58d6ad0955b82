//! What a peer asks for: admission, Reads, Sends with their variants.

use rnic_core::ids::StreamId;
use rnic_core::memory::table::{Access, Scope};
use rnic_core::verbs::{
    SendWr, WcStatus, WrOpcode,
    wr::{Completion, completion_flags},
};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, Control, Opcode, ReadRequest, Terminate};

use crate::fixture::{
    BASE, End, OTHER_PD, PD, STREAM, Settings, all_rights, header, payload, send, tagged, ulp,
    untagged,
};

/// Receives a segment in order that must be refused. Returns layer, type and code of the Terminate.
fn refused(end: &mut End, ulpdu: &[u8]) -> (u8, u8, u8) {
    end.receive(ulpdu).unwrap_err().numbers
}

/// Octets of a Read whose response exceeds the initial congestion window where segments are small.
const LONG: u32 = 10_000;

fn request(stag: Stag, offset: u64, length: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0x5151_5151),
        sink_offset: TaggedOffset(0x77),
        length,
        source_stag: stag,
        source_offset: TaggedOffset(offset),
    }
}

fn read_request(msn: u32, request: ReadRequest) -> Vec<u8> {
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    untagged(Opcode::ReadRequest, true, queue, msn, 0, &octets)
}

/// Where a Read Response in one segment goes, and its octets.
fn response(ulpdu: &[u8]) -> (Stag, u64, &[u8]) {
    let DdpHeader::Tagged(header) = header(ulpdu) else {
        panic!("a Read Response is tagged");
    };
    assert_eq!(
        Control::from(header.ulp),
        Control::new(Opcode::ReadResponse)
    );
    assert!(header.last);
    (header.stag, header.offset.0, payload(ulpdu))
}

/// The lengths of all responses that go out.
fn response_lengths(end: &mut End) -> Vec<usize> {
    let lengths = end.segments();
    lengths
        .iter()
        .map(|ulpdu| response(ulpdu).2.len())
        .collect()
}

#[test]
fn reserved_bits_of_the_control_octet_are_ignored() {
    // rfc: 5040-11
    let mut end = End::new(1, 1);
    end.post_receive(1, 0, 10);
    let mut ulpdu = send(1, b"x");
    ulpdu[1] |= 0x30;
    end.receive(&ulpdu).unwrap();
}

#[test]
fn each_opcode_is_accepted_in_its_own_queue_or_buffer_only() {
    // rfc: 5040-7, 5040-8, 5040-91, 5040-96, 7306-57
    for code in 0..16u8 {
        for queue in [None, Some(0), Some(1), Some(2), Some(3)] {
            let mut end = End::new(1, 1);
            end.post_receive(1, 0, 100);
            let mut ulpdu = match queue {
                None => tagged(Opcode::Write, true, end.stag, BASE, b"x"),
                Some(queue) => untagged(Opcode::Send, true, QueueNumber(queue), 1, 0, &[0; 28]),
            };
            ulpdu[1] = 0x40 | code;
            let good = match queue {
                // A Read or Atomic Response that was not asked for is as unexpected.
                None => code == 0,
                Some(0) => matches!(code, 3..=6 | 8 | 9),
                Some(1) => matches!(code, 1 | 10),
                Some(2) => code == 7,
                _ => false,
            };
            if good {
                let numbers = end.receive(&ulpdu).map_err(|refused| refused.numbers);
                // Its place is right; what it says may not be.
                assert_ne!(numbers, Err((0, 2, 6)), "{code} in {queue:?}");
            } else {
                assert_eq!(refused(&mut end, &ulpdu), (0, 2, 6), "{code} in {queue:?}");
                assert_eq!(end.memory(0, 1), [0]);
            }
        }
    }
}

#[test]
fn a_read_response_goes_to_where_the_read_says() {
    // rfc: 5040-15, 5040-29, 5040-33, 5040-34, 5040-41, 5040-45, 5040-46
    let mut end = End::new(4, 0);
    end.fill(100, b"source");
    let ulpdu = read_request(1, request(end.stag, BASE + 100, 6));
    end.receive(&ulpdu).unwrap();
    let message = end.next_segment().unwrap();
    assert_eq!(
        response(&message),
        (Stag(0x5151_5151), 0x77, &b"source"[..])
    );
    assert_eq!(end.next_segment(), None);
    assert!(end.received().is_empty() && end.sent().is_empty());
    assert!(end.closes(), "nothing is left to be done");
}

/// It is cut into segments, and each of them goes on where the one before it ended: from one buffer
/// to one buffer.
#[test]
fn a_read_response_of_many_segments_writes_to_one_buffer() {
    // rfc: 5040-50
    for length in [0, 1, LONG] {
        let mut end = Settings::new(4, 0).small().connect();
        let source: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        end.fill(0, &source);
        // Another one behind it goes elsewhere.
        let reads = [(0x5151_5151, 0x77), (0x6161_6161, 0x88_0000)];
        for (msn, (stag, offset)) in (1..).zip(reads) {
            let asked = ReadRequest {
                sink_stag: Stag(stag),
                sink_offset: TaggedOffset(offset),
                ..request(end.stag, BASE, length)
            };
            end.receive(&read_request(msn, asked)).unwrap();
        }
        let mut segments = end.all_segments().into_iter();
        for (stag, offset) in reads {
            let mut written = Vec::new();
            loop {
                let ulpdu = segments.next().expect("more of the response");
                let DdpHeader::Tagged(header) = header(&ulpdu) else {
                    panic!("a Read Response is tagged");
                };
                let opcode = Control::from(header.ulp);
                assert_eq!(opcode, Control::new(Opcode::ReadResponse));
                let to = offset + written.len() as u64;
                assert_eq!((header.stag, header.offset), (Stag(stag), TaggedOffset(to)));
                written.extend_from_slice(payload(&ulpdu));
                if header.last {
                    break;
                }
            }
            assert!(written == source, "{length} octets");
        }
        assert_eq!(segments.next(), None);
    }
}

#[test]
fn reads_get_their_responses_in_order() {
    // rfc: 5040-38, 5040-49, 5040-78
    let mut end = Settings::new(4, 0).small().connect();
    // All others wait while the first is answered.
    let lengths = [LONG, 20, 30, 40];
    for (msn, length) in (1..).zip(lengths) {
        let ulpdu = read_request(msn, request(end.stag, BASE, length));
        end.receive(&ulpdu).unwrap();
    }
    let mut answered = vec![0];
    for ulpdu in end.all_segments() {
        *answered.last_mut().unwrap() += payload(&ulpdu).len() as u32;
        if header(&ulpdu).last() {
            answered.push(0);
        }
    }
    assert_eq!(answered, [&lengths[..], &[0]].concat());
}

/// They may come ahead of order.
#[test]
fn every_read_request_agreed_on_has_a_buffer() {
    // rfc: 5040-32, 5040-47
    for ird in 1..=4 {
        let mut end = End::with_markers(ird, 0);
        let stag = end.stag;
        let ulpdu = |msn: u32| read_request(msn, request(stag, BASE, msn * 10));
        for round in 0..3 {
            let msns = round * u32::from(ird) + 1..=(round + 1) * u32::from(ird);
            let stretch: Vec<_> = msns.clone().map(ulpdu).collect();
            let mut early = end.lay_out(0, &stretch);
            for which in (0..stretch.len()).rev() {
                early.place(&mut end, which);
            }
            assert_eq!(end.next_segment(), None);
            early.deliver(&mut end).unwrap();
            let lengths: Vec<_> = msns.map(|msn| msn as usize * 10).collect();
            assert_eq!(response_lengths(&mut end), lengths);
            end.acked_all();
        }
    }
}

#[test]
fn a_read_is_not_begun_before_its_request_is_delivered() {
    // rfc: 5040-71, 5040-76
    let mut end = End::with_markers(4, 0);
    end.post_receive(1, 0, 100);
    let read = read_request(1, request(end.stag, BASE, 3));
    let mut early = end.lay_out(1, &[send(1, b"new"), read]);
    early.place(&mut end, 1);
    assert_eq!(end.next_segment(), None);
    early.deliver(&mut end).unwrap();
    let message = end.next_segment().unwrap();
    assert_eq!(response(&message).2, b"new");
}

#[test]
fn a_read_request_in_two_segments() {
    let mut end = End::new(1, 0);
    let mut octets = [0; ReadRequest::LEN];
    request(end.stag, BASE, 9).emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    end.receive(&untagged(
        Opcode::ReadRequest,
        false,
        queue,
        1,
        0,
        &octets[..11],
    ))
    .unwrap();
    assert_eq!(end.next_segment(), None);
    end.receive(&untagged(
        Opcode::ReadRequest,
        true,
        queue,
        1,
        11,
        &octets[11..],
    ))
    .unwrap();
    assert_eq!(response_lengths(&mut end), [9]);
}

#[test]
fn a_read_request_that_is_too_short() {
    for len in [0, 27] {
        let mut end = End::new(1, 0);
        let queue = QueueNumber::READ_REQUEST;
        let ulpdu = untagged(Opcode::ReadRequest, true, queue, 1, 0, &vec![0; len]);
        assert_eq!(refused(&mut end, &ulpdu), (0, 2, 0xff));
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn more_reads_than_agreed_on() {
    // rfc: 5040-81, 5040-84
    for ird in [0u16, 1, 3] {
        let mut end = Settings::new(ird, 0).small().connect();
        let long = request(end.stag, BASE, LONG);
        for msn in 1..=u32::from(ird) {
            end.receive(&read_request(msn, long)).unwrap();
        }
        let over = read_request(u32::from(ird) + 1, long);
        assert_eq!(refused(&mut end, &over), (0, 2, 7));
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_read_counts_against_the_ird_until_its_response_was_sent() {
    let mut end = Settings::new(1, 0).small().connect();
    let stag = end.stag;
    let ulpdu = |msn, length| read_request(msn, request(stag, BASE, length));
    end.receive(&ulpdu(1, LONG)).unwrap();
    end.all_segments();
    end.receive(&ulpdu(2, 10 * LONG)).unwrap();
    assert_eq!(refused(&mut end, &ulpdu(3, 1)), (0, 2, 7));
}

#[test]
fn read_source_is_checked() {
    // rfc: 5040-42, 5040-98, 5040-99, 5040-100, 5040-101, 5040-102
    let end = End::new(1, 0);
    let foreign = end.register(0, 100, all_rights(), OTHER_PD);
    let other_stream = end.register(0, 100, all_rights(), Scope::Stream(PD, StreamId(99)));
    let unreadable = end.register(0, 100, Access::REMOTE_WRITE | Access::LOCAL_WRITE, PD);
    let small = end.register(100, 100, Access::REMOTE_READ, PD);
    drop(end);
    for (stag, offset, length, code) in [
        (Some(Stag(0)), BASE, 1, 0x00),
        (Some(Stag(0x1234_5678)), BASE, 1, 0x00),
        (Some(small), BASE + 99, 1, 0x01),
        (Some(small), BASE + 100, 101, 0x01),
        (Some(small), BASE + 200, 1, 0x01),
        (None, BASE, u32::MAX, 0x01),
        (Some(unreadable), BASE, 1, 0x02),
        (Some(foreign), BASE, 1, 0x03),
        (Some(other_stream), BASE, 1, 0x03),
        (None, u64::MAX, 1, 0x04),
        (None, u64::MAX - 9, 20, 0x04),
    ] {
        // The same seed gives the same STags.
        let mut end = End::new(1, 0);
        end.register(0, 100, all_rights(), OTHER_PD);
        end.register(0, 100, all_rights(), Scope::Stream(PD, StreamId(99)));
        end.register(0, 100, Access::REMOTE_WRITE | Access::LOCAL_WRITE, PD);
        end.register(100, 100, Access::REMOTE_READ, PD);
        let stag = stag.unwrap_or(end.stag);
        let ulpdu = read_request(1, request(stag, offset, length));
        let error = end.receive(&ulpdu).unwrap_err();
        assert_eq!(error.numbers, (0, 1, code), "{error:?}");
    }
}

#[test]
fn a_read_of_nothing_is_not_checked() {
    // rfc: 5040-43, 5040-44
    let mut end = End::new(2, 0);
    end.receive(&read_request(1, request(Stag(0), 0, 0)))
        .unwrap();
    end.receive(&read_request(2, request(Stag(77), u64::MAX, 0)))
        .unwrap();
    let messages = end.segments();
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert_eq!(response(&message), (Stag(0x5151_5151), 0x77, &[][..]));
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_read_whose_source_is_revoked_on_the_way() {
    let mut end = Settings::new(1, 0).small().connect();
    let stag = end.register(0, LONG as usize, all_rights(), PD);
    let whole = request(stag, BASE, LONG);
    end.receive(&read_request(1, whole)).unwrap();
    // As much as may be on its way at first.
    let sent: usize = end.segments().iter().map(|one| payload(one).len()).sum();
    assert!(sent > 0 && sent < LONG as usize);
    end.table().revoke(stag).unwrap();
    end.acked_all();
    assert_eq!(end.refused().unwrap().numbers, (0, 1, 0));
    let last = end.segments().pop().unwrap();
    let told = Terminate::parse(payload(&last)).unwrap();
    let left = ReadRequest::parse(told.rdma_header.unwrap()).unwrap();
    let sent = sent as u32;
    let expected = ReadRequest {
        sink_offset: TaggedOffset(0x77 + u64::from(sent)),
        length: LONG - sent,
        source_offset: TaggedOffset(BASE + u64::from(sent)),
        ..whole
    };
    assert_eq!(left, expected);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn responses_and_requests_take_turns() {
    let mut end = Settings::new(8, 8).small().connect();
    let first = SendWr::new(0, WrOpcode::Write).with_remote(Stag(9), TaggedOffset(0));
    let long = [end.sge(0, LONG as usize)];
    end.post(first.with_sges(&long).unwrap());
    end.work();
    for msn in 1..=4 {
        let ulpdu = read_request(msn, request(end.stag, BASE, 1));
        end.receive(&ulpdu).unwrap();
    }
    for wr_id in 1..=4 {
        end.post(SendWr::new(wr_id, WrOpcode::Send));
    }
    let mut turns: Vec<_> = end
        .all_segments()
        .iter()
        .map(|ulpdu| header(ulpdu).ulp())
        .collect();
    turns.dedup();
    let [write, send] = [Opcode::Write, Opcode::Send].map(ulp);
    let answer = ulp(Opcode::ReadResponse);
    let expected = [
        write, answer, send, answer, send, answer, send, answer, send,
    ];
    assert_eq!(turns, expected);
}

#[test]
fn solicited_sends_say_so() {
    let mut end = End::new(0, 0);
    end.qp.arming.arm(true);
    for (msn, opcode) in [(1, Opcode::Send), (2, Opcode::SendSolicited)] {
        assert!(end.qp.arming.is_armed(), "a plain Send wakes nobody");
        end.post_receive(msn.into(), 0, 10);
        let ulpdu = untagged(opcode, true, QueueNumber::SEND, msn, 0, b"x");
        end.receive(&ulpdu).unwrap();
    }
    let flags: Vec<_> = end
        .received()
        .iter()
        .map(|completion| completion.flags)
        .collect();
    assert_eq!(flags, [0, completion_flags::SOLICITED]);
    assert_eq!(end.qp.notified(), 1, "the application was told");
}

fn send_invalidate(opcode: Opcode, stag: Stag) -> Vec<u8> {
    let mut ulpdu = untagged(opcode, true, QueueNumber::SEND, 1, 0, b"x");
    ulpdu[2..6].copy_from_slice(&stag.0.to_be_bytes());
    ulpdu
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn send_with_invalidate() {
    // rfc: 5040-5, 5040-60b, 5040-93, 5040-94
    for (opcode, flags) in [
        (Opcode::SendInvalidate, completion_flags::WITH_INVALIDATE),
        (
            Opcode::SendSolicitedInvalidate,
            completion_flags::WITH_INVALIDATE | completion_flags::SOLICITED,
        ),
    ] {
        let mut end = End::with_markers(0, 0);
        end.post_receive(1, 0, 600);
        let stag = end.register(0, 100, all_rights(), Scope::Stream(PD, STREAM));
        let mut ulpdu = send_invalidate(opcode, stag);
        ulpdu.resize(18 + 600, b'x');
        let mut early = end.lay_out(0, &[ulpdu]);
        early.place(&mut end, 0);
        assert_eq!(end.memory(0, 600), [b'x'; 600]);
        assert!(end.table().is_valid(stag), "placement invalidates nothing");
        early.deliver(&mut end).unwrap();
        assert!(!end.table().is_valid(stag));
        let completion = end.received()[0];
        assert_eq!(
            (completion.flags, completion.invalidated_stag),
            (flags, stag.0)
        );
        let write = tagged(Opcode::Write, true, stag, BASE, b"x");
        assert!(end.receive(&write).is_err());
    }
}

#[test]
fn a_send_that_cannot_invalidate() {
    // rfc: 5040-60a, 5040-60c, 5040-93, 5040-94, 5040-111
    for scope in [
        Scope::Stream(OTHER_PD, STREAM),
        Scope::Stream(PD, StreamId(99)),
        Scope::Domain(OTHER_PD),
        Scope::Domain(PD),
    ] {
        let mut end = End::new(0, 0);
        end.post_receive(1, 0, 10);
        let stag = end.register(0, 100, all_rights(), scope);
        assert_eq!(
            refused(&mut end, &send_invalidate(Opcode::SendInvalidate, stag)),
            (0, 1, 9)
        );
        assert!(end.table().is_valid(stag));
        assert_eq!(
            end.received_ids(),
            [(1, WcStatus::RemoteInvalidRequestError)]
        );
    }
    for stag in [Stag(0), Stag(0x1234_5678)] {
        let mut end = End::new(0, 0);
        end.post_receive(1, 0, 10);
        assert_eq!(
            refused(&mut end, &send_invalidate(Opcode::SendInvalidate, stag)),
            (0, 1, 9)
        );
    }
}

/// Whatever stands there, a message that invalidates nothing does as it would with zero.
#[test]
fn the_invalidate_field_of_other_messages_is_ignored() {
    // rfc: 5040-12, 7306-2c
    let mut octets = [0; ReadRequest::LEN];
    request(Stag(0), 0, 0).emit(&mut octets);
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let (send, reads) = (QueueNumber::SEND, QueueNumber::READ_REQUEST);
    let cases = [
        (Opcode::Send, send, &b"x"[..]),
        (Opcode::SendSolicited, send, b"x"),
        (Opcode::ReadRequest, reads, &octets),
        (Opcode::Terminate, QueueNumber::TERMINATE, &[0x20, 5, 0, 0]),
        (Opcode::Immediate, send, &[7; 8]),
        (Opcode::ImmediateSolicited, send, &[7; 8]),
        (Opcode::AtomicRequest, reads, &[]),
    ];
    for (opcode, queue, payload) in cases {
        let mut end = End::new(1, 1);
        let atomic = crate::atomic::request(1, add, end.stag, BASE);
        let payload = if payload.is_empty() {
            &atomic[18..]
        } else {
            payload
        };
        end.post_receive(1, 0, 10);
        let stag = end.register(0, 100, all_rights(), Scope::Stream(PD, STREAM));
        let mut ulpdu = untagged(opcode, true, queue, 1, 0, payload);
        ulpdu[2..6].copy_from_slice(&stag.0.to_be_bytes());
        end.receive(&ulpdu).unwrap();
        assert!(end.table().is_valid(stag), "{opcode:?}");
        let flags = |done: &Completion| done.flags & completion_flags::WITH_INVALIDATE;
        assert!(end.received().iter().all(|done| flags(done) == 0));
    }
}
