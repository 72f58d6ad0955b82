//! What the send queue becomes, and how requests complete.

use rnic_core::memory::table::Access;
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::send_flags::{INLINE, SIGNALED, SOLICITED};
use rnic_core::verbs::{SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Control, Opcode, ReadRequest};

use crate::fixture::{BASE, End, OTHER_PD, PD, Settings, all_rights, header, payload, tagged};

fn opcode(ulpdu: &[u8]) -> Opcode {
    Opcode::try_from(Control::from(header(ulpdu).ulp()).opcode).unwrap()
}

fn write(end: &End, wr_id: u64, start: usize, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Write)
        .with_sges(&[end.sge(start, len)])
        .unwrap()
        .with_remote(Stag(0x99), TaggedOffset(0x1_0000_0000))
}

pub(crate) fn read(end: &End, wr_id: u64, start: usize, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Read)
        .with_sges(&[end.sge(start, len)])
        .unwrap()
        .with_remote(Stag(0x99), TaggedOffset(0x44))
}

pub(crate) fn send(wr_id: u64) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Send)
}

/// A segment of a Read Response to this end's memory.
pub(crate) fn response(end: &End, last: bool, start: usize, payload: &[u8]) -> Vec<u8> {
    tagged(
        Opcode::ReadResponse,
        last,
        end.stag,
        BASE + start as u64,
        payload,
    )
}

#[test]
fn a_write_becomes_a_tagged_message() {
    // rfc: 5040-3, 5040-6, 5040-9, 5040-10a, 5040-24, 5040-25, 5041-54
    let mut end = End::new(0, 0);
    end.fill(10, b"written");
    end.post(write(&end, 1, 10, 7));
    let message = end.next_segment().unwrap();
    let DdpHeader::Tagged(header) = header(&message) else {
        panic!("a Write is tagged");
    };
    assert_eq!(
        (header.stag, header.offset),
        (Stag(0x99), TaggedOffset(0x1_0000_0000))
    );
    assert_eq!((header.ulp, header.last), (0x40, true));
    assert_eq!(payload(&message), b"written");
}

#[test]
fn sends_become_untagged_messages_of_queue_0() {
    // rfc: 5040-3, 5040-5, 5040-6, 5040-9, 5040-12, 5040-51, 5040-52, 5040-55, 5040-58, 5040-59
    let cases = [
        (WrOpcode::Send, 0, Opcode::Send, 0),
        (WrOpcode::Send, SOLICITED, Opcode::SendSolicited, 0),
        (WrOpcode::SendInvalidate, 0, Opcode::SendInvalidate, 0xabcd),
        (
            WrOpcode::SendInvalidate,
            SOLICITED,
            Opcode::SendSolicitedInvalidate,
            0xabcd,
        ),
    ];
    for (wr_opcode, flags, expected, invalidate) in cases {
        let mut end = End::new(0, 0);
        let mut wr = SendWr::new(1, wr_opcode).with_flags(flags);
        wr.invalidate_stag = 0xabcd;
        end.post(wr);
        let message = end.next_segment().unwrap();
        let DdpHeader::Untagged(header) = header(&message) else {
            panic!("a Send is untagged");
        };
        assert_eq!(opcode(&message), expected);
        assert_eq!(
            (header.queue, header.ulp32),
            (QueueNumber::SEND, invalidate)
        );
    }
}

#[test]
fn a_read_becomes_a_read_request() {
    // rfc: 5040-6, 5040-9, 5040-10a, 5040-13, 5040-14, 5040-30, 5040-31, 5040-35, 5040-36
    let mut end = End::new(0, 1);
    end.post(read(&end, 1, 500, 300));
    let message = end.next_segment().unwrap();
    let DdpHeader::Untagged(header) = header(&message) else {
        panic!("a Read Request is untagged");
    };
    assert_eq!(
        (header.queue, header.ulp, header.ulp32),
        (QueueNumber::READ_REQUEST, 0x41, 0)
    );
    let expected = ReadRequest {
        sink_stag: end.stag,
        sink_offset: TaggedOffset(BASE + 500),
        length: 300,
        source_stag: Stag(0x99),
        source_offset: TaggedOffset(0x44),
    };
    assert_eq!(ReadRequest::parse(payload(&message)), Ok(expected));
}

