//! The queue pairs and endpoints that the host made, by number.

use std::collections::HashMap;

use crate::connection::LocalEnd;
use crate::ids::{QpNumber, StreamId};
use crate::verbs::qp::{QpState, QueuePair};

/// Where a queue pair or endpoint is.
pub(super) enum EndLocation {
    /// Not connected.
    Here(LocalEnd),
    /// With its connection.
    Connected(usize),
}

/// Queue pairs and endpoints by number.
#[derive(Default)]
pub(super) struct QueuePairs {
    pub(super) places: Vec<Option<EndLocation>>,
    /// The stream of each, or of the last one with the number.
    streams: HashMap<QpNumber, StreamId>,
}

impl QueuePairs {
    pub(super) fn place(&mut self, number: QpNumber) -> &mut Option<EndLocation> {
        let index = number.0 as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        &mut self.places[index]
    }

    pub(super) fn connection_of(&self, number: QpNumber) -> Option<usize> {
        match self.places.get(number.0 as usize)?.as_ref()? {
            EndLocation::Connected(index) => Some(*index),
            EndLocation::Here(_) => None,
        }
    }

    /// Returns the stream of a queue pair.
    pub(super) fn stream(&self, number: QpNumber) -> Option<StreamId> {
        self.streams.get(&number).copied()
    }

    /// Removes and returns an idle queue pair, to connect it.
    pub(super) fn take_idle(&mut self, number: QpNumber) -> Option<LocalEnd> {
        let place = self.place(number);
        match place.take() {
            Some(EndLocation::Here(end)) if end.state() == QpState::Idle => Some(end),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Removes and returns an idle queue pair, to give it to another engine. Endpoints stay.
    pub(super) fn take_idle_qp(&mut self, number: QpNumber) -> Option<Box<QueuePair>> {
        match self.take_idle(number)? {
            LocalEnd::Qp(qp) => Some(qp),
            endpoint @ LocalEnd::Endpoint(_) => {
                self.put(endpoint);
                None
            }
        }
    }

    pub(super) fn put(&mut self, end: LocalEnd) {
        let number = end.number();
        self.streams.insert(number, end.stream());
        *self.place(number) = Some(EndLocation::Here(end));
    }

    /// Puts a queue pair back that its connection returned. If the host destroyed it meanwhile, it
    /// is dropped: its number may be another's by now.
    pub(super) fn put_back(&mut self, connection: usize, end: LocalEnd) {
        if self.connection_of(end.number()) == Some(connection) {
            self.put(end);
        }
    }
}
