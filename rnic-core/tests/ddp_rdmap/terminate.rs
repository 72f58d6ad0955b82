//! Terminate messages, sent and received.

use rnic_core::memory::{error::TagError, table::Access};
use rnic_core::rdmap::{RdmapError, TerminateCause};
use rnic_core::testing::raw_peer::fpdu;
use rnic_core::verbs::{RecvWr, SendWr, Sge, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, SegmentInfo, Stag, TaggedOffset,
    UntaggedHeader, header_octets,
};
use rnic_core::wire::rdmap::{
    BitOrder, Control, Opcode, RdmapWireError, ReadRequest, Terminate, TerminateControl,
};

use crate::fixture::{
    BASE, End, OTHER_PD, PD, Settings, all_rights, header, payload, pump, send, tagged, untagged,
};

pub(crate) fn control(layer: u8, error_type: u8, code: u8) -> TerminateControl {
    TerminateControl {
        layer,
        error_type,
        code,
    }
}

/// The Terminate that this end sends next, and that it sends nothing after it.
fn terminate(end: &mut End) -> Vec<u8> {
    end.refused().unwrap();
    let message = end.next_segment().unwrap();
    let DdpHeader::Untagged(header) = header(&message) else {
        panic!("a Terminate is untagged");
    };
    // rfc: 5040-12, 5040-61, 5040-62, 5040-63
    assert_eq!(
        (header.queue, header.ulp, header.ulp32),
        (QueueNumber::TERMINATE, 0x47, 0)
    );
    assert!(header.last);
    // rfc: 5040-68
    end.acked_all();
    assert_eq!(end.next_segment(), None);
    payload(&message).to_vec()
}

/// A peer's Terminate.
pub(crate) fn incoming(octets: &[u8]) -> Vec<u8> {
    untagged(
        Opcode::Terminate,
        true,
        QueueNumber::TERMINATE,
        1,
        0,
        octets,
    )
}

#[test]
fn ddp_errors_quote_the_segment_and_its_length() {
    // rfc: 5040-20, 5040-21, 5040-22, 5040-61, 5040-62, 5040-63, 5041-74, 5041-s11
    let mut end = End::new(0, 0);
    let write = tagged(Opcode::Write, true, Stag(0xdead), 0x1122, b"payload");
    assert!(end.receive(&write).is_err());
    end.post(SendWr::new(1, WrOpcode::Send));
    let octets = terminate(&mut end);
    assert_eq!(end.sent_ids(), [(1, WcStatus::WrFlushed)]);
    let expected = [&[0x11, 0x00, 0xc0, 0x00, 0, 21][..], &write[..14]].concat();
    assert_eq!(octets, expected);
}

#[test]
fn untagged_errors_quote_eighteen_octets() {
    let mut end = End::new(0, 0);
    let ulpdu = send(1, b"nobody waits for this");
    assert!(end.receive(&ulpdu).is_err());
    let octets = terminate(&mut end);
    let expected = [&[0x12, 0x02, 0xc0, 0x00, 0, 39][..], &ulpdu[..18]].concat();
    assert_eq!(octets, expected);
}

#[test]
fn read_errors_quote_the_request() {
    // rfc: 5040-23
    let mut end = End::new(1, 0);
    let request = ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(2),
        length: 3,
        source_stag: Stag(4),
        source_offset: TaggedOffset(5),
    };
    let mut header = [0; 28];
    request.emit(&mut header);
    let queue = QueueNumber::READ_REQUEST;
    let ulpdu = untagged(Opcode::ReadRequest, true, queue, 1, 0, &header);
    assert!(end.receive(&ulpdu).is_err());
    let octets = terminate(&mut end);
    let expected = [&[0x01, 0x00, 0xe0, 0x00, 0, 46][..], &ulpdu].concat();
    assert_eq!(octets, expected);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn earlier_reads_are_answered_before_the_terminate_of_a_later_one() {
    let mut end = Settings::new(2, 0).small().connect();
    // The first is too long to be on its way wholly when the second comes.
    let length = 5000;
    for (msn, source_stag) in [(1, end.stag), (2, Stag(0xbad))] {
        let request = ReadRequest {
            sink_stag: Stag(1),
            sink_offset: TaggedOffset(2),
            length,
            source_stag,
            source_offset: TaggedOffset(BASE),
        };
        let mut header = [0; 28];
        request.emit(&mut header);
        let queue = QueueNumber::READ_REQUEST;
        end.receive(&untagged(Opcode::ReadRequest, true, queue, msn, 0, &header))
            .unwrap();
    }
    let segments = end.all_segments();
    let (terminate, response) = segments.split_last().unwrap();
    let octets: usize = response.iter().map(|ulpdu| payload(ulpdu).len()).sum();
    assert_eq!(octets, length as usize);
    assert!(header(response.last().unwrap()).last());
    let told = Terminate::parse(payload(terminate)).unwrap();
    assert_eq!(told.control, control(0, 1, 0));
    assert_eq!(end.refused().unwrap().numbers, (0, 1, 0));
}

