//! Tests of the decoder that reads the traffic of the other tests. Each violation that it must
//! report occurs here, in a conversation in which everything else is right.

mod captures;
#[path = "../support/decoder/mod.rs"]
mod decoder;
mod faults;
#[path = "../support/pcap.rs"]
#[allow(dead_code)] // not all of it is needed here
mod pcap;
mod script;
mod talk;

use decoder::{Decoder, Heard, Objection};
use script::Script;
use talk::talk;

/// Returns all that the decoder reports about a script, and what it has read.
fn judge(script: &Script) -> (Vec<Objection>, Heard) {
    let mut decoder = Decoder::default();
    for frame in script.frames() {
        decoder.hear(true, &frame);
    }
    (decoder.take_objections(), decoder.heard)
}

/// It reports nothing, and reads everything.
#[test]
fn a_conversation_in_which_all_is_right_is_understood() {
    for markers in [false, true] {
        let (objections, heard) = judge(&talk(markers));
        assert!(objections.is_empty(), "{objections:?}");
        let markers = if markers { heard.markers } else { 0 };
        let wanted = Heard {
            frames: 24,
            retransmitted_octets: 0,
            startups: 2,
            fpdus: 18,
            markers,
            crcs: 18,
            messages: 15,
            responses: 4,
            terminates: 1,
            controls: 0,
        };
        assert_eq!(heard, wanted);
    }
    let (_, heard) = judge(&talk(true));
    assert!(heard.markers > 8, "{heard:?}");
}

/// The annotated dumps of RFC 5044 figures 5 and 6.
#[test]
fn the_figures_of_the_standard_are_understood() {
    let mut figure = talk(true);
    figure.steps.truncate(4);
    let send = |msn| talk::untagged(true, 3, [0, 0, msn, 0], &[0; 24]);
    figure.steps.push(talk::says(0, "figure 5", send(1)));
    let crc = |octets: &mut Vec<u8>| {
        let len = octets.len();
        assert_eq!(octets[len - 4..], [0x52, 0x23, 0x99, 0x83]);
    };
    figure.at("figure 5").after_crc = Some(crc);
    assert!(judge(&figure).0.is_empty());

    // An FPDU of 492 octets, marker included, comes before the one of figure 6.
    let before = talk::untagged(true, 3, [0, 0, 1, 0], &[0; 492 - 4 - 6 - 18]);
    *figure.says("figure 5") = before;
    figure.at("figure 5").after_crc = None;
    figure.steps.push(talk::says(0, "figure 6", send(2)));
    figure.at("figure 6").after_crc = Some(|octets| {
        let len = octets.len();
        assert_eq!(octets[20..24], [0, 0, 0, 0x14]);
        assert_eq!(octets[len - 4..], [0x84, 0x92, 0x58, 0x98]);
    });
    assert!(judge(&figure).0.is_empty());
}

/// Retransmissions in other pieces than before are allowed, if the octets are the same.
#[test]
fn retransmitted_octets_are_accepted() {
    let mut again = talk(false);
    let step = talk::does(0, "again", script::What::Again(40..1300));
    again.behind("Immediate", step);
    let (objections, heard) = judge(&again);
    assert!(objections.is_empty(), "{objections:?}");
    assert_eq!(heard.retransmitted_octets, 1260);
}
