//! What an engine does in another way for each transport of its connections.

use crate::connection::{
    AddressPair, ConnectionFacts, ConnectionOptions, EndReason, FlowKey, PortReservation, Transport,
};
use crate::ids::{ListenerId, QpNumber};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::Engine;
use super::look::Look;

/// A transport with its engine's part.
pub trait Carrier: Transport + Sized + Send + 'static {
    /// Returns whether something that has arrived waits for a turn.
    fn is_waited_for(engine: &Engine<Self>) -> bool;

    /// Returns whether the next hop of a path is known. If not, it is asked for. Behind sockets the
    /// kernel has the route.
    fn resolves(_: &mut Engine<Self>, _: Instant, _: AddressPair) -> bool {
        true
    }

    /// Connects a queue pair.
    fn connect(
        engine: &mut Engine<Self>,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    );

    /// Is told of a listener that begins. Fails if peers cannot connect to it.
    fn listen(
        engine: &mut Engine<Self>,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason>;

    /// Is told that a listener ends.
    fn unlisten(engine: &mut Engine<Self>, listener: ListenerId);

    /// Is told that the application is about to accept the request of a connection.
    fn accepted(_: &mut Engine<Self>, _: Instant, _: usize) {}

    /// Adds to the facts of the connection at an index what is known elsewhere.
    fn add_facts(_: &Engine<Self>, _: usize, _: &mut ConnectionFacts) {}

    /// Prepares the connection at an index, whose request waits, for its move to another engine of
    /// the device. Returns whether it can move.
    fn departs(engine: &mut Engine<Self>, index: usize) -> bool;

    /// Is told that the connection at an index has come from another engine of the device.
    fn arrived(_: &mut Engine<Self>, _: Instant, _: &Guard<'_>, _: usize) {}
}

/// A transport of the host's kernel, behind sockets, with its engine's part.
pub trait KernelCarrier: Carrier<Below: Send> {
    /// Handles what sockets have, as far as `look` says. Returns whether there was anything.
    fn handle_sockets(
        engine: &mut Engine<Self>,
        now: Instant,
        guard: &Guard<'_>,
        look: Look,
    ) -> bool;

    /// Sends what connections have to send. Returns whether there was anything.
    fn send(engine: &mut Engine<Self>, now: Instant, guard: &Guard<'_>) -> bool;

    /// Returns whether acknowledgments are awaited, of which the kernel tells only who asks.
    fn awaits_acks(engine: &Engine<Self>) -> bool;

    /// Returns whether they are awaited of peers that have acknowledged nothing for many looks.
    fn has_stalled(engine: &Engine<Self>) -> bool;

    /// Returns whether acknowledgments are owed that the kernel may delay.
    fn owes_acks(engine: &Engine<Self>) -> bool;
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
                    connection.handle_socket_timer(context);
                });
            }
        }
        any
    }
}
