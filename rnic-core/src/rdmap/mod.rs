//! The RDMA protocol (RFC 5040, with the extensions of RFC 7306): gives messages their meaning.
//!
//! The requester makes messages of the send queue's work requests, and completes these in the order
//! in which they were posted: a Send or Write when TCP has acknowledged its last octet, a Read or
//! atomic when the last octet of its response was delivered. The responder sends the responses to
//! the peer's Read and Atomic Requests in their order. Requests and responses are sent alternately,
//! message by message.
//!
//! A received segment is first admitted ([`Rdmap::admit`], which changes nothing), then placed and
//! delivered by DDP, then handled ([`Rdmap::handle_tagged`], [`Rdmap::handle_untagged`]).
//!
//! A local error and an error of the peer end the stream in the same way: the caller turns the
//! error into a [`TerminateCause`], passes it to [`Rdmap::terminate`], and sends what
//! [`Rdmap::next_message`] returns then: the Terminate, and nothing behind it.

mod coalesced_read;
mod error;
mod flow_control;
mod message;
mod opcode;
mod outstanding;
mod prepare;
mod receipts;
mod receiver_not_ready;
mod receives;
mod requester;
mod responder;
mod rtr;
mod stopping;
mod terminate;

pub use error::RdmapError;
pub use message::{Outbound, PayloadSource, Token, UntaggedMessage};
pub use opcode::is_request;
pub use requester::InlineMessage;
pub use rtr::RtrMessage;
pub use terminate::{QuotedSegment, ReceivedTerminate, TerminateCause};

use std::mem::offset_of;

use zerocopy::FromZeros;

use crate::memory::{epoch::Guard, error::TagError, place::Destination, table::Access};
use crate::verbs::{
    Completion, QueuePair, RecvWr, SendWr, Sge, WcOpcode, WcStatus, cq::CqTable, srq::ReceiveQueue,
};
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, Stag, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{
    AtomicRequest, AtomicResponse, Control, FlowControl, Opcode, ReadRequest, Terminate,
};
use opcode::{brings_immediate, invalidates, opcode};
use receiver_not_ready::FlowState;
use receives::{receive, receive_immediate};
use requester::Requester;
use responder::{PeerRequest, Responder};

/// Whether the stream ends, and how far that has come.
#[derive(Debug)]
enum Ending {
    /// The stream is open.
    Open,
    /// A Terminate is to be sent. In a box: most streams never have one.
    Terminating(Box<TerminateCause>),
    /// Nothing more is sent, and what arrives is ignored.
    Over,
}

/// A message that is sent before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgent {
    /// The ready-to-receive message.
    Rtr(RtrMessage),
    /// A Control message.
    FlowControl,
}

/// What was received that changes more than RDMAP.
#[derive(Clone, Debug)]
enum News {
    Terminate(ReceivedTerminate),
    FlowControl,
    Receipt(u64),
}

/// The control octet of a Write whose reserved bits are zero.
const WRITE: u8 = Control::new(Opcode::Write).octet();

/// The control octet of a Send whose reserved bits are zero.
const SEND: u8 = Control::new(Opcode::Send).octet();

/// Octets of the longest request that has a response.
const MAX_REQUEST: usize = AtomicRequest::LEN;
const _: () = assert!(ReadRequest::LEN <= MAX_REQUEST);

/// Returns the untagged queues whose messages RDMAP handles itself, for an inbound and an outbound
/// depth: the number of each, how many messages it holds, and how many octets each message may
/// have. Queue 1 holds one request more than the IRD, so that RDMAP sees the request that is too
/// many. Sends use the receives of the queue pair.
// rfc: 5040-47, 7306-34 queue 1 has a buffer for each Read and atomic that was agreed on
// rfc: 5040-64, 5040-65 queue 2 always has the buffer for a Terminate
// rfc: 7306-35 queue 3 has a buffer for each atomic that was agreed on
pub fn rdmap_queues(ird: u16, ord: u16) -> [(QueueNumber, usize, usize); 3] {
    let (requests, responses) = (usize::from(ird) + 1, usize::from(ord));
    [
        (QueueNumber::READ_REQUEST, requests, MAX_REQUEST),
        (QueueNumber::TERMINATE, 1, Terminate::MAX_LEN),
        (QueueNumber::ATOMIC_RESPONSE, responses, AtomicResponse::LEN),
    ]
}

/// The queue of Control messages, on connections with the semantics of RC. They are short, and each
/// is delivered as it comes.
pub const FLOW_CONTROL_QUEUE: (QueueNumber, usize, usize) =
    (QueueNumber::FLOW_CONTROL, 1, FlowControl::LEN);

