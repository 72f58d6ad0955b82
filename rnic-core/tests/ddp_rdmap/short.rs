//! Inline messages, which take a fast path: their outcome is that of the ordinary way, or they do
//! not take it.

use rnic_core::verbs::wr::MAX_INLINE;
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED, SOLICITED};
use rnic_core::verbs::{SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

use crate::fixture::{BASE, End, Settings, Ulpdu, header, pattern, payload, ulp, untagged};
use crate::requester::{read, response, send};

/// Octets that exceed the initial congestion window where segments are small.
const LONG: usize = 5000;

fn request(wr_id: u64, opcode: WrOpcode, octets: &[u8]) -> SendWr {
    SendWr::new(wr_id, opcode)
        .with_remote(Stag(0x99), TaggedOffset(0x1_0000_0000 + wr_id * 64))
        .with_inline(octets)
        .unwrap()
}

fn write(wr_id: u64) -> SendWr {
    request(wr_id, WrOpcode::Write, &wr_id.to_be_bytes())
}

/// The opcodes of segments.
fn opcodes(segments: &[Ulpdu]) -> Vec<u8> {
    segments.iter().map(|ulpdu| header(ulpdu).ulp()).collect()
}

/// One message is sent alone, and two wait together.
// rfc: 5040-24, 5040-25, 5040-51
#[test]
fn either_way_makes_the_same_message() {
    for opcode in [WrOpcode::Write, WrOpcode::Send] {
        let (mut short, mut long) = (End::new(0, 0), End::new(0, 0));
        for len in 0..=MAX_INLINE {
            let octets = pattern(len as u64, len);
            let wr = request(len as u64, opcode, &octets);
            long.fill(0, &octets);
            let sge = [long.sge(0, len)];
            let in_memory = SendWr::new(len as u64, opcode)
                .with_remote(Stag(wr.remote_stag), TaggedOffset(wr.remote_offset))
                .with_sges(&sge)
                .unwrap();
            for count in [1, 2] {
                for _ in 0..count {
                    short.post(wr);
                    long.post(in_memory);
                }
                let messages = short.segments();
                assert_eq!(messages.len(), count, "each is one segment");
                assert_eq!(messages, long.segments());
                assert!(messages.iter().all(|ulpdu| payload(ulpdu) == octets));
                short.acked_all();
                long.acked_all();
                let done = short.sent();
                assert_eq!(done.len(), count);
                assert_eq!(done, long.sent());
            }
        }
    }
}

#[test]
fn what_is_not_short_is_left_to_the_long_way() {
    use Opcode::{Immediate, ReadRequest, Send, SendInvalidate, SendSolicited, Terminate, Write};
    let end = End::new(0, 4);
    let in_memory = SendWr::new(1, WrOpcode::Write).with_sges(&[end.sge(0, 8)]);
    let mut too_long = write(1);
    too_long.length = MAX_INLINE as u32 + 1;
    let mut unknown = write(1);
    unknown.opcode = 200;
    let solicited = send(1)
        .with_flags(SIGNALED | SOLICITED)
        .with_inline(b"x")
        .unwrap();
    let cases: [(SendWr, &[Opcode]); 8] = [
        (in_memory.unwrap(), &[Write, Send]),
        (too_long, &[Terminate]),
        (unknown, &[Terminate]),
        (solicited, &[SendSolicited, Send]),
        (
            request(1, WrOpcode::SendInvalidate, b"x"),
            &[SendInvalidate, Send],
        ),
        (
            request(1, WrOpcode::WriteImmediate, b"x"),
            &[Write, Immediate, Send],
        ),
        (request(1, WrOpcode::Immediate, b""), &[Immediate, Send]),
        (read(&end, 1, 0, 8), &[ReadRequest, Send]),
    ];
    for (wr, expected) in cases {
        let mut end = End::new(0, 4);
        end.post(wr);
        end.post(request(2, WrOpcode::Send, b"short"));
        let expected: Vec<_> = expected.iter().copied().map(ulp).collect();
        assert_eq!(opcodes(&end.segments()), expected, "{wr:?}");
    }
}

/// Messages that wait together share a TCP segment, as many as fit whole.
#[test]
fn a_message_for_which_there_is_no_room_waits() {
    let mut end = Settings::new(0, 0).small().connect();
    let octets = |id: u64| pattern(id, 10 + id as usize * 3);
    for id in 0..16 {
        end.post(request(id, WrOpcode::Send, &octets(id)));
    }
    let messages = end.all_segments();
    assert_eq!(messages.len(), 16);
    for (id, message) in (0..).zip(&messages) {
        assert!(header(message).last());
        assert_eq!(payload(message), octets(id));
    }
    let done: Vec<_> = (0..16).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(end.sent_ids(), done);
}

// rfc: 5040-73, 5040-74
#[test]
fn inline_requests_complete_in_order_when_acknowledged() {
    let mut end = Settings::new(0, 0).with_rings(4, 16).connect();
    end.post(write(1).with_flags(0));
    end.post(write(2));
    end.post(request(3, WrOpcode::Send, b"three").with_flags(0));
    end.post(write(4));
    let mut ends = Vec::new();
    while end.next_segment().is_some() {
        ends.push(end.stream);
    }
    assert_eq!(ends.len(), 4);
    end.acked(ends[1] - 1);
    assert_eq!(end.sent_ids(), []);
    end.acked(ends[1]);
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    // Both entries can be used again.
    end.post(write(5));
    end.post(write(6));
    assert_eq!(end.segments().len(), 2);
    end.acked(ends[2]);
    assert_eq!(end.sent_ids(), []);
    end.acked(ends[3]);
    let four = end.sent();
    assert_eq!((four.len(), four[0].wr_id, four[0].byte_len), (1, 4, 8));
    end.acked_all();
    assert_eq!(end.sent_ids(), [5, 6].map(|id| (id, WcStatus::Success)));
}

// rfc: 5040-72
#[test]
fn a_fence_holds_inline_requests_back() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 0, 4));
    end.post(write(2).with_flags(SIGNALED | FENCE));
    assert_eq!(opcodes(&end.segments()), [ulp(Opcode::ReadRequest)]);
    end.acked_all();
    assert_eq!(end.segments().len(), 0);
    end.receive(&response(&end, true, 0, b"read")).unwrap();
    assert_eq!(opcodes(&end.segments()), [ulp(Opcode::Write)]);
}

