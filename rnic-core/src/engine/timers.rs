//! One timer for each connection, whose cost does not depend on how many are idle.

use crate::time::Instant;

/// Timers that stand below another in the heap: as many as a cache line has room for. With two there would be twice as many
/// levels, and with thousands of connections each is a line that has left the cache.
const BELOW: usize = 4;

/// A heap of timers, the next one first, that knows where the timer of each connection is.
///
/// It is told only what must not be missed. A retransmission timer moves with nearly every acknowledgement, and mostly
/// later, or away: so the timer of a connection stays where it is unless one is wanted earlier, and when it expires the
/// connection is asked whether there is anything to do, and if not, until when there is nothing. Only where there are many
/// connections is a timer taken away as soon as none is wanted: by the time it went off, the connection would have left the
/// cache.
#[derive(Default)]
pub(crate) struct Timers {
    /// No timer expires later than the [`BELOW`] from `BELOW` times its place plus one on.
    heap: Vec<(Instant, u32)>,
    /// Of each connection the place of its timer in the heap.
    places: Vec<u32>,
}

/// In place of a place.
const NOWHERE: u32 = u32::MAX;

impl Timers {
    /// The timer of a connection expires at `at`, and at no other time.
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

    /// The connection whose timer expired first. It is to be [set](Self::set) anew.
    #[inline]
    pub(crate) fn expired(&self, now: Instant) -> Option<usize> {
        let &(at, connection) = self.heap.first()?;
        (at <= now).then_some(connection as usize)
    }

    /// The connection whose timer expires behind the next one.
    pub(crate) fn second(&self) -> Option<usize> {
        let second = self.heap.iter().skip(1).take(BELOW).min()?;
        Some(second.1 as usize)
    }

    /// When the next timer expires.
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

    /// Moves a timer before those that go off later. Returns its new place.
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

    /// Moves a timer behind those that go off earlier.
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

    /// Moving one timer of many moves others aside: one for each level of the heap.
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
        // However often they move, there is one for each.
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
