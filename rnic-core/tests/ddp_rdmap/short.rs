//! Short messages that stand in their requests and go the short way: the same as on the long one, or not at all.

use rnic_core::ddp::Segmenter;
use rnic_core::rdmap::{Opening, RdmapError};
use rnic_core::verbs::wr::MAX_INLINE;
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED, SOLICITED};
use rnic_core::verbs::{SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{DdpHeader, Stag, TAGGED_LEN, TaggedOffset, UNTAGGED_LEN};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

use crate::fixture::{BASE, End, inline, pattern, untagged};
use crate::requester::{read, response, send};

const ROOM: usize = UNTAGGED_LEN + MAX_INLINE;

fn request(wr_id: u64, opcode: WrOpcode, octets: &[u8]) -> SendWr {
    SendWr::new(wr_id, opcode)
        .with_remote(Stag(0x99), TaggedOffset(0x1_0000_0000 + wr_id * 64))
        .with_inline(octets)
        .unwrap()
}

fn write(wr_id: u64) -> SendWr {
    request(wr_id, WrOpcode::Write, &wr_id.to_be_bytes())
}

impl End {
    /// The next message the short way: its header as RDMAP decides it, and its octets.
    fn next_short(&mut self, room: usize) -> Option<(DdpHeader, Vec<u8>)> {
        let mut room = vec![0xee; room];
        let stream = &mut self.stream;
        let end = |len| {
            *stream += len as u64;
            *stream
        };
        let rdmap = &mut self.rdmap;
        let alone = rdmap.lone_short(&self.qp, &self.cqs);
        let short = rdmap.next_short(&mut room, end, &self.qp, &self.cqs);
        // What may go alone may go.
        if let Some(alone) = alone
            && room.len() == ROOM
        {
            assert_eq!(Some((alone.header, alone.len as usize)), short);
        }
        let (header, len) = short?;
        let octets = &room[header.len()..];
        assert!(octets[len..].iter().all(|octet| *octet == 0xee));
        Some((header, octets[..len].to_vec()))
    }

    /// Sends what can go the short way. Returns how many messages that were.
    fn send_short(&mut self) -> usize {
        let mut count = 0;
        while self.next_short(ROOM).is_some() {
            count += 1;
        }
        count
    }
}

// rfc: 5040-24, 5040-25, 5040-28, 5040-51
#[test]
fn either_way_makes_the_same_message() {
    for opcode in [WrOpcode::Write, WrOpcode::Send] {
        for len in 0..=MAX_INLINE {
            let wr = request(len as u64, opcode, &pattern(len as u64, len));
            let (mut short, mut long) = (End::new(0, 0), End::new(0, 0));
            short.post(wr);
            long.post(wr);
            let message = long.next_message().unwrap().unwrap();
            let (header, octets) = short.next_short(ROOM).unwrap();
            assert_eq!((header, &octets[..]), (message.header, inline(&message)));
            // DDP makes one segment of it.
            let cut = |end: &mut End| -> Segmenter { end.ddp.start_message(header, len as u32) };
            let cuts = [&mut short, &mut long].map(|end| cut(end).next(ROOM).unwrap());
            assert!(cuts[0].last && cuts[0] == cuts[1]);
        }
    }
}

#[test]
fn what_is_not_short_is_left_to_the_long_way() {
    let end = End::new(0, 4);
    let in_memory = SendWr::new(1, WrOpcode::Write).with_sges(&[end.sge(0, 8)]);
    let mut too_long = write(1);
    too_long.length = MAX_INLINE as u32 + 1;
    let mut unknown = write(1);
    unknown.opcode = 200;
    for wr in [
        in_memory.unwrap(),
        too_long,
        unknown,
        send(1)
            .with_flags(SIGNALED | SOLICITED)
            .with_inline(b"x")
            .unwrap(),
        request(1, WrOpcode::SendInvalidate, b"x"),
        request(1, WrOpcode::WriteImmediate, b"x"),
        request(1, WrOpcode::Immediate, b""),
        read(&end, 1, 0, 8),
    ] {
        let mut end = End::new(0, 4);
        end.post(wr);
        assert_eq!(end.next_short(ROOM), None, "{wr:?}");
        // It is still there.
        assert_ne!(end.next_message(), Ok(None), "{wr:?}");
    }
}

#[test]
fn a_message_for_which_there_is_no_room_waits() {
    let mut end = End::new(0, 0);
    end.post(write(1));
    for room in 0..TAGGED_LEN + 8 {
        assert_eq!(end.next_short(room), None);
    }
    assert!(end.next_short(TAGGED_LEN + 8).is_some());
    assert_eq!(end.next_short(ROOM), None);
}

// rfc: 5040-73, 5040-74
#[test]
fn they_complete_in_order_when_they_are_acknowledged() {
    let mut end = End::with_rings(0, 0, 4, 16);
    end.post(write(1).with_flags(0));
    end.post(write(2));
    end.post(request(3, WrOpcode::Send, b"three").with_flags(0));
    end.post(write(4));
    assert!(!end.can_post());
    assert_eq!(end.send_short(), 4);
    let one = TAGGED_LEN as u64 + 8;
    end.acked(2 * one - 1);
    assert_eq!(end.sent_ids(), []);
    end.acked(2 * one);
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    // Both entries can be used again.
    end.post(write(5));
    end.post(write(6));
    assert!(!end.can_post());
    end.acked(end.stream - one);
    assert_eq!(end.sent_ids(), []);
    assert!(end.can_post());
    end.acked(end.stream);
    let four = end.sent();
    assert_eq!((four.len(), four[0].wr_id, four[0].byte_len), (1, 4, 8));
    assert_eq!(end.send_short(), 2);
    end.acked(end.stream);
    assert_eq!(end.sent_ids().len(), 2);
}

// rfc: 5040-72
#[test]
fn a_fence_holds_them_back() {
    let mut end = End::new(0, 4);
    end.post(read(&end, 1, 0, 4));
    end.post(write(2).with_flags(SIGNALED | FENCE));
    assert_eq!(end.next_short(ROOM), None);
    assert_eq!(end.messages().len(), 1);
    assert_eq!(end.next_short(ROOM), None);
    end.receive(&response(&end, true, 0, b"read")).unwrap();
    assert_eq!(end.send_short(), 1);
}

#[test]
fn the_other_message_of_a_request_comes_first() {
    let mut end = End::new(0, 0);
    end.post(request(1, WrOpcode::WriteImmediate, b"x"));
    end.post(write(2));
    let first = end.next_message().unwrap().unwrap();
    end.rdmap.sent(first.token, 10);
    assert_eq!(end.next_short(ROOM), None);
    let follower = end.next_message().unwrap().unwrap();
    end.rdmap.sent(follower.token, 20);
    assert!(end.next_short(ROOM).is_some());
}

#[test]
fn one_is_alone_if_nothing_else_waits() {
    let is_alone = |end: &End| end.rdmap.lone_short(&end.qp, &end.cqs).is_some();
    let mut end = End::new(0, 0);
    assert!(!is_alone(&end));
    end.post(write(1));
    assert!(is_alone(&end));
    end.post(write(2));
    assert!(!is_alone(&end), "another waits");
    assert!(end.next_short(ROOM).is_some());
    assert!(is_alone(&end));
    end.rdmap.open_with(Opening::Write);
    assert!(!is_alone(&end), "the stream begins with another");
    let mut end = End::new(0, 0);
    end.post(write(1));
    end.refuse(RdmapError::Queues.into(), None);
    assert!(!is_alone(&end), "a Terminate is due");
}

#[test]
fn responses_have_their_turn() {
    let mut end = End::new(4, 0);
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
    let asked = untagged(
        Opcode::ReadRequest,
        true,
        rnic_core::wire::ddp::QueueNumber::READ_REQUEST,
        1,
        0,
        &octets,
    );
    assert!(end.next_short(ROOM).is_some());
    assert!(end.next_short(ROOM).is_some());
    end.receive(&asked).unwrap();
    assert_eq!(end.next_short(ROOM), None, "a response is due");
    let alone = end.rdmap.lone_short(&end.qp, &end.cqs);
    assert!(alone.is_none(), "a response is due");
    let answer = end.next_message().unwrap().unwrap();
    end.rdmap.sent(answer.token, 40);
    assert!(end.next_short(ROOM).is_some());
}

#[test]
fn none_begins_where_completions_have_no_room() {
    let mut end = End::with_rings(0, 0, 8, 1);
    for id in 1..=3 {
        end.post(write(id));
    }
    assert!(end.next_short(ROOM).is_some());
    assert!(end.next_short(ROOM).is_some());
    end.acked(end.stream);
    assert_eq!(end.next_short(ROOM), None);
    assert_eq!(end.sent_ids().len(), 1);
    end.cqs.flush();
    assert!(end.next_short(ROOM).is_some());
}

// rfc: 5041-67
#[test]
fn none_begins_that_was_posted_after_the_end() {
    let mut end = End::new(0, 0);
    end.post(write(1));
    end.rdmap.finish(&end.qp);
    end.post(write(2));
    assert_eq!(end.send_short(), 1);
    end.acked(end.stream);
    assert!(end.rdmap.is_idle(&end.qp));
    end.flush();
    let ended = [(1, WcStatus::Success), (2, WcStatus::WrFlushed)];
    assert_eq!(end.sent_ids(), ended);
}

// rfc: 5040-68, 5040-s5
#[test]
fn none_begins_on_a_stream_that_ends() {
    let mut end = End::new(0, 0);
    // It cannot be carried out, and nothing behind it is.
    end.post(SendWr::new(1, WrOpcode::LocalInvalidate));
    end.post(write(2));
    let error = end.next_message().unwrap_err();
    assert_eq!(end.next_short(ROOM), None, "a request has failed");
    end.refuse(error.into(), None);
    assert_eq!(end.next_short(ROOM), None, "a Terminate is due");
    assert!(end.next_message().unwrap().is_some());
    assert_eq!(end.next_short(ROOM), None, "it was the last");
    end.flush();
    assert_eq!(end.sent_ids()[1], (2, WcStatus::WrFlushed));
}
