//! The numbers of DDP's errors.

use rnic_core::ddp::DdpError;
use rnic_core::memory::error::TagError;
use rnic_core::wire::ddp::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};

use crate::fixture::PD;

/// The numbers that an error is reported by: RFC 5041 section 7.2.
#[test]
fn each_error_has_its_number() {
    // rfc: 5041-76
    let (stag, queue, msn) = (Stag(0x1234), QueueNumber(9), Msn(4));
    let (offset, len) = (TaggedOffset(0), 1);
    let numbers = [
        (DdpError::Tagged(TagError::InvalidStag(stag)), (1, 0)),
        (
            DdpError::Tagged(TagError::BaseOrBounds { stag, offset, len }),
            (1, 1),
        ),
        (
            DdpError::Tagged(TagError::NotAssociated { stag, pd: PD }),
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
        (
            DdpError::BeyondBuffer {
                queue: QueueNumber::SEND,
                offset: MessageOffset(1),
                room: 1,
            },
            (2, 4),
        ),
        (DdpError::AfterClose, (0, 0)),
        (
            DdpError::TooLong {
                queue: QueueNumber::SEND,
                length: 2,
                room: 1,
            },
            (2, 5),
        ),
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
