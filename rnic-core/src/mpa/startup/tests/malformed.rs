//! Frames that are not well-formed or not acceptable, in both roles.

use super::*;

/// Feeds octets one by one to both roles; returns the error and after how many octets it came.
fn fails_after(octets: &[u8]) -> [Option<(usize, MpaError)>; 2] {
    let mut responder = MpaResponder::new();
    let (mut initiator, _) = MpaInitiator::new(MpaOptions::default()).unwrap();
    let fails = |receive: &mut dyn FnMut(&mut &[u8]) -> Result<bool, MpaError>| {
        octets.chunks(1).enumerate().find_map(|(index, mut octet)| {
            receive(&mut octet).err().map(|error| (index + 1, error))
        })
    };
    [
        fails(&mut |input| responder.receive(input).map(|request| request.is_some())),
        fails(&mut |input| initiator.receive(input).map(|reply| reply.is_some())),
    ]
}

// rfc: 5044-52, 5044-54, 5044-78, 5044-72, 5044-75 a wrong key closes the connection and ends MPA
#[test]
fn a_wrong_key_is_noticed_at_its_first_wrong_octet() {
    for at in 0..16 {
        let mut octets = request("0002 0000");
        octets[at] ^= 0x80;
        for failure in fails_after(&octets) {
            let error = MpaError::Frame(MpaWireError::Key);
            assert_eq!(error.action(), Action::Close);
            assert_eq!(failure, Some((at + 1, error)));
        }
    }
}

// rfc: 5044-79 two initiators are noticed by the key
#[test]
fn both_sides_in_the_same_role() {
    let (mut initiator, octets) = MpaInitiator::new(MpaOptions::default()).unwrap();
    let error = initiator.receive(&mut &octets[..]).unwrap_err();
    assert_eq!(error, MpaError::SameRole(StartupKind::Request));
    assert_eq!(error.action(), Action::Close);
    let error = asked(&reply("00020000")).unwrap_err();
    assert_eq!(error, MpaError::SameRole(StartupKind::Reply));
    assert_eq!(error.action(), Action::Close);
}

// rfc: 5044-68, 5044-69, 5044-80, 5044-81, 5044-82 PD_Length above 512 octets is malformed
#[test]
fn too_much_private_data_is_noticed_before_it_comes() {
    for frame in [request, reply] {
        for failure in fails_after(&frame("0002 0201")) {
            let error = MpaError::Frame(MpaWireError::PrivateDataLength(513));
            assert_eq!(error.action(), Action::Close);
            assert_eq!(failure, Some((20, error)));
        }
    }
}

// rfc: 6581-6 with S the private data begin with the enhanced data
#[test]
fn enhanced_data_cut_short() {
    for frame in [request, reply] {
        for length in 0..4u16 {
            for failure in fails_after(&frame(&format!("1002{length:04x}000000"))) {
                let error = MpaError::Frame(MpaWireError::EnhancedLength(length));
                assert_eq!(error.action(), Action::Close);
                assert_eq!(failure, Some((20, error)));
            }
        }
    }
}

// rfc: 5044-63 reserved bits are not checked
#[test]
fn reserved_bits_and_r_of_a_request_are_not_looked_at() {
    let (octets, _) = accept(&request("2f01 0002 aabb"), &options(1, false, 1, 1));
    assert_eq!(octets, reply("00010000"));
    let own = options(2, false, 1, 1);
    assert!(accepted(&own, &reply("1f02 0004 0001 0001")).enhanced);
}

// rfc: 5044-17, 5044-58, 5044-59 markers are sent if, and only if, the peer has set M
#[test]
fn markers_are_sent_where_the_peer_asks_for_them() {
    for (asking, wanted) in [
        ("8001 0000", true),
        ("0001 0000", false),
        ("9002 0004 0003 0005", true),
        ("1002 0004 0003 0005", false),
    ] {
        let (octets, negotiated) = accept(&request(asking), &options(2, false, 1, 1));
        assert_eq!(negotiated.markers, wanted, "{asking}");
        assert_eq!(octets[16] & 0x80, 0, "none are asked for here");
    }
    for (replying, wanted) in [("8001 0000", true), ("0001 0000", false)] {
        let negotiated = accepted(&options(1, false, 1, 1), &reply(replying));
        assert_eq!(negotiated.markers, wanted);
    }
}

proptest! {
    #[test]
    fn any_octets_are_survived(tail in prop::collection::vec(any::<u8>(), 0..600), kind: bool) {
        let mut octets = if kind { request("") } else { reply("") };
        octets.extend(tail);
        let mut responder = MpaResponder::new();
        if let Ok(Some(_)) = responder.receive(&mut &octets[..]) {
            responder.accept(&MpaOptions::default()).unwrap();
        }
        for revision in [1, 2] {
            let (mut initiator, _) = MpaInitiator::new(options(revision, true, 1, 1)).unwrap();
            let _ = initiator.receive(&mut &octets[..]);
        }
    }
}
