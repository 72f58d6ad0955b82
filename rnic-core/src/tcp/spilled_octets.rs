//! Octets of segments that are in no frame any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the spilled octets of all connections of a worker.
pub type SpilledOctets = Arc<AtomicUsize>;

/// The spilled octets of one connection: a contiguous part of the stream, from the first segment
/// held on.
#[derive(Debug)]
pub(super) struct Spill {
    pub(super) start: u64,
    pub(super) octets: Vec<u8>,
    pub(super) sum: SpilledOctets,
}

impl Spill {
    pub(super) fn end(&self) -> u64 {
        self.start + self.octets.len() as u64
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        // Relaxed: it says how much there is, and nothing of where.
        self.sum.fetch_sub(self.octets.len(), Ordering::Relaxed);
    }
}
