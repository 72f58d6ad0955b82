//! One timer for each connection, at a cost that does not depend on how many connections are idle.

use crate::time::Instant;

/// Children of a timer in the heap: as many as a cache line holds. With two there would be twice as
/// many levels, and with thousands of connections each level is a cache miss.
const BELOW: usize = 4;

/// A heap of timers, the next one first, that knows the place of each connection's timer.
///
/// Timers are set lazily. A retransmission timer moves with nearly every acknowledgement, mostly
/// later, or is stopped. So the timer of a connection stays in its place unless it is wanted
/// earlier. When it expires, the connection is asked whether there is anything to do; if not, the
/// timer is set to what it wants then. Only where there are many connections is a timer removed as
/// soon as none is wanted: when it went off, the connection would have left the cache.
#[derive(Default)]
pub(crate) struct Timers {
    /// A timer expires no later than its [`BELOW`] children, which begin at `BELOW` times its place
    /// plus one.
    heap: Vec<(Instant, u32)>,
    /// The place of each connection's timer in the heap.
    places: Vec<u32>,
}

/// The place of a connection without a timer.
const NOWHERE: u32 = u32::MAX;

impl Timers {
    /// Sets the timer of a connection to `at`, or removes it.
    pub(crate) fn set(&mut self, connection: usize, at: Option<Instant>) {
        match (self.place(connection), at) {
            (Some(place), Some(at)) => {
                self.heap[place].0 = at;
                let place = self.rise(place);
                self.sink(place);
            }
            (Some(place), None) => self.remove(place),
            (None, Some(at)) => {
                if self.places.len() <= connection {
                    self.places.resize(connection + 1, NOWHERE);
                }
                self.heap.push((at, connection as u32));
                self.rise(self.heap.len() - 1);
            }
            (None, None) => {}
        }
    }

    /// Returns the connection whose timer expired first. The caller then [sets](Self::set) its
    /// timer anew.
    #[inline]
    pub(crate) fn expired(&self, now: Instant) -> Option<usize> {
        let &(at, connection) = self.heap.first()?;
        (at <= now).then_some(connection as usize)
    }

    /// Returns the connection whose timer expires behind the next one.
    pub(crate) fn second(&self) -> Option<usize> {
        let second = self.heap.iter().skip(1).take(BELOW).min()?;
        Some(second.1 as usize)
    }

    /// Returns when the next timer expires.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(at, _)| at)
    }

    fn place(&self, connection: usize) -> Option<usize> {
        let place = *self.places.get(connection)?;
        (place != NOWHERE).then_some(place as usize)
    }

    fn remove(&mut self, place: usize) {
        let (_, connection) = self.heap.swap_remove(place);
        self.places[connection as usize] = NOWHERE;
        if place < self.heap.len() {
            let place = self.rise(place);
            self.sink(place);
        }
    }

    /// Moves a timer up, before those that expire later. Returns its new place.
    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / BELOW;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.heap.swap(parent, place);
            self.note(place);
            place = parent;
        }
        self.note(place);
        place
    }

    /// Moves a timer down, behind those that expire earlier.
    fn sink(&mut self, mut place: usize) {
        loop {
            let first = BELOW * place + 1;
            let children = first..(first + BELOW).min(self.heap.len());
            let Some(first) = children.min_by_key(|&child| self.heap[child].0) else {
                break;
            };
            if self.heap[place].0 <= self.heap[first].0 {
                break;
            }
            self.heap.swap(place, first);
            self.note(place);
            place = first;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        self.places[self.heap[place].1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn timers_expire_in_order() {
        let mut timers = Timers::default();
        timers.set(3, Some(at(30)));
        timers.set(1, Some(at(10)));
        timers.set(2, Some(at(20)));
        timers.set(1, Some(at(40)));
        timers.set(3, Some(at(15)));
        timers.set(4, Some(at(12)));
        timers.set(4, None);
        timers.set(2, None);
        assert_eq!(timers.next(), Some(at(15)));
        assert_eq!(timers.second(), Some(1));
        assert_eq!(timers.expired(at(14)), None);
        assert_eq!(timers.expired(at(50)), Some(3));
        timers.set(3, None);
        assert_eq!(timers.expired(at(50)), Some(1));
        timers.set(1, None);
        assert_eq!(timers.expired(at(50)), None);
        assert_eq!(timers.next(), None);
    }

    /// Moving one timer of many displaces one other for each level of the heap at most.
    #[test]
    fn a_timer_among_ten_thousand_moves_few_others() {
        const MANY: usize = 10_000;
        let levels = MANY.ilog2() as usize + 1;
        let mut timers = Timers::default();
        for connection in 0..MANY {
            timers.set(connection, Some(at(1_000_000 + connection as u64)));
        }
        for connection in (0..MANY).rev().step_by(97) {
            for wanted in [Some(at(connection as u64)), None] {
                let before = timers.places.clone();
                timers.set(connection, wanted);
                let moved = timers.places.iter().zip(&before).filter(|(a, b)| a != b);
                assert!(moved.count() <= levels + 1);
            }
        }
        // However often they move, each connection has one timer.
        for round in 0..10 {
            for connection in 0..MANY {
                timers.set(connection, Some(at(1000 - round)));
                timers.set(connection, Some(at(2000 + round)));
            }
        }
        assert_eq!(timers.heap.len(), MANY);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(
            steps in prop::collection::vec((0..12_usize, prop::option::of(0..100_u64)), 1..100),
        ) {
            let mut timers = Timers::default();
            let mut list: Vec<Option<u64>> = vec![None; 12];
            for (connection, t) in steps {
                timers.set(connection, t.map(at));
                list[connection] = t;
                let first = list.iter().flatten().min().copied();
                prop_assert_eq!(timers.next(), first.map(at));
                prop_assert_eq!(timers.heap.len(), list.iter().flatten().count());
                let Some(first) = first else { continue };
                let rings = timers.expired(at(first)).expect("one of these");
                prop_assert_eq!(list[rings], Some(first));
                if let Some(before) = first.checked_sub(1) {
                    prop_assert_eq!(timers.expired(at(before)), None);
                }
            }
        }
    }
}
