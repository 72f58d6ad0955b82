//! An engine over SCTP associations of the kernel: sessions of many queue pairs on each.

use std::time::Duration;

use crate::adaptation::StreamIds;
use crate::connection::{
    Accepted, AddressPair, Arrived, Association, AssociationSocket, Associations, Connection,
    ConnectionOptions, Context, EndReason, Event, FlowKey, PortReservation, Ready, SctpSession,
    Standing, Wants,
};
use crate::counters::DropReason;
use crate::ids::{ListenerId, QpNumber, RequestId};
use crate::memory::epoch::Guard;
use crate::tcp::TcpFailure;
use crate::time::Instant;
use crate::wire::session::{SessionChunk, SessionControl};

use super::Engine;
use super::adoption::Adoption;
use super::carrier::{Carrier, KernelCarrier};
use super::listener::Listener;
use super::look::Look;
use super::passive::Stranger;
use super::queue_pairs::EndLocation;

/// The most chunks received for one association in a turn, so that others have theirs.
const CHUNKS: usize = 256;

/// The most chunks that a session sends in a turn.
const BURST: u64 = 64;

/// The most associations of a turn that chunks are received for, and that are asked for
/// acknowledgments.
const ASSOCIATIONS: usize = 64;

/// So often chunks are tried in vain for an association that had some.
const MISSES: u16 = 1000;

/// Looks in vain after which a peer is asked for acknowledgments rarely.
const MOST_MISSES: u8 = u8::MAX;

/// The most associations of a listener that begin in one turn.
const ACCEPTED: usize = 64;

/// How long a peer's association may have no session.
const IDLE: Duration = Duration::from_secs(60);

/// The most sessions of an association that are being refused. A peer that asks for more is not one
/// to talk to.
const MOST_REFUSALS: usize = 1024;

/// The connections of an engine over associations.
type SessionEngine<L> = Engine<SctpSession<L>>;

impl<L: Associations> Carrier for SctpSession<L> {
    fn is_waited_for(engine: &SessionEngine<L>) -> bool {
        let below = &engine.below;
        !(below.ready.is_empty() && below.readable.is_empty() && below.left.is_empty())
    }

