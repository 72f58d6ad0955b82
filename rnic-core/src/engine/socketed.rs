//! An engine over TCP sockets of the kernel.

use crate::connection::{
    Accepted, Connection, ConnectionOptions, EndReason, Event, FlowKey, KernelTcp, Listed, Owed,
    PortReservation, Ready, Socket, Sockets, Wants,
};
use crate::ids::{ListenerId, QpNumber};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::Engine;
use super::carrier::{Carrier, KernelCarrier};
use super::listener::Listener;
use super::look::Look;
use super::passive::Stranger;
use super::queue_pairs::EndLocation;

/// The most calls that receive octets for one connection in a turn, so that others have theirs.
const CALLS: usize = 4;

/// The most connections of a turn that octets are received for, that are asked for acknowledgments,
/// and whose peers' octets are acknowledged.
const CONNECTIONS: usize = 64;

/// So often octets are tried in vain for a connection that had some.
const MISSES: u16 = 1000;

/// Looks in vain after which a peer is asked for acknowledgments rarely: one that does not answer is
/// not to hold up the others.
const MOST_MISSES: u8 = u8::MAX;

/// The most connections of a listener that begin in one turn.
const ACCEPTED: usize = 64;

/// The connections of an engine over sockets.
type SocketEngine<L> = Engine<KernelTcp<L>>;

impl<L: Sockets> Carrier for KernelTcp<L> {
    fn is_waited_for(engine: &SocketEngine<L>) -> bool {
        if !engine.below.ready.is_empty() {
            return true;
        }
        let mut readable = engine.below.readable.iter();
        readable.any(|index| {
            engine
                .connections
                .get(*index)
                .is_some_and(|one| one.wants_octets())
        })
    }

    fn connect(
        engine: &mut SocketEngine<L>,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) {
        let begun = engine.connect_by_socket(now, qp, key, options, reservation);
        let begun = begun.map(|index| engine.watch(now, guard, index));
        if let Err(reason) = begun {
            engine.events.push_back(Event::Failed { qp, reason });
        }
    }

    fn listen(
        engine: &mut SocketEngine<L>,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason> {
        // One engine accepts for all: a connection goes to the one that has its queue pair.
        match &engine.place {
            Some(place) if place.number() > 0 => Ok(()),
            _ => engine.below.sockets.listen(listener, reservation),
        }
    }

    fn unlisten(engine: &mut SocketEngine<L>, listener: ListenerId) {
        engine.below.sockets.unlisten(listener);
    }

    fn departs(engine: &mut SocketEngine<L>, index: usize) -> bool {
        let connection = &mut engine.connections[index];
        *connection.listed() = Listed::default();
        engine.below.sockets.unwatch(connection.socket());
        true
    }

    fn arrived(engine: &mut SocketEngine<L>, now: Instant, guard: &Guard<'_>, index: usize) {
        engine.watch(now, guard, index);
        engine.note_readable(index);
    }
}

impl<L: Sockets> KernelCarrier for KernelTcp<L> {
    fn handle_sockets(
        engine: &mut SocketEngine<L>,
        now: Instant,
        guard: &Guard<'_>,
        look: Look,
    ) -> bool {
        engine.handle_sockets(now, guard, look)
    }

    fn send(engine: &mut SocketEngine<L>, now: Instant, guard: &Guard<'_>) -> bool {
        engine.send(now, guard)
    }

    fn awaits_acks(engine: &SocketEngine<L>) -> bool {
        !engine.below.unacknowledged.is_empty()
    }

    fn has_stalled(engine: &SocketEngine<L>) -> bool {
        !engine.below.stalled.is_empty()
    }

    fn owes_acks(engine: &SocketEngine<L>) -> bool {
        !engine.below.owed.is_empty()
    }
}

impl<L: Sockets> SocketEngine<L> {
    fn connect_by_socket(
        &mut self,
        now: Instant,
        number: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) -> Result<usize, EndReason> {
        if self.device_gone {
            return Err(EndReason::DeviceGone);
        }
        let end = self.qps.take_idle(number).ok_or(EndReason::QpNotIdle)?;
        let options = self.permitted(options);
        let socket = match self.below.sockets.connect(&reservation, key.remote) {
            Ok(socket) => socket,
            Err(reason) => {
                self.qps.put(end);
                return Err(reason);
            }
        };
        let new = Connection::connect_by(now, key, socket, reservation, end, options);
        let connection = new.map_err(|(end, reason)| {
            self.qps.put(end);
            reason
        })?;
        let index = self.insert(connection);
        *self.qps.place(number) = Some(EndLocation::Connected(index));
        self.schedule(index, Wants::TIMER);
        Ok(index)
    }

