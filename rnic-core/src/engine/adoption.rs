//! Connections that another engine of the device accepts.

use std::any::Any;

use crate::connection::{Connection, ConnectionOptions, EndReason, Event, Wants};
use crate::ids::{QpNumber, RequestId};
use crate::memory::epoch::Guard;
use crate::time::Instant;

use super::Engine;
use super::carrier::Carrier;
use super::command::Command;

/// A connection on its way to another engine, where a queue pair accepts it.
pub struct Adoption {
    /// A [`Connection`] over the transport of the device. `None` if it has ended.
    connection: Option<Box<dyn Any + Send>>,
    qp: QpNumber,
    options: ConnectionOptions,
}

impl<T: Carrier> Engine<T> {
    /// Moves a connection with its request to another engine of the device.
    pub(super) fn accept_elsewhere(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        engine: u16,
        request: RequestId,
        qp: QpNumber,
        options: ConnectionOptions,
    ) {
        let index = self.take_request(request);
        let (free, bound) = match index {
            Some(index) if T::departs(self, index) => (Some(index), None),
            index => (None, index),
        };
        if let Some(index) = bound {
            self.with_connection(index, now, guard, Connection::abort);
        }
        let connection = free.map(|index| Box::new(self.detach(index)));
        if let Some(place) = &self.place {
            let key = connection.as_deref().map(Connection::key).copied();
            let adoption = Adoption {
                connection: connection.map(|connection| connection as _),
                qp,
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
        match request {
            Some(request) => {
                self.accept(now, guard, request, qp, options);
            }
            None => self.events.push_back(Event::Failed {
                qp,
                reason: EndReason::Reset,
            }),
        }
    }
}
