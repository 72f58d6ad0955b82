//! Receiver not ready: what a stream with the semantics of RC keeps while no receive is posted for
//! the peer's next message (docs/design/rc-receiver-not-ready.md).
//!
//! From the first segment that finds no receive on, all *requests* of the peer are parked, in their
//! order: Sends, Immediate Data, Writes, Read and Atomic Requests. *Responses*, Terminates and
//! Control messages are received at once, so that a program that waits for its own Read before it
//! posts a receive gets on. So a stream that is parked has two orders of segments, each with a
//! message in progress of its own. When receives were posted, the parked segments are received from
//! here, as if they came then.

use std::collections::VecDeque;

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::LocalUlp;
use crate::counters::RdmaCounters;
use crate::ddp::{DdpError, DdpStream, MessageInProgress, Placed};
use crate::rdmap;
use crate::wire::ddp::{DdpHeader, DdpSegment, Msn, QueueNumber};

/// Octets that a stream may park without making its receive window smaller, and all streams of an
/// engine together.
const STREAM_SHARE: usize = 1 << 20;
const ENGINE_SHARE: u64 = 64 << 20;

/// The most that a stream may park. Who honours XOFF, or only the window, never gets there. But TCP
/// rounds the window up where it scales it, so with segments of few octets it never closes.
const MOST: usize = 32 << 20;

/// A segment of a request.
pub(super) enum ParkedSegment {
    Ulpdu(Box<[u8]>),
    /// Its payload was placed ahead of order, before the stream was parked.
    Placed(Box<Placed>),
}

/// What a parked segment takes beside its octets.
const OVERHEAD: usize = size_of::<ParkedSegment>() + 2 * size_of::<usize>();

impl ParkedSegment {
    fn memory(&self) -> usize {
        match self {
            Self::Ulpdu(octets) => OVERHEAD + octets.len(),
            Self::Placed(_) => OVERHEAD + size_of::<Placed>(),
        }
    }

    fn header(&self) -> Option<DdpHeader> {
        match self {
            Self::Ulpdu(octets) => Some(DdpSegment::parse(octets).ok()?.header),
            Self::Placed(placed) => Some(*placed.header()),
        }
    }

    /// Returns whether its message takes up a receive, and whether it is the last of the message.
    pub(super) fn takes_receive(&self) -> (bool, bool) {
        match self.header() {
            Some(DdpHeader::Untagged(header)) => (header.queue == QueueNumber::SEND, header.last),
            Some(DdpHeader::Tagged(_)) | None => (false, false),
        }
    }

    fn msn(&self) -> Option<Msn> {
        match self.header()? {
            DdpHeader::Untagged(header) => Some(header.msn),
            DdpHeader::Tagged(_) => None,
        }
    }
}

/// The parked segments of a stream.
#[derive(Default)]
pub(super) struct Parked {
    segments: VecDeque<ParkedSegment>,
    pub(super) memory: usize,
    /// The request that was received from here in part.
    pub(super) request: MessageInProgress,
    /// The stream stands among those that wait for a shared receive.
    pub(super) waits: bool,
}

impl Parked {
    pub(super) fn push(&mut self, segment: ParkedSegment, counters: &mut RdmaCounters) {
        self.count(segment.memory(), counters);
        self.segments.push_back(segment);
    }

    fn count(&mut self, memory: usize, counters: &mut RdmaCounters) {
        self.memory += memory;
        counters.octets_parked_now += memory as u64;
        counters.octets_parked_most = counters.octets_parked_most.max(counters.octets_parked_now);
    }

    /// Removes and returns the first segment. Unless it `may_take` a receive, only one of a
    /// message that takes none.
    pub(super) fn pop(
        &mut self,
        may_take: bool,
        counters: &mut RdmaCounters,
    ) -> Option<ParkedSegment> {
        let front = self.segments.front()?;
        if !may_take && front.takes_receive().0 {
            return None;
        }
        let segment = self.segments.pop_front()?;
        self.discount(segment.memory(), counters);
        Some(segment)
    }

    fn discount(&mut self, memory: usize, counters: &mut RdmaCounters) {
        self.memory -= memory;
        counters.octets_parked_now -= memory as u64;
    }

    /// Drops everything.
    pub(super) fn clear(&mut self, counters: &mut RdmaCounters) {
        self.segments.clear();
        self.discount(self.memory, counters);
    }

    /// Returns whether nothing is parked.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Puts back the segment that was removed last.
    pub(super) fn put_back(&mut self, segment: ParkedSegment, counters: &mut RdmaCounters) {
        self.count(segment.memory(), counters);
        self.segments.push_front(segment);
    }

    /// Checks that no more is parked than may be.
    fn check(&self) -> Result<u32, StreamError> {
        if self.memory <= MOST {
            return Ok(0);
        }
        let queue = QueueNumber::SEND;
        let front = self.segments.front().and_then(ParkedSegment::msn);
        let msn = front.unwrap_or(Msn(0));
        Err(DdpError::NoBuffer { queue, msn }.into())
    }

    /// Returns the octets by which the receive window is smaller.
    pub(super) fn beyond_share(&self, counters: &RdmaCounters) -> usize {
        match counters.octets_parked_now > ENGINE_SHARE {
            true => self.memory,
            false => self.memory.saturating_sub(STREAM_SHARE),
        }
    }
}

/// Keeps a segment that comes in order.
pub(super) fn keep(parked: &mut Option<Box<Parked>>, ulpdu: &[u8], counters: &mut RdmaCounters) {
    let segment = ParkedSegment::Ulpdu(ulpdu.into());
    parked.get_or_insert_default().push(segment, counters);
}

/// Receives the next segment of a parked stream.
pub(super) fn receive(
    ulpdu: &[u8],
    ddp: &mut DdpStream,
    user: &mut LocalUlp,
    parked: &mut Option<Box<Parked>>,
    acked: u64,
    context: &mut Context<'_, '_>,
) -> Result<u32, StreamError> {
    if is_request(ulpdu) {
        keep(parked, ulpdu, &mut context.counters.rdma);
        return parked.as_ref().map_or(Ok(0), |parked| parked.check());
    }
    let guard = context.guard;
    ddp.receive(ulpdu, &mut user.receiving(context, acked), guard)
}

fn is_request(ulpdu: &[u8]) -> bool {
    // What is malformed is found in its turn.
    DdpSegment::parse(ulpdu).map_or(true, |segment| rdmap::is_request(&segment.header))
}
