//! What DDP tells any ULP of a message.

use rnic_core::testing::raw_peer::ddp;
use rnic_core::verbs::RecvWr;
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, TaggedHeader, TaggedOffset, UntaggedHeader};

use crate::common::*;
use crate::flow::untagged_to;
use crate::parcels::Arrived;
use crate::scene::Raw;

#[test]
fn a_tagged_message_comes_with_what_its_source_said() {
    // rfc: 5041-27, 5041-32, 5041-65
    let mut raw = Raw::new(&[]);
    let region = raw.sim.hosts[0].share(&[0; 20], all_rights());
    for (ulp, last) in [(0xff, false), (0xff, true), (0x5a, true), (0, true)] {
        let header = TaggedHeader {
            last,
            ulp,
            stag: region.stag,
            offset: TaggedOffset(7),
        };
        raw.give(&ddp(DdpHeader::Tagged(header), b"12345"));
        assert_eq!(raw.layer.take_arrived(), [Arrived::Page { header, len: 5 }]);
    }
    assert_eq!(region.content()[7..12], *b"12345");
}

#[test]
fn an_untagged_message_comes_with_what_its_source_said_and_its_length() {
    // rfc: 5041-37, 5041-64, 5041-65
    let mut raw = Raw::new(&[7]);
    let region = raw.sim.hosts[0].share(&[0; 100], all_rights());
    raw.layer
        .post(7, RecvWr::new(33, &[sge(&region, 100)]).unwrap());
    let part = |last, offset| UntaggedHeader {
        last,
        ulp: 0xa5,
        ulp32: 0x0102_0304,
        offset: MessageOffset(offset),
        ..untagged_to(7, 1)
    };
    raw.give(&ddp(DdpHeader::Untagged(part(false, 0)), &[1; 60]));
    assert_eq!(raw.layer.take_arrived(), []);
    raw.give(&ddp(DdpHeader::Untagged(part(true, 60)), &[2; 7]));
    let expected = Arrived::Parcel {
        header: part(true, 60),
        length: 67,
        buffer: Some(33),
        octets: Vec::new(),
    };
    assert_eq!(raw.layer.take_arrived(), [expected]);
    assert_eq!(
        region.content()[..68],
        [&[1; 60][..], &[2; 7], &[0]].concat()
    );
}
