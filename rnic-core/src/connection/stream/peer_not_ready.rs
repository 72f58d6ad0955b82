//! A peer that has no receives (RNR), on a connection with the semantics of RC: how long the requests
//! of this side wait for it. The timer also lets the first FPDU of an initiator go, and go again.

use std::time::Duration;

use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::connection::{Context, EndReason};
use crate::ddp::BufferSupply;
use crate::rdmap;
use crate::time::Instant;

use super::{Hold, Stream};

impl Stream {
    /// Opens what the semantics of RC need beside RFC 5040. `min_rnr_timer` is what the peer is
    /// told to wait when it has found no receive.
    pub(in crate::connection) fn keep_rc(&mut self, min_rnr_timer: Duration) {
        match &mut self.user {
            LocalUlp::Rdmap(user) if self.rc => {
                user.rdmap.keep_rc(min_rnr_timer);
                let (queue, count, size) = rdmap::FLOW_CONTROL_QUEUE;
                let supply = BufferSupply::Internal { count, size };
                self.ddp.open(queue, supply);
                self.ddp.keep_lines();
            }
            // A layer other than RDMAP has no receives of ours.
            _ => self.rc = false,
        }
    }

    /// Follows what the peer has told of its receives.
    pub(super) fn follow_peer(&mut self, context: &mut Context<'_, '_>) {
        if let LocalUlp::Rdmap(user) = &self.user {
            let not_ready = user.rdmap.is_peer_not_ready();
            context.counters.rdma.xoffs_received += u64::from(not_ready);
        }
        self.time_peer(context.now);
    }

    /// Returns when its [timer](Self::handle_timeout) goes off: when the first FPDU may be sent, if
    /// the application set a delay, or sent again, or when it has waited long enough for the peer's
    /// receives.
    pub(in crate::connection) fn wakes_at(&self) -> Option<Instant> {
        self.wakes_at
    }

    /// Sends the first FPDU no earlier than this.
    pub(in crate::connection) fn hold_until(&mut self, at: Instant) {
        (self.hold, self.wakes_at) = (Hold::Delayed, Some(at));
    }

    /// Handles its timer, if its time has come.
    pub(in crate::connection) fn handle_timeout(&mut self, context: &mut Context<'_, '_>) {
        if self.ended || self.wakes_at.is_none_or(|at| at > context.now) {
            return;
        }
        self.wakes_at = None;
        if self.hold == Hold::Delayed {
            self.hold = Hold::Nothing;
            self.time_peer(context.now);
            return self.repeat_opening(context.now);
        }
        if self.repeats_left > 0 {
            return self.open_again(context.now);
        }
        self.choose_paths();
        if let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user
            && self.rc
            && rdmap.rnr_exceeded(qp, context.cqs)
        {
            self.end(EndReason::ReceiverNotReady, context);
        }
    }

    /// Returns whether the peer has told that it has no receives.
    pub(in crate::connection) fn is_peer_not_ready(&self) -> bool {
        matches!(&self.user, LocalUlp::Rdmap(user) if user.rdmap.is_peer_not_ready())
    }

    /// Sets the timer for how long a peer may have no receives.
    fn time_peer(&mut self, now: Instant) {
        if let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user
            && self.hold != Hold::Delayed
        {
            self.wakes_at = rdmap.rnr_deadline(now, qp.rnr_retry);
            self.choose_paths();
        }
    }

    /// Sets how long requests wait for a peer without receives, from now on.
    pub(in crate::connection) fn set_rnr_retry(&mut self, rnr_retry: u8, now: Instant) {
        if let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user {
            qp.rnr_retry = rnr_retry;
            rdmap.wait_again();
        }
        self.time_peer(now);
    }
}
