//! The RDMA protocol (RFC 5040, and its extensions of RFC 7306): what messages mean.
//!
//! As requester it makes messages out of the send queue and completes requests in the order of their posting: a
//! Send or Write when the peer's TCP has acknowledged its last octet, a Read or atomic when the last octet of its
//! response was delivered. As responder it answers the peer's Read and Atomic Requests in their order. Own requests and responses
//! go out in turn, message by message.
//!
//! A segment that came is first admitted ([`Rdmap::admit`], which changes nothing), then placed and delivered by DDP,
//! then handled ([`Rdmap::handle_tagged`], [`Rdmap::handle_untagged`]).
//!
//! A local error and a peer's mistake end the stream in the same way: the owner turns the error into a
//! [`TerminateCause`], hands it to [`Rdmap::terminate`], and sends what [`Rdmap::next_message`] then gives it, which is the
//! Terminate and nothing after it.

mod error;
mod message;
mod opening;
mod outstanding;
mod prepare;
mod requester;
mod responder;
mod terminate;

pub use error::RdmapError;
pub use message::{Outbound, Source, Token};
pub use opening::RtrMessage;
pub use requester::{SHORT_ROOM, Short};
pub use terminate::{ReceivedTerminate, TerminateCause};

use std::mem::offset_of;

use zerocopy::FromZeros;

use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, TagError};
use crate::memory::table::Access;
use crate::verbs::cq::CqTable;
use crate::verbs::srq::ReceiveQueue;
use crate::verbs::wr::completion_flags;
use crate::verbs::{Completion, QueuePair, RecvWr, SendWr, Sge, WcOpcode, WcStatus};
use crate::wire::ddp::{
    Came, DdpHeader, DdpSegment, QueueNumber, Stag, TaggedHeader, UntaggedHeader,
};
use crate::wire::rdmap::{
    AtomicRequest, AtomicResponse, Control, IMMEDIATE_LEN, Opcode, RdmapWireError, ReadRequest,
    Terminate, VERSION,
};
use requester::Requester;
use responder::{PeerRequest, Responder};

/// How the stream ends, if it does.
#[derive(Debug)]
enum Ending {
    /// It does not.
    Open,
    /// A Terminate waits to be sent. In a box: most streams never have one.
    Terminating(Box<TerminateCause>),
    /// Nothing is sent any more, and what comes in is ignored.
    Over,
}

/// The control octet of most Writes, whose reserved bits are zero.
const WRITE: u8 = Control::new(Opcode::Write).octet();

/// The control octet of most Sends, likewise.
const SEND: u8 = Control::new(Opcode::Send).octet();

/// Octets of the longest request for a response.
const MAX_REQUEST: usize = AtomicRequest::LEN;
const _: () = assert!(ReadRequest::LEN <= MAX_REQUEST);

/// The untagged queues whose messages RDMAP handles itself, on a stream on which the peer may have `ird` Reads and
/// atomics outstanding, and this side `ord`: for each its number, how many messages may wait in it, and how many octets
/// each may have. There is room for one request more, so that RDMAP sees the one that is too many. Sends go to the
/// receives of the queue pair.
// rfc: 5040-47, 5040-64, 5040-65, 7306-34, 7306-35
pub fn rdmap_queues(ird: u16, ord: u16) -> [(QueueNumber, usize, usize); 3] {
    let (requests, responses) = (usize::from(ird) + 1, usize::from(ord));
    [
        (QueueNumber::READ_REQUEST, requests, MAX_REQUEST),
        (QueueNumber::TERMINATE, 1, Terminate::MAX_LEN),
        (QueueNumber::ATOMIC_RESPONSE, responses, AtomicResponse::LEN),
    ]
}

/// RDMAP's state of one stream. What each message needs stands first.
#[derive(Debug)]
#[repr(C)]
pub struct Rdmap {
    ending: Ending,
    /// In a box: most streams never have one.
    received: Option<Box<ReceivedTerminate>>,
    /// What is to be sent before anything else.
    opening: Option<RtrMessage>,
    /// Whose turn it is if both have something to send.
    response_next: bool,
    /// How the receive whose turn it is completes, if not as flushed.
    receive_status: Option<WcStatus>,
    responder: Responder,
    requester: Requester,
}

