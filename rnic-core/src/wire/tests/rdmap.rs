use crate::wire::ddp::{Stag, TaggedOffset};
use crate::wire::rdmap::{
    BitOrder, Control, Opcode, RdmapWireError, ReadRequest, Terminate, TerminateControl,
};
use proptest::prelude::*;

// rfc: 5040-4, 5040-8, 5040-11 the layout of the control octet, reserved bits ignored
#[test]
fn the_control_octet() {
    assert_eq!(
        Control::from(0x43),
        Control {
            version: 1,
            opcode: 3
        }
    );
    assert_eq!(
        Control::from(0xbf),
        Control {
            version: 2,
            opcode: 15
        }
    );
    assert_eq!(
        Control::from(0x73),
        Control::from(0x43),
        "reserved bits are not looked at"
    );
    assert_eq!(u8::from(Control::new(Opcode::Terminate)), 0x47);
    assert_eq!(
        Control::new(Opcode::SendInvalidate).to_string(),
        "SendInvalidate"
    );
    assert_eq!(Control::from(0x4f).to_string(), "opcode 15");
    for octet in 0..=255u8 {
        assert_eq!(u8::from(Control::from(octet)), octet & 0xcf);
    }
}

// rfc: 5040-7, 5040-8, 7306-57 the opcodes are those of figure 4, and others are refused
#[test]
fn opcodes() {
    for opcode in 0..15 {
        assert_eq!(
            Opcode::try_from(opcode).map(|known| known as u8),
            Ok(opcode)
        );
    }
    for opcode in 15..=255 {
        assert_eq!(
            Opcode::try_from(opcode),
            Err(RdmapWireError::Opcode(opcode))
        );
    }
    // Those that the RFCs leave free, for connections with the semantics of RC.
    let of_rc = (0..15).filter(|opcode| Opcode::try_from(*opcode).unwrap().is_of_rc());
    assert_eq!(of_rc.collect::<Vec<_>>(), [12, 13]);
    let tagged = (0..15).filter(|opcode| Opcode::try_from(*opcode).unwrap().is_tagged());
    assert_eq!(tagged.collect::<Vec<_>>(), [0, 2]);
}

#[rustfmt::skip]
const READ_REQUEST: [u8; 28] = [
    0x01, 0x02, 0x03, 0x04,                         // data sink STag
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // data sink tagged offset
    0x21, 0x22, 0x23, 0x24,                         // message size
    0x31, 0x32, 0x33, 0x34,                         // data source STag
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // data source tagged offset
];

// rfc: 5040-14 the header of a Read Request
#[test]
fn each_field_of_a_read_request() {
    let request = ReadRequest {
        sink_stag: Stag(0x0102_0304),
        sink_offset: TaggedOffset(0x1112_1314_1516_1718),
        length: 0x2122_2324,
        source_stag: Stag(0x3132_3334),
        source_offset: TaggedOffset(0x4142_4344_4546_4748),
    };
    assert_eq!(ReadRequest::parse(&READ_REQUEST), Ok(request));
    let mut octets = [0xff; ReadRequest::LEN];
    assert_eq!(request.emit(&mut octets), 28);
    assert_eq!(octets, READ_REQUEST);
}

#[test]
fn a_read_request_has_one_length() {
    let longer = [&READ_REQUEST[..], &[0]].concat();
    for len in (0..28).chain([29]) {
        let error = RdmapWireError::Length {
            header: "Read Request",
            octets: len,
        };
        assert_eq!(ReadRequest::parse(&longer[..len]), Err(error));
    }
}