    /// Has the kernel tell of a connection. One that it cannot tell of fails.
    fn watch(&mut self, now: Instant, guard: &Guard<'_>, index: usize) {
        let Self {
            below, connections, ..
        } = self;
        if let Err(reason) = below.sockets.watch(connections[index].socket(), index) {
            self.with_connection(index, now, guard, |connection, context| {
                connection.fail(reason, context);
            });
        }
    }

    /// Handles what sockets have, as far as `look` says. Returns whether there was anything.
    fn handle_sockets(&mut self, now: Instant, guard: &Guard<'_>, look: Look) -> bool {
        let mut any = false;
        match self.hot() {
            Some(hot) if !look.at_all_sockets => {
                self.connections[hot].expect_octets();
                self.note_readable(hot);
            }
            _ => any = self.handle_all_ready(now, guard),
        }
        any |= self.receive(now, guard);
        if look.for_stalled {
            self.call_stalled();
        }
        if look.for_acknowledgments {
            any |= self.follow_acks(now, guard);
        }
        if look.for_owed {
            self.acknowledge();
        }
        any
    }

    /// Returns the connection that is tried without asking what is ready.
    fn hot(&self) -> Option<usize> {
        let hot = self.below.hot.filter(|_| !self.below.lacks_room)?;
        self.connections.contains(hot).then_some(hot)
    }

    /// Handles what has become ready. Returns whether there was anything.
    fn handle_all_ready(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut ready = std::mem::take(&mut self.below.ready);
        self.below.sockets.poll(&mut ready);
        self.below.lacks_room = false;
        let any = !ready.is_empty();
        for one in &ready {
            match *one {
                Ready::Connection {
                    index,
                    readable,
                    writable,
                    ended,
                } => self.handle_ready(now, guard, index, (readable, writable, ended)),
                Ready::Listener(listener) => self.accept_all(now, guard, listener),
            }
        }
        ready.clear();
        // Those are for the next turn.
        ready.append(&mut self.below.ready);
        self.below.ready = ready;
        any
    }

    /// Handles that a socket is ready. That of a connection that is over may have been.
    fn handle_ready(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        index: usize,
        can: (bool, bool, bool),
    ) {
        if !self.connections.contains(index) {
            return;
        }
        self.with_connection(index, now, guard, |connection, context| {
            connection.handle_ready(can, context);
        });
        self.note_readable(index);
        // What the kernel had no room for may have gone there now.
        self.note_unacknowledged(index);
    }

    /// Puts a connection into the list of those with octets to receive.
    fn note_readable(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let is_readable = connection.is_readable();
        let listed = connection.listed();
        if is_readable && !listed.readable {
            listed.readable = true;
            self.below.readable.push_back(index);
        }
    }

    /// Receives octets. Returns whether there were any.
    fn receive(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.below.readable.len().min(CONNECTIONS) {
            let Some(index) = self.below.readable.pop_front() else {
                break;
            };
            if let Some(connection) = self.connections.get_mut(index) {
                connection.listed().readable = false;
                if connection.is_paused() {
                    // Others may have given back memory since.
                    let (connection, context) = self.lend(index, now, guard);
                    connection.update_buffered(&context);
                }
                any |= self.receive_for(index, now, guard);
                self.note_readable(index);
            }
        }
        any
    }

    fn receive_for(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let mut buffer = std::mem::take(&mut self.below.received);
        let mut any = false;
        for _ in 0..CALLS {
            // A step may have ended it.
            let connection = self.connections.get(index);
            if !connection.is_some_and(|connection| connection.wants_octets()) {
                break;
            }
            let received = self.with_connection(index, now, guard, |connection, context| {
                connection.receive_octets(&mut buffer, context)
            });
            if !received {
                break;
            }
            any = true;
        }
        self.below.received = buffer;
        self.note_hot(index, any);
        if any {
            self.note_owed(index);
        }
        any
    }

    /// Notes which connection has octets for now.
    fn note_hot(&mut self, index: usize, has_received: bool) {
        let below = &mut self.below;
        if has_received {
            (below.hot, below.misses) = (Some(index), 0);
        } else if below.hot == Some(index) {
            below.misses += 1;
            if below.misses == MISSES {
                below.hot = None;
            }
        }
    }

    /// Asks the kernel what peers have acknowledged. Returns whether it was anything.
    fn follow_acks(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.below.unacknowledged.len().min(CONNECTIONS) {
            let Some(index) = self.below.unacknowledged.pop_front() else {
                break;
            };
            any |= self.follow_acks_of(index, now, guard);
        }
        any
    }

