//! Which connections were prefetched, and how far.
//!
//! Connections that have their turn soon are fetched into the cache meanwhile: where there are many, nothing of one is left
//! in the cache since its last turn, and to wait for each line when it is needed takes longer than the work itself.
//!
//! What one step of it fetches says where the next one's is. So each step is for a connection whose turn is so much nearer
//! than that of the step before, and with each turn every step goes on by one: memory is asked for little at a time, and
//! answers while others have their turn.

use crate::connection::{Connection, Upcoming};

use super::flows::Hash;

/// Turns between two steps for a connection: enough for memory to answer, and few enough that what it said is still in the
/// nearest cache.
const APART: usize = 2;
/// The first step finds a connection, the others fetch it.
const STEPS: usize = 1 + Connection::DEPTHS;

/// Which connections have been fetched, and how far.
#[derive(Default)]
pub(super) struct Prefetched {
    /// Those of the frames of this batch, in their order.
    pub(super) awaited: Vec<Awaited>,
    /// How many of these had their turn.
    pub(super) had: usize,
    pub(super) frames: Steps,
    pub(super) ready: Steps,
}

/// A connection that has a frame in the batch.
pub(super) struct Awaited {
    pub(super) hash: Hash,
    /// What is most likely its number, as soon as it was looked for.
    pub(super) index: Option<usize>,
    pub(super) turn: Upcoming,
}

/// Of how many in a line, counted from its front, each step was done.
#[derive(Default)]
pub(super) struct Steps([usize; STEPS]);

impl Steps {
    /// Does of each step as much as the turn of the first of so many `waiting` is the time for: `step` is told which
    /// of them and which step.
    pub(super) fn go_on(&mut self, waiting: usize, mut step: impl FnMut(usize, usize)) {
        for (number, done) in self.0.iter_mut().enumerate() {
            let until = waiting.min((STEPS - number) * APART);
            for place in *done..until {
                step(place, number);
            }
            *done = until.max(*done);
        }
    }

    /// So many have left the front of the line.
    pub(super) fn pass(&mut self, count: usize) {
        for done in &mut self.0 {
            *done = done.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that wait are fetched step by step, each step once and ahead of the next, and wholly before their turn.
    #[test]
    fn steps_follow_each_other_until_the_turn_comes() {
        const WAITING: usize = 40;
        let mut steps = Steps::default();
        let mut done = [0; WAITING];
        let mut last = [None; WAITING];
        for front in 0..WAITING {
            let mut in_this_turn = 0;
            steps.go_on(WAITING - front, |place, step| {
                assert_eq!(done[front + place], step);
                done[front + place] += 1;
                in_this_turn += 1;
                // Memory has answered meanwhile. In the first turn there is no time for that.
                if front > 0 {
                    let before = last[front + place].replace(front);
                    assert!(before.is_none_or(|before| front - before == APART));
                }
            });
            // At the front it would be too late, and all at once too much.
            assert!(front == 0 || in_this_turn <= STEPS);
            assert!(done[front..].iter().take(APART).all(|done| *done == STEPS));
            steps.pass(1);
        }
        // Who comes to stand in a line that was empty is fetched at once.
        let mut at_once = 0;
        steps.go_on(1, |_, _| at_once += 1);
        assert_eq!(at_once, STEPS);
    }
}