#[test]
fn a_message_gathers_its_pieces() {
    let mut end = End::new(0, 0);
    end.fill(0, b"abc");
    end.fill(100, b"defgh");
    let nowhere = Sge {
        offset: 5,
        length: 0,
        lkey: 0,
    };
    let sges = [end.sge(0, 3), nowhere, end.sge(100, 5)];
    end.post(send(1).with_sges(&sges).unwrap());
    assert_eq!(payload(&end.next_segment().unwrap()), b"abcdefgh");
}

#[test]
fn inline_data_needs_no_memory() {
    let mut end = End::new(0, 0);
    for len in [0, 1, 64] {
        let data = vec![7; len];
        end.post(send(1).with_inline(&data).unwrap());
        assert_eq!(payload(&end.next_segment().unwrap()), data);
    }
}

#[test]
fn writes_and_sends_complete_when_acknowledged() {
    // rfc: 5040-73
    let mut end = End::new(0, 0);
    end.post(write(&end, 1, 0, 10));
    end.post(send(2));
    end.next_segment().unwrap();
    let first = end.stream;
    end.next_segment().unwrap();
    end.acked(first - 1);
    assert!(end.sent().is_empty());
    end.acked(first);
    let done = end.sent();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len), (1, 1, 10));
    assert_eq!(done[0].opcode(), Ok(WcOpcode::Write));
    assert!(!end.closes(), "the Send is not acknowledged");
    end.acked_all();
    assert_eq!(end.sent_ids(), [(2, WcStatus::Success)]);
    assert!(end.closes());
}

#[test]
fn a_message_not_wholly_sent_does_not_complete() {
    let mut end = Settings::new(0, 0).small().connect();
    end.post(write(&end, 1, 0, 5000));
    assert!(!header(&end.segments().pop().unwrap()).last());
    // All but the last segment.
    loop {
        assert!(end.sent().is_empty());
        end.acked_all();
        let more = end.segments();
        if header(more.last().unwrap()).last() {
            break;
        }
    }
    assert!(end.sent().is_empty());
    end.acked_all();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
}

#[test]
fn unsignalled_requests_make_no_completion() {
    for signal_all in [false, true] {
        let mut settings = Settings::new(0, 0);
        settings.qp.signal_all = signal_all;
        let mut end = settings.connect();
        end.post(send(1).with_flags(0));
        end.post(send(2).with_flags(SIGNALED));
        end.post(send(3).with_flags(0));
        assert_eq!(end.segments().len(), 3);
        end.acked_all();
        let mut done = vec![(2, WcStatus::Success)];
        if signal_all {
            done = [1, 2, 3].map(|id| (id, WcStatus::Success)).into();
        }
        assert_eq!(end.sent_ids(), done);
        assert!(end.closes(), "their entries are free again");
    }
}

