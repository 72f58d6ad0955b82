//! What both sides settle: revision, CRC, read depths and the ready-to-receive message.

use super::*;

mod revisions {
    use super::*;

    /// A responder replies in the revision and form of the Request.
    // rfc: 5044-53, 6581-5, 6581-40, 6581-42, 6581-43, 6581-44 a Reply has the form of the Request
    #[test]
    fn replies_match_the_request() {
        let own = options(2, false, 5, 6);
        let cases = [
            ("00010000", "00010000", false),
            ("00020000", "00020000", false),
            ("1002000400070008", "1002000400050006", true),
            // S is a reserved bit in revision 1.
            ("10010004aabbccdd", "00010000", false),
        ];
        for (asking, expected, enhanced) in cases {
            let (octets, negotiated) = accept(&request(asking), &own);
            assert_eq!(octets, reply(expected), "{asking}");
            assert_eq!(negotiated.enhanced, enhanced);
            assert_eq!((negotiated.ird, negotiated.ord), (5, 6));
        }
    }

    // rfc: 5044-65, 5044-66 a revision that is not supported closes the connection
    #[test]
    fn other_revisions_are_closed_on() {
        for revision in (0..=255u8).filter(|revision| !matches!(revision, 1 | 2)) {
            let error = asked(&request(&format!("00{revision:02x}0000"))).unwrap_err();
            assert_eq!(error, MpaError::RequestRevision(revision));
            assert_eq!(error.action(), Action::Close);
        }
    }

    // rfc: 5044-66, 6581-39 a Reply has the revision and form of the Request
    #[test]
    fn a_reply_of_another_revision_or_form_ends_the_connection() {
        for asked in [1, 2] {
            for replied in (0..=255u8).filter(|replied| *replied != asked) {
                let error = receive_reply(
                    &options(asked, true, 1, 1),
                    &reply(&format!("00{replied:02x}0000")),
                );
                let error = error.unwrap_err();
                assert_eq!(error, MpaError::ReplyRevision { asked, replied });
                assert_eq!(error.action(), Action::GiveUp);
            }
        }
        let error = receive_reply(&options(2, true, 1, 1), &reply("00020000")).unwrap_err();
        assert_eq!(error, MpaError::ReplyNotEnhanced);
        assert_eq!(error.action(), Action::GiveUp);
    }

    /// Revision 2 with nothing that is new in it: the form of revision 1, in both directions.
    // rfc: 6581-41, 6581-44 without enhanced functions the plain form is used
    #[test]
    fn who_wants_nothing_enhanced_asks_in_the_plain_form() {
        let own = MpaOptions {
            negotiate_reads: false,
            private_data: vec![0xaa; 512],
            ..options(2, false, 7, 8)
        };
        let (_, asking) = MpaInitiator::new(own.clone()).unwrap();
        assert_eq!(asking[..20], request("0002 0200"));
        assert_eq!(asking.len(), 20 + 512);
        let negotiated = accepted(&own, &reply("0002 0001 bb"));
        assert_eq!(
            (negotiated.ird, negotiated.ord, negotiated.enhanced),
            (7, 8, false)
        );
        assert_eq!(negotiated.private_data, [0xbb]);
        let error = receive_reply(&own, &reply("1002 0004 0001 0001")).unwrap_err();
        assert_eq!(error, MpaError::ReplyEnhanced);
        assert_eq!(error.action(), Action::Close);
    }

    // rfc: 5044-64, 6581-4 revision 1 is sent, or 2 in the enhanced form
    #[test]
    fn only_revisions_1_and_2_can_be_asked_for() {
        for revision in [0, 3, 255] {
            let error = MpaInitiator::new(options(revision, true, 1, 1)).unwrap_err();
            assert_eq!(error, MpaError::Revision(revision));
            assert_eq!(error.action(), Action::Nothing);
        }
    }
}

mod crc {
    use super::*;

