//! How many frames of a receive queue circulate between its rings.
//!
//! The kernel uses all frames of the fill ring in turn. Few of them stay in cache; many bridge a
//! time in which the worker does not empty the receive ring. So few circulate at first. If many are
//! found waiting, twice as many circulate, from a reserve of unused frames. They go back to the
//! reserve when they were not needed for long.

/// The most frames that circulate, as a multiple of those at first.
pub(super) const MOST: u32 = 8;
/// Received frames after which, if few of them waited, the circulating frames are halved.
const SHRINK_AFTER: u32 = 1 << 17;

/// The frames of a queue that are in none of its rings, and how many are to circulate. If frames
/// take several chunks, it counts chunks.
#[derive(Debug)]
pub(super) struct Circulation {
    /// The last frame that left the rings is the first to go back.
    reserve: Vec<u64>,
    /// The number of frames outside the reserve, and the number wanted: at first, and now.
    circulating: u32,
    initial: u32,
    wanted: u32,
    /// Frames received since many waited last.
    since_crowded: u32,
}

impl Circulation {
    /// Begins with `circulating` frames outside of `reserve`.
    pub(super) fn new(circulating: u32, reserve: Vec<u64>) -> Self {
        Self {
            reserve,
            circulating,
            initial: circulating,
            wanted: circulating,
            since_crowded: 0,
        }
    }

    /// Adapts the number of frames after `taken` of `available` received frames were taken. Returns
    /// the frames that are to circulate as well.
    #[inline]
    pub(super) fn on_batch(&mut self, available: u32, taken: u32) -> impl Iterator<Item = u64> {
        if available > self.wanted / 2 {
            self.wanted = self.wanted.saturating_mul(2);
            self.since_crowded = 0;
        } else if available > self.wanted / 8 {
            self.since_crowded = 0;
        } else {
            self.since_crowded += taken;
            if self.since_crowded >= SHRINK_AFTER {
                self.wanted = (self.wanted / 2).max(self.initial);
                self.since_crowded = 0;
            }
        }
        self.take_from_reserve()
    }

    /// Removes as many frames from the reserve as are wanted, and returns them.
    fn take_from_reserve(&mut self) -> impl Iterator<Item = u64> {
        let missing = self.wanted.saturating_sub(self.circulating) as usize;
        let missing = missing.min(self.reserve.len());
        self.circulating += missing as u32;
        self.wanted = self.wanted.min(self.circulating);
        let kept = self.reserve.len() - missing;
        self.reserve.drain(kept..).rev()
    }

    /// Returns how many of `held` frames go to the reserve instead of the fill ring.
    #[inline]
    pub(super) fn surplus(&self, held: usize) -> usize {
        held.min((self.circulating - self.wanted) as usize)
    }

    /// Puts a frame into the reserve.
    pub(super) fn withdraw(&mut self, chunk: u64) {
        self.reserve.push(chunk);
        self.circulating -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight frames circulate, 24 are in reserve: those from 100 on, which go first.
    fn circulation() -> Circulation {
        Circulation::new(8, (100..124).rev().collect())
    }

    fn on_batch(circulation: &mut Circulation, available: u32, taken: u32) -> Vec<u64> {
        circulation.on_batch(available, taken).collect()
    }

    #[test]
    fn the_number_doubles_while_more_than_half_wait_until_the_reserve_is_empty() {
        let mut c = circulation();
        assert!(on_batch(&mut c, 4, 4).is_empty());
        assert_eq!(on_batch(&mut c, 5, 4), Vec::from_iter(100..108));
        assert!(on_batch(&mut c, 8, 4).is_empty());
        assert_eq!(on_batch(&mut c, 9, 4), Vec::from_iter(108..124));
        assert!(on_batch(&mut c, 32, 4).is_empty());
        assert_eq!(c.surplus(64), 0);
    }

    #[test]
    fn half_go_back_when_few_waited_for_long_and_return_when_many_wait() {
        let mut c = circulation();
        on_batch(&mut c, 5, 4);
        on_batch(&mut c, 2, SHRINK_AFTER - 1);
        assert_eq!(c.surplus(64), 0);
        // More than an eighth of 16: it begins anew.
        on_batch(&mut c, 3, 3);
        on_batch(&mut c, 2, SHRINK_AFTER - 1);
        assert_eq!(c.surplus(64), 0);
        on_batch(&mut c, 1, 1);
        assert_eq!(c.surplus(64), 8);
        assert_eq!(c.surplus(5), 5);
        (200..205).for_each(|chunk| c.withdraw(chunk));
        assert_eq!(c.surplus(64), 3);
        assert_eq!(on_batch(&mut c, 5, 5), [204, 203, 202, 201, 200]);
    }

    #[test]
    fn never_fewer_circulate_than_at_first() {
        let mut c = circulation();
        on_batch(&mut c, 1, SHRINK_AFTER);
        on_batch(&mut c, 1, SHRINK_AFTER);
        assert_eq!(c.surplus(64), 0);
    }
}