impl Rdmap {
    /// Octets of it that are looked at in each turn: whether anything ends, or waits to be sent.
    pub const IN_EACH_TURN: usize = offset_of!(Self, requester) + Requester::IN_EACH_TURN;

    /// A stream on which the peer may have `ird` Reads and atomics outstanding and this side `ord`, with a send queue of
    /// `send_queue` entries.
    // rfc: 5040-81, 5040-82, 5040-s8
    pub fn new(ird: u16, ord: u16, send_queue: u32) -> Self {
        Self {
            opening: None,
            requester: Requester::new(ord, send_queue),
            responder: Responder::new(ird),
            response_next: false,
            ending: Ending::Open,
            received: None,
            receive_status: None,
        }
    }

    /// Has fetched what the next message is made of.
    pub fn prefetch(&self, qp: &QueuePair) {
        self.requester.prefetch(qp);
    }

    /// The stream begins with this message, before any that the application posts.
    pub fn begin_with_rtr(&mut self, opening: RtrMessage) {
        self.opening = Some(opening);
    }

    /// Checks what a segment claims to be, before it is placed, and says where it goes, and what the peer may do to a
    /// tagged buffer with it: an RDMA Write needs the right of remote write, a Read Response must go to where an
    /// outstanding Read wants it. Untagged segments need no right. Immediate Data go to the completion.
    ///
    /// Changes nothing: a segment may be admitted before its turn, and again when its turn comes.
    // rfc: 5040-91, 5040-92
    #[inline]
    pub fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, RdmapError> {
        if let DdpHeader::Tagged(header) = &segment.header
            && let Some(right) = Self::admit_write(header)
        {
            return Ok(Destination::Silent(right));
        }
        self.admit_other(segment)
    }

    /// The right that the peer needs for a segment that looks just as those of our own Writes do.
    #[inline]
    pub fn admit_write(header: &TaggedHeader) -> Option<Access> {
        (header.ulp == WRITE).then_some(Access::REMOTE_WRITE)
    }

    /// Whether a segment looks just as those of our own Sends do: it needs no right, and [`receive`](Self::receive) is all
    /// that is to be done for the message.
    #[inline]
    pub fn admit_send(header: &UntaggedHeader) -> bool {
        header.ulp == SEND && header.queue == QueueNumber::SEND
    }

    /// Whether nothing of a stream's beginning or end is under way, and no response waits to be sent.
    pub fn is_plain(&self) -> bool {
        let ends = self.is_ending() || self.received.is_some() || self.opening.is_some();
        !ends && self.responder.is_idle()
    }

    /// The receive that the next Send fills, if its buffer is one piece and there is room for its completion: by its name,
    /// and the piece.
    #[inline(always)]
    pub fn next_receive(qp: &QueuePair, cqs: &CqTable) -> Option<(u64, Sge)> {
        let ReceiveQueue::Own(ring) = &qp.rq else {
            return None;
        };
        let mut wr = RecvWr::new_zeroed();
        let there = ring.peek_front(0, RecvWr::FRONT_WORDS, &mut wr);
        let plain = there && wr.sge_count == 1 && !cqs.has_backlog(qp.recv_cq);
        plain.then_some((wr.wr_id, wr.sges[0]))
    }

    /// The Send of so many octets that this [receive](Self::next_receive) was for has come: completes it.
    // rfc: 5040-53
    #[inline(always)]
    pub fn receive(wr_id: u64, length: u32, qp: &mut QueuePair, cqs: &mut CqTable) {
        if let ReceiveQueue::Own(ring) = &mut qp.rq {
            ring.release(1);
        }
        cqs.complete_done(qp.recv_cq, wr_id, qp.number, WcOpcode::Recv, length);
    }

