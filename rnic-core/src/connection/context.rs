//! What the engine lends to a connection for a call, and what the connection wants of the engine.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::fast_paths::FastPaths;
use crate::memory::epoch::Guard;
use crate::time::Instant;
use crate::verbs::cq::CqTable;
use crate::verbs::srq::SrqTable;

use super::event::Event;

/// What the engine lends to a connection for one call.
pub(crate) struct Context<'a, 'g> {
    pub(crate) now: Instant,
    pub(crate) fast_paths: FastPaths,
    pub(crate) guard: &'a Guard<'g>,
    pub(crate) cqs: &'a mut CqTable,
    pub(crate) srqs: &'a mut SrqTable,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut Counters,
    pub(crate) next_request: &'a mut u64,
}

/// What the next turn of a connection is for, as far as it can be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upcoming {
    /// To receive data.
    Data,
    /// To send, or to process an ACK.
    Any,
}

/// What a step of a connection wants of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// A turn to send in: there may be something to send.
    pub(crate) send: bool,
    /// A turn behind this time, for an ACK that is due by then.
    pub(crate) delayed_ack: Option<Instant>,
    /// Its timer to be set earlier, or to be removed.
    pub(crate) timer: bool,
    /// To be removed: it is over.
    pub(crate) ended: bool,
}

impl Wants {
    /// A turn to send in.
    pub(crate) const SEND: Self = Self {
        send: true,
        delayed_ack: None,
        timer: false,
        ended: false,
    };
    /// Its timer to be set.
    pub(crate) const TIMER: Self = Self {
        send: false,
        timer: true,
        ..Self::SEND
    };
}

/// Where a connection stands in the engine's schedule, which alone changes this.
#[derive(Debug, Default)]
pub(crate) struct Scheduled {
    /// In the queue of connections that may have something to send.
    pub(crate) ready: bool,
    /// In the list of delayed ACKs.
    pub(crate) delayed_ack: bool,
    /// When its timer goes off: when it [wants](super::Connection::next_timeout) that, or earlier.
    pub(crate) timer: Option<Instant>,
}