    // rfc: 5044-2, 5044-28c, 5044-30, 5044-32, 5044-33, 5044-60, 5044-61, 5044-94
    // CRCs are the default, and are off only if neither side asks for them
    #[test]
    fn used_if_either_side_asks() {
        assert!(MpaOptions::default().crc);
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            for revision in [1, 2] {
                let initiating = options(revision, ours, 1, 1);
                let (mut initiator, asking) = MpaInitiator::new(initiating).unwrap();
                assert_eq!(initiator.crc(), ours);
                let (replying, responder) = accept(&asking, &options(revision, theirs, 1, 1));
                assert_eq!(responder.crc, ours || theirs);
                let Ok(Some(MpaReply::Accepted(negotiated))) =
                    initiator.receive(&mut &replying[..])
                else {
                    panic!("not accepted");
                };
                assert_eq!(negotiated.crc, ours || theirs);
                assert_eq!(initiator.crc(), ours || theirs);
            }
        }
    }
}

mod reads {
    use super::*;

    /// Responder: own IRD and ORD, asked for, stated in the MpaReply, used.
    // rfc: 6581-15, 6581-21, 6581-23, 6581-s2 ORD is at most the peer's IRD; 0x3fff is answered so
    #[test]
    fn responder() {
        let cases = [
            ((16, 16), (16, 16), (16, 16), (16, 16)),
            ((2, 2), (16, 16), (2, 2), (2, 2)),
            ((16, 16), (2, 3), (16, 2), (16, 2)),
            ((16, 16), (0, 0), (16, 0), (16, 0)),
            ((0, 0), (4, 4), (0, 0), (0, 0)),
            ((7, 8), (0x3fff, 4), (7, 0x3fff), (7, 8)),
            ((7, 8), (4, 0x3fff), (0x3fff, 4), (7, 4)),
            ((7, 8), (0x3fff, 0x3fff), (0x3fff, 0x3fff), (7, 8)),
            (
                (0xffff, 0xffff),
                (0x3ffe, 1),
                (0x3ffe, 0x3ffe),
                (0x3ffe, 0x3ffe),
            ),
        ];
        for ((ird, ord), (their_ird, their_ord), stated, used) in cases {
            let asking = request(&format!("10020004{their_ird:04x}{their_ord:04x}"));
            let (octets, negotiated) = accept(&asking, &options(2, false, ird, ord));
            let expected = reply(&format!("10020004{:04x}{:04x}", stated.0, stated.1));
            assert_eq!(
                octets, expected,
                "{ird}/{ord} asked {their_ird}/{their_ord}"
            );
            assert_eq!((negotiated.ird, negotiated.ord), used);
            assert_eq!(
                (negotiated.peer_ird, negotiated.peer_ord),
                (Some(their_ird), Some(their_ord))
            );
        }
    }

    /// Initiator: own IRD and ORD, stated by the responder, used.
    // rfc: 6581-14, 6581-17, 6581-22, 6581-24
    // the IRD is at least the responder's ORD, the ORD at most its IRD; 0x3fff changes nothing
    #[test]
    fn initiator() {
        let cases = [
            ((16, 16), (16, 16), (16, 16)),
            ((16, 16), (2, 2), (16, 2)),
            ((4, 4), (128, 4), (4, 4)),
            ((4, 4), (4, 128), (128, 4)),
            ((0, 0), (0, 0), (0, 0)),
            ((7, 8), (0x3fff, 3), (7, 8)),
            ((7, 8), (3, 0x3fff), (7, 3)),
            ((500, 8), (3, 400), (500, 3)),
        ];
        for ((ird, ord), (their_ird, their_ord), used) in cases {
            let replying = reply(&format!("10020004{their_ird:04x}{their_ord:04x}"));
            let negotiated = accepted(&options(2, false, ird, ord), &replying);
            assert_eq!(
                (negotiated.ird, negotiated.ord),
                used,
                "{ird}/{ord}: {their_ird}/{their_ord}"
            );
            assert_eq!(
                (negotiated.peer_ird, negotiated.peer_ord),
                (Some(their_ird), Some(their_ord))
            );
        }
    }