#[test]
fn a_terminate_carries_the_headers_of_figure_10() {
    // rfc: 5040-s1, 5040-s2, 5040-s3
    // RFC 5040 figure 10. rfc: 5040-18
    let unreadable = |end: &mut End| {
        let request = ReadRequest {
            sink_stag: Stag(1),
            sink_offset: TaggedOffset(2),
            length: 3,
            source_stag: end.register(0, 100, Access::REMOTE_WRITE, PD),
            source_offset: TaggedOffset(BASE),
        };
        let mut octets = [0; ReadRequest::LEN];
        request.emit(&mut octets);
        let queue = QueueNumber::READ_REQUEST;
        untagged(Opcode::ReadRequest, true, queue, 1, 0, &octets)
    };
    let no_receive = |end: &mut End| {
        let lkey = end.register(0, 100, all_rights(), OTHER_PD).0;
        let sge = end.sge(0, 100);
        end.post_receive_wr(RecvWr::new(1, &[Sge { lkey, ..sge }]).unwrap());
        send(1, b"x")
    };
    let outside = |end: &mut End| tagged(Opcode::Write, true, end.stag, 0, b"x");
    let too_long = |end: &mut End| {
        end.post_receive(1, 0, 1);
        send(1, b"xy")
    };
    let misplaced = |_: &mut End| {
        let queue = QueueNumber::TERMINATE;
        untagged(Opcode::Send, true, queue, 1, 0, b"x")
    };
    type Case<'a> = (&'a dyn Fn(&mut End) -> Vec<u8>, (u8, u8), bool, bool);
    let cases: [Case<'_>; 5] = [
        (&unreadable, (1, 0x02), true, true),
        (&misplaced, (2, 0x06), true, false),
        (&no_receive, (0, 0x00), false, false),
        (&outside, (1, 0x01), true, false),
        (&too_long, (2, 0x05), true, false),
    ];
    for (case, numbers, with_segment, with_request) in cases {
        let mut end = End::new(1, 0);
        let ulpdu = case(&mut end);
        assert!(end.receive(&ulpdu).is_err());
        let octets = terminate(&mut end);
        let sent = Terminate::parse(&octets).unwrap();
        let control = sent.control;
        assert_eq!((control.error_type, control.code), numbers);
        assert_eq!(
            sent.ddp_segment_length,
            with_segment.then_some(ulpdu.len() as u16),
            "{control}"
        );
        assert_eq!(
            sent.ddp_header,
            header_octets(&ulpdu).filter(|_| with_segment),
            "{control}"
        );
        assert_eq!(sent.rdma_header.is_some(), with_request, "{control}");
    }
    // Of MPA's errors there is none.
    let mut end = End::new(1, 0);
    end.post_receive(1, 0, 10);
    end.receive(&tagged(Opcode::Write, true, end.stag, 0, b""))
        .unwrap();
    let mut damaged = fpdu(&send(1, b"x"), true);
    damaged[20] ^= 1;
    assert!(end.receive_octets(&damaged).is_err());
    assert_eq!(terminate(&mut end), [0x20, 0x02, 0, 0]);
}

#[test]
fn an_error_without_a_segment_has_no_headers() {
    let mut end = End::new(0, 0);
    end.post(SendWr::new(1, WrOpcode::LocalInvalidate));
    assert_eq!(terminate(&mut end), [0, 0, 0, 0]);
}

#[test]
fn a_header_that_was_kept_parsed_is_quoted_too() {
    let mut ulpdu = send(5, b"x");
    ulpdu[0] |= 0x3c;
    let segment = DdpSegment::parse(&ulpdu).unwrap();
    let cause = TerminateCause::new(control(1, 2, 3));
    assert_eq!(
        cause.with_header(&segment.header, segment.info()),
        cause.with_segment(&ulpdu[..18], 19)
    );
}

