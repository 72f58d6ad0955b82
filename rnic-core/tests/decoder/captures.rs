//! Captures of Linux's siw, read by the decoder: it understands all, and reports siw's known
//! deviations.

use std::collections::{BTreeMap, BTreeSet};

use crate::decoder::{Decoder, Heard, Rule};
use crate::pcap;

/// The deviations of siw from the standards, and the captures that have them.
const STRAYS: &[(Rule, &[&str])] = &[
    (
        // It announces segmentation offload with a reserved bit.
        Rule::StartupFrame,
        &[
            "49-gso-both-offload-off-head",
            "49-gso-both-offload-on-head",
        ],
    ),
    (
        // The responder does not wait for the initiator's first FPDU.
        Rule::StartupOrder,
        &[
            "05-ib_write_lat-8",
            "07-ucmatose",
            "07b-ucmatose-earlyfpdu-RST",
        ],
    ),
    (
        Rule::Padding,
        &[
            "02-ib_write_bw-1",
            "02-ib_write_bw-4096",
            "02-ib_write_bw-65536-head",
            "03-ib_read_bw-1",
            "03-ib_read_bw-4096",
            "04-ib_send_bw-1",
            "04-ib_send_bw-4096",
            "05-ib_write_lat-8",
        ],
    ),
    (
        // The capture was taken before the device cut them.
        Rule::SegmentSize,
        &["49-gso-both-offload-on-head"],
    ),
    (
        // It writes the bit fields in reverse order.
        Rule::Terminate,
        &[
            "10-term-badkey-write",
            "11-term-badkey-read",
            "12-term-badkeybyte-write",
            "13-term-oob-write",
            "15-term-noaccess-write",
            "17-term-send-norecv",
            "18-term-send-toolong",
            "40-crc-both-term",
        ],
    ),
];

#[test]
fn what_siw_says_is_understood_and_its_deviations_are_objected_to() {
    let mut strays: BTreeMap<Rule, BTreeSet<String>> = BTreeMap::new();
    let mut all = Heard::default();
    for capture in pcap::all() {
        let mut decoder = Decoder::default();
        // Its FPDUs are up to 64 KiB long.
        decoder.unaligned = true;
        decoder.partial_checksums = capture.has_partial_checksums();
        for frame in &capture.frames {
            decoder.hear(true, frame);
        }
        for objection in decoder.take_objections() {
            let names = strays.entry(objection.rule).or_default();
            names.insert(capture.name.clone());
        }
        all.fpdus += decoder.heard.fpdus;
        all.messages += decoder.heard.messages;
        all.responses += decoder.heard.responses;
    }
    let wanted: BTreeMap<Rule, BTreeSet<String>> = STRAYS
        .iter()
        .map(|(rule, names)| (*rule, names.iter().map(|name| (*name).to_owned()).collect()))
        .collect();
    assert_eq!(strays, wanted);
    assert_eq!((all.fpdus, all.messages, all.responses), (629, 497, 38));
}
