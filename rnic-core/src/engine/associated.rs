//! An engine over SCTP associations of the kernel: sessions of many queue pairs on each.

mod acknowledgments;
mod receiving;
mod sending;
mod set_up;

use std::time::Duration;

use crate::connection::{
    Accepted, Association, AssociationSocket, Associations, Connection, ConnectionFacts,
    ConnectionOptions, EndReason, Event, FlowKey, PortReservation, Ready, SctpSession, Standing,
    Wants,
};
use crate::ids::{ListenerId, QpNumber};
use crate::memory::epoch::Guard;
use crate::tcp::TcpFailure;
use crate::time::Instant;

use super::Engine;
use super::carrier::{Carrier, KernelCarrier};
use super::look::Look;
use super::passive::Stranger;
use super::queue_pairs::EndLocation;

/// The most associations of a listener that begin in one turn.
const ACCEPTED: usize = 64;

/// The most associations of a turn that chunks are received for, and that are asked for
/// acknowledgments.
const ASSOCIATIONS: usize = 64;

/// How long a peer's association may have no session.
const IDLE: Duration = Duration::from_secs(60);

/// The connections of an engine over associations.
type SessionEngine<L> = Engine<SctpSession<L>>;

impl<L: Associations> Carrier for SctpSession<L> {
    fn is_waited_for(engine: &SessionEngine<L>) -> bool {
        let below = &engine.below;
        !(below.ready.is_empty() && below.readable.is_empty() && below.left.is_empty())
    }

    fn connect(
        engine: &mut SessionEngine<L>,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) {
        if let Err(reason) = engine.connect_session(now, guard, qp, key, options, reservation) {
            engine.events.push_back(Event::Failed { qp, reason });
        }
    }

    fn listen(
        engine: &mut SessionEngine<L>,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason> {
        engine.below.sockets.listen(listener, reservation)
    }

    fn unlisten(engine: &mut SessionEngine<L>, listener: ListenerId) {
        engine.below.sockets.unlisten(listener);
    }

    /// Its association stays.
    fn departs(_: &mut SessionEngine<L>, _: usize) -> bool {
        false
    }

    /// The way to the peer is that of the association.
    fn add_facts(engine: &SessionEngine<L>, index: usize, facts: &mut ConnectionFacts) {
        let association = engine.connections[index].association();
        let association = engine.below.associations.get(association);
        if let Some(path) = association.and_then(|shared| shared.socket.path()) {
            let tcp = &mut facts.tcp;
            tcp.rtt = path.rtt.map(|rtt| (rtt, Duration::ZERO));
            (tcp.rto, tcp.cwnd, tcp.send_window) = (path.rto, path.cwnd, path.send_window);
        }
    }
}

impl<L: Associations> KernelCarrier for SctpSession<L> {
    fn handle_sockets(
        engine: &mut SessionEngine<L>,
        now: Instant,
        guard: &Guard<'_>,
        look: Look,
    ) -> bool {
        engine.handle_associations(now, guard, look)
    }

    fn send(engine: &mut SessionEngine<L>, now: Instant, guard: &Guard<'_>) -> bool {
        engine.send_all(now, guard)
    }

    fn awaits_acks(engine: &SessionEngine<L>) -> bool {
        !engine.below.unacknowledged.is_empty()
    }

    fn has_stalled(engine: &SessionEngine<L>) -> bool {
        !engine.below.stalled.is_empty()
    }