    /// The same of what does not look just as our own Writes do.
    fn admit_other(&self, segment: &DdpSegment<'_>) -> Result<Destination, RdmapError> {
        match (&segment.header, opcode(&segment.header)?) {
            (DdpHeader::Tagged(header), Opcode::ReadResponse) => {
                self.requester
                    .outstanding
                    .admit_read(header, segment.payload.len())?;
                Ok(Destination::Buffer(Access::LOCAL_WRITE))
            }
            // rfc: 5040-26, 5040-48 — a Write is none of the application's business.
            (DdpHeader::Tagged(_), _) => Ok(Destination::Silent(Access::REMOTE_WRITE)),
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

    /// A segment comes in its turn that differs from one of a message that was `begun` and is not whole. A Terminate takes
    /// the place of what its sender does not finish. All others must go on with the message: with its opcode, and with
    /// the STag to be invalidated, if it has one.
    // rfc: 5041-28, 5041-38, 5041-62
    pub fn abandons_message(begun: &DdpHeader, header: &DdpHeader) -> Result<bool, RdmapError> {
        let (was, is) = (opcode(begun)?, opcode(header)?);
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
            _ => Ok(false),
        }
    }

    /// Handles a tagged segment in its turn. A Write is none of the ULP's business; a Read Response completes its Read.
    // rfc: 5040-26, 5040-48
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
        if opcode(&DdpHeader::Tagged(*header))? == Opcode::ReadResponse {
            self.requester.read_response(header, len)?;
            if header.last {
                self.requester.complete(qp, cqs);
            }
        }
        Ok(())
    }

    /// Handles an untagged message in its turn. `octets` are those of the message; only a Send is in the receive that is first in the queue pair.
    #[allow(clippy::too_many_arguments)] // what a delivery tells, and what it changes
    pub fn handle_untagged(
        &mut self,
        header: &UntaggedHeader,
        came: Came,
        length: u32,
        octets: &[u8],
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<(), RdmapError> {
        if self.is_ending() {
            return Ok(());
        }
        match opcode(&DdpHeader::Untagged(*header))? {
            // rfc: 5040-34, 7306-22, 7306-23
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(octets).map_err(RdmapError::Malformed)?;
                self.responder
                    .receive(*header, came, PeerRequest::Read(request))
            }
            Opcode::AtomicRequest => {
                let request = AtomicRequest::parse(octets).map_err(RdmapError::Malformed)?;
                self.responder
                    .receive(*header, came, PeerRequest::Atomic(request))
            }
            Opcode::AtomicResponse => {
                self.requester
                    .atomic_response(header, octets, qp.origin(), guard)?;
                self.requester.complete(qp, cqs);
                Ok(())
            }
            Opcode::Terminate => self.handle_terminate(octets),
            opcode @ (Opcode::Immediate | Opcode::ImmediateSolicited) => {
                receive_immediate(opcode, length, octets, qp, cqs)
            }
            opcode => receive(opcode, header, length, qp, cqs, guard),
        }
    }

    // rfc: 5040-66, 5040-67
    fn handle_terminate(&mut self, octets: &[u8]) -> Result<(), RdmapError> {
        let terminate = ReceivedTerminate::parse(octets).map_err(RdmapError::Malformed)?;
        self.requester.apply_terminate(&terminate);
        self.received = Some(Box::new(terminate));
        self.ending = Ending::Over;
        Ok(())
    }

