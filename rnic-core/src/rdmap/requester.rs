//! The requester: makes messages of the send queue's work requests, and completes these in order.
//!
//! It decides when a request may begin: a fence, the ORD and a full completion queue hold it back.

mod completing;
mod in_parts;
mod inline_messages;
mod pausing;
mod stopping;

use std::collections::VecDeque;
use std::mem::offset_of;

use zerocopy::FromZeros;

pub use self::inline_messages::InlineMessage;

use crate::memory::{
    epoch::Guard,
    prefetch::prefetch_ends,
    table::{Access, BindError, Origin},
};
use crate::verbs::{
    QueuePair, SendWr, Sge, WcOpcode, WcStatus, WrOpcode, cq::CqTable, wr::send_flags,
};
use crate::wire::ddp::{
    DdpHeader, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use crate::wire::rdmap::{AtomicResponse, Opcode};

use super::message::Outbound;
use super::outstanding::Outstanding;
use super::prepare::{execute, immediate, prepare, read_requests, read_sink};
use super::{RdmapError, RtrMessage};

/// A work request that has begun. Its entry stays in the send queue until it completes.
#[derive(Clone, Copy, Debug)]
struct PostedRequest {
    wr_id: u64,
    opcode: WcOpcode,
    signaled: bool,
    length: u32,
    target: Target,
    progress: Progress,
}

/// What a peer's Terminate may name a request by.
#[derive(Clone, Copy, Debug)]
enum Target {
    Tagged {
        stag: Stag,
        offset: TaggedOffset,
        /// The MSN of the Immediate Data behind a Write.
        immediate: Option<Msn>,
    },
    Untagged {
        queue: QueueNumber,
        msn: Msn,
        /// Messages: a Read may have several Read Requests.
        count: u16,
    },
    None,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// Not handed down in full.
    Sending,
    /// Handed down, up to this offset of the stream.
    Sent(u64),
    /// A Read or atomic whose response has not arrived in full.
    Awaiting,
    /// Done: its response has arrived, or it needs none.
    Done,
    Failed(WcStatus),
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Requester {
    /// Allocated with the first request, for as many as the send queue has entries.
    requests: VecDeque<PostedRequest>,
    most: usize,
    /// The number of the first of `requests`.
    first: u64,
    /// The offset up to which the peer has acknowledged the stream.
    acked: u64,
    /// The MSNs that DDP will give the next Send, and the next Read or Atomic Request.
    next_send: Msn,
    next_request: Msn,
    /// A request failed: no more are begun.
    failed: bool,
    /// Its [error](Self::failure) waits.
    failure_waits: bool,
    /// The peers have agreed on the opcodes of RC.
    pub(super) rc: bool,
    /// The first request that may not begin: it was posted after the application had asked for an
    /// orderly end, or it waits for a peer that has no receives, or until the application lets it.
    end: Option<u64>,
    pub(super) outstanding: Outstanding,
    /// Where `end` comes from. In a box: most streams never have one.
    limits: Option<Box<Limits>>,
    /// The Immediate Data to be sent behind the last Write.
    immediate_next: Option<Outbound>,
    /// The last work request is a Read, and has more Read Requests to send.
    reading: Option<Reading>,
    /// The error of a request that failed by itself. It ends the stream once the peer has carried
    /// out those in front of it.
    failure: Option<Box<RdmapError>>,
}

/// A Read of which not every Read Request was sent.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The work request.
    number: u64,
    /// Its next Read Request.
    next: u16,
}

/// Why requests that were posted may not begin.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// The first request that was posted after the application had asked for an orderly end.
    finish: Option<u64>,
    /// How far a peer without receives keeps the requester.
    pause: Pause,
    /// From this request on none begins: the application has stopped the send queue.
    stopped: Option<u64>,
    /// The number of the stop, while the application is to be told that requests which had begun
    /// are done.
    draining: Option<u32>,
}

/// How far a peer without receives keeps the requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pause {
    /// Not at all.
    #[default]
    No,
    /// From this request on none begins.
    From(u64),
    /// The wait was over while no request was unfinished: the next one fails.
    Exceeded,
}

impl Requester {
    /// The first octets of this struct are read in each turn of the engine.
    pub(super) const IN_EACH_TURN: usize = offset_of!(Self, outstanding);

    pub(super) fn new(ord: u16, send_queue: u32) -> Self {
        Self {
            requests: VecDeque::new(),
            most: send_queue as usize,
            first: 0,
            outstanding: Outstanding::new(ord, send_queue),
            next_send: Msn::FIRST,
            next_request: Msn::FIRST,
            immediate_next: None,
            reading: None,
            acked: 0,
            failed: false,
            failure_waits: false,
            rc: false,
            failure: None,
            end: None,
            limits: None,
        }
    }

