//! Whether the peer is still there: keepalive (RFC 9293 section 3.8.4), the user timeout (RFC 5482), and the end of
//! the wait for a FIN that never comes.

use core::time::Duration;

use super::{Outgoing, State, Tcp, TcpConfig, TcpFailure};
use crate::time::Instant;
use crate::wire::tcp::Flags;

/// When to ask a silent peer whether it is there. `Default` is what Linux does once it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The silence after which the peer is asked for the first time.
    pub idle: Duration,
    /// The time between questions.
    pub interval: Duration,
    /// Questions without answer after which the peer is gone.
    pub count: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(2 * 3600),
            interval: Duration::from_secs(75),
            count: 9,
        }
    }
}

/// What is known of the peer's being there. Its timers are computed, not kept: a segment that arrives moves them
/// without further work.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Liveness {
    /// The last segment that the peer must have sent.
    pub(super) last_received_at: Instant,
    /// Since when the peer has taken nothing of what it is owed, if it is owed anything.
    unacked_since: Option<Instant>,
    keepalive_due: bool,
    /// Questions since the last segment, and the time of the last one.
    probes: u8,
    probed_at: Instant,
    user_timeout: Option<Duration>,
    keepalive: Option<Keepalive>,
    fin_wait: Duration,
}

impl Liveness {
    pub(super) fn new(now: Instant, config: &TcpConfig) -> Self {
        Self {
            keepalive: config.keepalive,
            user_timeout: config.user_timeout,
            fin_wait: config.fin_wait,
            last_received_at: now,
            probes: 0,
            probed_at: now,
            keepalive_due: false,
            unacked_since: None,
        }
    }

    /// Whether a question waits to be sent.
    pub(super) fn is_keepalive_due(&self) -> bool {
        self.keepalive_due
    }

    /// A segment has come that nobody but the peer can have sent.
    pub(super) fn on_segment(&mut self, now: Instant) {
        self.last_received_at = now;
        self.probes = 0;
        self.keepalive_due = false;
    }

    /// The peer is owed something.
    pub(super) fn on_outstanding(&mut self, now: Instant) {
        self.unacked_since.get_or_insert(now);
    }

    /// The peer has taken some of what it is owed; is there more?
    pub(super) fn on_progress(&mut self, now: Instant, more: bool) {
        self.unacked_since = more.then_some(now);
    }

    /// Whether anybody wants to know how long the peer has been silent.
    #[inline]
    pub(super) fn needs_timer(&self) -> bool {
        self.keepalive.is_some() || self.user_timeout.is_some()
    }

    /// Whether time alone decides how long to go on sending again.
    pub(super) fn has_user_timeout(&self) -> bool {
        self.user_timeout.is_some()
    }

    /// When the user timeout ends the connection.
    fn user_timeout_at(&self) -> Option<Instant> {
        Some(self.unacked_since? + self.user_timeout?)
    }

    /// When to ask (again), or to give up asking.
    fn keepalive_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        let next = if self.probes == 0 {
            self.last_received_at + keepalive.idle
        } else {
            self.probed_at + keepalive.interval
        };
        match self.user_timeout {
            Some(timeout) if self.probes > 0 => Some(next.min(self.last_received_at + timeout)),
            _ => Some(next),
        }
    }

    /// Whether the peer has been asked long enough. A user timeout counts instead of the number of questions.
    fn has_given_up(&self, now: Instant) -> bool {
        match (self.user_timeout, self.keepalive) {
            (Some(timeout), _) => self.probes > 0 && now.since(self.last_received_at) >= timeout,
            (None, Some(keepalive)) => self.probes >= keepalive.count,
            (None, None) => false,
        }
    }
}

impl Tcp {
    /// Asks a silent peer from now on whether it is there, or no longer.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.liveness.keepalive = keepalive;
    }

    /// How long the peer may leave what it is owed without acknowledgment, or its window closed, before the connection
    /// fails. Without it the number of retransmissions decides, and a peer that answers may wait.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.liveness.user_timeout = timeout;
    }

    /// When [`check_liveness`](Self::check_liveness) has something to do.
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
        // While the peer is owed something, it is asked by that.
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
            liveness.probes += 1;
            liveness.probed_at = now;
            liveness.keepalive_due = true;
        }
    }

    /// An octet before the window, without data: whoever has the connection answers it with an ACK.
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