/// The RDMAP state of one stream. Fields that every message needs stand first.
#[derive(Debug)]
#[repr(C)]
pub struct Rdmap {
    ending: Ending,
    /// In a box: most streams never have any.
    news: Option<Box<News>>,
    /// The message that is sent before anything else.
    urgent: Option<Urgent>,
    /// Whether a response is sent next where both a request and a response wait.
    response_next: bool,
    /// The status of the first receive that is flushed, if not [`WcStatus::WrFlushed`].
    receive_status: Option<WcStatus>,
    /// The status of the first request that is flushed, if not [`WcStatus::WrFlushed`].
    request_status: Option<WcStatus>,
    responder: Responder,
    requester: Requester,
    /// On connections with the semantics of RC.
    flow: Option<Box<FlowState>>,
}

impl Rdmap {
    /// The first octets of this struct are read in each turn of the engine: whether the stream
    /// ends, or has something to send.
    pub const IN_EACH_TURN: usize = offset_of!(Self, requester) + Requester::IN_EACH_TURN;

    /// Makes the state of a stream with inbound depth `ird` and outbound depth `ord`, above a send
    /// queue of `send_queue` entries.
    // rfc: 5040-81 as many inbound Reads are taken as were agreed on
    // rfc: 5040-82, 5040-s8 outstanding outbound Reads are limited to what was agreed on
    pub fn new(ird: u16, ord: u16, send_queue: u32) -> Self {
        Self {
            urgent: None,
            requester: Requester::new(ord, send_queue),
            responder: Responder::new(ird),
            response_next: false,
            ending: Ending::Open,
            news: None,
            receive_status: None,
            request_status: None,
            flow: None,
        }
    }

    fn rc(&self) -> bool {
        self.requester.rc
    }

    /// Prefetches what the next message is made of.
    pub fn prefetch(&self, qp: &QueuePair) {
        self.requester.prefetch(qp);
    }

    /// Begins the stream with a ready-to-receive message, before any work request.
    pub fn begin_with_rtr(&mut self, rtr: RtrMessage) {
        self.urgent = Some(Urgent::Rtr(rtr));
    }

    /// Checks the opcode and version of a segment before it is placed. Returns where its payload
    /// goes, and which access right the peer needs for a tagged buffer: remote write for an RDMA
    /// Write. A Read Response must lie in the sink of an outstanding Read. Untagged segments need
    /// no right. Immediate Data are delivered with the completion.
    ///
    /// Changes nothing: a segment may be admitted ahead of order, and again in order.
    // rfc: 5040-91, 5040-92 opcode and version are checked
    #[inline]
    pub fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, RdmapError> {
        if let DdpHeader::Tagged(header) = &segment.header
            && let Some(right) = Self::admit_write(header)
        {
            return Ok(Destination::PlaceOnly(right));
        }
        self.admit_other(segment)
    }

    /// Returns the right that the peer needs for a plain Write, whose reserved bits are zero.
    #[inline]
    pub fn admit_write(header: &TaggedHeader) -> Option<Access> {
        (header.ulp == WRITE).then_some(Access::REMOTE_WRITE)
    }

    /// Returns whether a segment is of a plain Send, whose reserved bits are zero. It needs no
    /// right, and [`receive`](Self::receive) completes it.
    #[inline]
    pub fn admit_send(header: &UntaggedHeader) -> bool {
        header.ulp == SEND && header.queue == QueueNumber::SEND
    }

    /// Returns whether RDMAP is between messages: the stream neither begins nor ends, and no
    /// response waits to be sent.
    pub fn is_between_messages(&self) -> bool {
        let ends = self.is_ending() || self.news.is_some() || self.urgent.is_some();
        !ends && self.responder.is_drained()
    }

    /// Returns id and buffer of the receive that the next Send fills, if the buffer is one piece
    /// and the completion queue has room.
    #[inline(always)]
    pub fn next_receive(qp: &QueuePair, cqs: &CqTable) -> Option<(u64, Sge)> {
        let ReceiveQueue::Own(ring) = &qp.rq else {
            return None;
        };
        let mut wr = RecvWr::new_zeroed();
        let there = ring.peek_front(0, RecvWr::FRONT_WORDS, &mut wr);
        let usable = there && wr.sge_count == 1 && !cqs.has_backlog(qp.recv_cq);
        usable.then_some((wr.wr_id, wr.sges[0]))
    }

