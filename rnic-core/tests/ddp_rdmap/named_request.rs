//! Which request a peer's Terminate names, by the segment that it quotes: that one completes with
//! more than "flushed".

use rnic_core::mpa::startup::Rtr;
use rnic_core::verbs::{SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{QueueNumber, Stag, TaggedOffset, header_octets};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

use crate::fixture::{BASE, End, Settings, pump, send, tagged, untagged};
use crate::terminate::{control, incoming};

/// A peer's Terminate that quotes a segment.
fn quoting(control: TerminateControl, ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = [0; Terminate::MAX_LEN];
    let len = Terminate {
        control,
        ddp_segment_length: Some(ulpdu.len() as u16),
        ddp_header: header_octets(ulpdu),
        rdma_header: None,
    }
    .emit(&mut octets);
    incoming(&octets[..len])
}

#[test]
fn a_terminate_does_not_take_back_what_was_done() {
    let mut end = End::new(0, 4);
    end.post(SendWr::new(1, WrOpcode::Send));
    let sge = end.sge(0, 4);
    end.post(SendWr::new(2, WrOpcode::Read).with_sges(&[sge]).unwrap());
    end.segments();
    let response = tagged(Opcode::ReadResponse, true, end.stag, BASE, b"data");
    end.receive(&response).unwrap();
    let queue = QueueNumber::READ_REQUEST;
    let request = untagged(Opcode::ReadRequest, true, queue, 1, 0, &[0; 28]);
    end.receive(&quoting(control(0, 1, 0), &request)).unwrap();
    let expected = [(1, WcStatus::Success), (2, WcStatus::Success)];
    assert_eq!(end.sent_ids(), expected);
}

/// The peer's TCP has acknowledged it, but its RDMAP never saw it.
#[test]
fn what_came_behind_the_request_at_fault_is_flushed() {
    let mut end = End::new(0, 4);
    let sge = end.sge(0, 4);
    end.post(SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap());
    end.post(SendWr::new(2, WrOpcode::Send));
    end.segments();
    end.acked_all();
    let queue = QueueNumber::READ_REQUEST;
    let request = untagged(Opcode::ReadRequest, true, queue, 1, 0, &[0; 28]);
    end.receive(&quoting(control(0, 1, 0), &request)).unwrap();
    let expected = [(1, WcStatus::RemoteAccessError), (2, WcStatus::WrFlushed)];
    assert_eq!(end.sent_ids(), expected);
}

#[test]
fn a_write_is_not_blamed_for_a_read_response() {
    for (opcode, status) in [
        (Opcode::Write, WcStatus::RemoteAccessError),
        (Opcode::ReadResponse, WcStatus::WrFlushed),
    ] {
        let mut end = End::new(0, 0);
        let wr = SendWr::new(1, WrOpcode::Write)
            .with_inline(b"data")
            .unwrap()
            .with_remote(Stag(9), TaggedOffset(100));
        end.post(wr);
        end.segments();
        let quoted = tagged(opcode, true, Stag(9), 102, b"ta");
        end.receive(&quoting(control(1, 1, 0), &quoted)).unwrap();
        assert_eq!(end.sent_ids(), [(1, status)]);
    }
}

#[test]
fn a_peer_that_failed_is_told_from_one_that_refused() {
    for (layer, error_type, status) in [
        (0, 2, WcStatus::RemoteOperationError),
        (1, 2, WcStatus::RemoteInvalidRequestError),
        (1, 1, WcStatus::RemoteAccessError),
    ] {
        let mut end = End::new(0, 4);
        end.post(SendWr::new(1, WrOpcode::Send));
        end.segments();
        let terminate = quoting(control(layer, error_type, 0xff), &send(1, b""));
        end.receive(&terminate).unwrap();
        assert_eq!(end.sent_ids(), [(1, status)]);
    }
}

#[test]
fn a_bad_rkey_of_a_read_is_told_to_the_one_who_posted_it() {
    let (mut a, mut b) = (End::new(4, 4), End::new(4, 4));
    for (wr_id, stag) in [(1, b.stag), (2, Stag(0xbad)), (3, b.stag)] {
        let wr = SendWr::new(wr_id, WrOpcode::Read)
            .with_sges(&[a.sge(wr_id as usize * 100, 10)])
            .unwrap()
            .with_remote(stag, TaggedOffset(BASE));
        a.post(wr);
    }
    pump(&mut a, &mut b);
    assert_eq!(a.told(), Some(control(0, 1, 0)));
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::RemoteAccessError),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(a.sent_ids(), expected);
}

#[test]
fn a_bad_rkey_of_a_write_is_told_where_it_was_not_acknowledged() {
    let (mut a, mut b) = (End::new(4, 4), End::new(4, 4));
    let good = SendWr::new(1, WrOpcode::Write)
        .with_sges(&[a.sge(0, 100)])
        .unwrap()
        .with_remote(b.stag, TaggedOffset(BASE));
    a.post(good);
    a.post(good.with_remote(Stag(0xbad), TaggedOffset(BASE)));
    for ulpdu in a.segments() {
        let _ = b.receive(&ulpdu);
    }
    let terminate = b.next_segment().unwrap();
    a.receive(&terminate).unwrap();
    assert_eq!(a.told(), Some(control(1, 1, 0)));
    assert_eq!(
        a.sent_ids(),
        [(1, WcStatus::Success), (1, WcStatus::RemoteAccessError)]
    );
}