    /// Asks for the connections again that were asked many times in vain.
    fn call_stalled(&mut self) {
        let called = self.below.stalled.len().min(CONNECTIONS);
        let called = self.below.stalled.drain(..called);
        self.below.unacknowledged.extend(called);
    }

    fn follow_acks_of(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else {
            return false;
        };
        connection.listed().unacknowledged = false;
        if !connection.awaits_acks() {
            connection.listed().misses = 0;
            return false;
        }
        let any = self.with_connection(index, now, guard, |connection, context| {
            connection.follow_acks(context)
        });
        if let Some(connection) = self.connections.get_mut(index) {
            let listed = connection.listed();
            listed.misses = if any {
                0
            } else {
                listed.misses.saturating_add(1)
            };
        }
        self.note_unacknowledged(index);
        any
    }

    fn note_unacknowledged(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let awaits_acks = connection.awaits_acks();
        let listed = connection.listed();
        if awaits_acks && !listed.unacknowledged {
            listed.unacknowledged = true;
            match listed.misses < MOST_MISSES {
                true => self.below.unacknowledged.push_back(index),
                false => self.below.stalled.push_back(index),
            }
        }
    }

    /// Notes that an acknowledgment is owed to the peer of a connection.
    fn note_owed(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let listed = connection.listed();
        if listed.owed == Owed::Nothing {
            listed.owed = Owed::Now;
        }
        if !listed.owing {
            listed.owing = true;
            self.below.owed.push_back(index);
        }
    }

    /// Has the kernel acknowledge what peers have sent that have had no answer since the last look.
    /// By itself it waits some 40 ms for one, and the peer's requests complete no earlier.
    fn acknowledge(&mut self) {
        for _ in 0..self.below.owed.len().min(CONNECTIONS) {
            let Some(index) = self.below.owed.pop_front() else {
                break;
            };
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            match connection.listed().owed {
                Owed::Nothing => connection.listed().owing = false,
                Owed::Now => {
                    connection.listed().owed = Owed::Before;
                    self.below.owed.push_back(index);
                }
                Owed::Before => {
                    connection.acknowledge();
                    (connection.listed().owed, connection.listed().owing) = (Owed::Nothing, false);
                }
            }
        }
    }

    pub(super) fn sockets(&self) -> &L {
        &self.below.sockets
    }

    /// Begins the connections that peers have opened to a listener.
    fn accept_all(&mut self, now: Instant, guard: &Guard<'_>, listener: ListenerId) {
        for _ in 0..ACCEPTED {
            if !self.has_backlog_for(listener) {
                return self.below.sockets.pause(listener);
            }
            let Some(accepted) = self.below.sockets.accept(listener) else {
                return;
            };
            self.begin(now, guard, accepted);
        }
        // More may wait.
        self.below.ready.push(Ready::Listener(listener));
    }

    /// Begins a connection that a peer has opened, if there is a listener for it with room for one
    /// more. Otherwise the peer is turned away.
    fn begin(&mut self, now: Instant, guard: &Guard<'_>, accepted: Accepted<L::Socket>) {
        let Accepted {
            mut socket,
            local,
            remote,
        } = accepted;
        let key = FlowKey::new(local, remote);
        let (id, listener) = match self.admit(&key) {
            Ok(admitted) => admitted,
            Err(stranger) => {
                if let Stranger::Refused(reason) | Stranger::Ignored(reason) = stranger {
                    self.counters.drops.count(reason);
                }
                return socket.reset();
            }
        };
        let Listener {
            reservation,
            refusals,
            ..
        } = listener;
        let new = Connection::accepted_by(now, key, socket, reservation, id, refusals);
        let index = self.insert(new);
        self.schedule(index, Wants::TIMER);
        self.watch(now, guard, index);
    }

    /// Sends what connections have to send. Returns whether there was anything.
    fn send(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.schedule.ready().len() {
            let Some(index) = self.schedule.take_ready(&mut self.connections) else {
                break;
            };
            let mut staging = std::mem::take(&mut self.below.staging);
            let (connection, mut context) = self.lend(index, now, guard);
            let before = connection.stage();
            let (sent, more) = connection.send_octets(&mut staging, &mut context);
            self.below.lacks_room |= connection.lacks_room();
            self.below.staging = staging;
            self.follow(index, before, now, guard);
            any |= sent;
            if sent {
                // With an acknowledgment.
                self.connections[index].listed().owed = Owed::Nothing;
            }
            self.note_unacknowledged(index);
            let wants = Wants {
                send: more,
                ..self.connections[index].wants(now, false)
            };
            self.schedule(index, wants);
        }
        any
    }
}