    /// Completes a [receive](Self::next_receive) with a Send of `length` octets.
    // rfc: 5040-53 a Send takes up a buffer
    #[inline(always)]
    pub fn receive(wr_id: u64, length: u32, qp: &mut QueuePair, cqs: &mut CqTable) {
        if let ReceiveQueue::Own(ring) = &mut qp.rq {
            ring.release(1);
        }
        cqs.complete_done(qp.recv_cq, wr_id, qp.number, WcOpcode::Recv, length);
    }

    /// Admits any segment but a plain Write.
    fn admit_other(&self, segment: &DdpSegment<'_>) -> Result<Destination, RdmapError> {
        match (&segment.header, opcode(&segment.header, self.rc())?) {
            (header, Opcode::FlowControl) if !self.has_flow_control(header) => {
                Err(RdmapError::UnexpectedOpcode(header.ulp().into()))
            }
            (DdpHeader::Untagged(header), opcode)
                if header.queue == QueueNumber::FLOW_CONTROL
                    && opcode != Opcode::FlowControl
                    && self.flow.is_some() =>
            {
                Err(RdmapError::UnexpectedOpcode(header.ulp.into()))
            }
            (DdpHeader::Tagged(header), Opcode::ReadResponse) => {
                self.requester
                    .outstanding
                    .admit_read(header, segment.payload.len())?;
                Ok(Destination::Buffer(Access::LOCAL_WRITE))
            }
            // rfc: 5040-26 a Write is not delivered to the application
            // rfc: 5040-48 a Read Response is
            (DdpHeader::Tagged(_), _) => Ok(Destination::PlaceOnly(Access::REMOTE_WRITE)),
            (DdpHeader::Untagged(_), Opcode::Immediate | Opcode::ImmediateSolicited) => {
                Ok(Destination::Delivery)
            }
            (DdpHeader::Untagged(header), Opcode::AtomicResponse) => {
                self.requester.outstanding.admit_atomic(header)?;
                Ok(Destination::Buffer(Access::default()))
            }
            (DdpHeader::Untagged(_), _) => Ok(Destination::Buffer(Access::default())),
        }
    }

    /// Decides whether the peer abandons the partial message `begun` with a segment whose header
    /// differs. A Terminate may take the place of an unfinished message. Any other segment must
    /// continue the message: with its opcode, and its STag to be invalidated or Immediate Data.
    // rfc: 5041-28, 5041-38 RsvdULP is the same in all segments of a message
    // rfc: 5041-62 messages are delivered in the order sent
    pub fn abandons_message(
        &self,
        begun: &DdpHeader,
        header: &DdpHeader,
    ) -> Result<bool, RdmapError> {
        let (was, is) = (opcode(begun, self.rc())?, opcode(header, self.rc())?);
        if is == Opcode::Terminate && was != is {
            return Ok(true);
        }
        if was != is {
            return Err(RdmapError::UnexpectedOpcode(Control::new(is)));
        }
        match (begun, header) {
            (DdpHeader::Untagged(begun), DdpHeader::Untagged(header))
                if invalidates(is) && begun.ulp32 != header.ulp32 =>
            {
                Err(RdmapError::Invalidates(Stag(header.ulp32)))
            }
            (DdpHeader::Untagged(begun), DdpHeader::Untagged(header))
                if brings_immediate(is) && begun.ulp32 != header.ulp32 =>
            {
                Err(RdmapError::OtherImmediate)
            }
            _ => Ok(false),
        }
    }

    /// Handles a delivered tagged segment. Nothing is done for a Write; the last segment of a Read
    /// Response completes its Read.
    // rfc: 5040-26 a Write is not delivered to the application
    // rfc: 5040-48 a Read Response is told to the application
    pub fn handle_tagged(
        &mut self,
        header: &TaggedHeader,
        len: u32,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) -> Result<(), RdmapError> {
        if self.is_ending() {
            return Ok(());
        }
        if opcode(&DdpHeader::Tagged(*header), self.rc())? == Opcode::ReadResponse {
            self.requester.read_response(header, len)?;
            if header.last {
                self.requester.complete(qp, cqs);
            }
        }
        Ok(())
    }

