//! One alarm for each connection, whose cost does not depend on how many are idle.

use crate::time::Instant;

/// A binary heap of alarms, the next one first, that knows where the alarm of each connection is.
///
/// A retransmission timer moves with nearly every acknowledgement. So an alarm that moved later stays where it
/// is: when it goes off, the connection says whether its time has come or asks for a later one.
#[derive(Default)]
pub(crate) struct Timers {
    /// No alarm goes off later than those at twice its place plus one and two.
    heap: Vec<(Instant, usize)>,
    /// The place in the heap, by connection.
    places: Vec<Option<usize>>,
}

impl Timers {
    /// Asks for an alarm for a connection at `at` or earlier.
    pub(crate) fn arm(&mut self, connection: usize, at: Option<Instant>) {
        let Some(at) = at else { return };
        if self.places.len() <= connection {
            self.places.resize(connection + 1, None);
        }
        match self.places[connection] {
            Some(place) if self.heap[place].0 <= at => {}
            Some(place) => {
                self.heap[place].0 = at;
                self.rise(place);
            }
            None => {
                self.heap.push((at, connection));
                self.rise(self.heap.len() - 1);
            }
        }
    }

    /// Forgets a connection's alarm.
    pub(crate) fn disarm(&mut self, connection: usize) {
        if let Some(Some(place)) = self.places.get(connection).copied() {
            self.remove(place);
        }
    }

    /// Takes the next alarm that has gone off.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        let &(at, connection) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(0);
        Some(connection)
    }

    /// When the next alarm goes off.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(at, _)| at)
    }

    fn remove(&mut self, place: usize) {
        let (_, connection) = self.heap.swap_remove(place);
        self.places[connection] = None;
        if place < self.heap.len() {
            let place = self.rise(place);
            self.sink(place);
        }
    }

    /// Moves an alarm before those that go off later. Returns its new place.
    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
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

    /// Moves an alarm behind those that go off earlier.
    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
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
        self.places[self.heap[place].1] = Some(place);
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
    fn alarms_go_off_in_order_and_once() {
        let mut timers = Timers::default();
        timers.arm(3, Some(at(30)));
        timers.arm(1, Some(at(10)));
        timers.arm(2, Some(at(20)));
        timers.arm(1, Some(at(40)));
        timers.arm(3, Some(at(15)));
        timers.disarm(2);
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop(at(9)), None);
        assert_eq!(timers.pop(at(50)), Some(1));
        assert_eq!(timers.pop(at(50)), Some(3));
        assert_eq!(timers.pop(at(50)), None);
        assert_eq!(timers.next(), None);
    }

    /// Moving one alarm of many moves others aside: one for each level of the heap.
    #[test]
    fn an_alarm_among_ten_thousand_moves_few_others() {
        const MANY: usize = 10_000;
        let levels = MANY.ilog2() as usize + 1;
        let mut timers = Timers::default();
        for connection in 0..MANY {
            timers.arm(connection, Some(at(1_000_000 + connection as u64)));
        }
        for connection in (0..MANY).rev().step_by(97) {
            let before = timers.places.clone();
            timers.arm(connection, Some(at(connection as u64)));
            let moved = timers.places.iter().zip(&before).filter(|(a, b)| a != b);
            assert!(moved.count() <= levels);
            let before = timers.places.clone();
            timers.disarm(connection);
            let moved = timers.places.iter().zip(&before).filter(|(a, b)| a != b);
            assert!(moved.count() <= levels + 1);
        }
        // However often they move, there is one for each.
        for round in 0..10 {
            for connection in 0..MANY {
                timers.arm(connection, Some(at(1000 - round)));
                timers.arm(connection, Some(at(2000 + round)));
            }
        }
        assert_eq!(timers.heap.len(), MANY);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arm(usize, u64),
        Disarm(usize),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..12_usize, 0..100_u64).prop_map(|(c, t)| Step::Arm(c, t)),
            1 => (0..12_usize).prop_map(Step::Disarm),
            2 => (0..100_u64).prop_map(Step::Pop),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec(step(), 1..100)) {
            let mut timers = Timers::default();
            let mut list: Vec<Option<u64>> = vec![None; 12];
            for step in steps {
                match step {
                    Step::Arm(connection, t) => {
                        timers.arm(connection, Some(at(t)));
                        let set = &mut list[connection];
                        *set = Some(set.map_or(t, |earlier| earlier.min(t)));
                    }
                    Step::Disarm(connection) => {
                        timers.disarm(connection);
                        list[connection] = None;
                    }
                    Step::Pop(t) => match timers.pop(at(t)) {
                        Some(connection) => {
                            let first = list.iter().flatten().min().copied();
                            prop_assert_eq!(list[connection].take(), first);
                            prop_assert!(first.is_some_and(|first| first <= t));
                        }
                        None => prop_assert!(list.iter().flatten().all(|&set| set > t)),
                    },
                }
                let first = list.iter().flatten().min().map(|&t| at(t));
                prop_assert_eq!(timers.next(), first);
                prop_assert_eq!(timers.heap.len(), list.iter().flatten().count());
            }
        }
    }
}
