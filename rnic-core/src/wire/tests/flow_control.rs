//! The Control message.

use std::time::Duration;

use proptest::prelude::*;

use crate::wire::rdmap::{FlowControl, MAX_RNR_TIMER, RdmapWireError, Readiness};

const XOFF: [u8; 16] = [1, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0x27, 0x10, 0, 0, 0, 0];

#[test]
fn octets_stand_where_the_design_says() {
    let xoff = FlowControl {
        readiness: Readiness::NotReady,
        count: 258,
        min_rnr_timer: Duration::from_millis(10),
    };
    let mut octets = [0xff; 20];
    assert_eq!(xoff.emit(&mut octets), 16);
    assert_eq!((&octets[..16], octets[16]), (&XOFF[..], 0xff));
    assert_eq!(FlowControl::parse(&XOFF), Ok(xoff));
    let mut xon = XOFF;
    (xon[0], xon[1], xon[15]) = (2, 9, 9);
    let xon = FlowControl::parse(&xon).unwrap();
    assert_eq!((xon.readiness, xon.count), (Readiness::Ready, 258));
}

#[test]
fn other_kinds_and_lengths_are_refused() {
    for kind in [0, 3, 0x81, 255] {
        let mut octets = XOFF;
        octets[0] = kind;
        let error = RdmapWireError::FlowControl(kind);
        assert_eq!(FlowControl::parse(&octets), Err(error));
    }
    for len in [0, 1, 15, 17, 32] {
        let octets = vec![1; len];
        assert!(matches!(
            FlowControl::parse(&octets),
            Err(RdmapWireError::Length { octets, .. }) if octets == len
        ));
    }
}

#[test]
fn no_peer_makes_us_wait_longer_than_infiniband_could() {
    let mut octets = XOFF;
    octets[8..12].fill(0xff);
    let parsed = FlowControl::parse(&octets).unwrap();
    assert_eq!(parsed.min_rnr_timer, MAX_RNR_TIMER);
}

proptest! {
    #[test]
    fn what_is_written_is_read(ready: bool, count: u32, micros in 0..700_000u64) {
        let sent = FlowControl {
            readiness: if ready { Readiness::Ready } else { Readiness::NotReady },
            count,
            min_rnr_timer: Duration::from_micros(micros).min(MAX_RNR_TIMER),
        };
        let mut octets = [0; 16];
        sent.emit(&mut octets);
        prop_assert_eq!(FlowControl::parse(&octets), Ok(sent));
    }

    #[test]
    fn any_octets_are_read_without_a_panic(octets: Vec<u8>) {
        let _ = FlowControl::parse(&octets);
    }
}
