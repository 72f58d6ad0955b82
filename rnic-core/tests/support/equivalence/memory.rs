//! The memory of hosts.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use rnic_core::memory::region::{HugePages, Region};

/// Octets of a host's memory.
pub(super) const MEMORY: usize = 72 << 10;
/// The parts of it that are registered.
pub(super) const PARTS: [Range<usize>; 3] = [0..64 << 10, 64 << 10..68 << 10, 68 << 10..MEMORY];

thread_local! {
    /// That of hosts that are gone: the kernel takes longer to map some than many a case does in
    /// all.
    static SPARE: RefCell<Vec<Arc<Region>>> = const { RefCell::new(Vec::new()) };
}

/// The memory of a host.
pub(super) struct Memory(pub(super) Arc<Region>);

impl Memory {
    /// Memory as it is in the beginning.
    pub(super) fn new(host: usize) -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let region = spare.unwrap_or_else(|| {
            let region = Region::allocate_unlocked(MEMORY, HugePages::None);
            Arc::new(region.expect("ordinary memory is there"))
        });
        let octets: [u8; 256] = std::array::from_fn(|at| (at * 7 + host) as u8);
        let content = octets.repeat(MEMORY / octets.len());
        region.write(0, &content).expect("the content fits");
        Self(region)
    }

    /// Returns whether both hold the same octets.
    pub(super) fn equals(&self, other: &Self) -> bool {
        const PIECE: usize = 4096;
        (0..MEMORY).step_by(PIECE).all(|at| {
            let [one, other] = [self, other].map(|memory| {
                let mut octets = [0; PIECE];
                let all = memory.0.read(at, &mut octets);
                all.expect("the memory is a multiple of pieces");
                octets
            });
            one == other
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.0.clone()));
    }
}
