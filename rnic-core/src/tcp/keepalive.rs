//! What a connection does where its peer is silent: see [`Liveness`](super::liveness::Liveness).

use core::time::Duration;

use crate::time::Instant;
use crate::wire::tcp::Flags;

use super::{Keepalive, Outgoing, State, Tcp, TcpFailure};

impl Tcp {
    /// Turns keepalive on or off.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.liveness.keepalive = keepalive;
    }

    /// Sets how long data may stay unacknowledged, or the peer's window closed, before the
    /// connection fails. Without it the number of retransmissions decides, and a peer that answers
    /// may wait.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.liveness.user_timeout = timeout;
    }

    /// Begins the user timeout again if the peer has been heard since it began: for a peer that is
    /// there and keeps its window closed with reason.
    pub fn excuse_closed_window(&mut self, now: Instant) {
        let liveness = &mut self.liveness;
        let began = liveness.unacked_since;
        if began.is_some_and(|began| liveness.last_received_at > began) {
            liveness.unacked_since = Some(now);
        }
    }

    /// Returns when [`check_liveness`](Self::check_liveness) has something to do.
    #[inline]
    pub(super) fn liveness_timeout(&self) -> Option<Instant> {
        let needs_timer = self.liveness.needs_timer() || self.state == State::FinWait2;
        needs_timer.then(|| self.next_liveness_timeout()).flatten()
    }

    fn next_liveness_timeout(&self) -> Option<Instant> {
        if !self.is_synchronized() {
            return None;
        }
        let end = match self.state {
            State::FinWait2 => Some(self.liveness.last_received_at + self.liveness.fin_wait),
            _ => self.liveness.user_timeout_at(),
        };
        // Outstanding data probes the peer by itself.
        let keepalive = self
            .liveness
            .keepalive_at()
            .filter(|_| self.has_nothing_outstanding());
        [end, keepalive].into_iter().flatten().min()
    }

    fn is_synchronized(&self) -> bool {
        !self.state.is_opening() && !matches!(self.state, State::TimeWait | State::Closed)
    }

    fn has_nothing_outstanding(&self) -> bool {
        self.send.flight() == 0 && !self.send.has_unsent()
    }

    pub(super) fn check_liveness(&mut self, now: Instant) {
        if self.liveness_timeout().is_none_or(|at| at > now) {
            return;
        }
        let liveness = &mut self.liveness;
        if liveness.user_timeout_at().is_some_and(|at| at <= now) {
            return self.finish(Some(TcpFailure::TimedOut));
        }
        let unfinished =
            self.state == State::FinWait2 && liveness.last_received_at + liveness.fin_wait <= now;
        if unfinished || liveness.has_given_up(now) {
            // A peer that is there after all learns of it.
            self.abort();
            self.failure = Some(TcpFailure::TimedOut);
        } else {
            liveness.on_probe(now);
            liveness.keepalive_due = true;
        }
    }

    /// Returns the keepalive probe if it is due: an empty segment in front of the window, which the
    /// peer answers with an ACK.
    pub(super) fn keepalive_probe(&mut self, now: Instant) -> Option<Outgoing> {
        if !core::mem::take(&mut self.liveness.keepalive_due) {
            return None;
        }
        self.counters.keepalives += 1;
        let mut header = self.header(now, self.send.nxt(), Flags::NONE);
        header.seq = self.send.seq(self.send.nxt().wrapping_sub(1));
        Some(Outgoing::bare(header))
    }
}