#[test]
fn error_numbers_are_those_of_figure_9() {
    // rfc: 5040-18
    let stag = Stag(1);
    let header = UntaggedHeader {
        last: true,
        ulp: 0x41,
        ulp32: 0,
        queue: QueueNumber::READ_REQUEST,
        msn: Msn::FIRST,
        offset: MessageOffset(0),
    };
    let request = ReadRequest::parse(&[0; 28]).unwrap();
    let info = SegmentInfo {
        control: 0x41,
        len: 46,
    };
    let source = |error| RdmapError::ReadSource {
        error,
        header,
        info,
        request,
    };
    let (offset, len) = (TaggedOffset(0), 1);
    let status = WcStatus::LocalProtectionError;
    let need = all_rights();
    let malformed = RdmapWireError::Opcode(9);
    for (error, numbers) in [
        (source(TagError::InvalidStag(stag)), (0, 1, 0x00)),
        (
            source(TagError::BaseOrBounds { stag, offset, len }),
            (0, 1, 0x01),
        ),
        (
            source(TagError::AccessViolation { stag, need }),
            (0, 1, 0x02),
        ),
        (
            source(TagError::NotAssociated { stag, pd: PD }),
            (0, 1, 0x03),
        ),
        (source(TagError::OffsetWrap { offset, len }), (0, 1, 0x04)),
        (
            RdmapError::CannotInvalidate(TagError::InvalidStag(stag)),
            (0, 1, 0x09),
        ),
        (RdmapError::Version(2), (0, 2, 0x05)),
        (
            RdmapError::UnexpectedOpcode(Control::new(Opcode::Send)),
            (0, 2, 0x06),
        ),
        (
            RdmapError::TooManyReads {
                ird: 1,
                request: None,
            },
            (0, 2, 0x07),
        ),
        (RdmapError::Malformed(malformed), (0, 2, 0xff)),
        (RdmapError::Request { wr_id: 1, status }, (0, 0, 0x00)),
        (RdmapError::Queues, (0, 0, 0x00)),
        (RdmapError::SinkStag(stag), (1, 1, 0x00)),
        (RdmapError::SinkBounds { offset, len: 1 }, (1, 1, 0x01)),
    ] {
        let (layer, error_type, code) = numbers;
        assert_eq!(error.control(), control(layer, error_type, code), "{error}");
    }
}

