use crate::wire::ddp::{
    DdpHeader, DdpSegment, DdpWireError, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader,
    TaggedOffset, UntaggedHeader, header_octets,
};
use proptest::prelude::*;

#[rustfmt::skip]
const TAGGED: [u8; 14] = [
    0xc1, 0x40,                                     // tagged, last, version 1; a Write
    0x56, 0x1b, 0xa6, 0xad,                         // STag
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // tagged offset
];

#[rustfmt::skip]
const UNTAGGED: [u8; 18] = [
    0x41, 0x43,             // last, version 1; a Send
    0x11, 0x12, 0x13, 0x14, // RDMAP's own
    0x00, 0x00, 0x00, 0x02, // queue
    0x21, 0x22, 0x23, 0x24, // message sequence number
    0x31, 0x32, 0x33, 0x34, // message offset
];

fn emitted(header: DdpHeader) -> Vec<u8> {
    let mut octets = vec![0xff; header.len()];
    assert_eq!(header.emit(&mut octets), header.len());
    octets
}

// rfc: 5041-25, 5041-26, 5041-31 the header of a tagged segment, with RsvdULP and STag from the ULP
#[test]
fn each_field_of_a_tagged_header() {
    let octets = [&TAGGED[..], b"payload"].concat();
    let header = DdpHeader::Tagged(TaggedHeader {
        last: true,
        ulp: 0x40,
        stag: Stag(0x561b_a6ad),
        offset: TaggedOffset(0x0102_0304_0506_0708),
    });
    let segment = DdpSegment {
        header,
        header_octets: &TAGGED,
        payload: b"payload",
    };
    assert_eq!(DdpSegment::parse(&octets), Ok(segment));
    assert_eq!(emitted(header), TAGGED);
    assert_eq!((header.last(), header.ulp()), (true, 0x40));
}

// rfc: 5041-35, 5041-36 the header of an untagged segment, with RsvdULP from the ULP
#[test]
fn each_field_of_an_untagged_header() {
    let octets = [&UNTAGGED[..], b"payload"].concat();
    let header = DdpHeader::Untagged(UntaggedHeader {
        last: true,
        ulp: 0x43,
        ulp32: 0x1112_1314,
        queue: QueueNumber::TERMINATE,
        msn: Msn(0x2122_2324),
        offset: MessageOffset(0x3132_3334),
    });
    let segment = DdpSegment {
        header,
        header_octets: &UNTAGGED,
        payload: b"payload",
    };
    assert_eq!(DdpSegment::parse(&octets), Ok(segment));
    assert_eq!(emitted(header), UNTAGGED);
    assert_eq!((header.last(), header.ulp()), (true, 0x43));
}

#[test]
fn every_truncation_is_refused() {
    // rfc: 5041-48 every segment has a whole DDP header
    for whole in [&TAGGED[..], &UNTAGGED] {
        for len in 0..whole.len() {
            assert_eq!(
                DdpSegment::parse(&whole[..len]),
                Err(DdpWireError::TooShort(len))
            );
            assert_eq!(header_octets(&whole[..len]), None);
        }
        assert_eq!(
            DdpSegment::parse(whole).map(|segment| segment.payload),
            Ok(&[][..])
        );
    }
}

// rfc: 5041-22, 5041-23 reserved bits are sent as zero and ignored; the version sent is 1
#[test]
fn reserved_bits_are_not_looked_at_and_written_as_zero() {
    for whole in [&TAGGED[..], &UNTAGGED] {
        let mut octets = whole.to_vec();
        octets[0] |= 0x3c;
        let segment = DdpSegment::parse(&octets).unwrap();
        assert_eq!(
            Ok(segment.header),
            DdpSegment::parse(whole).map(|segment| segment.header)
        );
        assert_eq!(emitted(segment.header), whole);
        assert_eq!(segment.header_octets, octets, "quoted as it came");
    }
}

// rfc: 5041-23, 5041-24 the version is 1, for the whole stream
#[test]
fn other_versions_are_refused_and_can_be_quoted() {
    for (whole, tagged) in [(&TAGGED[..], true), (&UNTAGGED, false)] {
        for version in [0, 2, 3] {
            let mut octets = [whole, b"payload"].concat();
            octets[0] = octets[0] & 0xfc | version;
            assert_eq!(
                DdpSegment::parse(&octets),
                Err(DdpWireError::Version { version, tagged })
            );
            assert_eq!(header_octets(&octets), Some(&octets[..whole.len()]));
        }
    }
}

#[test]
fn names_are_shown_as_tools_print_them() {
    assert_eq!(Stag(0xab).to_string(), "0x000000ab");
    assert_eq!(TaggedOffset(0x1000).to_string(), "0x1000");
    assert_eq!(
        (Msn(7).to_string(), QueueNumber::SEND.to_string()),
        ("7".into(), "0".into())
    );
}

fn any_header() -> impl Strategy<Value = DdpHeader> {
    let tagged = any::<(bool, u8, u32, u64)>().prop_map(|(last, ulp, stag, offset)| {
        DdpHeader::Tagged(TaggedHeader {
            last,
            ulp,
            stag: Stag(stag),
            offset: TaggedOffset(offset),
        })
    });
    let untagged =
        any::<(bool, u8, [u32; 4])>().prop_map(|(last, ulp, [ulp32, queue, msn, offset])| {
            DdpHeader::Untagged(UntaggedHeader {
                last,
                ulp,
                ulp32,
                queue: QueueNumber(queue),
                msn: Msn(msn),
                offset: MessageOffset(offset),
            })
        });
    prop_oneof![tagged, untagged]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(header in any_header(), payload: Vec<u8>) {
        let header_octets = emitted(header);
        let ulpdu = [&header_octets[..], &payload].concat();
        let expected = DdpSegment { header, header_octets: &header_octets, payload: &payload };
        prop_assert_eq!(DdpSegment::parse(&ulpdu), Ok(expected));
    }

    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = DdpSegment::parse(&octets);
        let _ = header_octets(&octets);
    }
}