    /// Prefetches the next work request, and the state of those that have begun.
    pub(super) fn prefetch(&self, qp: &QueuePair) {
        prefetch_ends(&self.requests);
        qp.sq.prefetch(Some(self.requests.len() as u32));
    }

    /// Accounts for a ready-to-receive message: it takes an MSN like any Send or Read Request.
    pub(super) fn begin_rtr(&mut self, rtr: RtrMessage) {
        match rtr {
            RtrMessage::Send => self.next_send = self.next_send.next(),
            RtrMessage::Write => {}
            RtrMessage::Read => {
                self.next_request = self.next_request.next();
                self.outstanding
                    .push(None, Opcode::ReadResponse, &Sge::default(), true);
            }
        }
    }

    /// Ends the stream in order: work requests that are posted from now on are not begun, and
    /// flushed at the end.
    // rfc: 5041-67 requests after the ULP has asked for an orderly end fail
    pub(super) fn finish(&mut self, qp: &QueuePair) {
        let posted = self.first + u64::from(qp.sq.len());
        self.limits().finish.get_or_insert(posted);
        self.update_end();
    }

    /// Returns whether the last message was a Write whose Immediate Data are next. The peer counts
    /// the octets of the Write in front of them: nothing of ours may come between.
    pub(super) fn owes_immediate(&self) -> bool {
        self.immediate_next.is_some()
    }

