//! What associations receive: their news, and chunks for sessions.

use crate::adaptation::StreamIds;
use crate::connection::{
    Arrived, AssociationSocket, Associations, Connection, EndReason, FlowKey, Standing, Wants,
};
use crate::counters::DropReason;
use crate::engine::listener::Listener;
use crate::engine::passive::Stranger;
use crate::memory::epoch::Guard;
use crate::tcp::TcpFailure;
use crate::time::Instant;
use crate::wire::session::{CONTROL, SessionChunk, SessionControl};

use super::{ASSOCIATIONS, SessionEngine};

/// The most chunks received for one association in a turn, so that others have theirs.
const CHUNKS: usize = 256;

/// So often chunks are tried in vain for an association that had some.
const MISSES: u16 = 1000;

/// The most sessions of an association that are being refused. A peer that asks for more is not one
/// to talk to.
const MOST_REFUSALS: usize = 1024;

impl<L: Associations> SessionEngine<L> {
    /// Puts an association into the list of those with something to receive.
    pub(super) fn note_readable(&mut self, number: usize) {
        if let Some(association) = self.below.associations.get_mut(number)
            && association.is_readable
            && !std::mem::replace(&mut association.is_listed_readable, true)
        {
            self.below.readable.push_back(number);
        }
    }

    /// Receives chunks. Returns whether there were any.
    pub(super) fn receive_all(&mut self, now: Instant, guard: &Guard<'_>) -> bool {
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
            let is_known = matches!(
                arrived,
                Ok(Arrived::Up { .. } | Arrived::Restarted { .. } | Arrived::Indication(_))
            );
            // The indication would have come first.
            let lacks_it = association.standing == Standing::Unverified && !is_known;
            if lacks_it && !association.verify(None) {
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
                // A peer that did not hear that it is up.
                Ok(Arrived::Restarted { outbound, inbound }) if association.used.is_empty() => {
                    association.streams = StreamIds::new(outbound, inbound);
                }
                Ok(Arrived::Restarted { .. }) => {
                    self.lose(number, None, TcpFailure::Reset, now, guard);
                    break;
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
                    association.heard_at = now;
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
        let begins = protocol == CONTROL
            && SessionChunk::parse(protocol, octets).is_ok_and(|one| one.begins_session());
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
}