    /// What is sent asks for it (RFC 7053).
    fn owes_acks(_: &SessionEngine<L>) -> bool {
        false
    }
}

impl<L: Associations> SessionEngine<L> {
    /// Begins a session for a queue pair, on an association that is there or on a new one.
    fn connect_session(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        number: QpNumber,
        mut key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) -> Result<(), EndReason> {
        if self.device_gone {
            return Err(EndReason::DeviceGone);
        }
        let end = self.qps.take_idle(number).ok_or(EndReason::QpNotIdle)?;
        let options = self.permitted(options);
        let association = match self.association_for(now, &key, &options, &reservation) {
            Ok(association) => association,
            Err(reason) => {
                self.qps.put(end);
                return Err(reason);
            }
        };
        let shared = &self.below.associations[association];
        key = FlowKey::new(shared.local, key.remote);
        // Its own port is not needed where another has the association.
        let reservation = shared.reservation.clone().unwrap_or(reservation);
        let new = Connection::connect_on(now, key, association, reservation, end, options);
        let mut connection = match new {
            Ok(connection) => connection,
            Err((end, reason)) => {
                self.qps.put(end);
                self.below.left.push(association);
                return Err(reason);
            }
        };
        connection.wait_as(self.connections.vacant_key());
        let index = self.insert(connection);
        *self.qps.place(number) = Some(EndLocation::Connected(index));
        let association = &mut self.below.associations[association];
        association.waiting.push(index);
        if association.standing == Standing::Up {
            let association = self.connections[index].association();
            self.seat_waiting(now, guard, association);
        }
        self.schedule(index, Wants::TIMER);
        Ok(())
    }

    /// Returns the association for a session with a peer: one of ours that is there, or a new one.
    fn association_for(
        &mut self,
        now: Instant,
        key: &FlowKey,
        options: &ConnectionOptions,
        reservation: &PortReservation,
    ) -> Result<usize, EndReason> {
        let there = self.below.associations.iter().find(|(_, one)| {
            let is_ours = one.listener.is_none() && one.is_shared && one.has_room();
            is_ours && one.remote == key.remote && one.local.ip() == key.local.ip()
        });
        if let Some((index, _)) = there.filter(|_| !options.own_association) {
            return Ok(index);
        }
        let class = options.traffic_class;
        let below = &mut self.below;
        let socket = below.sockets.connect(reservation, key.remote, class)?;
        let reservation = Some(reservation.clone());
        let mut new = Association::new(socket, key.local, key.remote, None, reservation);
        new.is_shared = !options.own_association;
        (new.set_up_at, new.traffic_class) = (now, class);
        let index = below.associations.insert(Box::new(new));
        if let Err(reason) = below
            .sockets
            .watch(&below.associations[index].socket, index)
        {
            below.associations.remove(index);
            return Err(reason);
        }
        Ok(index)
    }

    /// Gives streams to the sessions that wait for an association, which is up now. A session for
    /// which there is none fails.
    pub(super) fn seat_waiting(&mut self, now: Instant, guard: &Guard<'_>, number: usize) {
        let waiting = std::mem::take(&mut self.below.associations[number].waiting);
        for index in waiting {
            let association = &mut self.below.associations[number];
            let taken = association.streams.take();
            let taken = taken.map(|stream| (stream, association.seat(stream, index)));
            self.with_connection(index, now, guard, |connection, context| match taken {
                Some((stream, seat)) => connection.take_seat(stream, seat),
                None => connection.fail(EndReason::InUse, context),
            });
        }
    }

    /// Handles what associations have, as far as `look` says. Returns whether there was anything.
    fn handle_associations(&mut self, now: Instant, guard: &Guard<'_>, look: Look) -> bool {
        let mut any = false;
        let hot = self
            .below
            .hot
            .filter(|hot| self.below.associations.contains(*hot));
        match hot {
            Some(hot) if !look.at_all_sockets => {
                self.below.associations[hot].is_readable = true;
                self.note_readable(hot);
            }
            _ => any = self.handle_all_ready(now, guard),
        }
        any |= self.receive_all(now, guard);
        if look.for_stalled {
            let called = self.below.stalled.len().min(ASSOCIATIONS);
            let called = self.below.stalled.drain(..called);
            self.below.unacknowledged.extend(called);
        }
        if look.for_acknowledgments {
            any |= self.follow_all_acks(now, guard);
        }
        self.end_idle(now);
        any
    }

    /// Handles what has become ready. Returns whether there was anything.
    fn handle_all_ready(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut ready = std::mem::take(&mut self.below.ready);
        self.below.sockets.poll(&mut ready);
        let any = !ready.is_empty();
        for one in &ready {
            match *one {
                Ready::Connection {
                    index,
                    readable,
                    writable,
                    ended,
                } => self.handle_ready(index, (readable, writable, ended)),
                Ready::Listener(listener) => self.accept_all(now, guard, listener),
            }
        }
        ready.clear();
        // Those are for the next turn.
        ready.append(&mut self.below.ready);
        self.below.ready = ready;
        any
    }

