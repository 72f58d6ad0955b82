//! Whether the peer is still there: keepalive (RFC 9293 section 3.8.4), the user timeout (RFC 5482), and the end of
//! the wait for a FIN that never comes.

use core::time::Duration;

use super::{Outgoing, State, Tcp, TcpConfig, TcpFailure};
use crate::time::Instant;
use crate::wire::tcp::Flags;

/// When to probe a silent peer. `Default` has the values of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The silence after which the first probe is sent.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection fails.
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

/// Whether the peer is alive. Its timers are computed, not kept: a segment that arrives moves them
/// without further work.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Liveness {
    /// The last segment that the peer must have sent.
    pub(super) last_received_at: Instant,
    /// Since when the peer has acknowledged nothing, if anything is outstanding.
    unacked_since: Option<Instant>,
    keepalive_due: bool,
    /// Keepalive probes since the last segment, and the time of the last one.
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

    /// Whether a keepalive probe is to be sent.
    pub(super) fn is_keepalive_due(&self) -> bool {
        self.keepalive_due
    }

    /// Takes a segment that only the peer can have sent.
    pub(super) fn on_segment(&mut self, now: Instant) {
        self.last_received_at = now;
        self.probes = 0;
        self.keepalive_due = false;
    }

    /// Takes the transmission of data.
    pub(super) fn on_outstanding(&mut self, now: Instant) {
        self.unacked_since.get_or_insert(now);
    }

    /// Takes an ACK of data; `more`: data is still outstanding.
    pub(super) fn on_progress(&mut self, now: Instant, more: bool) {
        self.unacked_since = more.then_some(now);
    }

    /// Whether a keepalive or user timeout is configured.
    #[inline]
    pub(super) fn needs_timer(&self) -> bool {
        self.keepalive.is_some() || self.user_timeout.is_some()
    }

    /// Whether the user timeout, not a count of retransmissions, ends the connection.
    pub(super) fn has_user_timeout(&self) -> bool {
        self.user_timeout.is_some()
    }

    /// Returns when the user timeout ends the connection.
    fn user_timeout_at(&self) -> Option<Instant> {
        Some(self.unacked_since? + self.user_timeout?)
    }

    /// Returns when the next keepalive probe is due, or the user timeout behind the first.
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

    /// Whether keepalive has failed: after the user timeout if there is one, otherwise after so many probes.
    fn has_given_up(&self, now: Instant) -> bool {
        match (self.user_timeout, self.keepalive) {
            (Some(timeout), _) => self.probes > 0 && now.since(self.last_received_at) >= timeout,
            (None, Some(keepalive)) => self.probes >= keepalive.count,
            (None, None) => false,
        }
    }
}

impl Tcp {
    /// Turns keepalive on or off.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.liveness.keepalive = keepalive;
    }

    /// Sets how long data may stay unacknowledged, or the peer's window closed, before the connection
    /// fails. Without it the number of retransmissions decides, and a peer that answers may wait.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.liveness.user_timeout = timeout;
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
            liveness.probes += 1;
            liveness.probed_at = now;
            liveness.keepalive_due = true;
        }
    }

    /// Returns the keepalive probe if it is due: an empty segment in front of the window, which the peer answers with an ACK.
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
