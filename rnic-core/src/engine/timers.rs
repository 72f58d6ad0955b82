//! One alarm for each connection, whose cost does not depend on how many are idle.

use crate::time::Instant;

/// Alarms that stand below another in the heap: as many as a cache line has room for. With two there would be twice as many
/// levels, and with thousands of connections each is a line that has left the cache.
const BELOW: usize = 4;

/// A heap of alarms, the next one first, that knows where the alarm of each connection is.
///
/// A retransmission timer moves with nearly every acknowledgement, and mostly later, or away. So such an alarm stays where
/// it is, and only when it would have gone off moves to where it is wanted: the connection, which may have left the cache
/// long ago, is not asked.
#[derive(Default)]
pub(crate) struct Timers {
    /// No alarm goes off later than the [`BELOW`] from `BELOW` times its place plus one on.
    heap: Vec<(Instant, u32)>,
    /// By connection.
    alarms: Vec<Alarm>,
}

/// What is known of the alarm of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alarm {
    /// When it is wanted.
    at: Option<Instant>,
    /// Its place in the heap, for that time or an earlier one.
    place: u32,
}

impl Alarm {
    const NONE: Self = Self {
        at: None,
        place: u32::MAX,
    };

    fn place(self) -> Option<usize> {
        (self.place != u32::MAX).then_some(self.place as usize)
    }
}

impl Timers {
    /// A connection wants its alarm at `at`, and at no other time.
    pub(crate) fn arm(&mut self, connection: usize, at: Option<Instant>) {
        if self.alarms.len() <= connection {
            if at.is_none() {
                return;
            }
            self.alarms.resize(connection + 1, Alarm::NONE);
        }
        let alarm = &mut self.alarms[connection];
        alarm.at = at;
        let Some(at) = at else { return };
        match alarm.place() {
            Some(place) if self.heap[place].0 <= at => {}
            Some(place) => {
                self.heap[place].0 = at;
                self.rise(place);
            }
            None => {
                self.heap.push((at, connection as u32));
                self.rise(self.heap.len() - 1);
            }
        }
    }

    /// Forgets a connection's alarm.
    pub(crate) fn disarm(&mut self, connection: usize) {
        if let Some(alarm) = self.alarms.get_mut(connection) {
            alarm.at = None;
            if let Some(place) = alarm.place() {
                self.remove(place);
            }
        }
    }

    /// Takes the next alarm that has gone off.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        while let Some(&(at, connection)) = self.heap.first()
            && at <= now
        {
            let alarm = &mut self.alarms[connection as usize];
            match alarm.at {
                Some(wanted) if wanted > at => {
                    self.heap[0].0 = wanted;
                    self.sink(0);
                }
                wanted => {
                    alarm.at = None;
                    self.remove(0);
                    if wanted.is_some() {
                        return Some(connection as usize);
                    }
                }
            }
        }
        None
    }

    /// When the next alarm goes off, or earlier.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(at, _)| at)
    }

    fn remove(&mut self, place: usize) {
        let (_, connection) = self.heap.swap_remove(place);
        self.alarms[connection as usize].place = u32::MAX;
        if place < self.heap.len() {
            let place = self.rise(place);
            self.sink(place);
        }
    }

    /// Moves an alarm before those that go off later. Returns its new place.
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

    /// Moves an alarm behind those that go off earlier.
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
        self.alarms[self.heap[place].1 as usize].place = place as u32;
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
        timers.arm(4, Some(at(12)));
        timers.arm(4, None);
        timers.disarm(2);
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop(at(14)), None);
        assert_eq!(timers.pop(at(50)), Some(3));
        assert_eq!(timers.pop(at(50)), Some(1));
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
            let before = timers.alarms.clone();
            timers.arm(connection, Some(at(connection as u64)));
            let moved = timers.alarms.iter().zip(&before).filter(|(a, b)| a != b);
            assert!(moved.count() <= levels);
            let before = timers.alarms.clone();
            timers.disarm(connection);
            let moved = timers.alarms.iter().zip(&before).filter(|(a, b)| a != b);
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
        Arm(usize, Option<u64>),
        Disarm(usize),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..12_usize, prop::option::of(0..100_u64)).prop_map(|(c, t)| Step::Arm(c, t)),
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
                        timers.arm(connection, t.map(at));
                        list[connection] = t;
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
                        None => {
                            prop_assert!(list.iter().flatten().all(|&set| set > t));
                            prop_assert!(timers.next().is_none_or(|next| next > at(t)));
                        }
                    },
                }
                let first = list.iter().flatten().min().map(|&t| at(t));
                prop_assert!(first.is_none_or(|first| timers.next() <= Some(first) && timers.next().is_some()));
                prop_assert!(timers.heap.len() <= list.len());
            }
        }
    }
}