    /// Handles that an association is ready. One that is over may have been.
    fn handle_ready(&mut self, number: usize, (readable, writable, ended): (bool, bool, bool)) {
        let Some(association) = self.below.associations.get_mut(number) else {
            return;
        };
        association.is_readable |= readable | ended;
        association.is_ending |= ended;
        if writable && !std::mem::replace(&mut association.is_writable, true) {
            association.send_refusals();
            self.call_sessions(number);
        }
        self.note_readable(number);
        self.note_unacknowledged(number);
    }

    /// Has all sessions of an association try to send.
    fn call_sessions(&mut self, number: usize) {
        let seats = self.below.associations[number].seats.values();
        let all: Vec<usize> = seats.map(|seat| seat.connection).collect();
        for index in all {
            self.schedule(index, Wants::SEND);
        }
    }

    /// Ends an association, and with it all its sessions.
    pub(super) fn lose(
        &mut self,
        number: usize,
        reason: Option<EndReason>,
        failure: TcpFailure,
        now: Instant,
        guard: &Guard<'_>,
    ) {
        // What the peer has acknowledged is done.
        self.follow_acks_of(number, now, guard);
        let association = &mut self.below.associations[number];
        association.standing = Standing::Over;
        if failure == TcpFailure::Aborted {
            association.socket.abort();
        }
        let seats = association.seats.values().map(|seat| seat.connection);
        let all: Vec<usize> = seats.chain(association.waiting.iter().copied()).collect();
        for index in all {
            self.with_connection(index, now, guard, |connection, context| {
                connection.lose_association(failure, reason.clone(), context);
            });
        }
        self.below.associations.remove(number);
    }

    /// Ends associations that have no session any more: our own at once, and those of peers when
    /// they have had none for some time.
    fn end_idle(&mut self, now: Instant) {
        for number in std::mem::take(&mut self.below.left) {
            let below = &mut self.below;
            let Some(association) = below.associations.get_mut(number) else {
                continue;
            };
            if !association.is_idle() {
                continue;
            }
            if association.listener.is_none() {
                below.associations.remove(number);
            } else if association.idle_until.is_none() {
                let until = now + IDLE;
                association.idle_until = Some(until);
                below.idle.push_back((until, number));
            }
        }
        while let Some((until, number)) = self.below.idle.front().copied() {
            if until > now {
                break;
            }
            self.below.idle.pop_front();
            let association = self.below.associations.get(number);
            if association.is_some_and(|one| one.idle_until == Some(until)) {
                self.below.associations.remove(number);
            }
        }
    }

    /// Begins the associations that peers have set up with a listener.
    fn accept_all(&mut self, now: Instant, guard: &Guard<'_>, listener: ListenerId) {
        for _ in 0..ACCEPTED {
            if self.below.associations.len() >= self.config.max_connections {
                return self.below.sockets.pause(listener);
            }
            let Some(accepted) = self.below.sockets.accept(listener) else {
                return;
            };
            let Accepted {
                mut socket,
                local,
                remote,
            } = accepted;
            let key = FlowKey::new(local, remote);
            if let Err(Stranger::Refused(reason)) = self.admit(&key) {
                self.counters.drops.count(reason);
                socket.abort();
                continue;
            }
            let (local, remote) = (key.local, key.remote);
            let new = Association::new(socket, local, remote, Some(listener), None);
            let number = self.below.associations.insert(Box::new(new));
            let below = &mut self.below;
            let watched = below
                .sockets
                .watch(&below.associations[number].socket, number);
            if watched.is_err() {
                self.lose(number, None, TcpFailure::Aborted, now, guard);
                continue;
            }
            self.below.left.push(number);
            self.note_readable(number);
        }
        // More may wait.
        self.below.ready.push(Ready::Listener(listener));
    }
}
