//! Terminate messages, sent and received.

use rnic_core::memory::place::TagError;
use rnic_core::rdmap::{RdmapError, ReceivedTerminate, TerminateCause, Token};
use rnic_core::verbs::{SendWr, Sge, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TaggedOffset, UntaggedHeader,
    header_octets,
};
use rnic_core::wire::rdmap::{
    BitOrder, Control, Opcode, RdmapWireError, ReadRequest, Terminate, TerminateControl,
};

use crate::fixture::{BASE, End, PD, Refused, all_rights, inline, pump, send, tagged, untagged};

pub(crate) fn control(layer: u8, error_type: u8, code: u8) -> TerminateControl {
    TerminateControl {
        layer,
        error_type,
        code,
    }
}

/// The Terminate that this end sends next, and that it sends nothing after it.
fn terminate(end: &mut End) -> Vec<u8> {
    let message = end.next_message().unwrap().unwrap();
    assert_eq!(message.token, Token::Terminate);
    let DdpHeader::Untagged(header) = message.header else {
        panic!("a Terminate is untagged");
    };
    // rfc: 5040-12, 5040-61, 5040-62, 5040-63
    assert_eq!(
        (header.queue, header.ulp, header.ulp32),
        (QueueNumber::TERMINATE, 0x47, 0)
    );
    end.rdmap.sent(message.token, u64::MAX);
    // rfc: 5040-68
    assert_eq!(end.next_message(), Ok(None));
    inline(&message).to_vec()
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
    // rfc: 5040-20, 5040-21, 5040-22, 5041-74, 5041-s11
    let mut end = End::new(0, 0);
    end.post(SendWr::new(1, WrOpcode::Send));
    let write = tagged(Opcode::Write, true, Stag(0xdead), 0x1122, b"payload");
    assert!(end.receive(&write).is_err());
    let octets = terminate(&mut end);
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
    end.receive(&ulpdu).unwrap();
    let error = end.next_message().unwrap_err();
    end.rdmap.terminate(error.cause());
    let octets = terminate(&mut end);
    let expected = [&[0x01, 0x00, 0xe0, 0x00, 0, 46][..], &ulpdu].concat();
    assert_eq!(octets, expected);
}

#[test]
fn earlier_reads_are_answered_before_the_terminate_of_a_later_one() {
    let mut end = End::new(2, 0);
    for (msn, source_stag) in [(1, end.stag), (2, Stag(0xbad))] {
        let request = ReadRequest {
            sink_stag: Stag(1),
            sink_offset: TaggedOffset(2),
            length: 3,
            source_stag,
            source_offset: TaggedOffset(BASE),
        };
        let mut header = [0; 28];
        request.emit(&mut header);
        let queue = QueueNumber::READ_REQUEST;
        end.receive(&untagged(Opcode::ReadRequest, true, queue, msn, 0, &header))
            .unwrap();
    }
    let response = end.next_message().unwrap().unwrap();
    assert_eq!(response.token, Token::Response);
    end.rdmap.sent(response.token, 10);
    assert!(end.next_message().is_err());
}

#[test]
fn which_headers_go_along() {
    // rfc: 5040-s1, 5040-s2, 5040-s3
    // RFC 5040 figure 10. rfc: 5040-18
    let request = ReadRequest {
        sink_stag: Stag(1),
        sink_offset: TaggedOffset(2),
        length: 3,
        source_stag: Stag(4),
        source_offset: TaggedOffset(5),
    };
    for (control, with_segment, with_request) in [
        (control(0, 0, 0), false, false),
        (control(0, 1, 0x02), true, true),
        (control(0, 2, 0x06), true, false),
        (control(1, 0, 0x00), false, false),
        (control(1, 1, 0x01), true, false),
        (control(1, 2, 0x05), true, false),
        (control(2, 0, 0x02), false, false),
        (control(2, 1, 0x02), false, false),
    ] {
        let mut end = End::new(0, 0);
        let ulpdu = send(1, b"x");
        end.rdmap.terminate(
            TerminateCause::new(control)
                .with_segment(&ulpdu[..18], ulpdu.len())
                .with_read_request(request),
        );
        let octets = terminate(&mut end);
        let sent = Terminate::parse(&octets).unwrap();
        assert_eq!(sent.control, control);
        assert_eq!(
            sent.ddp_segment_length,
            with_segment.then_some(19),
            "{control}"
        );
        assert_eq!(
            sent.ddp_header,
            with_segment.then_some(&ulpdu[..18]),
            "{control}"
        );
        assert_eq!(sent.rdma_header.is_some(), with_request, "{control}");
    }
}

#[test]
fn an_error_without_a_segment_has_no_headers() {
    let mut end = End::new(0, 0);
    end.rdmap.terminate(TerminateCause::new(control(0, 2, 7)));
    assert_eq!(terminate(&mut end), [0x02, 0x07, 0, 0]);
}

#[test]
fn a_header_that_was_kept_parsed_is_quoted_too() {
    let ulpdu = send(5, b"x");
    let header = DdpSegment::parse(&ulpdu).unwrap().header;
    let cause = TerminateCause::new(control(1, 2, 3));
    assert_eq!(
        cause.with_header(&header, 19),
        cause.with_segment(&ulpdu[..18], 19)
    );
}