    /// Returns the message of the next work request that has one, if it may begin. Executes the
    /// local requests before it, so that they take effect before anything of a later request is
    /// sent.
    // rfc: 5040-72 messages go down in the order in which their requests were posted
    pub(super) fn next(
        &mut self,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        if self.failed {
            return self.next_after_failure(qp);
        }
        if self.immediate_next.is_some() {
            return Ok(self.immediate_next.take());
        }
        if let Some(reading) = self.reading {
            return self.read_on(reading, qp, guard);
        }
        if !self.has_unbegun(qp) {
            return Ok(None);
        }
        let mut wr = SendWr::new_zeroed();
        match self.execute_local(&mut wr, qp, cqs, guard) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                let wr_id = wr.wr_id;
                let error = RdmapError::Binding { wr_id, error };
                return self.fail(&wr, WcStatus::MwBindError, error);
            }
        }
        let number = self.first + self.requests.len() as u64;
        let ord = self.outstanding.ord();
        match prepare(&wr, number, ord, self.rc, qp.origin(), guard) {
            Ok(outbound) => {
                self.begin(&wr, qp.signal_all, number, &outbound.header);
                Ok(Some(outbound))
            }
            // rfc: 5040-87 a local error is told to the application
            // rfc: 5040-88a, 7306-54a and to the peer, by a Terminate in place of the message
            Err(status) => {
                let wr_id = wr.wr_id;
                self.fail(&wr, status, RdmapError::Request { wr_id, status })
            }
        }
    }

    /// Executes local requests up to the next that sends a message. Returns whether that one may
    /// begin: it is in `wr` then. On an error the failed request is in `wr`, and stays first in the
    /// queue.
    pub(super) fn execute_local(
        &mut self,
        wr: &mut SendWr,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<bool, BindError> {
        // Bounded by the queue's capacity: who goes on posting rings the doorbell again.
        for _ in 0..=qp.sq.capacity() {
            if !self.peek_next(wr, qp, cqs) {
                return Ok(false);
            }
            if !wr.operation().is_ok_and(WrOpcode::is_local) {
                return Ok(true);
            }
            execute(wr, qp, guard)?;
            let signaled = qp.signal_all || wr.flags & send_flags::SIGNALED != 0;
            self.track(PostedRequest::new(
                wr,
                signaled,
                Target::None,
                Progress::Done,
            ));
            self.complete(qp, cqs);
        }
        Ok(false)
    }

    /// Copies the next work request that has not begun to `wr`. Returns whether it may begin.
    fn peek_next(&self, wr: &mut SendWr, qp: &QueuePair, cqs: &CqTable) -> bool {
        // With a backlog in the completion queue no request begins: that bounds the backlog.
        self.has_unbegun(qp)
            && self.reading.is_none()
            && !cqs.has_backlog(qp.send_cq)
            // rfc: 5040-27, 5040-37, 5040-56, 7306-27, 7306-52 messages go down as they were posted
            && wr.peek(&qp.sq, self.requests.len() as u32)
            && self.may_begin(wr)
    }

    /// Fails a work request, and stops: no later one is begun. The stream goes on until those in
    /// front of it have completed: the peer carries them out, and requests complete in their order,
    /// each with what became of it.
    // rfc: 5040-74 requests complete in the order in which they were posted
    fn fail(
        &mut self,
        wr: &SendWr,
        status: WcStatus,
        error: RdmapError,
    ) -> Result<Option<Outbound>, RdmapError> {
        self.track(PostedRequest::new(
            wr,
            true,
            Target::None,
            Progress::Failed(status),
        ));
        self.stop(error);
        self.next_failure()
    }

    /// Begins no more requests, because one has failed with this error.
    fn stop(&mut self, error: RdmapError) {
        (self.failed, self.failure_waits) = (true, true);
        self.failure = Some(Box::new(error));
        let begun = self.first + self.requests.len() as u64;
        let finish = &mut self.limits().finish;
        *finish = Some(finish.map_or(begun, |end| end.min(begun)));
        self.update_end();
    }

    /// Returns the error that is due to end the stream.
    fn next_failure(&mut self) -> Result<Option<Outbound>, RdmapError> {
        if !self.is_failure_due() {
            return Ok(None);
        }
        self.failure_waits = false;
        self.failure.take().map_or(Ok(None), |error| Err(*error))
    }

    /// Returns whether nothing is left in front of a request that failed by itself.
    #[inline]
    fn is_failure_due(&self) -> bool {
        let failed = |request: &PostedRequest| matches!(request.progress, Progress::Failed(_));
        self.failure_waits && self.requests.front().is_none_or(failed)
    }

    /// Returns whether the error of a request waits until those in front of it have completed.
    pub(super) fn has_failure(&self) -> bool {
        self.failure_waits
    }

    /// Returns whether a work request may begin: a fence waits for all Reads and atomics to
    /// complete, a Read or atomic for room among the outstanding.
    fn may_begin(&self, wr: &SendWr) -> bool {
        let fenced = wr.flags & send_flags::FENCE != 0 && !self.outstanding.is_empty();
        let too_many = response_opcode(wr).is_some() && self.outstanding.is_full();
        !fenced && !too_many
    }

    /// Tracks a work request whose message is sent now.
    fn begin(&mut self, wr: &SendWr, signal_all: bool, number: u64, header: &DdpHeader) {
        let signaled = signal_all || wr.flags & send_flags::SIGNALED != 0;
        let response = response_opcode(wr);
        let count = if response == Some(Opcode::ReadResponse) {
            read_requests(wr)
        } else {
            1
        };
        let followed = wr.operation() == Ok(WrOpcode::WriteImmediate);
        self.immediate_next = followed.then(|| immediate(wr, number));
        let target = match header {
            DdpHeader::Tagged(header) => Target::Tagged {
                stag: header.stag,
                offset: header.offset,
                immediate: followed.then(|| advance(&mut self.next_send)),
            },
            DdpHeader::Untagged(header) => {
                let next = if header.queue == QueueNumber::READ_REQUEST {
                    &mut self.next_request
                } else {
                    &mut self.next_send
                };
                Target::Untagged {
                    queue: header.queue,
                    msn: advance(next),
                    count,
                }
            }
        };
        // rfc: 7306-39, 7306-43 an atomic completes only when its response was delivered
        let progress = if response.is_some() {
            Progress::Awaiting
        } else {
            Progress::Sending
        };
        self.track(PostedRequest::new(wr, signaled, target, progress));
        if let Some(response) = response {
            let sink = match read_sink(wr, 0) {
                Some((sink, _)) => sink,
                None => Sge::default(),
            };
            self.outstanding
                .push(Some(number), response, &sink, count == 1);
            self.reading = (count > 1).then_some(Reading { number, next: 1 });
        }
    }

    /// Notes that the message of a request was handed down in full, up to `end` of the stream. A
    /// Write with Immediate Data has another message to send.
    pub(super) fn sent(&mut self, number: u64, end: u64) {
        if self.immediate_next.is_some() {
            return;
        }
        if let Some(request) = self.request(number)
            && matches!(request.progress, Progress::Sending)
        {
            request.progress = Progress::Sent(end);
        }
    }

    /// Fails a request whose memory was revoked before an octet of its message was sent. Returns
    /// the error to end the stream with, unless requests in front of it are to complete first.
    pub(super) fn memory_revoked_before(&mut self, number: u64) -> Option<RdmapError> {
        let error = self.memory_revoked(number)?;
        self.immediate_next = None;
        self.stop(error);
        self.next_failure().err()
    }

    /// Fails a request whose memory was revoked while its message was sent or its response
    /// received.
    pub(super) fn memory_revoked(&mut self, number: u64) -> Option<RdmapError> {
        let status = WcStatus::LocalProtectionError;
        let request = self.request(number)?;
        request.progress = Progress::Failed(status);
        let wr_id = request.wr_id;
        self.reading = None;
        self.failed = true;
        Some(RdmapError::Request { wr_id, status })
    }

    /// Handles a delivered segment of a Read Response.
    pub(super) fn read_response(
        &mut self,
        header: &TaggedHeader,
        len: u32,
    ) -> Result<(), RdmapError> {
        let completed = self.outstanding.read_response(header, len)?;
        if let Some(request) = completed.and_then(|number| self.request(number)) {
            request.progress = Progress::Done;
        }
        Ok(())
    }

    /// Handles a delivered Atomic Response. Writes the value from the peer's memory to the
    /// request's buffer in this machine's byte order, because the application computes with it.
    // rfc: 7306-36, 7306-39, 7306-43 an atomic completes when its response was delivered
    pub(super) fn atomic_response(
        &mut self,
        header: &UntaggedHeader,
        octets: &[u8],
        origin: Origin,
        guard: &Guard<'_>,
    ) -> Result<(), RdmapError> {
        let response = AtomicResponse::parse(octets).map_err(RdmapError::Malformed)?;
        let (number, sink) = self.outstanding.atomic_response(header, &response)?;
        let value = response.original.to_ne_bytes();
        let (stag, offset) = (sink.stag(), sink.tagged_offset());
        let place = guard.for_placement(stag, offset, value.len(), origin, Access::LOCAL_WRITE);
        match place.map(|place| place.write(&value)) {
            Ok(Ok(())) => {}
            // The application has revoked its buffer, or taken it away.
            Ok(Err(_)) | Err(_) => {
                return Err(self.memory_revoked(number).unwrap_or(RdmapError::Queues));
            }
        }
        if let Some(request) = self.request(number) {
            request.progress = Progress::Done;
        }
        Ok(())
    }

    /// Notes that the peer has acknowledged the stream up to `acked`.
    pub(super) fn acked(&mut self, acked: u64) {
        // rfc: 5040-73 a Send or Write completes only when the peer has acknowledged it
        self.acked = acked;
    }

    /// Returns whether all work requests that are to be carried out have completed.
    pub(super) fn is_drained(&self, qp: &QueuePair) -> bool {
        let begun = self.requests.is_empty() && self.outstanding.is_empty();
        begun && !self.has_unbegun(qp) && !self.has_paused(qp) && !self.failure_waits
    }

    /// Returns whether there is nothing to begin.
    #[inline]
    pub(super) fn is_at_rest(&self, qp: &QueuePair) -> bool {
        let begun =
            !self.has_unbegun(qp) && self.immediate_next.is_none() && self.reading.is_none();
        begun && !self.is_failure_due()
    }

    /// Returns whether there is a work request that has not begun, and may.
    #[inline]
    fn has_unbegun(&self, qp: &QueuePair) -> bool {
        self.is_before_finish() && qp.sq.has(self.requests.len() as u32)
    }

    /// Returns whether the next work request, if there is one, was posted before the application
    /// asked for an orderly end, and need not wait for the peer or the application.
    #[inline]
    fn is_before_finish(&self) -> bool {
        let begun = self.requests.len() as u64;
        // rfc: 5041-67 requests after the ULP has asked for an orderly end fail
        self.end.is_none_or(|end| self.first + begun < end)
    }

    #[inline(never)]
    fn track(&mut self, request: PostedRequest) {
        self.track_inline(request);
    }

    #[inline(always)]
    fn track_inline(&mut self, request: PostedRequest) {
        if self.requests.capacity() == 0 {
            self.requests.reserve_exact(self.most);
        }
        self.requests.push_back(request);
    }

    fn request(&mut self, number: u64) -> Option<&mut PostedRequest> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.requests.get_mut(index)
    }
}

/// Returns the opcode of the response to a work request, if it has one.
fn response_opcode(wr: &SendWr) -> Option<Opcode> {
    match wr.operation() {
        Ok(WrOpcode::Read) => Some(Opcode::ReadResponse),
        Ok(WrOpcode::FetchAdd | WrOpcode::CmpSwap) => Some(Opcode::AtomicResponse),
        _ => None,
    }
}

/// Returns the next MSN, and counts on.
fn advance(next: &mut Msn) -> Msn {
    let msn = *next;
    *next = msn.next();
    msn
}

impl PostedRequest {
    fn new(wr: &SendWr, signaled: bool, target: Target, progress: Progress) -> Self {
        let opcode = wr.operation().map_or(WcOpcode::Send, WcOpcode::from);
        Self {
            wr_id: wr.wr_id,
            opcode,
            signaled,
            length: wr.length,
            target,
            progress,
        }
    }
}
