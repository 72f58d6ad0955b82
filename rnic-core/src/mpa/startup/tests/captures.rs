//! Frames of the Linux siw driver.

use super::*;

const DATA: &str = "000102030405060708090a0b0c0d0e0f";

// rfc: 5044-51, 5044-67, 5044-70, 6581-6, 6581-13, 6581-26, 6581-34
// a valid Request: key, PD_Length, enhanced data, and A only for peer-to-peer
#[test]
fn our_request_is_what_siw_sends_with_the_same_options() {
    let by_siw = Rtr {
        send: false,
        ..Rtr::ALL
    };
    let cases = [
        // 28-pd-0, 40-crc-both, 47-mpa-rev1-active, 44-p2p-rtr-both
        (2, false, "", Rtr::NONE, "1002000400040004"),
        (2, true, DATA, Rtr::NONE, "5002001400040004"),
        (1, false, DATA, Rtr::NONE, "00010010"),
        (2, false, DATA, by_siw, "100200148004c004"),
    ];
    for (revision, crc, data, rtr, header) in cases {
        let options = MpaOptions {
            rtr,
            private_data: hex(data),
            ..options(revision, crc, 4, 4)
        };
        let (_, octets) = MpaInitiator::new(options).unwrap();
        assert_eq!(octets, request(&format!("{header}{data}")));
    }
}

// rfc: 6581-14 the application is told the peer's IRD and ORD
#[test]
fn siw_requests() {
    // 01-rping, 41-crc-active-only, 45-p2p-rtr-write
    let (_, rping) = asked(&request("1002000400010001")).unwrap();
    let expected = MpaRequest {
        revision: 2,
        enhanced: true,
        crc: false,
        ird: 1,
        ord: 1,
        peer_to_peer: false,
        private_data: Vec::new(),
    };
    assert_eq!(rping, expected);
    let (_, crc) = asked(&request(&format!("5002001400040004{DATA}"))).unwrap();
    assert!(crc.crc);
    assert_eq!((crc.ird, crc.ord, crc.private_data), (4, 4, hex(DATA)));
    let (_, p2p) = asked(&request(&format!("1002001480048004{DATA}"))).unwrap();
    assert!(p2p.peer_to_peer);
    assert_eq!((p2p.ird, p2p.ord), (4, 4));
}

#[test]
fn siw_replies() {
    // 30-ird-ord-mismatch: 16/16 asked, 2/2 replied
    let data = "00007f951d7ed0007e039e0000010000";
    let negotiated = accepted(
        &options(2, false, 16, 16),
        &reply(&format!("1002001400020002{data}")),
    );
    assert_eq!((negotiated.ird, negotiated.ord), (16, 2));
    assert_eq!(
        (negotiated.peer_ird, negotiated.peer_ord),
        (Some(2), Some(2))
    );
    assert!(!negotiated.crc);
    assert_eq!(negotiated.private_data, hex(data));
    // 47-mpa-rev1-active
    let rev1 = accepted(&options(1, false, 4, 4), &reply(&format!("00010010{data}")));
    assert_eq!((rev1.revision, rev1.enhanced), (1, false));
    assert_eq!((rev1.ird, rev1.ord, rev1.peer_ird), (4, 4, None));
    // 08-reject
    let rejected = receive_reply(
        &options(2, false, 4, 4),
        &reply("3002001300040004 736977746f6f6c2d72656a65637400"),
    );
    let expected = MpaReply::Rejected {
        private_data: b"siwtool-reject\0".to_vec(),
        peer_ird: Some(4),
        peer_ord: Some(4),
    };
    assert_eq!(rejected, Ok(expected));
    // 46-p2p-rtr-read
    let p2p = MpaOptions {
        rtr: Rtr {
            read: true,
            ..Rtr::NONE
        },
        ..options(2, false, 4, 4)
    };
    let negotiated = accepted(&p2p, &reply(&format!("1002001480044004{data}")));
    assert_eq!(negotiated.rtr, p2p.rtr);
}
