//! The layer above DDP on a connection: RDMAP for a queue pair, or another layer for an endpoint.

use std::collections::VecDeque;
use std::mem::offset_of;

use crate::ddp::{
    BufferSupply, Buffers, Delivery, Endpoint, HalfCloseAction, Teardown, Ulp, UlpMessage,
};
use crate::ids::{QpNumber, StreamId};
use crate::memory::table::{Access, Origin};
use crate::memory::{epoch::Guard, place::Destination, prefetch::prefetch};
use crate::rdmap::{Outbound, Rdmap, RtrMessage, UntaggedMessage};
use crate::verbs::{
    RecvWr, WcStatus,
    cq::CqTable,
    qp::{QpState, QueuePair},
    srq::ReceiveQueue,
};
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};

use super::context::{Context, Upcoming};
use super::terminate::StreamError;
use super::{EndReason, Event};

/// What an application connects: the local end of a connection.
pub(crate) enum LocalEnd {
    /// A queue pair: RDMAP.
    Qp(Box<QueuePair>),
    /// An endpoint, with a layer of its own.
    Endpoint(Box<Endpoint>),
}

impl LocalEnd {
    pub(crate) fn number(&self) -> QpNumber {
        match self {
            Self::Qp(qp) => qp.number,
            Self::Endpoint(endpoint) => endpoint.number,
        }
    }

    pub(crate) fn stream(&self) -> StreamId {
        match self {
            Self::Qp(qp) => qp.stream,
            Self::Endpoint(endpoint) => endpoint.stream,
        }
    }

    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Qp(qp) => qp.state,
            Self::Endpoint(endpoint) => endpoint.state,
        }
    }

    /// Ends an end that has no connection, with the events of one that has. The oldest request
    /// completes with `status`.
    pub(crate) fn fail(
        &mut self,
        status: WcStatus,
        reason: EndReason,
        cqs: &mut CqTable,
        events: &mut VecDeque<Event>,
    ) {
        self.set_state(QpState::Error);
        let qp = self.number();
        let shares = match self {
            Self::Qp(qp) => {
                let mut rdmap = Rdmap::new(0, 0, 0);
                rdmap.fail_oldest(status);
                rdmap.flush(qp, cqs);
                qp.rq.is_shared()
            }
            Self::Endpoint(endpoint) => {
                endpoint.ulp.handle_end(Teardown::Abortive);
                false
            }
        };
        events.push_back(Event::Disconnected { qp, reason });
        if shares {
            events.push_back(Event::LastReceive { qp });
        }
    }

    pub(super) fn set_state(&mut self, state: QpState) {
        match self {
            Self::Qp(qp) => qp.state = state,
            Self::Endpoint(endpoint) => endpoint.state = state,
        }
    }

    pub(crate) fn set_rnr_retry(&mut self, rnr_retry: u8) {
        if let Self::Qp(qp) = self {
            qp.rnr_retry = rnr_retry;
        }
    }

    /// Sets what the peer may do to memory at all. An endpoint's ULP says that itself.
    pub(super) fn set_remote_access(&mut self, remote_access: Access) {
        if let Self::Qp(qp) = self {
            qp.remote_access = remote_access;
        }
    }

    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Qp(qp) => qp.origin(),
            Self::Endpoint(endpoint) => endpoint.origin(),
        }
    }
}

/// The layer above DDP while FPDUs flow.
#[allow(clippy::large_enum_variant)] // it stands in a stream, which has a box of its own
pub(super) enum LocalUlp {
    Rdmap(RdmapUser),
    Endpoint(Box<Endpoint>),
}

/// RDMAP with the queue pair that it serves.
#[repr(C)]
pub(super) struct RdmapUser {
    pub(super) qp: Box<QueuePair>,
    pub(super) rdmap: Rdmap,
    /// The message that is being sent.
    pub(super) outbound: Option<Outbound>,
}

impl RdmapUser {
    /// The first octets, which are read in each turn.
    pub(super) const IN_EACH_TURN: usize = offset_of!(Self, rdmap) + Rdmap::IN_EACH_TURN;
}

impl LocalUlp {
    /// Makes the layer for an end of a connection with these read depths. `opening` is RDMAP's
    /// ready-to-receive message.
    pub(super) fn new(end: LocalEnd, ird: u16, ord: u16, opening: Option<RtrMessage>) -> Self {
        match end {
            LocalEnd::Qp(qp) => {
                let mut rdmap = Rdmap::new(ird, ord, qp.sq.capacity());
                if let Some(opening) = opening {
                    rdmap.begin_with_rtr(opening);
                }
                if qp.is_stopped {
                    // The application was told that none has begun.
                    rdmap.stop(None);
                }
                Self::Rdmap(RdmapUser {
                    rdmap,
                    qp,
                    outbound: None,
                })
            }
            LocalEnd::Endpoint(endpoint) => Self::Endpoint(endpoint),
        }
    }

