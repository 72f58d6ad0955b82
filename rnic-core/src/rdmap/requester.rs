//! The requester: send queue entries become messages, in order, and complete in order.

mod short;

use std::collections::VecDeque;
use std::mem::offset_of;

use zerocopy::FromZeros;

pub use self::short::{SHORT_ROOM, Short};

use super::message::Outbound;
use super::outstanding::Outstanding;
use super::prepare::{execute, immediate, prepare};
use super::{RdmapError, ReceivedTerminate, RtrMessage};
use crate::memory::epoch::Guard;
use crate::memory::prefetch::prefetch_ends;
use crate::memory::table::{Access, BindError, Origin};
use crate::verbs::cq::CqTable;
use crate::verbs::qp::QpNumber;
use crate::verbs::wr::send_flags;
use crate::verbs::{Completion, QueuePair, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use crate::wire::ddp::{
    DdpHeader, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use crate::wire::rdmap::{AtomicResponse, Control, Opcode};

/// A request that was begun. Its entry stays in the send queue until it completes.
#[derive(Clone, Copy, Debug)]
struct PostedRequest {
    wr_id: u64,
    opcode: WcOpcode,
    signaled: bool,
    length: u32,
    target: Target,
    progress: Progress,
}

/// What a peer's Terminate can name a request by.
#[derive(Clone, Copy, Debug)]
enum Target {
    Tagged {
        stag: Stag,
        offset: TaggedOffset,
        /// The Immediate Data behind a Write.
        immediate: Option<Msn>,
    },
    Untagged {
        queue: QueueNumber,
        msn: Msn,
    },
    None,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// Not all of it was handed down.
    Sending,
    /// Handed down, up to this offset of the stream.
    Sent(u64),
    /// A Read or atomic whose response has not wholly come.
    Awaiting,
    /// Known to be carried out: answered, or in need of no answer.
    Done,
    Failed(WcStatus),
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Requester {
    /// Takes memory with the first, for as many as there can be.
    requests: VecDeque<PostedRequest>,
    most: usize,
    /// The number of the first of `requests`.
    first: u64,
    /// How much of the stream the peer has acknowledged.
    acked: u64,
    /// The numbers that DDP gives the next Send, and the next Read or Atomic Request.
    next_send: Msn,
    next_request: Msn,
    /// A request failed here: none is begun any more.
    failed: bool,
    /// The first request that was posted after the application had asked to end in order.
    end: Option<u64>,
    pub(super) outstanding: Outstanding,
    /// The Immediate Data that follow the last Write begun.
    immediate_next: Option<Outbound>,
}

impl Requester {
    /// Octets of it that are looked at in each turn.
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
            acked: 0,
            failed: false,
            end: None,
        }
    }

    /// Has fetched what the next request, and what is known of those that were begun, lie in.
    pub(super) fn prefetch(&self, qp: &QueuePair) {
        prefetch_ends(&self.requests);
        qp.sq.prefetch(Some(self.requests.len() as u32));
    }

    /// The ready-to-receive message goes out: it counts among the Sends or Reads.
    pub(super) fn open(&mut self, opening: RtrMessage) {
        match opening {
            RtrMessage::Send => self.next_send = self.next_send.next(),
            RtrMessage::Write => {}
            RtrMessage::Read => {
                self.next_request = self.next_request.next();
                self.outstanding
                    .push(None, Opcode::ReadResponse, &Sge::default());
            }
        }
    }

    /// The application ends the stream in order: what it posts from now on is not begun, and flushed at the end.
    // rfc: 5041-67
    pub(super) fn finish(&mut self, qp: &QueuePair) {
        self.end.get_or_insert(self.first + u64::from(qp.sq.len()));
    }

    /// The message of the next request that has one, if it may begin. Requests before it that have none are carried
    /// out: what they do is done before anything of a later request is sent.
    // rfc: 5040-72
    pub(super) fn next(
        &mut self,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<Option<Outbound>, RdmapError> {
        if self.failed {
            return Ok(None);
        }
        if self.immediate_next.is_some() {
            return Ok(self.immediate_next.take());
        }
        let mut wr = SendWr::new_zeroed();
        match self.execute_local(&mut wr, qp, cqs, guard) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                self.fail(&wr, WcStatus::MwBindError);
                let wr_id = wr.wr_id;
                return Err(RdmapError::Binding { wr_id, error });
            }
        }
        let number = self.first + self.requests.len() as u64;
        match prepare(&wr, number, self.outstanding.ord(), qp.origin(), guard) {
            Ok(outbound) => {
                self.begin(&wr, qp.signal_all, number, &outbound.header);
                Ok(Some(outbound))
            }
            // rfc: 5040-87, 5040-88a, 7306-54a
            Err(status) => {
                self.fail(&wr, status);
                Err(RdmapError::Request {
                    wr_id: wr.wr_id,
                    status,
                })
            }
        }
    }

    /// Carries out the next requests as far as they send nothing. Says whether one behind them may begin: `wr` is
    /// that then. One that cannot be carried out is `wr`, and stays first in line.
    pub(super) fn execute_local(
        &mut self,
        wr: &mut SendWr,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
        guard: &Guard<'_>,
    ) -> Result<bool, BindError> {
        // Who posts faster than this carries out rings again.
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

    /// Looks at the request that was not begun and comes next. Says whether it may begin.
    fn peek_next(&self, wr: &mut SendWr, qp: &QueuePair, cqs: &CqTable) -> bool {
        // A completion queue with a backlog gets no more to complete: that bounds the backlog.
        self.has_unbegun(qp)
            && !cqs.has_backlog(qp.send_cq)
            // rfc: 5040-27, 5040-37, 5040-56, 7306-27, 7306-52
            && qp.sq.peek_into(self.requests.len() as u32, wr)
            && self.may_begin(wr)
    }

    /// A request cannot be carried out, and none after it is.
    fn fail(&mut self, wr: &SendWr, status: WcStatus) {
        self.track(PostedRequest::new(
            wr,
            true,
            Target::None,
            Progress::Failed(status),
        ));
        self.failed = true;
    }

    /// Whether a request may begin now: a fence waits for all Reads and atomics, each of these for room among those
    /// outstanding.
    fn may_begin(&self, wr: &SendWr) -> bool {
        let fenced = wr.flags & send_flags::FENCE != 0 && !self.outstanding.is_empty();
        let too_many = answer(wr).is_some() && self.outstanding.is_full();
        !fenced && !too_many
    }

    /// Remembers a request whose message goes out now.
    fn begin(&mut self, wr: &SendWr, signal_all: bool, number: u64, header: &DdpHeader) {
        let signaled = signal_all || wr.flags & send_flags::SIGNALED != 0;
        let answer = answer(wr);
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
                }
            }
        };
        // rfc: 7306-39, 7306-43
        let progress = if answer.is_some() {
            Progress::Awaiting
        } else {
            Progress::Sending
        };
        self.track(PostedRequest::new(wr, signaled, target, progress));
        if let Some(answer) = answer {
            let sink = wr.sges().first().copied().unwrap_or_default();
            self.outstanding.push(Some(number), answer, &sink);
        }
    }

    /// The last octet of a request's message was handed down; it ends at `end` of the stream. A request with another
    /// message is not done with that.
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

    /// The memory of a request is not there any more, now that its octets are to be read, or to be written.
    pub(super) fn memory_revoked(&mut self, number: u64) -> Option<RdmapError> {
        let status = WcStatus::LocalProtectionError;
        let request = self.request(number)?;
        request.progress = Progress::Failed(status);
        let wr_id = request.wr_id;
        self.failed = true;
        Some(RdmapError::Request { wr_id, status })
    }

    /// Takes a segment of a Read Response in its turn.
    pub(super) fn read_response(
        &mut self,
        header: &TaggedHeader,
        len: u32,
    ) -> Result<(), RdmapError> {
        let answered = self.outstanding.read_response(header, len)?;
        if let Some(request) = answered.and_then(|number| self.request(number)) {
            request.progress = Progress::Done;
        }
        Ok(())
    }

    /// Takes an Atomic Response in its turn. What the peer's memory held goes to the request's buffer as a number in
    /// this machine's byte order, whatever the peer's is: that is what the application computes with.
    // rfc: 7306-36, 7306-39, 7306-43
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
        match guard.for_placement(stag, offset, value.len(), origin, Access::LOCAL_WRITE) {
            Ok(placement) => placement.write(&value),
            // The application has taken its buffer away meanwhile.
            Err(_) => return Err(self.memory_revoked(number).unwrap_or(RdmapError::Queues)),
        }
        if let Some(request) = self.request(number) {
            request.progress = Progress::Done;
        }
        Ok(())
    }

    /// The peer acknowledged the stream up to `acked`.
    pub(super) fn acked(&mut self, acked: u64) {
        // rfc: 5040-73
        self.acked = acked;
    }

    /// Completes what is done, in the order in which it was posted.
    // rfc: 5040-73, 5040-74
    pub(super) fn complete(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) {
        // Entries are given back together, but before the application hears of any of them.
        let mut unreleased = 0;
        while let Some(request) = self.requests.front() {
            let Some(status) = request.status(self.acked) else {
                break;
            };
            unreleased += 1;
            if let Some(completion) = request.completion(status, qp.number) {
                qp.sq.release(std::mem::take(&mut unreleased));
                cqs.complete(qp.send_cq, completion, false);
            }
            self.requests.pop_front();
            self.first += 1;
        }
        if unreleased > 0 {
            qp.sq.release(unreleased);
        }
    }

    /// Completes the only request that was begun, if that is a success. Says whether it was.
    #[inline(always)]
    pub(super) fn complete_only(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) -> bool {
        let only = self.requests.front().filter(|_| self.requests.len() == 1);
        let Some(only) = only else {
            return self.requests.is_empty();
        };
        if !matches!(only.progress, Progress::Sent(end) if end <= self.acked) {
            return false;
        }
        let reported = only.signaled;
        let (wr_id, opcode, length) = (only.wr_id, only.opcode, only.length);
        // The next stands where this one did, which is in the cache.
        self.requests.clear();
        self.first += 1;
        qp.sq.release(1);
        if reported {
            cqs.complete_done(qp.send_cq, wr_id, qp.number, opcode, length);
        }
        true
    }

    /// Marks the request that the peer's Terminate names, so that it completes with more than "flushed". The peer has
    /// carried out what came before it, and dropped what came behind it, acknowledged or not.
    pub(super) fn apply_terminate(&mut self, terminate: &ReceivedTerminate) {
        let named = |request: &PostedRequest| match (&terminate.header, request.target) {
            (Some(DdpHeader::Untagged(header)), Target::Untagged { queue, msn }) => {
                header.queue == queue && header.msn == msn
            }
            (
                Some(DdpHeader::Untagged(header)),
                Target::Tagged {
                    immediate: Some(msn),
                    ..
                },
            ) => header.queue == QueueNumber::SEND && header.msn == msn,
            (Some(DdpHeader::Tagged(header)), Target::Tagged { stag, offset, .. }) => {
                let within = header.offset.0.wrapping_sub(offset.0);
                let is_write = Control::from(header.ulp) == Control::new(Opcode::Write);
                is_write && header.stag == stag && within < u64::from(request.length)
            }
            _ => false,
        };
        let Some(index) = self.requests.iter().position(named) else {
            return;
        };
        for request in self.requests.range_mut(..index) {
            if matches!(request.progress, Progress::Sent(_)) {
                request.progress = Progress::Done;
            }
        }
        let mut status = terminate.status();
        for request in self.requests.range_mut(index..) {
            if matches!(
                request.progress,
                Progress::Sending | Progress::Sent(_) | Progress::Awaiting
            ) {
                request.progress = Progress::Failed(status);
            }
            status = WcStatus::WrFlushed;
        }
    }

    /// Completes every request: those that are done as they ended, the others as flushed.
    pub(super) fn flush(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) {
        while let Some(request) = self.requests.front() {
            let status = request.status(self.acked).unwrap_or(WcStatus::WrFlushed);
            self.complete_first(status, qp, cqs);
        }
        self.outstanding.clear();
        self.immediate_next = None;
        for _ in 0..qp.sq.len() {
            let Some(wr) = qp.sq.peek(0) else {
                break;
            };
            let request = PostedRequest::new(&wr, true, Target::None, Progress::Sending);
            self.track(request);
            self.complete_first(WcStatus::WrFlushed, qp, cqs);
        }
    }

    /// Whether every request was completed that is to be carried out.
    pub(super) fn is_idle(&self, qp: &QueuePair) -> bool {
        self.requests.is_empty() && self.outstanding.is_empty() && !self.has_unbegun(qp)
    }

    /// Whether there is nothing to begin.
    #[inline]
    pub(super) fn is_at_rest(&self, qp: &QueuePair) -> bool {
        !self.has_unbegun(qp) && self.immediate_next.is_none()
    }

    /// Whether a request that is to be carried out has not begun.
    #[inline]
    fn has_unbegun(&self, qp: &QueuePair) -> bool {
        self.is_before_finish() && qp.sq.has(self.requests.len() as u32)
    }

    /// Whether the next request is to be carried out, if there is one.
    #[inline]
    fn is_before_finish(&self) -> bool {
        let begun = self.requests.len() as u64;
        // rfc: 5041-67
        self.end.is_none_or(|end| self.first + begun < end)
    }

    #[inline]
    fn track(&mut self, request: PostedRequest) {
        if self.requests.capacity() == 0 {
            self.requests.reserve_exact(self.most);
        }
        self.requests.push_back(request);
    }

    fn complete_first(&mut self, status: WcStatus, qp: &mut QueuePair, cqs: &mut CqTable) {
        let Some(request) = self.requests.pop_front() else {
            return;
        };
        if self.requests.is_empty() {
            // The next stands where this one did, which is in the cache.
            self.requests.clear();
        }
        self.first += 1;
        qp.sq.release(1);
        if let Some(completion) = request.completion(status, qp.number) {
            cqs.complete(qp.send_cq, completion, false);
        }
    }

    fn request(&mut self, number: u64) -> Option<&mut PostedRequest> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.requests.get_mut(index)
    }
}

/// What answers a request, if anything does.
fn answer(wr: &SendWr) -> Option<Opcode> {
    match wr.operation() {
        Ok(WrOpcode::Read) => Some(Opcode::ReadResponse),
        Ok(WrOpcode::FetchAdd | WrOpcode::CmpSwap) => Some(Opcode::AtomicResponse),
        _ => None,
    }
}

/// Takes a number, and counts on.
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

    /// What the application is to hear of its end.
    #[inline]
    fn completion(&self, status: WcStatus, qp: QpNumber) -> Option<Completion> {
        let reported = self.signaled || status != WcStatus::Success;
        reported.then(|| Completion::new(self.wr_id, qp, self.opcode, status, self.length))
    }

    /// How it ended, if it has, once the peer acknowledged the stream up to `acked`.
    fn status(&self, acked: u64) -> Option<WcStatus> {
        match self.progress {
            Progress::Sent(end) if end <= acked => Some(WcStatus::Success),
            Progress::Done => Some(WcStatus::Success),
            Progress::Failed(status) => Some(status),
            Progress::Sent(_) | Progress::Sending | Progress::Awaiting => None,
        }
    }
}