const TAGGED: [u8; 14] = [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const UNTAGGED: [u8; 18] = [0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];

fn emitted(terminate: &Terminate<'_>) -> Vec<u8> {
    let mut octets = vec![0xff; terminate.len()];
    assert_eq!(terminate.emit(&mut octets), octets.len());
    octets
}

fn control(layer: u8, error_type: u8, code: u8) -> TerminateControl {
    TerminateControl {
        layer,
        error_type,
        code,
    }
}

// rfc: 5040-16, 5040-17, 5040-19a, 5040-20, 5040-21, 5040-22, 5040-23 the header of a Terminate
#[test]
fn each_field_of_a_terminate() {
    let bare = Terminate {
        control: control(2, 0, 2),
        ddp_segment_length: None,
        ddp_header: None,
        rdma_header: None,
    };
    let tagged = Terminate {
        control: control(1, 1, 0),
        ddp_segment_length: Some(0x0506),
        ddp_header: Some(&TAGGED),
        ..bare
    };
    let read = Terminate {
        control: control(0, 1, 0),
        ddp_segment_length: Some(46),
        ddp_header: Some(&UNTAGGED),
        rdma_header: Some(&READ_REQUEST),
    };
    let expected = [
        (bare, vec![0x20, 2, 0, 0]),
        (tagged, [&[0x11, 0, 0xc0, 0, 5, 6][..], &TAGGED].concat()),
        (
            read,
            [&[0x01, 0, 0xe0, 0, 0, 46][..], &UNTAGGED, &READ_REQUEST].concat(),
        ),
    ];
    for (terminate, octets) in expected {
        assert_eq!(emitted(&terminate), octets);
        assert_eq!(Terminate::parse(&octets), Ok(terminate));
        assert_eq!(
            Terminate::parse_as_meant(&octets),
            Ok((terminate, BitOrder::Rfc))
        );
    }
    assert_eq!(read.len(), Terminate::MAX_LEN);
}

#[test]
fn the_error_of_a_truncated_terminate_is_known() {
    let whole = [&[0x01, 0, 0xe0, 0, 0, 46][..], &UNTAGGED, &READ_REQUEST].concat();
    for len in 0..4 {
        let error = RdmapWireError::Length {
            header: "Terminate",
            octets: len,
        };
        assert_eq!(Terminate::parse(&whole[..len]), Err(error));
        assert_eq!(Terminate::parse_as_meant(&whole[..len]), Err(error));
    }
    for len in 4..whole.len() {
        let terminate = Terminate::parse(&whole[..len]).unwrap();
        assert_eq!(terminate.control, control(0, 1, 0));
        assert_eq!(terminate.ddp_segment_length, (len >= 6).then_some(46));
        assert_eq!(terminate.ddp_header.is_some(), len >= 24);
        assert_eq!(terminate.rdma_header, None);
    }
}

// rfc: 5040-21 with D set the segment length is there
#[test]
fn reserved_bits_are_ignored_and_a_header_alone_brings_its_length_field() {
    let octets = [&[0x11, 0, 0x5f, 0xff, 9, 9][..], &TAGGED].concat();
    let terminate = Terminate::parse(&octets).unwrap();
    assert_eq!(
        terminate.ddp_segment_length, None,
        "present, but not valid without M"
    );
    assert_eq!(terminate.ddp_header, Some(&TAGGED[..]));
    assert_eq!(
        emitted(&terminate),
        [&[0x11, 0, 0x40, 0, 0, 0][..], &TAGGED].concat()
    );
}

#[test]
fn swapped_bit_fields_are_read_as_meant() {
    // A CRC error: layer 0, type 2, code 2 does not exist.
    let (terminate, order) = Terminate::parse_as_meant(&[0x02, 2, 0, 0]).unwrap();
    assert_eq!(
        (terminate.control, order),
        (control(2, 0, 2), BitOrder::Swapped)
    );
    // A bad STag on a Read: layer 1, type 0, code 0 exists, but the bits at the bottom do not.
    let octets = [&[0x10, 0, 0x07, 0, 0, 46][..], &UNTAGGED, &READ_REQUEST].concat();
    let (terminate, order) = Terminate::parse_as_meant(&octets).unwrap();
    assert_eq!(
        (terminate.control, order),
        (control(0, 1, 0), BitOrder::Swapped)
    );
    assert_eq!(terminate.ddp_segment_length, Some(46));
    assert_eq!(terminate.ddp_header, Some(&UNTAGGED[..]));
    assert_eq!(terminate.rdma_header, Some(&READ_REQUEST[..]));
    let mut again = vec![0; terminate.len()];
    terminate.emit_as(BitOrder::Swapped, &mut again);
    assert_eq!(again, octets);
    // Where both readings make sense, or neither does, it is the RFC's.
    for word in [
        [0x10, 0, 0, 0],
        [0x20, 5, 0, 0],
        [0xff, 0xff, 0, 0],
        [0x11, 0, 0xc1, 0],
    ] {
        let (terminate, order) = Terminate::parse_as_meant(&word).unwrap();
        assert_eq!(order, BitOrder::Rfc);
        assert_eq!(
            terminate.control,
            control(word[0] >> 4, word[0] & 15, word[1])
        );
    }
}

#[test]
fn errors_have_names() {
    assert_eq!(
        control(1, 2, 1).to_string(),
        "1/2/01 (untagged: invalid queue number)"
    );
    assert_eq!(
        control(0, 0, 0x7f).to_string(),
        "0/0/7f (RDMAP: local catastrophic error)"
    );
    assert_eq!(control(3, 0, 0).to_string(), "3/0/00 (unknown)");
    assert_eq!(control(2, 0, 8).meaning(), None);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        (layer, error_type, code) in (0..16u8, 0..16u8, any::<u8>()),
        ddp_segment_length: Option<u16>, ddp in 0..3usize, read: bool, swapped: bool,
    ) {
        let terminate = Terminate {
            control: control(layer, error_type, code),
            ddp_segment_length,
            ddp_header: [None, Some(&TAGGED[..]), Some(&UNTAGGED)][ddp],
            rdma_header: read.then_some(&READ_REQUEST[..]),
        };
        let octets = emitted(&terminate);
        prop_assert_eq!(Terminate::parse(&octets), Ok(terminate));
        if swapped {
            let mut octets = vec![0; terminate.len()];
            terminate.emit_as(BitOrder::Swapped, &mut octets);
            let (read, order) = Terminate::parse_as_meant(&octets).unwrap();
            prop_assert!(order == BitOrder::Rfc || read == terminate);
        }
    }

    #[test]
    fn read_requests_are_read_back(octets: [u8; 28]) {
        let mut again = [0; 28];
        ReadRequest::parse(&octets).unwrap().emit(&mut again);
        prop_assert_eq!(octets, again);
    }

    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Terminate::parse(&octets);
        let _ = Terminate::parse_as_meant(&octets);
        let _ = ReadRequest::parse(&octets);
    }
}