    /// Handles a delivered untagged message.
    pub fn handle_untagged(
        &mut self,
        message: &UntaggedMessage<'_>,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<(), RdmapError> {
        if self.is_ending() {
            return Ok(());
        }
        let UntaggedMessage {
            header,
            info,
            length,
            octets,
            ..
        } = *message;
        match opcode(&DdpHeader::Untagged(header), self.rc())? {
            // rfc: 5040-34, 7306-22, 7306-23 RDMAP carries requests out, unseen by the ULP
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(octets).map_err(RdmapError::Malformed)?;
                self.responder
                    .receive(header, info, PeerRequest::Read(request))
            }
            Opcode::AtomicRequest => {
                let request = AtomicRequest::parse(octets).map_err(RdmapError::Malformed)?;
                self.responder
                    .receive(header, info, PeerRequest::Atomic(request))
            }
            Opcode::AtomicResponse => {
                self.requester
                    .atomic_response(&header, octets, qp.origin(), guard)?;
                self.requester.complete(qp, cqs);
                Ok(())
            }
            Opcode::Terminate => self.handle_terminate(octets),
            Opcode::FlowControl => self.handle_flow_control(octets),
            opcode @ (Opcode::Immediate | Opcode::ImmediateSolicited) => {
                self.acked(message.acked, qp, cqs);
                receive_immediate(opcode, message, qp, cqs)
            }
            opcode => {
                self.acked(message.acked, qp, cqs);
                receive(opcode, &header, length, qp, cqs, guard)
            }
        }
    }

    // rfc: 5040-66, 5040-67 a Terminate is delivered to RDMAP, and told to the application
    fn handle_terminate(&mut self, octets: &[u8]) -> Result<(), RdmapError> {
        let terminate = ReceivedTerminate::parse(octets).map_err(RdmapError::Malformed)?;
        self.requester.apply_terminate(&terminate);
        // One that quotes no segment names no request. With the semantics of RC it is about the
        // oldest, as a NAK is.
        if self.rc() && terminate.segment.header.is_none() {
            self.request_status = Some(terminate.status());
        }
        self.news = Some(Box::new(News::Terminate(terminate)));
        self.ending = Ending::Over;
        Ok(())
    }

    /// Returns the next message to be sent, once the message before it was sent in full or aborted
    /// by a Terminate. Executes local requests that come before it.
    ///
    /// On an error the caller calls [`terminate`](Self::terminate), and this again.
    // rfc: 5040-68 nothing is sent behind a Terminate
    // rfc: 5040-72 messages go down in the order in which their requests were posted
    // rfc: 5040-80 until the end of the stream only RDMA messages are sent
    pub fn next_message(
        &mut self,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        match &self.ending {
            Ending::Open => {}
            Ending::Terminating(cause) => {
                let message = cause.message();
                self.ending = Ending::Over;
                return Ok(Some(message));
            }
            Ending::Over => return Ok(None),
        }
        // rfc: 6581-2, 6581-31 an initiator begins with the message that was agreed on
        if !self.requester.owes_immediate()
            && let Some(urgent) = self.urgent.take()
            && let Some(message) = self.urgent_message(urgent)
        {
            return Ok(Some(message));
        }
        // Requests and responses alternate where both wait.
        if self.response_next && self.responder.is_due() {
            self.response_next = false;
            return self.responder.next(qp.origin(), guard);
        }
        // rfc: 5040-80 until the end of the stream only RDMA messages are sent
        let request = self.requester.next(qp, cqs, guard);
        if !matches!(request, Ok(None)) {
            self.response_next = true;
            return request;
        }
        self.responder.next(qp.origin(), guard)
    }

    /// Returns whether RDMAP is at rest: there is nothing to send, and no work request waits.
    #[inline(always)]
    pub fn is_at_rest(&self, qp: &QueuePair) -> bool {
        // The check that fails most often comes first.
        self.requester.is_at_rest(qp)
            && matches!(self.ending, Ending::Open)
            && self.urgent.is_none()
            && !self.responder.is_due()
    }

    /// Executes local requests, which send nothing, while nothing may be sent yet. A request that
    /// fails stays first in the queue: [`next_message`](Self::next_message) returns its error.
    pub fn execute_local(&mut self, qp: &mut QueuePair, cqs: &mut CqTable, guard: &Guard<'_>) {
        if matches!(self.ending, Ending::Open) {
            let wr = &mut SendWr::new_zeroed();
            let _ = self.requester.execute_local(wr, qp, cqs, guard);
        }
    }

    /// Notes that a message was handed down in full, up to `end` of the stream.
    pub fn sent(&mut self, token: Token, end: u64) {
        match token {
            Token::Request(number) => self.requester.sent(number, end),
            Token::Response => self.responder.sent(),
            Token::Rtr | Token::Terminate | Token::FlowControl => {}
        }
    }

    /// Copies octets `offset..offset + to.len()` of a message. Memory is checked each time, because
    /// it may have been revoked since the message began.
    #[inline]
    pub fn read(
        &self,
        outbound: &Outbound,
        qp: &QueuePair,
        guard: &Guard<'_>,
        offset: u32,
        to: &mut [u8],
    ) -> Result<(), TagError> {
        match outbound.source {
            PayloadSource::Queued(number) => {
                self.requester.read_queued(number, qp, guard, offset, to)
            }
            _ => outbound.source.read(guard, qp.origin(), offset, to),
        }
    }

    /// Handles that the source of a message was revoked after `cut` octets were sent: the message
    /// cannot be finished. Returns the error to terminate the stream with, unless it
    /// [waits](Self::has_failure).
    pub fn source_failed(&mut self, token: Token, cut: u32, error: TagError) -> RdmapError {
        match token {
            Token::Request(number) if cut == 0 => self.requester.memory_revoked_before(number),
            Token::Request(number) => self.requester.memory_revoked(number),
            Token::Response => self.responder.source_failed(cut, error),
            Token::Rtr | Token::Terminate | Token::FlowControl => None,
        }
        .unwrap_or(RdmapError::Queues)
    }

    /// Returns whether the error of a request waits until those in front of it have completed. Then
    /// [`next_message`](Self::next_message) returns it.
    pub fn has_failure(&self) -> bool {
        self.requester.has_failure()
    }

    /// Handles that a Read Response could not be placed, because the memory of its sink is gone:
    /// its Read completes with an error. The caller terminates the stream.
    pub fn sink_faulted(&mut self, sink: Stag) {
        if let Some(number) = self.requester.outstanding.read_into(sink) {
            self.requester.memory_revoked(number);
        }
    }

    /// Handles an acknowledgment of the stream up to `acked`: completes requests.
    pub fn acked(&mut self, acked: u64, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.requester.acked(acked);
        self.requester.complete(qp, cqs);
    }

    /// Handles an acknowledgment of everything that was sent, which is mostly one request.
    #[inline(always)]
    pub fn acked_all(&mut self, acked: u64, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.requester.acked(acked);
        if !self.requester.complete_only(qp, cqs) {
            self.requester.complete(qp, cqs);
        }
    }

    /// Ends the stream with a Terminate, which [`next_message`](Self::next_message) returns next,
    /// as the last message. Only the first error counts. What arrives from now on is to be dropped.
    // rfc: 5040-89 of several errors a Terminate reports the first
    pub fn terminate(&mut self, cause: TerminateCause) {
        if !self.is_ending() {
            self.ending = Ending::Terminating(Box::new(cause));
            self.receive_status = cause.receive_status();
        }
    }

    /// Returns whether the stream ends: a Terminate was or will be sent, or was received, or the
    /// queues were flushed. What arrives is to be dropped, and a message in progress need not be
    /// finished.
    pub fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::Open)
    }

    /// Returns the peer's Terminate, if one was received.
    pub fn received(&self) -> Option<&ReceivedTerminate> {
        match self.news.as_deref() {
            Some(News::Terminate(terminate)) => Some(terminate),
            Some(News::FlowControl | News::Receipt(_)) | None => None,
        }
    }

    /// Returns whether a [Terminate](Self::received) was received, a
    /// [change](Self::take_flow_control) of what the peer can take, or a
    /// [receipt](Self::follow_receipt).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Ends the stream in order: work requests that are posted from now on are not begun.
    pub fn finish(&mut self, qp: &QueuePair) {
        self.requester.finish(qp);
    }

    /// Returns whether RDMAP is drained: every request of either side was carried out.
    pub fn is_drained(&self, qp: &QueuePair) -> bool {
        self.urgent.is_none() && self.responder.is_drained() && self.requester.is_drained(qp)
    }

    /// Sets how the oldest unfinished request completes in a [`flush`](Self::flush).
    pub fn fail_oldest(&mut self, status: WcStatus) {
        self.request_status = Some(status);
    }

    /// Completes every work request in the queues of the queue pair, once; those that are not done
    /// get [`WcStatus::WrFlushed`]. Called again when more were posted.
    pub fn flush(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.ending = Ending::Over;
        self.responder.clear();
        let first = self.request_status.take().unwrap_or(WcStatus::WrFlushed);
        self.requester.flush(first, qp, cqs);
        for _ in 0..qp.rq.len() {
            let Some(wr) = qp.rq.pop_unused() else {
                break;
            };
            let status = self.receive_status.take().unwrap_or(WcStatus::WrFlushed);
            let completion = Completion::new(wr.wr_id, qp.number, WcOpcode::Recv, status, 0);
            cqs.complete(qp.recv_cq, completion, false);
        }
    }
}
