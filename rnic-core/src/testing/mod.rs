//! Virtual devices and links, on which tests run the engine.

pub mod host;
pub mod kernel;
pub mod link;
pub mod raw_peer;
pub mod sctp;
pub mod simulation;

pub use crate::in_memory::{self, VecFrames};

/// Returns how many of so many cases a test runs: all where `RNIC_DEEP` is set, as ci/test has it,
/// and else an eighth, so that who changes a line need not wait.
pub fn deep(all: u64) -> u64 {
    match std::env::var_os("RNIC_DEEP") {
        Some(_) => all,
        None => all.div_ceil(8),
    }
}
