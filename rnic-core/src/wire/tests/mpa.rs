use crate::wire::mpa::{
    Enhanced, Fpdu, MAX_DEPTH, MAX_PRIVATE_DATA, MpaWireError, StartupFrame, StartupKind, fpdu_len,
    pad_len,
};
use proptest::prelude::*;

const REQUEST: &[u8] = b"MPA ID Req Frame\xd5\x02\x00\x08\x80\x11\x40\x22data";

fn request() -> StartupFrame<'static> {
    StartupFrame {
        kind: StartupKind::Request,
        markers: true,
        crc: true,
        reject: false,
        enhanced_bit: true,
        reserved: 5,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: 0x11,
            ord: 0x22,
            peer_to_peer: true,
            rtr_read: true,
            ..Default::default()
        }),
        private_data: b"data",
    }
}

fn emitted(frame: &StartupFrame<'_>) -> Vec<u8> {
    let mut octets = vec![0xff; frame.len()];
    assert_eq!(frame.emit(&mut octets), octets.len());
    octets
}

/// A frame with nothing but the given octets behind its key.
fn octets(kind: &str, tail: &[u8]) -> Vec<u8> {
    [b"MPA ID ", kind.as_bytes(), b" Frame", tail].concat()
}

// rfc: 5044-51, 5044-67, 6581-13 a Request has its key, PD_Length, and IRD and ORD of 14 bits
#[test]
fn each_field_of_a_request() {
    assert_eq!(
        StartupFrame::parse(REQUEST),
        Ok(Some((request(), REQUEST.len())))
    );
    assert_eq!(emitted(&request()), REQUEST);
}

// rfc: 5044-53 a Reply begins with its key
#[test]
fn each_field_of_a_reply() {
    let reply = StartupFrame {
        kind: StartupKind::Reply,
        markers: false,
        crc: false,
        reject: true,
        enhanced_bit: false,
        reserved: 0,
        revision: 1,
        enhanced: None,
        private_data: b"no",
    };
    let expected = octets("Rep", b"\x20\x01\x00\x02no");
    assert_eq!(
        StartupFrame::parse(&expected),
        Ok(Some((reply, expected.len())))
    );
    assert_eq!(emitted(&reply), expected);
}

#[test]
fn each_flag_of_the_enhanced_data() {
    let flags = |word: [u8; 4]| {
        let octets = octets("Req", &[&[0x10, 2, 0, 4], &word[..]].concat());
        let (frame, _) = StartupFrame::parse(&octets).unwrap().unwrap();
        let enhanced = frame.enhanced.unwrap();
        assert_eq!((enhanced.ird, enhanced.ord), (0, 0));
        assert_eq!(emitted(&frame), octets);
        [
            enhanced.peer_to_peer,
            enhanced.rtr_send,
            enhanced.rtr_write,
            enhanced.rtr_read,
        ]
    };
    assert_eq!(flags([0x80, 0, 0, 0]), [true, false, false, false]);
    assert_eq!(flags([0x40, 0, 0, 0]), [false, true, false, false]);
    assert_eq!(flags([0, 0, 0x80, 0]), [false, false, true, false]);
    assert_eq!(flags([0, 0, 0x40, 0]), [false, false, false, true]);
}

#[test]
fn a_part_of_a_frame_asks_for_more() {
    for len in 0..REQUEST.len() {
        assert_eq!(
            StartupFrame::parse(&REQUEST[..len]),
            Ok(None),
            "{len} octets"
        );
    }
}

#[test]
fn what_follows_the_frame_is_left() {
    let stream = [REQUEST, b"\x00\x12FPDU"].concat();
    assert_eq!(
        StartupFrame::parse(&stream),
        Ok(Some((request(), REQUEST.len())))
    );
}

// rfc: 5044-52, 5044-54 both sides check the key
#[test]
fn a_wrong_key_is_reported_by_its_first_wrong_octet() {
    for at in 0..16 {
        let mut octets = REQUEST[..=at].to_vec();
        assert_eq!(StartupFrame::parse(&octets), Ok(None));
        octets[at] ^= 0x20;
        assert_eq!(
            StartupFrame::parse(&octets),
            Err(MpaWireError::Key),
            "octet {at}"
        );
    }
}