    /// The next message to be sent, once the one before it was sent in full (or was cut short by a Terminate). Requests
    /// whose turn it is and that send nothing are carried out.
    ///
    /// On an error the owner calls [`terminate`](Self::terminate) and asks again.
    // rfc: 5040-68, 5040-72, 5040-80
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
        // rfc: 6581-2, 6581-31
        if let Some(opening) = self.opening.take() {
            self.requester.open(opening);
            return Ok(Some(opening.message()));
        }
        // In turn; who has nothing to send leaves its turn to the other.
        if self.response_next && self.responder.is_due() {
            self.response_next = false;
            return self.responder.next(qp.origin(), guard);
        }
        // rfc: 5040-80
        let request = self.requester.next(qp, cqs, guard);
        if !matches!(request, Ok(None)) {
            self.response_next = true;
            return request;
        }
        self.responder.next(qp.origin(), guard)
    }

    /// Whether there is surely no message to be sent, and no request that waits for its turn.
    #[inline(always)]
    pub fn is_at_rest(&self, qp: &QueuePair) -> bool {
        // First of all what most often is not.
        self.requester.is_at_rest(qp)
            && matches!(self.ending, Ending::Open)
            && self.opening.is_none()
            && !self.responder.is_due()
    }

    /// Whether there is a request to be carried out, or the rest of one.
    #[inline(always)]
    pub fn has_request(&self, qp: &QueuePair) -> bool {
        !self.requester.is_at_rest(qp)
    }

    /// Carries out requests whose turn it is and that send nothing, while nothing may be sent yet. One that cannot be
    /// carried out waits for [`next_message`](Self::next_message), which says so.
    pub fn execute_local(&mut self, qp: &mut QueuePair, cqs: &mut CqTable, guard: &Guard<'_>) {
        if matches!(self.ending, Ending::Open) {
            let wr = &mut SendWr::new_zeroed();
            let _ = self.requester.execute_local(wr, qp, cqs, guard);
        }
    }

    /// The last octet of a message was handed to the layers below; it ends at `end` of the stream.
    pub fn sent(&mut self, token: Token, end: u64) {
        match token {
            Token::Request(number) => self.requester.sent(number, end),
            Token::Response => self.responder.sent(),
            Token::RtrMessage | Token::Terminate => {}
        }
    }

    /// The octets of a message could not be read after `cut` octets of it were sent: the memory was revoked meanwhile.
    /// The error to terminate the stream with; the message cannot be finished.
    pub fn source_failed(&mut self, token: Token, cut: u32, error: TagError) -> RdmapError {
        match token {
            Token::Request(number) => self.requester.memory_revoked(number),
            Token::Response => self.responder.source_failed(cut, error),
            Token::RtrMessage | Token::Terminate => None,
        }
        .unwrap_or(RdmapError::Queues)
    }

    /// The peer's TCP acknowledged the stream up to `acked`: completes what is done.
    pub fn acked(&mut self, acked: u64, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.requester.acked(acked);
        self.requester.complete(qp, cqs);
    }

    /// The same where that is all that was sent: mostly one request.
    #[inline(always)]
    pub fn answered(&mut self, acked: u64, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.requester.acked(acked);
        if !self.requester.complete_only(qp, cqs) {
            self.requester.complete(qp, cqs);
        }
    }

    /// Ends the stream with a Terminate, which [`next_message`](Self::next_message) gives out next, and last. The first
    /// error counts. From now on what comes in is to be dropped.
    // rfc: 5040-89
    pub fn terminate(&mut self, cause: TerminateCause) {
        if !self.is_ending() {
            self.ending = Ending::Terminating(Box::new(cause));
            self.receive_status = cause.receive_status();
        }
    }

    /// Whether the stream ends: a Terminate was or will be sent, or was received, or everything was flushed. What
    /// comes in is to be dropped, and a message half sent need not be finished.
    pub fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::Open)
    }

    /// What the peer's Terminate said, if one came.
    pub fn received(&self) -> Option<&ReceivedTerminate> {
        self.received.as_deref()
    }

    /// The application ends the stream in order: requests that are posted from now on are not carried out.
    pub fn finish(&mut self, qp: &QueuePair) {
        self.requester.finish(qp);
    }

    /// Whether every request of either side was carried out, and nothing waits for the other.
    pub fn is_idle(&self, qp: &QueuePair) -> bool {
        self.opening.is_none() && self.responder.is_idle() && self.requester.is_idle(qp)
    }

    /// Ends the stream on this side: each request that is in the queues of the queue pair completes, once, those not
    /// done with [`WcStatus::WrFlushed`]. To be called again when more were posted.
    pub fn flush(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) {
        self.ending = Ending::Over;
        self.responder.clear();
        self.requester.flush(qp, cqs);
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

/// The opcode of a segment, if it may stand there (RFC 5040 figure 4).
///
/// A queue that does not exist is left to DDP to refuse. Version 0 goes with version 0 of DDP, which is not spoken.
// rfc: 5040-4, 5040-7, 5040-8, 5040-96, 5040-97, 5044-93, 7306-57, 7306-58
fn opcode(header: &DdpHeader) -> Result<Opcode, RdmapError> {
    let control = Control::from(header.ulp());
    // rfc: 5040-92
    if control.version != VERSION {
        return Err(RdmapError::Version(control.version));
    }
    let unexpected = RdmapError::UnexpectedOpcode(control);
    let opcode = Opcode::try_from(control.opcode).map_err(|_| unexpected)?;
    let in_place = match header {
        DdpHeader::Tagged(_) => opcode.is_tagged(),
        DdpHeader::Untagged(header) => match header.queue {
            // rfc: 5040-91, 5040-96
            QueueNumber::SEND => is_send(opcode),
            QueueNumber::READ_REQUEST => {
                matches!(opcode, Opcode::ReadRequest | Opcode::AtomicRequest)
            }
            QueueNumber::TERMINATE => opcode == Opcode::Terminate,
            QueueNumber::ATOMIC_RESPONSE => opcode == Opcode::AtomicResponse,
            _ => !opcode.is_tagged(),
        },
    };
    if in_place {
        Ok(opcode)
    } else {
        Err(unexpected)
    }
}

/// Whether a message uses up a receive.
// rfc: 7306-46, 7306-50
fn is_send(opcode: Opcode) -> bool {
    use Opcode::{
        Immediate, ImmediateSolicited, Send, SendInvalidate, SendSolicited, SendSolicitedInvalidate,
    };
    matches!(
        opcode,
        Send | SendInvalidate
            | SendSolicited
            | SendSolicitedInvalidate
            | Immediate
            | ImmediateSolicited
    )
}

/// Whether a message names an STag to be invalidated.
fn invalidates(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
    )
}

