mod captures;
mod malformed;
mod negotiation;

use proptest::prelude::*;

use super::*;
use crate::mpa::Action;
use crate::wire::mpa::{MpaWireError, StartupKind};

const REQUEST: &str = "4d504120494420526571204672616d65";
const REPLY: &str = "4d504120494420526570204672616d65";

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .bytes()
        .filter(|c| !c.is_ascii_whitespace())
        .collect();
    let octet = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(octet).collect()
}

fn request(rest: &str) -> Vec<u8> {
    hex(&format!("{REQUEST}{rest}"))
}

fn reply(rest: &str) -> Vec<u8> {
    hex(&format!("{REPLY}{rest}"))
}

fn options(revision: u8, crc: bool, ird: u16, ord: u16) -> MpaOptions {
    MpaOptions {
        revision,
        crc,
        ird,
        ord,
        ..MpaOptions::default()
    }
}

/// What an initiator makes of a Reply that comes in one piece.
fn receive_reply(options: &MpaOptions, reply: &[u8]) -> Result<MpaReply, MpaError> {
    let (mut initiator, _) = MpaInitiator::new(options.clone()).unwrap();
    let mut input = reply;
    let reply = initiator.receive(&mut input)?.expect("a whole Reply");
    assert!(input.is_empty());
    Ok(reply)
}

fn accepted(options: &MpaOptions, reply: &[u8]) -> MpaNegotiated {
    match receive_reply(options, reply).unwrap() {
        MpaReply::Accepted(negotiated) => negotiated,
        rejected => panic!("{rejected:?}"),
    }
}

/// A responder that has taken this Request in one piece.
fn asked(request: &[u8]) -> Result<(MpaResponder, MpaRequest), MpaError> {
    let mut responder = MpaResponder::new();
    let mut input = request;
    let request = responder.receive(&mut input)?.expect("a whole Request");
    assert!(input.is_empty());
    Ok((responder, request))
}

fn accept(request: &[u8], options: &MpaOptions) -> (Vec<u8>, MpaNegotiated) {
    asked(request).unwrap().0.accept(options).unwrap()
}

mod private_data {
    use super::*;

    // rfc: 5044-69, 6581-9 private data, with the enhanced data, are at most 512 octets
    #[test]
    fn as_much_as_fits() {
        for (revision, limit) in [(1, 512), (2, 508)] {
            let with = |len| MpaOptions {
                private_data: vec![0xab; len],
                ..options(revision, true, 1, 1)
            };
            let error = MpaError::PrivateData {
                len: limit + 1,
                limit,
            };
            assert_eq!(error.action(), Action::Nothing);
            assert_eq!(MpaInitiator::new(with(limit + 1)).unwrap_err(), error);
            let (mut initiator, asking) = MpaInitiator::new(with(limit)).unwrap();
            assert_eq!(asking.len(), 532);
            let (mut responder, request) = asked(&asking).unwrap();
            assert_eq!(request.private_data.len(), limit);
            // What does not fit leaves the Request without a Reply.
            assert_eq!(responder.accept(&with(limit + 1)), Err(error.clone()));
            assert_eq!(responder.reject(&vec![0; limit + 1]), Err(error));
            let (replying, _) = responder.accept(&with(limit)).unwrap();
            assert_eq!(replying.len(), 532);
            let Ok(Some(MpaReply::Accepted(negotiated))) = initiator.receive(&mut &replying[..])
            else {
                panic!("not accepted");
            };
            assert_eq!(negotiated.private_data.len(), limit);
        }
    }

    // rfc: 5044-73, 5044-76, 6581-20, 6581-28 a rejecting Reply ends MPA; it has A and depths
    #[test]
    fn rejection_in_both_roles() {
        for (asking, replying, depths) in [
            ("4001 0000", "6001 0003 6e6f70", None),
            ("0002 0000", "2002 0003 6e6f70", None),
            (
                "1002 0004 0003 0005",
                "3002 0007 0005 0003 6e6f70",
                Some((5, 3)),
            ),
            (
                "1002 0004 8003 8005",
                "3002 0007 8005 8003 6e6f70",
                Some((5, 3)),
            ),
        ] {
            let (mut responder, _) = asked(&request(asking)).unwrap();
            let octets = responder.reject(b"nop").unwrap();
            assert_eq!(octets, reply(replying));
            let expected = MpaReply::Rejected {
                private_data: b"nop".to_vec(),
                peer_ird: depths.map(|(ird, _)| ird),
                peer_ord: depths.map(|(_, ord)| ord),
            };
            assert_eq!(
                receive_reply(&options(2, true, 3, 5), &octets),
                Ok(expected)
            );
        }
    }