// rfc: 5044-68, 5044-69, 5044-80 PD_Length is checked: at most 512 octets
#[test]
fn private_data_have_a_limit() {
    let largest = octets("Req", b"\x00\x01\x02\x00");
    assert_eq!(StartupFrame::parse(&largest), Ok(None));
    let whole = [&largest[..], &[7; 512]].concat();
    let (frame, len) = StartupFrame::parse(&whole).unwrap().unwrap();
    assert_eq!((frame.private_data.len(), len), (MAX_PRIVATE_DATA, 532));
    let too_large = octets("Req", b"\x00\x01\x02\x01");
    assert_eq!(
        StartupFrame::parse(&too_large),
        Err(MpaWireError::PrivateDataLength(513))
    );
}

// rfc: 6581-3, 6581-6 S counts from revision 2 on; private data begin with enhanced data
#[test]
fn the_enhanced_bit_counts_from_revision_2_on() {
    for revision in 0..=3u8 {
        let octets = octets("Req", &[0x10, revision, 0, 5, 1, 2, 3, 4, 5]);
        let (frame, _) = StartupFrame::parse(&octets).unwrap().unwrap();
        assert!(frame.enhanced_bit);
        assert_eq!(frame.enhanced.is_some(), revision >= 2);
        assert_eq!(frame.private_data.len(), if revision >= 2 { 1 } else { 5 });
        assert_eq!(emitted(&frame), octets);
    }
}

#[test]
fn enhanced_data_need_their_room() {
    for len in 0..4u8 {
        let octets = octets("Rep", &[0x10, 2, 0, len]);
        let error = MpaWireError::EnhancedLength(u16::from(len));
        assert_eq!(StartupFrame::parse(&octets), Err(error));
    }
}

#[test]
fn depths_beyond_14_bits_are_written_as_the_largest() {
    let enhanced = Some(Enhanced {
        ird: u16::MAX,
        ord: 0x4001,
        ..Default::default()
    });
    let octets = emitted(&StartupFrame {
        enhanced,
        ..request()
    });
    let (frame, _) = StartupFrame::parse(&octets).unwrap().unwrap();
    let read = frame.enhanced.unwrap();
    assert_eq!(
        read,
        Enhanced {
            ird: MAX_DEPTH,
            ord: MAX_DEPTH,
            ..Default::default()
        }
    );
}

// rfc: 5044-11 an FPDU is length, ULPDU, pad and CRC
#[test]
fn an_fpdu_is_length_ulpdu_pad_and_crc() {
    assert_eq!([0, 1, 2, 3, 4, 18].map(pad_len), [2, 1, 0, 3, 2, 0]);
    assert_eq!([0, 1, 2, 3, 65535].map(fpdu_len), [8, 8, 8, 12, 65544]);
    let octets = b"\x00\x03abc\x01\x02\x03CRC!behind";
    let fpdu = Fpdu {
        ulpdu: b"abc",
        pad: &[1, 2, 3],
        crc: *b"CRC!",
        covered: b"\x00\x03abc\x01\x02\x03",
    };
    assert_eq!(Fpdu::parse(octets), Some((fpdu, 12)));
    for len in 0..12 {
        assert_eq!(Fpdu::parse(&octets[..len]), None, "{len} octets");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        (request, markers, crc, reject, enhanced_bit) in any::<(bool, bool, bool, bool, bool)>(),
        (reserved, revision) in (0..16u8, 0..4u8),
        (ird, ord) in (0..=MAX_DEPTH, 0..=MAX_DEPTH),
        (peer_to_peer, rtr_send, rtr_write, rtr_read) in any::<(bool, bool, bool, bool)>(),
        private_data in proptest::collection::vec(any::<u8>(), 0..=508),
    ) {
        let enhanced = Enhanced { ird, ord, peer_to_peer, rtr_send, rtr_write, rtr_read };
        let frame = StartupFrame {
            kind: if request { StartupKind::Request } else { StartupKind::Reply },
            markers,
            crc,
            reject,
            enhanced_bit,
            reserved,
            revision,
            enhanced: (enhanced_bit && revision >= 2).then_some(enhanced),
            private_data: &private_data,
        };
        let octets = emitted(&frame);
        prop_assert_eq!(StartupFrame::parse(&octets), Ok(Some((frame, octets.len()))));
    }

    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..100), keyed: bool) {
        let octets = if keyed { [b"MPA ID Rep Frame", &octets[..]].concat() } else { octets };
        let _ = StartupFrame::parse(&octets);
        let _ = Fpdu::parse(&octets);
    }
}
