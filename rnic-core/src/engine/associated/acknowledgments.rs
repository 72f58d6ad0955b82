//! What peers have acknowledged, of which the kernel tells only who asks.

use crate::connection::{AssociationSocket, Associations};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::{ASSOCIATIONS, SessionEngine};

/// Looks in vain after which a peer is asked for acknowledgments rarely.
const MOST_MISSES: u8 = u8::MAX;

impl<L: Associations> SessionEngine<L> {
    /// Asks the kernel what peers have acknowledged. Returns whether it was anything.
    pub(super) fn follow_all_acks(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.below.unacknowledged.len().min(ASSOCIATIONS) {
            let Some(number) = self.below.unacknowledged.pop_front() else {
                break;
            };
            let Some(association) = self.below.associations.get_mut(number) else {
                continue;
            };
            association.is_listed_unacknowledged = false;
            any |= self.follow_acks_of(number, now, guard);
            self.note_unacknowledged(number);
        }
        any
    }

    /// Completes what the peer of an association has acknowledged. Returns whether it was anything.
    pub(super) fn follow_acks_of(
        &mut self,
        number: usize,
        now: Instant,
        guard: &Guard<'_>,
    ) -> bool {
        let association = &mut self.below.associations[number];
        if association.sent.is_empty() {
            association.misses = 0;
            return false;
        }
        let acked = association.socket.acknowledged();
        let more = acked.saturating_sub(association.acked) as usize;
        association.acked += more as u64;
        if more > 0 {
            (association.misses, association.heard_at) = (0, now);
        } else {
            association.misses = association.misses.saturating_add(1);
        }
        let mut runs: Vec<((u16, u64), u64)> = Vec::new();
        let more = more.min(association.sent.len());
        for place in association.sent.drain(..more) {
            match runs.last_mut() {
                Some((last, count)) if *last == place => *count += 1,
                _ => runs.push((place, 1)),
            }
        }
        let any = !runs.is_empty();
        for ((stream, serial), count) in runs {
            let association = self.below.associations.get(number);
            let seat = association.and_then(|one| one.seats.get(&stream));
            let Some(seat) = seat.filter(|seat| seat.serial == serial).copied() else {
                continue;
            };
            self.with_connection(seat.connection, now, guard, |connection, context| {
                connection.acknowledge(count, context);
            });
        }
        any
    }

    pub(super) fn note_unacknowledged(&mut self, number: usize) {
        let Some(association) = self.below.associations.get_mut(number) else {
            return;
        };
        if !association.sent.is_empty() && !association.is_listed_unacknowledged {
            association.is_listed_unacknowledged = true;
            match association.misses < MOST_MISSES {
                true => self.below.unacknowledged.push_back(number),
                false => self.below.stalled.push_back(number),
            }
        }
    }
}