#[test]
fn a_send_without_a_receive_is_told_where_it_was_not_acknowledged() {
    let (mut a, mut b) = (End::new(4, 4), End::new(4, 4));
    b.post_receive(1, 0, 10);
    a.post(SendWr::new(1, WrOpcode::Send));
    a.post(SendWr::new(2, WrOpcode::Send));
    a.post(SendWr::new(3, WrOpcode::Send));
    for ulpdu in a.segments() {
        let _ = b.receive(&ulpdu);
    }
    let terminate = b.next_segment().unwrap();
    a.receive(&terminate).unwrap();
    assert_eq!(a.told(), Some(control(1, 2, 2)));
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::RemoteInvalidRequestError),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(a.sent_ids(), expected);
}

/// The request that a peer's Terminate names by this segment.
fn refused(end: &mut End, ulpdu: &[u8]) -> Option<u64> {
    end.receive(&quoting(control(0, 1, 0), ulpdu)).unwrap();
    let mut refused = end.sent_ids();
    refused.retain(|(_, status)| *status == WcStatus::RemoteAccessError);
    assert!(refused.len() <= 1, "{refused:?}");
    refused.pop().map(|(id, _)| id)
}

/// A segment of a queue: of a Send, or of a Read Request.
fn quoted(queue: QueueNumber, msn: u32) -> Vec<u8> {
    let opcode = match queue {
        QueueNumber::SEND => Opcode::Send,
        _ => Opcode::ReadRequest,
    };
    untagged(opcode, true, queue, msn, 0, &[0; 28])
}

fn read(end: &End, wr_id: u64) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Read)
        .with_sges(&[end.sge(0, 4)])
        .unwrap()
}

fn write(wr_id: u64, opcode: WrOpcode, stag: Stag, offset: u64) -> SendWr {
    SendWr::new(wr_id, opcode)
        .with_inline(b"data")
        .unwrap()
        .with_remote(stag, TaggedOffset(offset))
}

/// The messages of each queue have numbers of their own, and those of Immediate Data are a Send's.
#[test]
fn a_message_is_named_by_its_queue_and_its_number() {
    for (queue, msn, named) in [
        (QueueNumber::SEND, 1, Some(1)),
        (QueueNumber::READ_REQUEST, 1, Some(2)),
        (QueueNumber::SEND, 2, Some(3)),
        (QueueNumber::READ_REQUEST, 2, Some(4)),
        (QueueNumber::SEND, 3, None),
    ] {
        let mut end = End::new(0, 4);
        end.post(write(1, WrOpcode::WriteImmediate, Stag(9), 0));
        end.post(read(&end, 2));
        end.post(SendWr::new(3, WrOpcode::Send));
        end.post(read(&end, 4));
        end.segments();
        assert_eq!(
            refused(&mut end, &quoted(queue, msn)),
            named,
            "{queue} {msn}"
        );
    }
}

#[test]
fn a_write_is_named_by_its_own_octets() {
    for (stag, offset, named) in [
        (9, 99, None),
        (9, 100, Some(1)),
        (9, 103, Some(1)),
        (9, 104, Some(2)),
        (9, 108, None),
        (8, 102, Some(3)),
        (7, 102, None),
    ] {
        let mut end = End::new(0, 0);
        for (wr_id, stag, offset) in [(1, 9, 100), (2, 9, 104), (3, 8, 100)] {
            end.post(write(wr_id, WrOpcode::Write, Stag(stag), offset));
        }
        end.segments();
        let ulpdu = tagged(Opcode::Write, true, Stag(stag), offset, b"x");
        assert_eq!(refused(&mut end, &ulpdu), named, "{stag} {offset}");
    }
}

/// The message that opens a peer-to-peer connection is no request, but has a number.
#[test]
fn requests_behind_an_rtr_message_have_later_msns() {
    let none = Rtr::default();
    for (rtr, queue) in [
        (Rtr { send: true, ..none }, QueueNumber::SEND),
        (Rtr { read: true, ..none }, QueueNumber::READ_REQUEST),
    ] {
        for (msn, named) in [(1, None), (2, Some(1))] {
            let mut end = Settings::new(0, 4).with_rtr(rtr).connect();
            assert_eq!(end.segments().len(), 1, "the RTR message");
            let request = if queue == QueueNumber::SEND {
                SendWr::new(1, WrOpcode::Send)
            } else {
                let response = tagged(Opcode::ReadResponse, true, Stag(0), 0, &[]);
                end.receive(&response).unwrap();
                read(&end, 1)
            };
            end.post(request);
            end.segments();
            let ulpdu = quoted(queue, msn);
            assert_eq!(refused(&mut end, &ulpdu), named, "{queue} {msn}");
        }
    }
}
