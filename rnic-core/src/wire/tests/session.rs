//! Chunks of sessions, against octets written out from the figures of RFC 5043 and RFC 6581.

use crate::wire::mpa::Enhanced;
use crate::wire::session::{
    Body, CONTROL, Function, MAX_CONTROL, SEGMENT, SessionChunk, SessionControl, SessionWireError,
};
use proptest::prelude::*;

fn control(octets: &[u8]) -> Result<SessionControl<'_>, SessionWireError> {
    match SessionChunk::parse(CONTROL, octets)?.body {
        Body::Control(control) => Ok(control),
        Body::Segment(_) => panic!("{octets:?} was read as a segment"),
    }
}

/// Octets of a control message with so many octets of private data.
fn with_private_data(function: u8, len: usize) -> Vec<u8> {
    let mut octets = vec![0, 0, 0, function];
    octets.resize(4 + len, 0x55);
    octets
}

#[test]
fn a_segment_follows_its_number() {
    let chunk = SessionChunk::parse(SEGMENT, &[0x12, 0x34, 0x41, 0x40, 9]).unwrap();
    assert_eq!(chunk.ssn, 0x1234);
    assert_eq!(chunk.body, Body::Segment(&[0x41, 0x40, 9]));
    assert!(!chunk.begins_session());
    for len in 0..2 {
        let short = SessionChunk::parse(SEGMENT, &[0; 2][..len]);
        assert_eq!(short, Err(SessionWireError::TooShort(len)));
    }
}

#[test]
fn control_messages_have_the_codes_of_the_rfcs() {
    // rfc: 5043-3, 6581-7, 6581-8
    let enhanced = Enhanced {
        ird: 0x0102,
        ord: 0x3fff,
        ..Enhanced::default()
    };
    for (function, plain, code) in [(Function::Initiate, 1, 5), (Function::Accept, 2, 6)] {
        let private_data = b"private";
        let message = SessionControl {
            function,
            enhanced: None,
            private_data,
        };
        let octets = [&[0, 7, 0, plain][..], private_data].concat();
        assert_eq!(message.octets(7), octets);
        assert_eq!(control(&octets), Ok(message));
        assert_eq!(message.octets(7)[..2], 7_u16.to_be_bytes());
        let message = SessionControl {
            enhanced: Some(enhanced),
            ..message
        };
        let octets = [&[0, 7, 0, code, 1, 2, 0x3f, 0xff][..], private_data].concat();
        assert_eq!(message.octets(7), octets);
        assert_eq!(control(&octets), Ok(message));
        // None at all is good too.
        let empty = SessionControl {
            function,
            enhanced: None,
            private_data: &[],
        };
        assert_eq!(control(&empty.octets(0)), Ok(empty));
    }
}

/// RFC 6581 section 7 has enhanced data in Initiate and Accept alone.
#[test]
fn rejects_have_private_data_alone() {
    // rfc: 6581-7
    for (function, code) in [(Function::Reject, 3), (Function::EnhancedReject, 7)] {
        for private_data in [&b"private"[..], b"no", b""] {
            let message = SessionControl {
                function,
                enhanced: None,
                private_data,
            };
            let octets = [&[0, 7, 0, code][..], private_data].concat();
            assert_eq!(message.octets(7), octets);
            assert_eq!(control(&octets), Ok(message));
        }
    }
}

#[test]
fn a_terminate_has_no_private_data() {
    // rfc: 5043-5, 6581-10, 6581-12
    assert_eq!(SessionControl::TERMINATE.octets(9), [0, 9, 0, 4]);
    assert_eq!(control(&[0, 9, 0, 4]), Ok(SessionControl::TERMINATE));
    let more = control(&[0, 9, 0, 4, 1]);
    assert_eq!(more, Err(SessionWireError::PrivateDataInTerminate(1)));
}

#[test]
fn private_data_have_512_octets_at_most() {
    // rfc: 5043-4
    for function in [1, 2, 3, 5, 6, 7] {
        let longest = with_private_data(function, 512);
        assert_eq!(longest.len(), MAX_CONTROL);
        assert!(control(&longest).is_ok());
        let longer = control(&with_private_data(function, 513)).unwrap_err();
        assert_eq!(longer, SessionWireError::PrivateDataLength(513));
    }
}

#[test]
fn enhanced_messages_have_enhanced_data() {
    for function in 5..7 {
        for len in 0..4 {
            let short = control(&with_private_data(function, len)).unwrap_err();
            assert_eq!(short, SessionWireError::EnhancedLength(len));
        }
    }
}

#[test]
fn other_codes_and_protocols_are_refused() {
    for function in [0, 8, 0x0100, 0xffff_u16] {
        let octets = [[0; 2], function.to_be_bytes()].concat();
        assert_eq!(control(&octets), Err(SessionWireError::Function(function)));
    }
    for protocol in [0, 15, 18, u32::MAX] {
        let chunk = SessionChunk::parse(protocol, &[0; 4]);
        assert_eq!(chunk, Err(SessionWireError::Protocol(protocol)));
    }
}

proptest! {
    #[test]
    fn what_is_read_is_written_the_same(protocol in 16..18_u32, octets: Vec<u8>) {
        if let Ok(chunk) = SessionChunk::parse(protocol, &octets) {
            let written = match chunk.body {
                Body::Segment(segment) => [&chunk.ssn.to_be_bytes()[..], segment].concat(),
                Body::Control(control) => {
                    // Flags of the enhanced data are part of its 32 bits.
                    control.octets(chunk.ssn)
                }
            };
            prop_assert_eq!(written, octets);
        }
    }
}
