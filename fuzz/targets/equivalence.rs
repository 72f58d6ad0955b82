//! Engines with and without fast paths, on the same input: frames, completions, memory, counters and state are the same.
#![no_main]

#[path = "../../rnic-core/tests/support/equivalence/mod.rs"]
mod equivalence;

use equivalence::{Case, check};
use libfuzzer_sys::fuzz_target;
use rnic_core::fast_paths::{FastPath, FastPaths};

fuzz_target!(|octets: &[u8]| {
    let Some((which, octets)) = octets.split_first() else {
        return;
    };
    // Mostly all; or all but one, or one and that on which others stand.
    let path = FastPath::ALL.get(usize::from(*which >> 3)).copied();
    let paths = match (path, which & 7) {
        (Some(path), 0) => FastPaths::ALL.without(path),
        (Some(path), 1) => FastPaths::NONE
            .with(FastPath::HeaderPrediction)
            .with(FastPath::TxBurst)
            .with(path),
        _ => FastPaths::ALL,
    };
    check(&Case::read(octets), paths);
});