    /// The kernel has the route.
    fn resolves(_: &mut SessionEngine<L>, _: Instant, _: AddressPair) -> bool {
        true
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

    /// The kernel has the route.
    fn accepted(_: &mut SessionEngine<L>, _: Instant, _: usize) {}

    /// There is one engine.
    fn accept_elsewhere(
        engine: &mut SessionEngine<L>,
        _: Instant,
        _: &Guard<'_>,
        _: u16,
        _: RequestId,
        qp: QpNumber,
        _: ConnectionOptions,
    ) {
        let reason = EndReason::Reset;
        engine.events.push_back(Event::Failed { qp, reason });
    }

    /// There is one engine.
    fn adopt(_: &mut SessionEngine<L>, _: Instant, _: &Guard<'_>, _: Adoption) {}
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
        let association = match self.association_for(&key, &options, &reservation) {
            Ok(association) => association,
            Err(reason) => {
                self.qps.put(end);
                return Err(reason);
            }
        };
        key = FlowKey::new(self.below.associations[association].local, key.remote);
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
    fn seat_waiting(&mut self, now: Instant, guard: &Guard<'_>, number: usize) {
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

    /// Puts an association into the list of those with something to receive.
    fn note_readable(&mut self, number: usize) {
        if let Some(association) = self.below.associations.get_mut(number)
            && association.is_readable
            && !std::mem::replace(&mut association.is_listed_readable, true)
        {
            self.below.readable.push_back(number);
        }
    }

    /// Receives chunks. Returns whether there were any.
    fn receive_all(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.below.readable.len().min(ASSOCIATIONS) {
            let Some(number) = self.below.readable.pop_front() else {
                break;
            };
            if let Some(association) = self.below.associations.get_mut(number) {
                association.is_listed_readable = false;
                let received = self.receive_for(number, now, guard);
                any |= received;
                self.note_hot(number, received);
                self.note_readable(number);
            }
        }
        any
    }

    /// Receives what an association has. Returns whether there was anything.
    fn receive_for(&mut self, number: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let mut buffer = std::mem::take(&mut self.below.received);
        let mut any = false;
        for _ in 0..CHUNKS {
            // A step may have ended it.
            let Some(association) = self.below.associations.get_mut(number) else {
                break;
            };
            let arrived = association.socket.receive(&mut buffer);
            if arrived == Ok(Arrived::Nothing) {
                association.is_readable = false;
            }
            any |= arrived != Ok(Arrived::Nothing);
            let is_known = matches!(arrived, Ok(Arrived::Up { .. } | Arrived::Indication(_)));
            if association.standing == Standing::Unverified && !is_known {
                // The indication would have come first.
                association.verify(None);
                self.lose(
                    number,
                    Some(EndReason::NoAdaptation),
                    TcpFailure::Aborted,
                    now,
                    guard,
                );
                break;
            }
            match arrived {
                Ok(Arrived::Up { outbound, inbound }) => {
                    association.standing = Standing::Unverified;
                    association.streams = StreamIds::new(outbound, inbound);
                }
                Ok(Arrived::Indication(indication)) => {
                    if !association.verify(Some(indication)) {
                        self.lose(
                            number,
                            Some(EndReason::NoAdaptation),
                            TcpFailure::Aborted,
                            now,
                            guard,
                        );
                        break;
                    }
                    self.seat_waiting(now, guard, number);
                }
                Ok(Arrived::Chunk {
                    stream,
                    protocol,
                    len,
                }) => {
                    // Requests that it answers complete first.
                    self.follow_acks_of(number, now, guard);
                    self.receive_chunk(number, stream, protocol, &buffer[..len], now, guard);
                }
                Ok(Arrived::Other) => {}
                Ok(Arrived::Nothing) => break,
                Ok(Arrived::Closed) => {
                    self.lose(number, None, TcpFailure::Reset, now, guard);
                    break;
                }
                Err(failure) => {
                    self.lose(number, None, failure, now, guard);
                    break;
                }
            }
        }
        self.below.received = buffer;
        any
    }

    /// Hands a chunk to its session, or begins one.
    fn receive_chunk(
        &mut self,
        number: usize,
        stream: u16,
        protocol: u32,
        octets: &[u8],
        now: Instant,
        guard: &Guard<'_>,
    ) {
        let begins = SessionChunk::parse(protocol, octets).is_ok_and(|one| one.begins_session());
        let Some(association) = self.below.associations.get_mut(number) else {
            return;
        };
        let seat = association.seats.get(&stream).copied();
        if let Some(seat) = seat {
            // rfc: 5043-8 each chunk belongs to one session: an Initiate begins the next one
            if !(begins && self.connections[seat.connection].is_past()) {
                self.with_connection(seat.connection, now, guard, |connection, context| {
                    connection.receive_chunk(protocol, octets, context);
                });
                return;
            }
            self.with_connection(seat.connection, now, guard, |connection, context| {
                connection.lose_association(TcpFailure::Reset, None, context);
            });
        } else if !begins && association.used.contains(&stream) {
            // It was under way when its session ended here.
            return;
        }
        let begun = if begins {
            self.begin(now, number, stream)
        } else {
            Err(DropReason::NoConnection)
        };
        match begun {
            Ok(index) => self.with_connection(index, now, guard, |connection, context| {
                connection.receive_chunk(protocol, octets, context);
            }),
            Err(reason) => self.refuse(number, stream, reason, now, guard),
        }
    }

    /// Begins a session that a peer asks for, if there is a listener for it with room for one more.
    fn begin(&mut self, now: Instant, number: usize, stream: u16) -> Result<usize, DropReason> {
        let association = &self.below.associations[number];
        if association.listener.is_none() || !association.streams.has(stream) {
            return Err(DropReason::NoConnection);
        }
        let key = FlowKey::new(association.local, association.remote);
        let admitted = self.admit(&key);
        let (id, listener) = admitted.map_err(|stranger| match stranger {
            Stranger::Refused(reason) | Stranger::Ignored(reason) => reason,
            _ => DropReason::NoConnection,
        })?;
        let Listener {
            reservation,
            refusals,
            ..
        } = listener;
        let new = Connection::begun_on(now, key, number, reservation, id, refusals);
        let index = self.insert(new);
        let seat = self.below.associations[number].seat(stream, index);
        self.connections[index].take_seat(stream, seat);
        self.schedule(index, Wants::TIMER);
        Ok(index)
    }

    /// Refuses what a peer has sent on a stream without a session.
    // rfc: 5043-7, 5043-14 a session for which there is no room is refused by a Terminate
    // rfc: 5043-12 and not by a Reject, which is the application's
    fn refuse(
        &mut self,
        number: usize,
        stream: u16,
        reason: DropReason,
        now: Instant,
        guard: &Guard<'_>,
    ) {
        self.counters.drops.count(reason);
        let association = &mut self.below.associations[number];
        association.used.insert(stream);
        let octets = SessionControl::TERMINATE.octets(0);
        association.refusals.push_back((stream, octets));
        if association.refusals.len() > MOST_REFUSALS {
            return self.lose(number, None, TcpFailure::Aborted, now, guard);
        }
        association.send_refusals();
        self.note_unacknowledged(number);
    }

    /// Ends an association, and with it all its sessions.
    fn lose(
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

    /// Asks the kernel what peers have acknowledged. Returns whether it was anything.
    fn follow_all_acks(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
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
    fn follow_acks_of(&mut self, number: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let association = &mut self.below.associations[number];
        if association.sent.is_empty() {
            association.misses = 0;
            return false;
        }
        let acked = association.socket.acknowledged();
        let more = acked.saturating_sub(association.acked) as usize;
        association.acked += more as u64;
        association.misses = match more {
            0 => association.misses.saturating_add(1),
            _ => 0,
        };
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

    fn note_unacknowledged(&mut self, number: usize) {
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

    /// Notes which association has chunks for now.
    fn note_hot(&mut self, number: usize, has_received: bool) {
        let below = &mut self.below;
        if has_received {
            (below.hot, below.misses) = (Some(number), 0);
        } else if below.hot == Some(number) {
            below.misses += 1;
            if below.misses == MISSES {
                below.hot = None;
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

    /// Sends what sessions have to send. Returns whether there was anything.
    fn send_all(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.schedule.ready().len() {
            let Some(index) = self.schedule.take_ready(&mut self.connections) else {
                break;
            };
            let before = self.connections[index].stage();
            let number = self.connections[index].association();
            let more = match self.send_for(index, now, guard) {
                Some((sent, has_room)) => {
                    any |= sent > 0;
                    self.note_unacknowledged(number);
                    has_room && sent == BURST
                }
                None => false,
            };
            self.follow(index, before, now, guard);
            let wants = Wants {
                send: more,
                ..self.connections[index].wants(now, false)
            };
            self.schedule(index, wants);
        }
        any
    }

    /// Sends what a session has to send. Returns how many chunks that were and whether the kernel
    /// has room for more. `None` if it has none, or the association is over.
    fn send_for(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> Option<(u64, bool)> {
        let Self {
            below,
            connections,
            config,
            cqs,
            srqs,
            events,
            counters,
            next_request,
            ..
        } = self;
        let mut context = Context {
            now,
            fast_paths: config.fast_paths,
            guard,
            cqs,
            srqs,
            events,
            counters,
            next_request,
        };
        let connection = &mut connections[index];
        let association = below.associations.get_mut(connection.association())?;
        if !association.is_writable {
            return None;
        }
        let (staging, socket) = (&mut below.staging, &mut association.socket);
        let (sent, has_room) = connection.send_chunks(staging, socket, BURST, &mut context);
        association.is_writable = has_room;
        if let Some(place) = connection.place() {
            let sent = std::iter::repeat_n(place, sent as usize);
            association.sent.extend(sent);
        }
        Some((sent, has_room))
    }
}