#[test]
fn the_first_error_counts() {
    // rfc: 5040-89
    let unknown_queue = untagged(Opcode::Send, true, QueueNumber(9), 1, 0, b"x");
    let misplaced = untagged(Opcode::Send, true, QueueNumber::TERMINATE, 1, 0, b"x");
    for (first, second, numbers) in [
        (&unknown_queue, &misplaced, (1, 2, 1)),
        (&misplaced, &unknown_queue, (0, 2, 6)),
    ] {
        // In the same TCP segment, and in another.
        let mut end = End::new(0, 0);
        let both = [fpdu(first, true), fpdu(second, true)].concat();
        assert_eq!(end.receive_octets(&both).unwrap_err().numbers, numbers);
        end.receive(second).unwrap();
        assert_eq!(end.segments().len(), 1);
        // An error of this side's own, and then one of the peer's.
        let mut end = End::new(0, 0);
        end.post(SendWr::new(1, WrOpcode::LocalInvalidate));
        assert_eq!(end.refused().unwrap().numbers, (0, 0, 0));
        end.receive(second).unwrap();
        assert_eq!(terminate(&mut end), [0; 4]);
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn what_comes_after_an_error_is_dropped() {
    // rfc: 5041-75
    let mut end = End::with_markers(4, 0);
    end.post_receive(1, 0, 600);
    let wrong = untagged(Opcode::Send, true, QueueNumber(9), 1, 0, b"x");
    let mut early = end.lay_out(1, &[wrong, send(1, &[7; 600])]);
    early.place(&mut end, 1);
    assert_eq!(end.memory(0, 600), [7; 600]);
    assert_eq!(early.deliver(&mut end).unwrap_err().numbers, (1, 2, 1));
    let write = tagged(Opcode::Write, true, end.stag, BASE + 1000, b"late");
    end.receive(&write).unwrap();
    assert_eq!(end.memory(1000, 4), [0; 4]);
    assert_eq!(end.received_ids(), [(1, WcStatus::WrFlushed)]);
    terminate(&mut end);
}

#[test]
fn a_terminate_received_is_shown_and_silences_this_end() {
    // rfc: 5040-66, 5040-67
    let quoted = send(7, b"");
    let said = Terminate {
        control: control(1, 2, 4),
        ddp_segment_length: Some(500),
        ddp_header: header_octets(&quoted),
        rdma_header: None,
    };
    for order in [BitOrder::Rfc, BitOrder::Swapped] {
        let mut end = End::new(4, 4);
        let mut octets = [0; Terminate::MAX_LEN];
        let len = said.emit_as(order, &mut octets);
        end.receive(&incoming(&octets[..len])).unwrap();
        assert_eq!(end.told(), Some(said.control));
        end.post(SendWr::new(1, WrOpcode::Send));
        assert_eq!(end.sent_ids(), [(1, WcStatus::WrFlushed)]);
        // A Terminate is not answered by one, nor is what comes behind it.
        end.receive(&send(1, b"nobody waits for this")).unwrap();
        assert_eq!(end.next_segment(), None);
    }
}

#[test]
fn a_terminate_without_its_control_word() {
    for len in 0..4 {
        let mut end = End::new(0, 0);
        let error = end.receive(&incoming(&vec![0; len])).unwrap_err();
        assert_eq!(error.numbers, (0, 2, 0xff));
    }
}

#[test]
fn flush_completes_everything_once() {
    let mut end = Settings::new(4, 4).small().connect();
    // Acknowledged, unacknowledged, an awaited Read, one half sent, one not begun.
    end.post(SendWr::new(1, WrOpcode::Send));
    assert!(end.next_segment().is_some());
    let first = end.stream;
    let write = |end: &End, wr_id, len| {
        SendWr::new(wr_id, WrOpcode::Write)
            .with_sges(&[end.sge(0, len)])
            .unwrap()
    };
    end.post(write(&end, 2, 10).with_flags(0));
    end.post(
        SendWr::new(3, WrOpcode::Read)
            .with_sges(&[end.sge(0, 10)])
            .unwrap(),
    );
    end.post(write(&end, 4, 5000));
    assert!(!header(&end.segments().pop().unwrap()).last());
    end.post(SendWr::new(5, WrOpcode::Send).with_flags(0));
    end.post_receive(6, 0, 10);
    end.post_receive(7, 0, 10);
    end.acked(first);
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    end.raw().abort();
    assert_eq!(
        end.sent_ids(),
        [2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::WrFlushed))
    );
    assert_eq!(
        end.received_ids(),
        [6, 7].map(|wr_id| (wr_id, WcStatus::WrFlushed))
    );
    // Those posted while in error.
    end.post(SendWr::new(8, WrOpcode::Send));
    end.post_receive(9, 0, 10);
    assert_eq!(end.sent_ids(), [(8, WcStatus::WrFlushed)]);
    assert_eq!(end.received_ids(), [(9, WcStatus::WrFlushed)]);
    end.segments();
    assert_eq!((end.sent_ids(), end.received_ids()), (vec![], vec![]));
}

#[test]
fn flush_does_not_take_back_what_was_done() {
    let mut end = End::new(0, 4);
    end.post(SendWr::new(1, WrOpcode::Send));
    end.post(
        SendWr::new(2, WrOpcode::Read)
            .with_sges(&[end.sge(0, 4)])
            .unwrap(),
    );
    assert_eq!(end.segments().len(), 2);
    let ulpdu = tagged(Opcode::ReadResponse, true, end.stag, BASE, b"data");
    end.receive(&ulpdu).unwrap();
    end.raw().abort();
    let expected = [(1, WcStatus::WrFlushed), (2, WcStatus::Success)];
    assert_eq!(end.sent_ids(), expected);
}

#[test]
fn a_local_error_reaches_the_peer() {
    let (mut a, mut b) = (End::new(4, 4), End::new(4, 4));
    let bad = Sge {
        offset: BASE,
        length: 10,
        lkey: 0,
    };
    a.post(SendWr::new(1, WrOpcode::Send).with_sges(&[bad]).unwrap());
    pump(&mut a, &mut b);
    let told = b.told().unwrap();
    assert_eq!((told.layer, told.error_type), (0, 0));
    assert_eq!(a.sent_ids(), [(1, WcStatus::LocalProtectionError)]);
}
