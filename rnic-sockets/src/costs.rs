//! How much of the kernel's memory a chunk takes, at least, until it is acknowledged.
//!
//! The kernel keeps a chunk until the cumulative TSN has passed it, and says how much memory all
//! that it keeps takes (SO_MEMINFO), not how many chunks that are. How much one takes depends on its
//! length alone, and never falls with it, but is not told: it is learnt from how much more there is
//! behind sending it. Meanwhile others may have been acknowledged, so what is learnt is the least
//! that it takes. With that, chunks are never held for acknowledged that are not: at worst they are
//! found to be later.

use std::collections::BTreeMap;

/// Lengths that are so close are learnt once.
const CLOSE: usize = 64;

/// How often a length is tried: meanwhile nothing may be acknowledged in one of these tries.
const TRIES: u8 = 4;

/// The most lengths that are learnt.
const MOST: usize = 1024;

/// What is known of the memory that chunks take, by their length.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    known: BTreeMap<usize, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    least: u64,
    tries: u8,
}

impl Costs {
    /// Returns the least that a chunk of this length takes.
    pub(crate) fn least(&self, len: usize) -> u64 {
        let shorter = self.known.range(..=len).next_back();
        shorter.map_or(0, |(_, known)| known.least).max(len as u64)
    }

    /// Returns whether sending one of this length is to be watched, to [learn](Self::learn) of it.
    pub(crate) fn is_unsure(&self, len: usize) -> bool {
        match self.known.range(..=len).next_back() {
            Some((at, known)) if len - at < CLOSE => known.tries < TRIES,
            _ => self.known.len() < MOST,
        }
    }

    /// Learns that there was so much more memory in use behind sending a chunk of this length.
    pub(crate) fn learn(&mut self, len: usize, more: u64) {
        let close = self.known.range(..=len).next_back().map(|(at, _)| *at);
        let at = close.filter(|at| len - at < CLOSE).unwrap_or(len);
        // What a longer one takes says nothing of a shorter one.
        let least = if at == len { more } else { 0 }.max(self.least(at));
        let known = self.known.entry(at).or_insert(Known { least, tries: 0 });
        known.least = known.least.max(least);
        known.tries = known.tries.saturating_add(1);
        let least = known.least;
        for (_, longer) in self.known.range_mut(at..) {
            longer.least = longer.least.max(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Linux takes: powers of two with what it adds to them.
    fn taken(len: usize) -> u64 {
        (len as u64 + 300).next_power_of_two() + 512
    }

    #[test]
    fn a_quiet_length_is_known_at_once() {
        let mut costs = Costs::default();
        assert_eq!(costs.least(1000), 1000);
        assert!(costs.is_unsure(1000));
        costs.learn(1000, taken(1000));
        assert_eq!(costs.least(1000), taken(1000));
        assert_eq!(costs.least(1400), taken(1000));
        assert_eq!(costs.least(999), 999);
        for _ in 1..TRIES {
            assert!(costs.is_unsure(1000));
            costs.learn(1000, 0);
        }
        assert!(!costs.is_unsure(1000) && costs.is_unsure(999));
        assert_eq!(costs.least(1000), taken(1000));
    }

    proptest! {
        /// Whatever is acknowledged meanwhile, no chunk is thought to take more than it does.
        #[test]
        fn no_chunk_is_overestimated(
            sent in prop::collection::vec((0..3000_usize, 0..4_u64), 1..300),
        ) {
            let mut costs = Costs::default();
            for (len, part) in sent {
                if costs.is_unsure(len) {
                    costs.learn(len, taken(len) * part / 3);
                }
                for len in (0..3000).step_by(37) {
                    prop_assert!(costs.least(len) <= taken(len));
                }
            }
        }
    }
}
