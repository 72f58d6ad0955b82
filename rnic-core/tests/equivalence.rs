//! An engine that takes fast paths and one that does not: on the same input, nothing that can be
//! seen of them differs.

#[path = "support/equivalence/mod.rs"]
mod equivalence;

use equivalence::{Case, check, check_all_is_done};
use fastrand::Rng;
use rnic_core::fast_paths::{FastPath, FastPaths, taken};
use rnic_core::testing::deep;

/// Octets that a case is made of at most.
const OCTETS: usize = 500;

/// A case of its own for each seed.
fn case(seed: u64) -> Case {
    let mut rng = Rng::with_seed(seed);
    let octets: Vec<_> = (0..rng.usize(40..OCTETS)).map(|_| rng.u8(..)).collect();
    Case::read(&octets)
}

/// The path alone, with the paths that it needs.
fn alone(path: FastPath) -> FastPaths {
    let paths = FastPaths::NONE.with(path);
    match path {
        FastPath::CoalescedRun | FastPath::SoleAck => paths.with(FastPath::HeaderPrediction),
        FastPath::TxTemplate => paths.with(FastPath::TxBurst),
        _ => paths,
    }
}

#[test]
fn all_fast_paths_have_the_outcome_of_the_ordinary_way() {
    for seed in 0..cases(3600) {
        println!("seed {seed}");
        check(&case(seed), FastPaths::ALL);
    }
}

#[test]
fn each_fast_path_alone_has_the_outcome_of_the_ordinary_way() {
    for (number, path) in (1..).zip(FastPath::ALL) {
        for seed in 0..cases(120) {
            println!("{path:?}, seed {seed}");
            check(&case(number << 32 | seed), alone(path));
        }
    }
}

/// Whatever the network has lost, reordered, duplicated or cut, and however small windows, queues
/// and paths were: when it is whole again, each request is completed, or its connection has ended
/// and flushed it.
#[test]
fn all_that_is_asked_is_done_when_nothing_is_lost_any_more() {
    for seed in 0..cases(3000) {
        println!("seed {seed}");
        check_all_is_done(&case(seed).honest());
    }
}

/// The comparison is meaningful: a path is taken where it is switched on, and not otherwise.
#[test]
fn each_fast_path_is_taken_where_it_is_switched_on() {
    let taken =
        || FastPath::ALL.map(|path| taken::times(path).expect("tests have debug assertions"));
    let mut reached = [0; 3];
    for path in FastPath::ALL {
        let before = taken();
        for seed in 0..20 {
            let of_one = check(&case(seed), alone(path));
            for (sum, count) in
                reached
                    .iter_mut()
                    .zip([of_one.frames, of_one.completions, of_one.ended])
            {
                *sum += count;
            }
        }
        let after = taken();
        for other in FastPath::ALL {
            let times = after[other as usize] - before[other as usize];
            let on = alone(path).with(other) == alone(path);
            println!("{path:?} on: {other:?} {times} times");
            assert!(
                on == (times > 0),
                "{path:?} on: {other:?} was taken {times} times"
            );
        }
    }
    println!("frames, completions and ends: {reached:?}");
}

/// How many cases to run: [`deep`] of them, or `RNIC_CASES` times as many.
fn cases(usual: u64) -> u64 {
    let times = std::env::var("RNIC_CASES")
        .ok()
        .and_then(|times| times.parse().ok());
    deep(usual) * times.unwrap_or(1)
}
