//! The timers of a connection.

use super::{State, Tcp, TcpFailure};
use crate::time::Instant;

impl Tcp {
    /// Returns when [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ack_by = self.recv.next_timeout();
        Instant::earliest([ack_by, self.timeout_but_acks()])
    }

    /// Returns [`next_timeout`](Self::next_timeout) for a caller that polls for segments in its
    /// next turn if an ACK [waits](Self::acks_next_turn) for that.
    #[inline]
    pub fn timeout_but_next_turn(&self) -> Option<Instant> {
        let ack_by = self.recv.next_timeout();
        let ack_by = ack_by.filter(|_| !self.acks_next_turn());
        Instant::earliest([ack_by, self.timeout_but_acks()])
    }

    /// Returns whether [`timeout_but_next_turn`](Self::timeout_but_next_turn) is not before `at`,
    /// or is `None` where `at` is. A cheap test: it may return false where that is so.
    #[inline]
    pub fn times_out_after(&self, at: Option<Instant>) -> bool {
        let rare = self.time_wait_ends.is_some()
            | self.device_retry_at.is_some()
            | self.pacer.resume_at().is_some()
            | (self.state != State::Established)
            | self.liveness.needs_timer();
        let ack_by = self.recv.next_timeout();
        let ack_by = ack_by.filter(|_| !self.acks_next_turn());
        let lost = self
            .recovery
            .no_timeout_before(&self.send, self.retransmit_at);
        !rare && Instant::earliest([at, ack_by, lost]) == at
    }

    /// Returns whether an ACK waits only for the next turn, to travel with a reply.
    #[inline]
    pub fn acks_next_turn(&self) -> bool {
        self.recv.ack_waits_for_turn()
    }

    #[inline]
    fn timeout_but_acks(&self) -> Option<Instant> {
        Instant::earliest([
            self.retransmit_at,
            self.time_wait_ends,
            self.device_retry_at,
            self.liveness_timeout(),
            self.pacer.resume_at(),
            self.recovery
                .next_timeout(&self.send, &self.rtt, self.retransmit_at),
        ])
    }

    /// Handles the timers that have expired. Poll for segments to send afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.recv.handle_timeout(now);
        self.pacer.advance(now);
        let expired = |timer: Option<Instant>| timer.is_some_and(|at| at <= now);
        if expired(self.device_retry_at) {
            self.device_retry_at = None;
        }
        if expired(self.time_wait_ends) {
            self.finish(None);
        }
        self.recovery
            .handle_timeout(now, &mut self.send, &self.rtt, &mut self.counters);
        if self
            .recovery
            .expire_tail_probe(now, &self.send, &self.rtt, self.retransmit_at)
        {
            self.retransmit_at = Some(now + self.rtt.rto());
        }
        if expired(self.retransmit_at) {
            self.retransmission_timeout(now);
        }
        self.check_liveness(now);
    }

    fn retransmission_timeout(&mut self, now: Instant) {
        if self.state == State::SynSent && self.syn_sent_at.is_none() && !self.syn_due {
            // It was held back.
            (self.syn_due, self.retransmit_at) = (true, None);
            return;
        }
        if !self.state.is_opening() && self.send.flight() == 0 && !self.send.has_unsent() {
            self.retransmit_at = None;
            return;
        }
        let limit = if self.state.is_opening() {
            self.syn_retries
        } else if self.liveness.has_user_timeout() {
            u8::MAX
        } else {
            self.max_retries
        };
        if self.retries >= limit {
            self.finish(Some(TcpFailure::TimedOut));
            return;
        }
        // What was to be sent at the last expiry may not have left yet, as the device is busy or
        // gone. That says nothing of the path or its load; but the wait ends.
        let waits = self.recovery.waits_to_retransmit(&self.send) && !self.send.window_closed();
        let first = self.retries == 0;
        self.retries = self.retries.saturating_add(1);
        self.rtt.back_off();
        self.retransmit_at = Some(now + self.rtt.rto());
        if self.state.is_opening() {
            self.counters.timeouts += 1;
            self.syn_due = true;
        } else if self.send.window_closed() || self.send.flight() == 0 {
            self.probe_due = true;
        } else if !waits {
            self.counters.timeouts += 1;
            self.suspect_path(now);
            self.recovery
                .on_timeout(now, &mut self.send, &self.rtt, first);
        }
    }
}