/// Completes the receive that holds a Send.
// rfc: 5040-53, 5040-54, 5040-57, 5040-69, 5040-75
fn receive(
    opcode: Opcode,
    header: &UntaggedHeader,
    length: u32,
    qp: &mut QueuePair,
    cqs: &mut CqTable,
    guard: &Guard<'_>,
) -> Result<(), RdmapError> {
    use Opcode::{SendSolicited, SendSolicitedInvalidate};
    check_backlog(qp, cqs)?;
    let solicited = matches!(opcode, SendSolicited | SendSolicitedInvalidate);
    let invalidate = invalidates(opcode);
    if invalidate {
        // rfc: 5040-60a, 5040-60b, 5040-93, 5040-94, 5040-111
        guard
            .invalidate(Stag(header.ulp32), qp.origin())
            .map_err(RdmapError::CannotInvalidate)?;
    }
    let wr = qp.rq.pop().ok_or(RdmapError::Queues)?;
    let mut completion = Completion::new(
        wr.wr_id,
        qp.number,
        WcOpcode::Recv,
        WcStatus::Success,
        length,
    );
    if solicited {
        completion.flags |= completion_flags::SOLICITED;
    }
    if invalidate {
        completion.flags |= completion_flags::WITH_INVALIDATE;
        completion.invalidated_stag = header.ulp32;
    }
    cqs.complete(qp.recv_cq, completion, solicited);
    Ok(())
}

/// Completes a receive with Immediate Data. Its buffer stays as it is.
// rfc: 7306-48, 7306-49
fn receive_immediate(
    opcode: Opcode,
    length: u32,
    octets: &[u8],
    qp: &mut QueuePair,
    cqs: &mut CqTable,
) -> Result<(), RdmapError> {
    check_backlog(qp, cqs)?;
    let wrong = RdmapWireError::Length {
        header: "Immediate Data",
        octets: length as usize,
    };
    // rfc: 7306-53, 7306-54b
    let immediate = match <[u8; IMMEDIATE_LEN]>::try_from(octets) {
        Ok(immediate) if length as usize == IMMEDIATE_LEN => immediate,
        // rfc: 7306-54b
        _ => return Err(RdmapError::Malformed(wrong)),
    };
    let used_up = qp.rq.pop().ok_or(RdmapError::Queues)?;
    let mut completion = Completion::new(
        used_up.wr_id,
        qp.number,
        WcOpcode::RecvImmediate,
        WcStatus::Success,
        0,
    );
    completion.flags |= completion_flags::WITH_IMMEDIATE;
    completion.immediate = immediate;
    let solicited = opcode == Opcode::ImmediateSolicited;
    if solicited {
        completion.flags |= completion_flags::SOLICITED;
    }
    cqs.complete(qp.recv_cq, completion, solicited);
    Ok(())
}

/// What waits for room is kept as long as it is no more than the receive queue could hold.
fn check_backlog(qp: &QueuePair, cqs: &CqTable) -> Result<(), RdmapError> {
    let waiting = cqs.backlog(qp.recv_cq);
    if waiting >= qp.rq.capacity() as usize {
        return Err(RdmapError::Overrun(waiting));
    }
    Ok(())
}