    /// Prefetches what a turn needs, one step further with each depth from 0 to 1.
    pub(super) fn prefetch(&self, turn: Upcoming, depth: usize) {
        match self {
            Self::Rdmap(RdmapUser { rdmap, qp, .. }) => match (depth, turn) {
                (0, _) => prefetch(&**qp),
                (_, Upcoming::Data) => qp.sq.prefetch(None),
                (_, Upcoming::Any) => rdmap.prefetch(qp),
            },
            Self::Endpoint(endpoint) => prefetch(&**endpoint),
        }
    }

    pub(super) fn into_end(self) -> LocalEnd {
        match self {
            Self::Rdmap(user) => LocalEnd::Qp(user.qp),
            Self::Endpoint(endpoint) => LocalEnd::Endpoint(endpoint),
        }
    }

    pub(super) fn number(&self) -> QpNumber {
        match self {
            Self::Rdmap(user) => user.qp.number,
            Self::Endpoint(endpoint) => endpoint.number,
        }
    }

    /// Returns whether there is surely no message to begin. A layer other than RDMAP may always
    /// have one.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        match self {
            Self::Rdmap(user) => user.rdmap.is_at_rest(&user.qp),
            Self::Endpoint(_) => false,
        }
    }

    /// Returns whether an error of a request waits until those in front of it have completed.
    pub(super) fn has_failure(&self) -> bool {
        match self {
            Self::Rdmap(user) => user.rdmap.has_failure(),
            Self::Endpoint(_) => false,
        }
    }

    /// Returns whether the application has stopped the send queue, and waits for the requests that
    /// have begun.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self, Self::Rdmap(user) if user.rdmap.is_draining())
    }

    /// Tells the application that the requests of a stopped send queue are done that had begun, if
    /// they are. Returns whether it did.
    #[cold]
    pub(super) fn tell_drained(&mut self, context: &mut Context<'_, '_>) -> bool {
        let Self::Rdmap(RdmapUser { rdmap, qp, .. }) = self else {
            return false;
        };
        let drained = rdmap.take_drained();
        if let Some(stop) = drained {
            let qp = qp.number;
            context.events.push_back(Event::SendsDrained { qp, stop });
        }
        drained.is_some()
    }

    /// Returns whether requests of the application are not finished.
    pub(super) fn has_requests(&self) -> bool {
        match self {
            Self::Rdmap(user) => !user.qp.sq.is_empty(),
            Self::Endpoint(_) => true,
        }
    }

    /// Returns whether its receives come from a shared receive queue.
    pub(super) fn shares_receives(&self) -> bool {
        match self {
            Self::Rdmap(user) => user.qp.rq.is_shared(),
            Self::Endpoint(_) => false,
        }
    }

    /// Returns the layer with what it needs for one call.
    pub(super) fn with<'a, 'c, 'g>(
        &'a mut self,
        context: &'a mut Context<'c, 'g>,
    ) -> UlpCall<'a, 'c, 'g> {
        self.receiving(context, 0)
    }

    /// Returns the layer for one call that handles received octets. The peer has acknowledged our
    /// stream up to `acked`.
    pub(super) fn receiving<'a, 'c, 'g>(
        &'a mut self,
        context: &'a mut Context<'c, 'g>,
        acked: u64,
    ) -> UlpCall<'a, 'c, 'g> {
        UlpCall {
            user: self,
            context,
            acked,
        }
    }

    /// Ends the layer in order, for the application: requests posted from now on are not carried
    /// out.
    // rfc: 5041-67 requests behind an orderly end return an error
    pub(super) fn finish(&mut self) {
        match self {
            Self::Rdmap(RdmapUser { rdmap, qp, .. }) => rdmap.finish(qp),
            Self::Endpoint(endpoint) => endpoint.ulp.handle_finish(),
        }
    }

    /// Completes every request of the application, because the stream is over.
    pub(super) fn end(&mut self, teardown: Teardown, context: &mut Context<'_, '_>) {
        match self {
            Self::Rdmap(RdmapUser { rdmap, qp, .. }) => {
                qp.state = QpState::Error;
                // rfc: 5040-s5 a Terminate completes what is outstanding in error
                rdmap.flush(qp, context.cqs);
            }
            Self::Endpoint(endpoint) => {
                endpoint.state = QpState::Error;
                endpoint.ulp.handle_end(teardown);
            }
        }
    }
}

/// The layer above DDP for one call.
pub(super) struct UlpCall<'a, 'c, 'g> {
    user: &'a mut LocalUlp,
    context: &'a mut Context<'c, 'g>,
    acked: u64,
}

