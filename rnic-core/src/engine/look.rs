//! What a turn over sockets looks at, and the timers of one.

use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::Engine;
use super::carrier::KernelCarrier;

/// What a turn looks at. Each look is a system call, so a worker that spins need not have all of them
/// in each turn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Which sockets are ready. If not, octets are received for the connection that had some last;
    /// without one, it is looked all the same.
    pub at_all_sockets: bool,
    /// What peers have acknowledged, beside what octets come with.
    pub for_acknowledgments: bool,
    /// Whether those have that have acknowledged nothing for many looks.
    pub for_stalled: bool,
}

impl Look {
    /// At everything.
    pub const EVERYWHERE: Self = Self {
        at_all_sockets: true,
        for_acknowledgments: true,
        for_stalled: true,
    };
}

impl<T: KernelCarrier> Engine<T> {
    /// Handles the timers that have gone off. Returns whether there was anything to do for any.
    pub(super) fn handle_socket_timers(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        while let Some((index, due)) = self.schedule.take_expired(now, &mut self.connections) {
            if due {
                any = true;
                self.counters.engine.timers_expired += 1;
                self.with_connection(index, now, guard, |connection, context| {
                    connection.handle_deadlines(context);
                });
            }
        }
        any
    }
}
