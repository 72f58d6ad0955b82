//! One alarm for each connection, whose cost does not depend on how many are idle.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Instant;

/// A heap of alarms, each at or before the time its connection wants.
///
/// A retransmission timer moves with nearly every acknowledgement. So an alarm that moved later stays where it
/// is: when it goes off, the connection says whether its time has come or asks for a later one.
#[derive(Default)]
pub(crate) struct Timers {
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The alarm in force, by connection; the heap's others are stale.
    set: Vec<Option<Instant>>,
}

impl Timers {
    /// Asks for an alarm for a connection at `at` or earlier.
    pub(crate) fn arm(&mut self, connection: usize, at: Option<Instant>) {
        if self.set.len() <= connection {
            self.set.resize(connection + 1, None);
        }
        let Some(at) = at else { return };
        let slot = &mut self.set[connection];
        if slot.is_none_or(|set| at < set) {
            *slot = Some(at);
            self.alarms.push(Reverse((at, connection)));
        }
    }

    /// Forgets a connection's alarm.
    pub(crate) fn disarm(&mut self, connection: usize) {
        if let Some(slot) = self.set.get_mut(connection) {
            *slot = None;
        }
    }

    /// Takes the next alarm that has gone off.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        while let Some(Reverse((at, connection))) = self.alarms.peek().copied() {
            let in_force = self.set[connection] == Some(at);
            if in_force && at > now {
                return None;
            }
            self.alarms.pop();
            if in_force {
                self.set[connection] = None;
                return Some(connection);
            }
        }
        None
    }

    /// When the next alarm goes off.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, connection))) = self.alarms.peek().copied() {
            if self.set[connection] == Some(at) {
                return Some(at);
            }
            self.alarms.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
}