#[test]
fn numbers_of_figure_9() {
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
    let source = |error| RdmapError::ReadSource {
        error,
        header,
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
        (RdmapError::TooManyReads { ird: 1 }, (0, 2, 0x07)),
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
    let mut end = End::new(0, 0);
    end.rdmap.terminate(TerminateCause::new(control(0, 2, 6)));
    end.rdmap.terminate(TerminateCause::new(control(0, 2, 7)));
    assert_eq!(terminate(&mut end), [0x02, 0x06, 0, 0]);
}

#[test]
fn what_comes_after_an_error_is_dropped() {
    // rfc: 5041-75
    let mut end = End::new(4, 0);
    end.post_receive(1, 0, 100);
    let early = end.place(&send(1, b"early")).unwrap();
    end.rdmap.terminate(TerminateCause::new(control(0, 2, 6)));
    end.deliver(early).unwrap();
    assert!(end.rdmap.is_ending());
    assert!(end.received().is_empty());
    terminate(&mut end);
}

#[test]
fn a_terminate_received_is_shown_and_silences_this_end() {
    // rfc: 5040-66, 5040-67
    let mut end = End::new(4, 4);
    end.post(SendWr::new(1, WrOpcode::Send));
    let quoted = send(7, b"");
    let said = Terminate {
        control: control(1, 2, 4),
        ddp_segment_length: Some(500),
        ddp_header: header_octets(&quoted),
        rdma_header: None,
    };
    for order in [BitOrder::Rfc, BitOrder::Swapped] {
        let mut end = End::new(4, 4);
        end.post(SendWr::new(1, WrOpcode::Send));
        let mut octets = [0; Terminate::MAX_LEN];
        let len = said.emit_as(order, &mut octets);
        end.receive(&incoming(&octets[..len])).unwrap();
        let expected = ReceivedTerminate {
            control: said.control,
            segment_len: Some(500),
            header: Some(DdpSegment::parse(&quoted).unwrap().header),
            read_request: None,
        };
        assert_eq!(end.rdmap.received(), Some(&expected));
        assert!(end.rdmap.is_ending());
        assert_eq!(end.next_message(), Ok(None));
        end.rdmap.terminate(TerminateCause::new(control(0, 0, 0)));
        assert_eq!(
            end.next_message(),
            Ok(None),
            "a Terminate is not answered by one"
        );
    }
}

#[test]
fn a_terminate_without_its_control_word() {
    for len in 0..4 {
        let mut end = End::new(0, 0);
        let error = end.receive(&incoming(&vec![0; len])).unwrap_err();
        assert!(matches!(error, Refused::Rdmap(RdmapError::Malformed(_))));
    }
}

#[test]
fn flush_completes_everything_once() {
    let mut end = End::new(4, 4);
    let sge = |end: &End| end.sge(0, 10);
    // Acknowledged, unacknowledged, an awaited Read, one half sent, one not begun.
    end.post(SendWr::new(1, WrOpcode::Send));
    end.post(
        SendWr::new(2, WrOpcode::Write)
            .with_flags(0)
            .with_sges(&[sge(&end)])
            .unwrap(),
    );
    end.post(
        SendWr::new(3, WrOpcode::Read)
            .with_sges(&[sge(&end)])
            .unwrap(),
    );
    end.messages();
    end.post(
        SendWr::new(4, WrOpcode::Write)
            .with_sges(&[end.sge(0, 1000)])
            .unwrap(),
    );
    end.next_segment(500).unwrap();
    end.post(SendWr::new(5, WrOpcode::Send).with_flags(0));
    end.post_receive(6, 0, 10);
    end.post_receive(7, 0, 10);
    end.acked(100);
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    end.flush();
    assert_eq!(
        end.sent_ids(),
        [2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::WrFlushed))
    );
    assert_eq!(
        end.received_ids(),
        [6, 7].map(|wr_id| (wr_id, WcStatus::WrFlushed))
    );
    // Those posted while in error.
    end.flush();
    end.post(SendWr::new(8, WrOpcode::Send));
    end.post_receive(9, 0, 10);
    end.flush();
    end.flush();
    assert_eq!(end.sent_ids(), [(8, WcStatus::WrFlushed)]);
    assert_eq!(end.received_ids(), [(9, WcStatus::WrFlushed)]);
    assert_eq!(end.next_message(), Ok(None));
    assert!(end.rdmap.is_idle(&end.qp));
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
    end.messages();
    let ulpdu = tagged(Opcode::ReadResponse, true, end.stag, BASE, b"data");
    end.receive(&ulpdu).unwrap();
    end.flush();
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
    pump(&mut a, &mut b, 1000);
    let received = b.rdmap.received().unwrap();
    assert_eq!(
        (received.control.layer, received.control.error_type),
        (0, 0)
    );
    assert_eq!(received.header, None);
    assert_eq!(a.sent_ids(), [(1, WcStatus::LocalProtectionError)]);
}
