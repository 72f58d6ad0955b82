//! Which connections were prefetched, and up to which step.
//!
//! Connections are prefetched before their turn. Where there are many, a connection has left the
//! cache since its last turn, and waiting for each cache line when it is needed would take longer
//! than the work itself.
//!
//! Prefetching takes several steps, because what one step loads holds the pointer for the next. The
//! steps form a pipeline: each works on a connection whose turn is nearer than that of the step
//! before, and all advance with each turn. So few loads are outstanding at a time, and they
//! complete while other connections have their turn.

use crate::connection::{Connection, Upcoming};

use super::flows::Hash;

/// Turns between two steps for a connection: enough for a load to complete, and few enough that the
/// line is still in the nearest cache.
const APART: usize = 2;
/// The first step finds a connection, the others prefetch it.
const STEPS: usize = 1 + Connection::DEPTHS;

/// Which connections have been prefetched, and up to which step.
#[derive(Default)]
pub(super) struct Prefetched {
    /// The connections of the frames in this batch, in order of the frames.
    pub(super) awaited: Vec<Awaited>,
    /// How many of them had their turn.
    pub(super) had: usize,
    pub(super) frames: Steps,
    pub(super) ready: Steps,
}

/// A connection that has a frame in the batch.
pub(super) struct Awaited {
    pub(super) hash: Hash,
    /// The number of the most likely connection, once the first step found it.
    pub(super) index: Option<usize>,
    pub(super) turn: Upcoming,
}

/// For each step, how many connections from the front of a queue it was done for.
#[derive(Default)]
pub(super) struct Steps([usize; STEPS]);

impl Steps {
    /// Advances each step for the turn of the first of `waiting` connections. `step` gets the
    /// position of a connection in the queue, and the number of the step.
    pub(super) fn go_on(&mut self, waiting: usize, mut step: impl FnMut(usize, usize)) {
        for (number, done) in self.0.iter_mut().enumerate() {
            let until = waiting.min((STEPS - number) * APART);
            for place in *done..until {
                step(place, number);
            }
            *done = until.max(*done);
        }
    }

    /// Records that `count` connections have left the front of the queue.
    pub(super) fn pass(&mut self, count: usize) {
        for done in &mut self.0 {
            *done = done.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that wait are prefetched step by step: each step once, ahead of the next, and
    /// all before their turn.
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
                // The load has completed meanwhile. In the first turn there is no time for that.
                if front > 0 {
                    let before = last[front + place].replace(front);
                    assert!(before.is_none_or(|before| front - before == APART));
                }
            });
            // The connection at the front is complete, and no turn does more than one of each step.
            assert!(front == 0 || in_this_turn <= STEPS);
            assert!(done[front..].iter().take(APART).all(|done| *done == STEPS));
            steps.pass(1);
        }
        // A connection that joins an empty queue is prefetched at once.
        let mut at_once = 0;
        steps.go_on(1, |_, _| at_once += 1);
        assert_eq!(at_once, STEPS);
    }
}
