//! What the decoder must object to.

mod fault;
mod messages;
mod stream;

use std::collections::BTreeSet;

use crate::decoder::Rule;
use crate::judge;
use crate::script::What;
use crate::talk::talk;
use fault::Fault;
use messages::{DDP, RDMAP, RESPONSES, TERMINATES};
use stream::{FRAMES, MARKERS, MPA, STARTUP};

fn assert_objected(faults: &[Fault], markers: bool) {
    for (name, rule, make) in faults {
        let mut script = talk(markers);
        make(&mut script);
        let (objections, _) = judge(&script);
        assert!(
            objections.iter().any(|objection| objection.rule == *rule),
            "{name}: {rule:?} is not among {objections:#?}"
        );
    }
}

#[test]
fn each_fault_is_objected_to() {
    for faults in [FRAMES, STARTUP, MPA, DDP, RDMAP, RESPONSES, TERMINATES] {
        assert_objected(faults, false);
    }
    assert_objected(MARKERS, true);
}

#[test]
fn each_rule_has_its_faults() {
    let all = [
        FRAMES, STARTUP, MPA, DDP, RDMAP, RESPONSES, TERMINATES, MARKERS,
    ];
    let seen: BTreeSet<Rule> = all
        .into_iter()
        .flatten()
        .map(|(_, rule, _)| *rule)
        .collect();
    assert_eq!(seen, BTreeSet::from(Rule::ALL));
}

/// Where a bit of what the parties say is for them alone to know: data, and names of memory that
/// nothing else in the conversation repeats.
fn is_free(name: &str, bit: usize) -> bool {
    let at = bit / 8;
    let is_data = |tagged: bool| at >= if tagged { 14 } else { 18 };
    match name {
        // It may be a message of its own.
        "Write, first" => is_data(true) || bit == 1,
        "Write, last" | "Response, first" | "Response, last" => is_data(true),
        "Send" | "long Send, first" | "long Send, last" => is_data(false),
        // And whether the event is solicited.
        "Immediate" => is_data(false) || bit == 15,
        // And the STag.
        "Send with Invalidate" => is_data(false) || (2..6).contains(&at) || bit == 14,
        // The STag and the TO of what is read.
        "Read" | "empty Read" => (18 + 16..18 + 28).contains(&at),
        // STag, TO, data and masks; FetchAdd compares nothing, and would be a CmpSwap by one bit.
        "FetchAdd" => (26..54).contains(&at) || bit == 21 * 8 + 6,
        "CmpSwap" => (26..70).contains(&at),
        "first atomic Response" | "second atomic Response" => (22..30).contains(&at),
        // The code may be that of another error.
        "Terminate" => at == 19,
        _ => false,
    }
}

/// Every bit that is not free is turned over, one after the other.
#[test]
fn no_bit_is_overlooked() {
    let mut turned = 0;
    let mut overlooked = Vec::new();
    for step in talk(false).steps {
        let What::Fpdu(ulpdu) = &step.what else {
            continue;
        };
        for bit in 0..ulpdu.len() * 8 {
            if is_free(step.name, bit) {
                continue;
            }
            let mut script = talk(false);
            script.says(step.name)[bit / 8] ^= 0x80 >> (bit % 8);
            turned += 1;
            if judge(&script).0.is_empty() {
                overlooked.push(format!("{}: octet {}, bit {}", step.name, bit / 8, bit % 8));
            }
        }
    }
    assert!(overlooked.is_empty(), "{overlooked:#?}");
    assert!(turned > 3000, "only {turned} bits");
}
