//! What the engine and a connection hand to each other in a call.

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

/// What the next turn of a connection is for, as far as can be seen ahead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upcoming {
    /// Data of the peer's.
    Data,
    /// To send, or to hear that what was sent has arrived.
    Any,
}
