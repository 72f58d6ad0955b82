//! When connections have their turns: the queue of those that may send, delayed ACKs, and timers.
//!
//! A step of a connection returns its [`Wants`], and [`Schedule::update`] acts on them. Nothing
//! else changes the queue, the list of delayed ACKs, the timers, or what a connection remembers of
//! them ([`Scheduled`]).

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use super::timers::Timers;
use crate::connection::{Connection, Transport, Wants};
use crate::time::Instant;

/// The least time between two turns.
const A_MOMENT: Duration = Duration::from_nanos(1);

/// The connections of an engine. In boxes: they are large, and a slab has room for up to twice as
/// many as it holds.
pub(super) type Connections<T> = Slab<Box<Connection<T>>>;

/// The connections that wait for a turn.
#[derive(Default)]
pub(super) struct Schedule {
    /// Those that may have something to send, each once.
    ready: VecDeque<usize>,
    /// Those with a delayed ACK, which goes with the first turn later than this time. Each stands
    /// here once. Timers would cost more, and each message would need one.
    delayed_acks: VecDeque<(Instant, usize)>,
    timers: Timers,
}

impl Schedule {
    /// Returns the connections that may have something to send, the next one first.
    pub(super) fn ready(&self) -> &VecDeque<usize> {
        &self.ready
    }

    /// Returns the connection whose timer goes off behind the next one.
    pub(super) fn second_timer(&self) -> Option<usize> {
        self.timers.second()
    }

    /// Returns when the next timer goes off, or earlier.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ack = self
            .delayed_acks
            .front()
            .map(|(since, _)| *since + A_MOMENT);
        Instant::earliest([ack, self.timers.next()])
    }

    /// Returns whether a timer has gone off. There may be nothing left to do for it.
    #[inline]
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.timers.next().is_some_and(|at| at <= now)
    }

    /// Returns whether a delayed ACK is due.
    #[inline]
    pub(super) fn has_ack_due(&self, now: Instant) -> bool {
        let first = self.delayed_acks.front();
        first.is_some_and(|(since, _)| *since < now)
    }

    /// Acts on what a connection wants, but for its end.
    // Inlined, because most of `wants` is constant at each call: only what that step needs is left.
    #[inline(always)]
    pub(super) fn update<T: Transport>(
        &mut self,
        index: usize,
        connections: &mut Connections<T>,
        wants: Wants,
    ) {
        let scheduled = &mut connections[index].scheduled;
        if wants.send && !scheduled.ready {
            scheduled.ready = true;
            self.ready.push_back(index);
        }
        if let Some(since) = wants.delayed_ack
            && !scheduled.delayed_ack
        {
            scheduled.delayed_ack = true;
            self.delayed_acks.push_back((since, index));
        }
        if wants.timer {
            self.set_timer(index, connections);
        }
        debug_assert!(has_timer_in_time(&connections[index]));
    }

    /// Moves the timer of a connection earlier if it wants that, and removes it if it wants none.
    #[inline(never)]
    fn set_timer<T: Transport>(&mut self, index: usize, connections: &mut Connections<T>) {
        let connection = &mut connections[index];
        let wanted = connection.next_timeout();
        let set = connection.scheduled.timer;
        let at = wanted.and_then(|_| Instant::earliest([set, wanted]));
        if at != set {
            connection.scheduled.timer = at;
            self.timers.set(index, at);
        }
    }

    /// Gives a connection the next turn to send.
    pub(super) fn put_first<T: Transport>(
        &mut self,
        index: usize,
        connections: &mut Connections<T>,
    ) {
        if std::mem::replace(&mut connections[index].scheduled.ready, true) {
            self.ready.retain(|ready| *ready != index);
        }
        self.ready.push_front(index);
    }

    /// Removes and returns the next connection that may have something to send.
    #[inline]
    pub(super) fn take_ready<T: Transport>(
        &mut self,
        connections: &mut Connections<T>,
    ) -> Option<usize> {
        let index = self.ready.pop_front()?;
        connections[index].scheduled.ready = false;
        Some(index)
    }

    /// Removes and returns the next connection whose delayed ACK is due.
    #[inline]
    pub(super) fn take_ack_due<T: Transport>(
        &mut self,
        now: Instant,
        connections: &mut Connections<T>,
    ) -> Option<usize> {
        if !self.has_ack_due(now) {
            return None;
        }
        let (_, index) = self.delayed_acks.pop_front()?;
        connections[index].scheduled.delayed_ack = false;
        Some(index)
    }

    /// Removes and returns the next connection whose timer has gone off, and whether there is still
    /// something to do for it. If there is not, the timer is set anew.
    pub(super) fn take_expired<T: Transport>(
        &mut self,
        now: Instant,
        connections: &mut Connections<T>,
    ) -> Option<(usize, bool)> {
        let index = self.timers.expired(now)?;
        let connection = &mut connections[index];
        let wanted = connection.next_timeout();
        let due = wanted.is_some_and(|at| at <= now);
        connection.scheduled.timer = wanted.filter(|_| !due);
        self.timers.set(index, connection.scheduled.timer);
        Some((index, due))
    }

    /// Removes a connection that is no longer at `index`.
    pub(super) fn remove<T: Transport>(&mut self, index: usize, connection: &mut Connection<T>) {
        let scheduled = std::mem::take(&mut connection.scheduled);
        self.timers.set(index, None);
        if scheduled.ready {
            self.ready.retain(|ready| *ready != index);
        }
        if scheduled.delayed_ack {
            self.delayed_acks.retain(|(_, other)| *other != index);
        }
    }
}

/// Returns whether the timer of a connection goes off when it wants it, or earlier.
fn has_timer_in_time<T: Transport>(connection: &Connection<T>) -> bool {
    let set = connection.scheduled.timer;
    Instant::earliest([set, connection.next_timeout()]) == set
}