    // rfc: 6581-16, 6581-18, 6581-19 too great an ORD of the responder ends in Terminate 2/0/6
    #[test]
    fn an_ird_that_cannot_be_raised_far_enough_is_terminated() {
        let own = options(2, false, 4, 4);
        let (mut initiator, _) = MpaInitiator::new(own).unwrap();
        let error = initiator.receive(&mut &reply("5002 0004 0001 0081")[..]);
        let error = error.unwrap_err();
        let expected = MpaError::InsufficientIrd {
            wanted: 129,
            limit: 128,
        };
        assert_eq!(error, expected);
        assert_eq!(error.action(), Action::Terminate);
        assert!(initiator.crc(), "the Terminate needs a CRC");
    }

    /// The most that the application allows, whatever it states.
    // rfc: 6581-17, 6581-18 the IRD is raised to the responder's ORD, or a Terminate is sent
    #[test]
    fn an_ird_is_raised_as_far_as_the_application_allows() {
        for (ird, max_ird, wanted, raised) in [
            (4, 4, 5, None),
            (4, 9, 9, Some(9)),
            (4, 9, 10, None),
            (4, 0, 4, Some(4)),
            (0, 0x3ffe, 0x3ffe, Some(0x3ffe)),
        ] {
            let own = MpaOptions {
                max_ird,
                ..options(2, false, ird, 4)
            };
            let negotiated = receive_reply(&own, &reply(&format!("1002 0004 0004 {wanted:04x}")));
            let expected = raised.ok_or(MpaError::InsufficientIrd {
                wanted,
                limit: max_ird.max(ird),
            });
            let negotiated = negotiated.map(|reply| match reply {
                MpaReply::Accepted(negotiated) => negotiated.ird,
                other => panic!("{other:?}"),
            });
            assert_eq!(negotiated, expected, "{ird}, {max_ird} at most, {wanted}");
        }
    }

    // rfc: 6581-17, 6581-21, 6581-22, 6581-23, 6581-24 0x3fff leaves a depth to the applications
    #[test]
    fn left_to_the_ulp() {
        let own = MpaOptions {
            negotiate_reads: false,
            rtr: Rtr::ALL,
            ..options(2, false, 7, 8)
        };
        let (_, asking) = MpaInitiator::new(own.clone()).unwrap();
        assert_eq!(asking, request("1002 0004 ffff ffff"));
        let negotiated = accepted(&own, &reply("1002 0004 bfff bfff"));
        assert_eq!((negotiated.ird, negotiated.ord), (7, 8));
        // siw states numbers all the same.
        let negotiated = accepted(&own, &reply("1002 0004 8004 8080"));
        assert_eq!((negotiated.ird, negotiated.ord), (128, 4));
        let own = MpaOptions {
            rtr: Rtr::NONE,
            ..own
        };
        let (octets, negotiated) = accept(&request("1002 0004 0004 0004"), &own);
        assert_eq!(octets, reply("1002 0004 3fff 3fff"));
        assert_eq!((negotiated.ird, negotiated.ord), (7, 4));
    }
}

mod peer_to_peer {
    use super::*;

    const SEND: Rtr = Rtr {
        send: true,
        ..Rtr::NONE
    };
    const WRITE: Rtr = Rtr {
        write: true,
        ..Rtr::NONE
    };
    const READ: Rtr = Rtr {
        read: true,
        ..Rtr::NONE
    };

    /// Flags A and B beside IRD, C and D beside ORD.
    // rfc: 6581-27, 6581-28, 6581-29, 6581-30, 6581-35, 6581-36, 6581-37, 6581-s3
    // with A the responder names the messages that it takes; without A the flags are clear and
    // ignored
    #[test]
    fn responder() {
        let cases = [
            // A, B, C, D of the Request -> of the Reply
            ("c001c001", "c001c001", Rtr::ALL),
            ("80018001", "80018001", WRITE),
            ("80014001", "80014001", READ),
            ("c0010001", "c0010001", SEND),
            // Nothing: all that is taken here.
            ("80010001", "c001c001", Rtr::ALL),
            // Without A the others mean nothing.
            ("4001c001", "00010001", Rtr::NONE),
        ];
        for (asking, replying, rtr) in cases {
            let asking = request(&format!("10020004{asking}"));
            let (octets, negotiated) = accept(&asking, &options(2, false, 1, 1));
            assert_eq!(octets, reply(&format!("10020004{replying}")));
            assert_eq!(negotiated.rtr, rtr);
        }
    }

