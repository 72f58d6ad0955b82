//! Engines with and without fast paths, on the same input: frames, completions, memory, counters
//! and state are the same. And on an honest network all that is asked is done in the end.
//!
//! A long run: `cargo +nightly fuzz run -s none --no-trace-compares equivalence -- -max_len=400
//! -len_control=0`. One core takes some 700 inputs a second; most of them take most fast paths.
#![no_main]

#[path = "../../rnic-core/tests/support/equivalence/mod.rs"]
mod equivalence;

use std::cell::Cell;

use equivalence::{Case, check, check_all_is_done};
use libfuzzer_sys::fuzz_target;
use rnic_core::fast_paths::{FastPath, FastPaths, taken};

/// Inputs after which it is told how many have taken each path.
const TELL_EVERY: u64 = 1 << 14;

thread_local! {
    static INPUTS: Cell<u64> = const { Cell::new(0) };
    /// Those that have taken each path.
    static REACHED: Cell<[u64; FastPath::ALL.len()]> = const { Cell::new([0; FastPath::ALL.len()]) };
}

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
    let before = times_taken();
    if which & 7 == 7 {
        check_all_is_done(&Case::read(octets).honest());
    } else {
        check(&Case::read(octets), paths);
    }
    tell(before);
});

fn times_taken() -> [u64; FastPath::ALL.len()] {
    FastPath::ALL.map(|path| taken::times(path).unwrap_or_default())
}

/// Counts the paths that an input has taken, and tells of all from time to time.
fn tell(before: [u64; FastPath::ALL.len()]) {
    let mut reached = REACHED.get();
    for ((reached, after), before) in reached.iter_mut().zip(times_taken()).zip(before) {
        *reached += u64::from(after > before);
    }
    REACHED.set(reached);
    let inputs = INPUTS.get() + 1;
    INPUTS.set(inputs);
    if inputs.is_multiple_of(TELL_EVERY) {
        let counts: Vec<_> = FastPath::ALL.into_iter().zip(reached).collect();
        eprintln!("of {inputs} inputs these took each path: {counts:?}");
    }
}