#[test]
fn immediate_data_go_ahead_of_the_next_inline_request() {
    let mut end = End::new(0, 0);
    end.post(request(1, WrOpcode::WriteImmediate, b"x"));
    end.post(write(2));
    let expected = [Opcode::Write, Opcode::Immediate, Opcode::Write].map(ulp);
    assert_eq!(opcodes(&end.segments()), expected);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn responses_alternate_with_inline_requests() {
    let mut end = Settings::new(4, 0).small().connect();
    // So much is not sent at once: the others wait behind it.
    let first = SendWr::new(0, WrOpcode::Send);
    let long = [end.sge(0, LONG)];
    end.post(first.with_sges(&long).unwrap());
    end.work();
    for id in 1..=3 {
        end.post(write(id));
    }
    let request = ReadRequest {
        sink_stag: Stag(5),
        sink_offset: TaggedOffset(0),
        length: 4,
        source_stag: end.stag,
        source_offset: TaggedOffset(BASE),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    for msn in [1, 2] {
        let asked = untagged(Opcode::ReadRequest, true, queue, msn, 0, &octets);
        end.receive(&asked).unwrap();
    }
    let mut sent = opcodes(&end.all_segments());
    sent.dedup();
    let [send, write, answer] = [Opcode::Send, Opcode::Write, Opcode::ReadResponse].map(ulp);
    assert_eq!(sent, [send, answer, write, answer, write]);
}

#[test]
fn no_inline_request_begins_while_the_completion_queue_is_full() {
    let mut end = Settings::new(0, 0).with_rings(8, 1).connect();
    for id in 1..=2 {
        end.post(write(id));
    }
    assert_eq!(end.segments().len(), 2);
    // Two completions, room for one.
    end.raw().ack_limit = None;
    end.raw().acknowledge();
    end.sim.run_now();
    end.post(write(3));
    end.sim.run_now();
    assert!(end.raw().take_ulpdu().is_none());
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    assert_eq!(end.segments().len(), 1);
    end.acked_all();
    let rest = [end.sent_ids(), end.sent_ids()].concat();
    assert_eq!(rest, [2, 3].map(|id| (id, WcStatus::Success)));
}

// rfc: 5041-67
#[test]
fn no_inline_request_begins_that_was_posted_after_the_disconnect() {
    let mut end = End::new(0, 0);
    end.post(write(1));
    assert!(!end.closes(), "it is to be acknowledged first");
    end.post(write(2));
    assert_eq!(end.segments().len(), 1);
    end.acked_all();
    assert_eq!(end.next_segment(), None);
    end.raw().close();
    let ended = [(1, WcStatus::Success), (2, WcStatus::WrFlushed)];
    assert_eq!(end.sent_ids(), ended);
}

// rfc: 5040-68, 5040-s5
#[test]
fn no_inline_request_begins_on_a_stream_that_ends() {
    let mut end = End::new(0, 0);
    // It cannot be carried out, and nothing behind it is.
    end.post(SendWr::new(1, WrOpcode::LocalInvalidate));
    end.post(write(2));
    assert_eq!(end.refused().unwrap().numbers, (0, 0, 0));
    assert_eq!(opcodes(&end.segments()), [ulp(Opcode::Terminate)]);
    end.post(write(3));
    assert_eq!(end.next_segment(), None, "it was the last");
    let ended = [
        (1, WcStatus::MwBindError),
        (2, WcStatus::WrFlushed),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(end.sent_ids(), ended);
}