    #[test]
    fn a_request_has_one_reply() {
        let mut responder = MpaResponder::new();
        let own = MpaOptions::default();
        assert_eq!(responder.accept(&own), Err(MpaError::NoRequest));
        assert_eq!(responder.reject(&[]), Err(MpaError::NoRequest));
        let octets = request("00010000");
        responder.receive(&mut &octets[..]).unwrap().unwrap();
        responder.accept(&own).unwrap();
        assert_eq!(responder.accept(&own), Err(MpaError::NoRequest));
        assert_eq!(responder.reject(&[]), Err(MpaError::NoRequest));
        // A Request that was refused cannot be accepted.
        let mut responder = MpaResponder::new();
        responder
            .receive(&mut &request("00030000")[..])
            .unwrap_err();
        assert_eq!(responder.accept(&own), Err(MpaError::NoRequest));
    }
}

mod stream {
    use super::*;

    /// Octets behind the frame stay where they are, wherever the stream is cut.
    // rfc: 5044-49, 5044-71, 5044-74 MPA begins at the same octet on both sides
    #[test]
    fn every_cut_with_fpdus_behind() {
        let behind = [0xf0, 0xf1, 0xf2, 0xf3, 0xf4];
        let own = MpaOptions {
            private_data: vec![7; 9],
            ..MpaOptions::default()
        };
        let (_, asking) = MpaInitiator::new(own.clone()).unwrap();
        let (replying, _) = accept(&asking, &own);
        for at in 0..asking.len() + behind.len() {
            let mut responder = MpaResponder::new();
            let octets = [&asking[..], &behind].concat();
            let (mut first, mut second) = octets.split_at(at);
            let early = responder.receive(&mut first).unwrap();
            assert_eq!(early.is_some(), at >= asking.len());
            let late = responder.receive(&mut second).unwrap();
            assert_eq!(late.is_some(), at < asking.len());
            assert_eq!([first, second].concat(), behind, "cut at {at}");

            let (mut initiator, _) = MpaInitiator::new(own.clone()).unwrap();
            let octets = [&replying[..], &behind].concat();
            let (mut first, mut second) = octets.split_at(at);
            let early = initiator.receive(&mut first).unwrap();
            let late = initiator.receive(&mut second).unwrap();
            assert!(early.is_some() != late.is_some());
            assert_eq!([first, second].concat(), behind, "cut at {at}");
        }
    }

    proptest! {
        /// Whatever both sides want, they end with depths that bear each other.
        #[test]
        fn two_sides_agree(
            revision in 1..=2u8, crcs: (bool, bool), read_first: bool,
            (i_ird, i_ord) in (0..200u16, 0..200u16), (r_ird, r_ord) in (0..200u16, 0..200u16),
        ) {
            let rtr = Rtr { read: read_first && revision == 2, ..Rtr::NONE };
            let initiating = MpaOptions { rtr, ..options(revision, crcs.0, i_ird, i_ord) };
            let (mut initiator, asking) = MpaInitiator::new(initiating).unwrap();
            let (replying, responder) = accept(&asking, &options(2, crcs.1, r_ird, r_ord));
            let reply = initiator.receive(&mut &replying[..]).unwrap();
            let Some(MpaReply::Accepted(initiator)) = reply else { panic!("not accepted") };
            prop_assert_eq!(initiator.crc, responder.crc);
            prop_assert_eq!(initiator.enhanced, revision == 2);
            prop_assert_eq!(initiator.rtr, responder.rtr);
            if revision == 2 {
                prop_assert!(initiator.ord <= responder.ird);
                prop_assert!(responder.ord <= initiator.ird);
            } else {
                prop_assert_eq!((initiator.ird, initiator.ord), (i_ird, i_ord));
                prop_assert_eq!((responder.ird, responder.ord), (r_ird, r_ord));
            }
        }
    }
}