    #[test]
    fn a_read_as_the_first_message_needs_a_depth_of_one() {
        let (octets, negotiated) =
            accept(&request("1002 0004 8000 4000"), &options(2, false, 0, 0));
        assert_eq!(octets, reply("1002 0004 8001 4000"));
        assert_eq!(negotiated.ird, 1);
        let own = MpaOptions {
            rtr: READ,
            ..options(2, false, 0, 0)
        };
        assert_eq!(accepted(&own, &octets).ord, 1);
    }

    /// A responder that takes no Read cannot be opened by one.
    // rfc: 6581-17, 6581-31, 6581-32 the initiator begins as agreed, or sends a Terminate
    #[test]
    fn no_read_goes_first_to_a_peer_that_takes_none() {
        let own = |rtr| MpaOptions {
            rtr,
            ..options(2, false, 1, 1)
        };
        let refused = receive_reply(&own(READ), &reply("1002 0004 8000 4001"));
        assert_eq!(refused, Err(MpaError::NoMatchingRtr));
        // Of two messages it is the other one.
        let negotiated = accepted(&own(Rtr::ALL), &reply("1002 0004 c000 4001"));
        assert_eq!((negotiated.rtr, negotiated.ord), (SEND, 0));
        let negotiated = accepted(&own(Rtr::ALL), &reply("1002 0004 bfff 4001"));
        assert_eq!((negotiated.rtr, negotiated.ord), (READ, 1));
    }

    // rfc: 6581-25, 6581-26, 6581-31, 6581-34, 6581-37
    // A asks for peer-to-peer, B to D name the messages, and one agreed on comes first
    #[test]
    fn initiator() {
        let cases = [
            (Rtr::NONE, "00010001", Ok(Rtr::NONE)),
            (Rtr::NONE, "4001c001", Ok(Rtr::NONE)),
            (Rtr::ALL, "8001c001", Ok(WRITE)),
            (Rtr::ALL, "80014001", Ok(READ)),
            (Rtr::ALL, "c0010001", Ok(SEND)),
            (Rtr::ALL, "c0014001", Ok(READ)),
            (WRITE, "8001c001", Ok(WRITE)),
            (READ, "8001c001", Ok(READ)),
            // No common message, none at all, or no agreement that there is one.
            (WRITE, "80014001", Err(MpaError::NoMatchingRtr)),
            (WRITE, "c0010001", Err(MpaError::NoMatchingRtr)),
            (Rtr::ALL, "0001c001", Err(MpaError::NoMatchingRtr)),
            (Rtr::ALL, "40010001", Err(MpaError::NoMatchingRtr)),
            (Rtr::NONE, "80018001", Err(MpaError::NoMatchingRtr)),
        ];
        for (rtr, replying, expected) in cases {
            let own = MpaOptions {
                rtr,
                ..options(2, false, 1, 1)
            };
            let result = receive_reply(&own, &reply(&format!("10020004{replying}")));
            let result = result.map(|reply| match reply {
                MpaReply::Accepted(negotiated) => negotiated.rtr,
                rejected => panic!("{rejected:?}"),
            });
            assert_eq!(result, expected, "{rtr:?}, {replying}");
        }
        for (rtr, asking) in [
            (Rtr::NONE, "00010001"),
            (SEND, "c0010001"),
            (WRITE, "80018001"),
            (READ, "80014001"),
            (Rtr::ALL, "c001c001"),
        ] {
            let own = MpaOptions {
                rtr,
                ..options(2, false, 1, 1)
            };
            let (_, octets) = MpaInitiator::new(own).unwrap();
            assert_eq!(octets, request(&format!("10020004{asking}")), "{rtr:?}");
        }
        let refused = MpaInitiator::new(MpaOptions {
            rtr: Rtr::ALL,
            ..options(1, false, 1, 1)
        });
        assert_eq!(refused.unwrap_err(), MpaError::PeerToPeer);
        // rfc: 6581-32, 6581-33 without a message in common a Terminate 2/0/7 is sent
        assert_eq!(MpaError::NoMatchingRtr.action(), Action::Terminate);
    }
}
