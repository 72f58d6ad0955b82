//! Connections that move to another engine of the device, where a queue pair accepts them.

use crate::connection::{Connection, ConnectionOptions, EndReason, Event, Wants};
use crate::ids::{QpNumber, RequestId, StreamId};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::Engine;
use super::adoption::Adoption;
use super::carrier::Carrier;
use super::command::Command;

impl<T: Carrier> Engine<T> {
    /// Moves a connection with its request to another engine of the device.
    pub(super) fn accept_elsewhere(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        engine: u16,
        request: RequestId,
        (qp, stream): (QpNumber, StreamId),
        options: ConnectionOptions,
    ) {
        let index = self.take_request(request);
        let connection = index.and_then(|index| {
            if T::departs(self, index) {
                return Some(Box::new(self.detach(index)));
            }
            self.with_connection(index, now, guard, Connection::abort);
            None
        });
        if let Some(place) = &self.place {
            let key = connection.as_deref().map(Connection::key).copied();
            let adoption = Adoption {
                connection: connection.map(|connection| connection as _),
                qp,
                stream,
                options,
            };
            place.give_away(engine, key, Command::Adopt(Box::new(adoption)));
        }
    }

    /// Takes over a connection from another engine, and accepts it.
    pub(super) fn adopt(&mut self, now: Instant, guard: &Guard<'_>, adoption: Adoption) {
        let Adoption {
            connection,
            qp,
            stream,
            options,
        } = adoption;
        let request = connection.and_then(|connection| {
            let connection: Connection<T> = *connection.downcast().ok()?;
            let request = connection.request()?;
            let index = self.insert(connection);
            self.schedule(index, Wants::TIMER);
            self.add_request(request, index);
            T::arrived(self, now, guard, index);
            Some(request)
        });
        // The host may have destroyed the queue pair since, and made another one of its number.
        let is_same = self.qps.stream(qp) == Some(stream);
        match request {
            Some(request) if is_same => self.accept(now, guard, request, qp, options),
            Some(request) => self.reject(now, guard, request, &[]),
            None if !is_same => {}
            None => self.events.push_back(Event::Failed {
                qp,
                reason: EndReason::Reset,
            }),
        }
    }
}
