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
    pub(super) heard_at: Instant,
    /// Since when the peer has taken nothing of what it is owed, if it is owed anything.
    owed_since: Option<Instant>,
    question_due: bool,
    /// Questions since the last segment, and the time of the last one.
    asked: u8,
    asked_at: Instant,
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
            heard_at: now,
            asked: 0,
            asked_at: now,
            question_due: false,
            owed_since: None,
        }
    }

    /// Whether a question waits to be sent.
    pub(super) fn is_question_due(&self) -> bool {
        self.question_due
    }

    /// A segment has come that nobody but the peer can have sent.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard_at = now;
        self.asked = 0;
        self.question_due = false;
    }

    /// The peer is owed something.
    pub(super) fn owe(&mut self, now: Instant) {
        self.owed_since.get_or_insert(now);
    }

    /// The peer has taken some of what it is owed; is there more?
    pub(super) fn progress(&mut self, now: Instant, more: bool) {
        self.owed_since = more.then_some(now);
    }

    /// Whether anybody wants to know how long the peer has been silent.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.keepalive.is_some() || self.user_timeout.is_some()
    }

    /// Whether time alone decides how long to go on sending again.
    pub(super) fn has_user_timeout(&self) -> bool {
        self.user_timeout.is_some()
    }

    /// When the user timeout ends the connection.
    fn gives_up_at(&self) -> Option<Instant> {
        Some(self.owed_since? + self.user_timeout?)
    }

    /// When to ask (again), or to give up asking.
    fn asks_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        let next = if self.asked == 0 {
            self.heard_at + keepalive.idle
        } else {
            self.asked_at + keepalive.interval
        };
        match self.user_timeout {
            Some(timeout) if self.asked > 0 => Some(next.min(self.heard_at + timeout)),
            _ => Some(next),
        }
    }

    /// Whether the peer has been asked long enough. A user timeout counts instead of the number of questions.
    fn is_hopeless(&self, now: Instant) -> bool {
        match (self.user_timeout, self.keepalive) {
            (Some(timeout), _) => self.asked > 0 && now.since(self.heard_at) >= timeout,
            (None, Some(keepalive)) => self.asked >= keepalive.count,
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
        let is_watched = self.liveness.is_watched() || self.state == State::FinWait2;
        is_watched.then(|| self.next_question()).flatten()
    }

    fn next_question(&self) -> Option<Instant> {
        if !self.is_synchronized() {
            return None;
        }
        let end = match self.state {
            State::FinWait2 => Some(self.liveness.heard_at + self.liveness.fin_wait),
            _ => self.liveness.gives_up_at(),
        };
        // While the peer is owed something, it is asked by that.
        let question = self.liveness.asks_at().filter(|_| self.is_quiet());
        [end, question].into_iter().flatten().min()
    }

    fn is_synchronized(&self) -> bool {
        !self.state.is_opening() && !matches!(self.state, State::TimeWait | State::Closed)
    }

    fn is_quiet(&self) -> bool {
        self.send.flight() == 0 && !self.send.has_unsent()
    }

    pub(super) fn check_liveness(&mut self, now: Instant) {
        if self.liveness_timeout().is_none_or(|at| at > now) {
            return;
        }
        let liveness = &mut self.liveness;
        if liveness.gives_up_at().is_some_and(|at| at <= now) {
            return self.finish(Some(TcpFailure::TimedOut));
        }
        let unfinished =
            self.state == State::FinWait2 && liveness.heard_at + liveness.fin_wait <= now;
        if unfinished || liveness.is_hopeless(now) {
            // A peer that is there after all learns of it.
            self.abort();
            self.failure = Some(TcpFailure::TimedOut);
        } else {
            liveness.asked += 1;
            liveness.asked_at = now;
            liveness.question_due = true;
        }
    }

    /// An octet before the window, without data: whoever has the connection answers it with an ACK.
    pub(super) fn keepalive_probe(&mut self, now: Instant) -> Option<Outgoing> {
        if !core::mem::take(&mut self.liveness.question_due) {
            return None;
        }
        self.counters.keepalives += 1;
        let mut header = self.header(now, self.send.nxt(), Flags::NONE);
        header.seq = self.send.seq(self.send.nxt().wrapping_sub(1));
        Some(Outgoing::bare(header))
    }
}