#[test]
fn requests_complete_in_the_order_of_their_posting() {
    // rfc: 5040-74
    let mut end = End::new(0, 4);
    end.post(send(1));
    end.post(read(&end, 2, 0, 4));
    end.post(send(3));
    let ends: Vec<_> = (0..3)
        .map(|_| end.next_segment().map(|_| end.stream).unwrap())
        .collect();
    // The response comes before anything was acknowledged.
    let ulpdu = response(&end, true, 0, b"data");
    end.receive(&ulpdu).unwrap();
    assert!(
        end.sent().is_empty(),
        "the Read waits for the Send before it"
    );
    end.acked(ends[0]);
    assert_eq!(
        end.sent_ids(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    end.acked(ends[2]);
    assert_eq!(end.sent_ids(), [(3, WcStatus::Success)]);

    end.post(read(&end, 4, 0, 4));
    end.post(send(5));
    assert_eq!(end.segments().len(), 2);
    end.acked_all();
    assert!(
        end.sent().is_empty(),
        "the Send waits for the Read before it"
    );
    let ulpdu = response(&end, true, 0, b"data");
    end.receive(&ulpdu).unwrap();
    assert_eq!(
        end.sent_ids(),
        [(4, WcStatus::Success), (5, WcStatus::Success)]
    );
}

/// How a request that cannot be carried out completes.
fn failure(end: &mut End, wr: SendWr) -> WcStatus {
    end.post(send(100));
    assert_eq!(end.segments().len(), 1);
    end.acked_all();
    end.post(wr);
    end.post(send(200));
    let refused = end.refused().unwrap();
    assert_eq!(refused.numbers, (0, 0, 0));
    // A Terminate goes out in its place, without headers, and nothing after it. The one behind is
    // flushed.
    let terminate = end.next_segment().unwrap();
    assert_eq!(opcode(&terminate), Opcode::Terminate);
    assert_eq!(payload(&terminate), [0; 4]);
    assert_eq!(end.next_segment(), None);
    let [first, failed, last] = end.sent_ids()[..] else {
        panic!("three requests complete");
    };
    assert_eq!(first, (100, WcStatus::Success));
    assert_eq!(last, (200, WcStatus::WrFlushed));
    let (wr_id, status) = failed;
    assert_eq!(wr_id, wr.wr_id);
    refused.assert_is(RdmapError::Request { wr_id, status });
    status
}

#[test]
fn local_protection_errors() {
    // rfc: 5040-87, 5040-88a
    let keys = |end: &End| {
        [
            Stag(0),
            Stag(0x1234_5678),
            end.register(0, 100, all_rights(), OTHER_PD),
        ]
    };
    for operation in [
        WrOpcode::Write,
        WrOpcode::Read,
        WrOpcode::Send,
        WrOpcode::SendInvalidate,
    ] {
        for which in 0..3 {
            let mut end = End::new(4, 4);
            let lkey = keys(&end)[which].0;
            let bad = Sge {
                offset: BASE,
                length: 10,
                lkey,
            };
            let wr = SendWr::new(1, operation).with_sges(&[bad]).unwrap();
            assert_eq!(failure(&mut end, wr), WcStatus::LocalProtectionError);
        }
        let mut end = End::new(4, 4);
        let lkey = end.register(0, 100, all_rights(), PD).0;
        let outside = Sge {
            offset: BASE + 95,
            length: 10,
            lkey,
        };
        let wr = SendWr::new(1, operation).with_sges(&[outside]).unwrap();
        assert_eq!(failure(&mut end, wr), WcStatus::LocalProtectionError);
    }
    // Any of the pieces.
    let mut end = End::new(4, 4);
    let bad = Sge {
        offset: BASE,
        length: 1,
        lkey: 0,
    };
    let wr = send(1).with_sges(&[end.sge(0, 5), bad]).unwrap();
    assert_eq!(failure(&mut end, wr), WcStatus::LocalProtectionError);
    // The sink of a Read must be writable.
    let mut end = End::new(4, 4);
    let lkey = end
        .register(0, 100, Access::REMOTE_READ | Access::REMOTE_WRITE, PD)
        .0;
    let sge = Sge {
        offset: BASE,
        length: 10,
        lkey,
    };
    let wr = SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap();
    assert_eq!(failure(&mut end, wr), WcStatus::LocalProtectionError);
}

#[test]
fn requests_that_make_no_sense() {
    let inline_read = SendWr::new(1, WrOpcode::Read).with_inline(b"x").unwrap();
    assert_eq!(
        failure(&mut End::new(4, 4), inline_read),
        WcStatus::LocalQpOperationError
    );

    let mut unknown = send(1);
    unknown.opcode = 77;
    assert_eq!(
        failure(&mut End::new(4, 4), unknown),
        WcStatus::LocalQpOperationError
    );

    let mut many = send(1);
    many.sge_count = 17;
    assert_eq!(
        failure(&mut End::new(4, 4), many),
        WcStatus::LocalQpOperationError
    );

    let mut long = send(1);
    (long.flags, long.length) = (INLINE, 257);
    assert_eq!(
        failure(&mut End::new(4, 4), long),
        WcStatus::LocalLengthError
    );
}

#[test]
fn lengths_that_do_not_add_up() {
    // rfc: 5041-50
    let mut end = End::new(4, 4);
    let mut wr = send(1).with_sges(&[end.sge(0, 10)]).unwrap();
    wr.length = 9;
    assert_eq!(failure(&mut end, wr), WcStatus::LocalLengthError);

    // 2^32 + 9 octets, which 32 bits would hold as 9.
    let mut end = End::new(4, 4);
    let lkey = end.stag.0;
    let pieces = [0x8000_0000, 0x8000_0009].map(|length| Sge {
        offset: BASE,
        length,
        lkey,
    });
    let mut wr = send(1).with_sges(&pieces[..1]).unwrap();
    wr.payload[16..32].copy_from_slice(zerocopy::IntoBytes::as_bytes(&pieces[1]));
    (wr.sge_count, wr.length) = (2, 9);
    assert_eq!(failure(&mut end, wr), WcStatus::LocalLengthError);
}

/// What the peer carries out completes as done in front of the request that failed by itself, and
/// what is behind it is flushed.
#[test]
fn requests_in_front_of_one_that_fails_complete_first() {
    // rfc: 5040-74, 5040-87, 5040-88a
    let mut end = End::new(4, 4);
    let bad = Sge {
        offset: BASE,
        length: 10,
        lkey: 0,
    };
    end.post(send(1));
    end.post(read(&end, 2, 0, 4));
    end.post(write(&end, 3, 0, 8));
    end.post(send(4).with_sges(&[bad]).unwrap());
    end.post(send(5).with_inline(b"never sent").unwrap());
    assert_eq!(end.segments().len(), 3);
    assert_eq!(end.sent_ids(), []);
    end.acked_all();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    // What is posted meanwhile is not sent either.
    end.post(send(6));
    assert_eq!(end.segments().len(), 0);
    let refused = end.receive(&response(&end, true, 0, b"read")).unwrap_err();
    assert_eq!(refused.numbers, (0, 0, 0));
    let [terminate] = &end.segments()[..] else {
        panic!("a Terminate, and nothing else");
    };
    assert_eq!(terminate[1], 0x47);
    let expected = [
        (2, WcStatus::Success),
        (3, WcStatus::Success),
        (4, WcStatus::LocalProtectionError),
        (5, WcStatus::WrFlushed),
        (6, WcStatus::WrFlushed),
    ];
    assert_eq!(end.sent_ids(), expected);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn memory_revoked_in_the_middle_of_a_message() {
    let mut end = Settings::new(0, 0).small().connect();
    let lkey = end.register(0, 5000, all_rights(), PD);
    let sge = Sge {
        offset: BASE,
        length: 5000,
        lkey: lkey.0,
    };
    end.post(send(1).with_sges(&[sge]).unwrap());
    end.post(send(2));
    assert!(!header(&end.segments().pop().unwrap()).last());
    end.table().revoke(lkey).unwrap();
    end.acked_all();
    let [terminate] = &end.segments()[..] else {
        panic!("a Terminate, and nothing else");
    };
    assert_eq!(terminate[1], 0x47);
    let expected = [
        (1, WcStatus::LocalProtectionError),
        (2, WcStatus::WrFlushed),
    ];
    assert_eq!(end.sent_ids(), expected);
}

#[test]
fn a_full_completion_queue_holds_requests_back() {
    let mut end = Settings::new(0, 0).with_rings(16, 2).connect();
    for wr_id in 0..3 {
        end.post(send(wr_id));
    }
    assert_eq!(end.segments().len(), 3);
    // Three completions, room for two.
    end.raw().ack_limit = None;
    end.raw().acknowledge();
    end.sim.run_now();
    end.post(send(3));
    end.sim.run_now();
    assert!(end.raw().take_ulpdu().is_none());
    let statuses = |ids: std::ops::Range<u64>| ids.map(|id| (id, WcStatus::Success));
    assert!(end.sent_ids().into_iter().eq(statuses(0..2)));
    assert_eq!(end.segments().len(), 1);
    assert!(end.sent_ids().into_iter().eq(statuses(2..3)));
}

#[test]
fn the_queue_goes_round_more_than_once() {
    let mut end = Settings::new(0, 4).with_rings(4, 16).connect();
    for round in 0..20u64 {
        for i in 0..4 {
            end.post(send(round * 4 + i));
        }
        assert_eq!(end.segments().len(), 4);
        end.acked_all();
        let ids: Vec<_> = end.sent_ids().iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(|i| round * 4 + i));
    }
}
