//! A peer without receives: requests wait until it has some again, or fail.

use super::{Limits, Pause, PostedRequest, Progress, Requester, Target};
use crate::rdmap::RdmapError;
use crate::rdmap::message::Outbound;
use crate::verbs::{QueuePair, WcStatus, cq::CqTable};

impl Requester {
    /// Begins no more requests. Those that have begun go on to their end.
    pub(in super::super) fn pause(&mut self) {
        self.forgive();
        let begun = self.first + self.requests.len() as u64;
        let limits = self.limits();
        if limits.pause == Pause::No {
            limits.pause = Pause::From(begun);
        }
        self.update_end();
    }

    /// Goes on: the peer has receives again.
    pub(in super::super) fn resume(&mut self) {
        self.forgive();
        self.limits().pause = Pause::No;
        self.update_end();
    }

    /// Takes back that the next request fails.
    fn forgive(&mut self) {
        if self.limits().pause == Pause::Exceeded {
            self.limits().pause = Pause::No;
            self.failed = false;
        }
    }

    /// Handles that the peer had no receives for too long. The oldest unfinished request fails.
    /// Returns false if there is none: then the next one fails that is posted.
    ///
    /// A Send completes when TCP has acknowledged it, before a receive has taken it. So the oldest
    /// unfinished request may be a later one than the one that lacks a receive.
    pub(in super::super) fn not_ready(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) -> bool {
        self.complete(qp, cqs);
        self.limits().pause = Pause::Exceeded;
        self.failed = true;
        self.update_end();
        if let Some(oldest) = self.requests.front_mut() {
            oldest.progress = Progress::Failed(WcStatus::RnrRetryExceeded);
            return true;
        }
        self.fail_next(qp).is_some()
    }

    /// Returns the error that ends the stream, where a request has failed.
    pub(super) fn next_after_failure(
        &mut self,
        qp: &QueuePair,
    ) -> Result<Option<Outbound>, RdmapError> {
        let exceeded = self.limits().pause == Pause::Exceeded && self.requests.is_empty();
        match exceeded.then(|| self.fail_next(qp)).flatten() {
            Some(wr_id) => Err(RdmapError::ReceiverNotReady { wr_id }),
            None => self.next_failure(),
        }
    }

    /// Fails the next work request, if there is one. Returns its id.
    fn fail_next(&mut self, qp: &QueuePair) -> Option<u64> {
        let wr = self.has_unbegun(qp).then(|| qp.sq.peek(0)).flatten()?;
        let failed = Progress::Failed(WcStatus::RnrRetryExceeded);
        self.track(PostedRequest::new(&wr, true, Target::None, failed));
        Some(wr.wr_id)
    }

    /// Returns whether a work request waits for the peer, or because the send queue is stopped,
    /// that is to be carried out.
    pub(super) fn has_paused(&self, qp: &QueuePair) -> bool {
        let Some(limits) = &self.limits else {
            return false;
        };
        let begun = self.requests.len() as u64;
        let to_be_done = limits.finish.is_none_or(|end| self.first + begun < end);
        let waits = matches!(limits.pause, Pause::From(_)) || limits.stopped.is_some();
        waits && to_be_done && qp.sq.has(begun as u32)
    }

    /// Computes from which request on none may begin.
    pub(super) fn update_end(&mut self) {
        let limits = self.limits();
        let paused = match limits.pause {
            Pause::From(first) => Some(first),
            Pause::No | Pause::Exceeded => None,
        };
        // No request has the number that stands for none.
        let [finish, paused, stopped] =
            [limits.finish, paused, limits.stopped].map(|end| end.unwrap_or(u64::MAX));
        let end = finish.min(paused).min(stopped);
        self.end = (end < u64::MAX).then_some(end);
    }

    pub(super) fn limits(&mut self) -> &mut Limits {
        self.limits.get_or_insert_default()
    }
}
