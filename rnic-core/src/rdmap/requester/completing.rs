//! How requests end: in the order in which they were posted, flushed, or with the error of a peer's
//! Terminate.

use super::{PostedRequest, Progress, Requester, Target};
use crate::ids::QpNumber;
use crate::rdmap::ReceivedTerminate;
use crate::verbs::{Completion, QueuePair, WcStatus, cq::CqTable};
use crate::wire::ddp::{DdpHeader, QueueNumber};
use crate::wire::rdmap::{Control, Opcode};

impl Requester {
    /// Completes the requests that are done, in the order in which they were posted.
    // rfc: 5040-73 a Send or Write completes only when the peer has acknowledged it
    // rfc: 5040-74 requests complete in the order in which they were posted
    pub(in super::super) fn complete(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) {
        // Entries are released together, but before the application sees a completion of one of
        // them.
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

    /// Completes the only request that has begun, if it succeeded. Returns whether it did, or none
    /// has begun.
    #[inline(always)]
    pub(in super::super) fn complete_only(
        &mut self,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) -> bool {
        let only = self.requests.front().filter(|_| self.requests.len() == 1);
        let Some(only) = only else {
            return self.requests.is_empty();
        };
        if !matches!(only.progress, Progress::Sent(end) if end <= self.acked) {
            return false;
        }
        let reported = only.signaled;
        let (wr_id, opcode, length) = (only.wr_id, only.opcode, only.length);
        // Clearing makes the next request use the same memory, which is in the cache.
        self.requests.clear();
        self.first += 1;
        qp.sq.release(1);
        if reported {
            cqs.complete_done(qp.send_cq, wr_id, qp.number, opcode, length);
        }
        true
    }

    /// Applies a peer's Terminate: the request that it names completes with that error instead of
    /// as flushed. The peer has carried out the requests before it and dropped those behind it,
    /// whether TCP acknowledged them or not.
    pub(in super::super) fn apply_terminate(&mut self, terminate: &ReceivedTerminate) {
        let named = |request: &PostedRequest| match (&terminate.segment.header, request.target) {
            (Some(DdpHeader::Untagged(header)), Target::Untagged { queue, msn, count }) => {
                header.queue == queue && header.msn.distance_from(msn) < count.into()
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
                Progress::Sending | Progress::Sent(_) | Progress::Awaiting | Progress::Failed(_)
            ) {
                request.progress = Progress::Failed(status);
            }
            status = WcStatus::WrFlushed;
        }
    }

    /// Completes all requests: those that are done with their status, the `first` of the others
    /// with that one, and the rest as flushed.
    pub(in super::super) fn flush(
        &mut self,
        mut first: WcStatus,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) {
        let mut unfinished = || std::mem::replace(&mut first, WcStatus::WrFlushed);
        while let Some(request) = self.requests.front() {
            let status = request.status(self.acked).unwrap_or_else(&mut unfinished);
            self.complete_first(status, qp, cqs);
        }
        self.outstanding.clear();
        self.immediate_next = None;
        self.reading = None;
        for _ in 0..qp.sq.len() {
            let Some(wr) = qp.sq.peek(0) else {
                break;
            };
            let request = PostedRequest::new(&wr, true, Target::None, Progress::Sending);
            self.track(request);
            self.complete_first(unfinished(), qp, cqs);
        }
    }

    pub(super) fn complete_first(
        &mut self,
        status: WcStatus,
        qp: &mut QueuePair,
        cqs: &mut CqTable,
    ) {
        let Some(request) = self.requests.pop_front() else {
            return;
        };
        if self.requests.is_empty() {
            // Clearing makes the next request use the same memory, which is in the cache.
            self.requests.clear();
        }
        self.first += 1;
        qp.sq.release(1);
        if let Some(completion) = request.completion(status, qp.number) {
            cqs.complete(qp.send_cq, completion, false);
        }
    }
}

impl PostedRequest {
    /// Returns the completion of a request that has ended, unless it succeeded unsignaled.
    #[inline]
    fn completion(&self, status: WcStatus, qp: QpNumber) -> Option<Completion> {
        let reported = self.signaled || status != WcStatus::Success;
        reported.then(|| Completion::new(self.wr_id, qp, self.opcode, status, self.length))
    }

    /// Returns how a request ended, if it has, once the peer has acknowledged the stream up to
    /// `acked`.
    fn status(&self, acked: u64) -> Option<WcStatus> {
        match self.progress {
            Progress::Sent(end) if end <= acked => Some(WcStatus::Success),
            Progress::Done => Some(WcStatus::Success),
            Progress::Failed(status) => Some(status),
            Progress::Sent(_) | Progress::Sending | Progress::Awaiting => None,
        }
    }
}