impl Buffers for UlpCall<'_, '_, '_> {
    fn buffer(&mut self, queue: QueueNumber, ahead: u32) -> Option<RecvWr> {
        match self.user {
            LocalUlp::Rdmap(RdmapUser { qp, .. }) => {
                let number = qp.number;
                if queue == QueueNumber::SEND
                    && let ReceiveQueue::Shared(shared) = &mut qp.rq
                    && let Some(news) = shared.provide(number, ahead, self.context.srqs)
                {
                    let news = Event::SharedReceives(news);
                    self.context.events.push_back(news);
                }
                qp.buffer(queue, ahead)
            }
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.buffer(queue, ahead),
        }
    }
}

impl Ulp for UlpCall<'_, '_, '_> {
    type Error = StreamError;

    fn supply(&self, queue: QueueNumber) -> Option<BufferSupply> {
        match &*self.user {
            LocalUlp::Rdmap(_) => None,
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.supply(queue),
        }
    }

    #[inline]
    fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, StreamError> {
        match &*self.user {
            LocalUlp::Rdmap(user) => Ok(user.rdmap.admit(segment)?),
            LocalUlp::Endpoint(endpoint) => Ok(endpoint.ulp.admit(segment)?),
        }
    }

    #[cold]
    fn abandons_message(&self, begun: &DdpHeader, header: &DdpHeader) -> Result<bool, StreamError> {
        match &*self.user {
            LocalUlp::Rdmap(user) => Ok(user.rdmap.abandons_message(begun, header)?),
            LocalUlp::Endpoint(endpoint) => Ok(endpoint.ulp.abandons_message(begun, header)?),
        }
    }

    fn deliver(&mut self, delivery: Delivery<'_>, guard: &Guard<'_>) -> Result<(), StreamError> {
        match self.user {
            LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) => {
                let cqs = &mut *self.context.cqs;
                match delivery {
                    Delivery::Tagged { header, len } => {
                        Ok(rdmap.handle_tagged(&header, len, qp, cqs)?)
                    }
                    Delivery::Untagged {
                        header,
                        info,
                        length,
                        placed_before,
                        octets,
                    } => {
                        let message = UntaggedMessage {
                            header,
                            info,
                            length,
                            written_before: placed_before,
                            octets,
                            acked: self.acked,
                        };
                        Ok(rdmap.handle_untagged(&message, qp, cqs, guard)?)
                    }
                }
            }
            LocalUlp::Endpoint(endpoint) => Ok(endpoint.ulp.deliver(delivery, guard)?),
        }
    }

    fn next_message(&mut self, guard: &Guard<'_>) -> Result<Option<UlpMessage>, StreamError> {
        match self.user {
            LocalUlp::Rdmap(user) => {
                user.outbound = user
                    .rdmap
                    .next_message(&mut user.qp, self.context.cqs, guard)?;
                Ok(user.outbound.as_ref().map(message))
            }
            LocalUlp::Endpoint(endpoint) => Ok(endpoint.ulp.next_message(guard)?),
        }
    }

    #[inline]
    fn read(&mut self, offset: u32, to: &mut [u8], guard: &Guard<'_>) -> Result<(), StreamError> {
        match self.user {
            LocalUlp::Rdmap(RdmapUser {
                rdmap,
                qp,
                outbound,
            }) => {
                let Some(outbound) = outbound else {
                    return Ok(());
                };
                let read = rdmap.read(outbound, qp, guard, offset, to);
                Ok(read.map_err(|error| rdmap.source_failed(outbound.token, offset, error))?)
            }
            LocalUlp::Endpoint(endpoint) => Ok(endpoint.ulp.read(offset, to, guard)?),
        }
    }

    #[inline]
    fn posted(&mut self, end: u64) {
        match self.user {
            LocalUlp::Rdmap(user) => {
                if let Some(outbound) = user.outbound.take() {
                    user.rdmap.sent(outbound.token, end);
                }
            }
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.posted(end),
        }
    }

    fn transferred(&mut self, end: u64) {
        match self.user {
            LocalUlp::Rdmap(user) => user.rdmap.acked(end, &mut user.qp, self.context.cqs),
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.transferred(end),
        }
    }

    fn is_drained(&self) -> bool {
        match &*self.user {
            LocalUlp::Rdmap(user) => user.rdmap.is_drained(&user.qp),
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.is_drained(),
        }
    }

    /// Decides what to do when the peer has closed its half. RDMAP has no use for a stream on which
    /// it cannot respond.
    fn handle_half_close(&mut self) -> HalfCloseAction {
        match self.user {
            LocalUlp::Rdmap(_) => HalfCloseAction::Close,
            LocalUlp::Endpoint(endpoint) => endpoint.ulp.handle_half_close(),
        }
    }
}

/// Returns what DDP needs to know of a message.
pub(super) fn message(outbound: &Outbound) -> UlpMessage {
    UlpMessage {
        header: outbound.header,
        length: outbound.length,
    }
}

/// Completes, as flushed, what was posted to a queue pair that no longer has a connection.
pub(crate) fn flush(qp: &mut QueuePair, cqs: &mut CqTable) {
    Rdmap::new(0, 0, 0).flush(qp, cqs);
}
