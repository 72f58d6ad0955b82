//! What DDP tells the layer above it of a message, whatever that layer is.

use rnic_core::ddp::{DdpError, Delivery};
use rnic_core::memory::place::Destination;
use rnic_core::memory::table::Access;
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};

use crate::fixture::{BASE, End, segment};

/// Places a segment and delivers it, past RDMAP.
fn with_delivery<T>(end: &mut End, ulpdu: &[u8], see: impl FnOnce(Option<Delivery<'_>>) -> T) -> T {
    let segment = DdpSegment::parse(ulpdu).unwrap();
    let guard = end.worker.enter();
    let placed = end
        .ddp
        .place(
            &segment,
            Destination::Buffer(Access::REMOTE_WRITE),
            &mut end.qp,
            &guard,
        )
        .unwrap();
    see(end.ddp.deliver(placed).unwrap())
}

#[test]
fn a_tagged_message_comes_with_what_its_source_said() {
    // rfc: 5041-27, 5041-32, 5041-65
    let mut end = End::new(0, 0);
    for (ulp, last) in [(0xff, false), (0x5a, true), (0, true)] {
        let header = TaggedHeader {
            last,
            ulp,
            stag: end.stag,
            offset: TaggedOffset(BASE + 7),
        };
        let ulpdu = segment(DdpHeader::Tagged(header), b"12345");
        with_delivery(&mut end, &ulpdu, |delivery| {
            assert_eq!(delivery, Some(Delivery::Tagged { header, len: 5 }));
        });
    }
}

#[test]
fn an_untagged_message_comes_with_what_its_source_said_and_its_length() {
    // rfc: 5041-37, 5041-64, 5041-65
    let mut end = End::new(0, 0);
    end.post_receive(1, 0, 100);
    let header = |last, offset| UntaggedHeader {
        last,
        ulp: 0xa5,
        ulp32: 0x0102_0304,
        queue: QueueNumber::SEND,
        msn: Msn::FIRST,
        offset: MessageOffset(offset),
    };
    let first = segment(DdpHeader::Untagged(header(false, 0)), &[1; 60]);
    with_delivery(&mut end, &first, |delivery| assert_eq!(delivery, None));
    let second = segment(DdpHeader::Untagged(header(true, 60)), &[2; 7]);
    with_delivery(&mut end, &second, |delivery| {
        let expected = Delivery::Untagged {
            header: header(true, 60),
            length: 67,
            octets: &[],
        };
        assert_eq!(delivery, Some(expected));
    });
}

/// The numbers that an error is reported by: RFC 5041 section 7.2.
#[test]
fn each_error_has_its_number() {
    // rfc: 5041-76
    use rnic_core::memory::place::TagError;
    let end = End::new(0, 0);
    let (stag, queue, msn) = (end.stag, QueueNumber(9), Msn(4));
    let (offset, len) = (TaggedOffset(0), 1);
    let numbers = [
        (DdpError::Tagged(TagError::InvalidStag(stag)), (1, 0)),
        (
            DdpError::Tagged(TagError::BaseOrBounds { stag, offset, len }),
            (1, 1),
        ),
        (
            DdpError::Tagged(TagError::NotAssociated {
                stag,
                pd: crate::fixture::PD,
            }),
            (1, 2),
        ),
        (
            DdpError::Tagged(TagError::OffsetWrap { offset, len }),
            (1, 3),
        ),
        (
            DdpError::Version {
                version: 0,
                tagged: true,
            },
            (1, 4),
        ),
        (DdpError::InvalidQn(queue), (2, 1)),
        (DdpError::NoBuffer { queue, msn }, (2, 2)),
        (
            DdpError::MsnRange {
                queue,
                msn,
                next: msn,
            },
            (2, 3),
        ),
        (
            DdpError::InvalidMo {
                offset: MessageOffset(1),
                expected: 0,
            },
            (2, 4),
        ),
        (DdpError::TooLong { length: 2, room: 1 }, (2, 5)),
        (
            DdpError::Version {
                version: 0,
                tagged: false,
            },
            (2, 6),
        ),
    ];
    for (error, number) in numbers {
        assert_eq!(error.number(), number, "{error}");
    }
}
