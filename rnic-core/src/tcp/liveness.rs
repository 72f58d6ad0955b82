//! Whether the peer is still there: keepalive (RFC 9293 section 3.8.4), the user timeout (RFC
//! 5482), and the end of the wait for a FIN that never comes.

use core::time::Duration;

use crate::time::Instant;

use super::config::{Keepalive, TcpConfig};

/// Whether the peer is alive. Its timers are computed, not kept: a segment that arrives moves them
/// without further work.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Liveness {
    /// When the last segment arrived that only the peer can have sent.
    pub(crate) last_received_at: Instant,
    /// Since when the peer has acknowledged nothing, if anything is outstanding.
    pub(crate) unacked_since: Option<Instant>,
    pub(crate) keepalive_due: bool,
    /// Keepalive probes since the last segment, and the time of the last one.
    pub(crate) probes: u8,
    pub(crate) probed_at: Instant,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) fin_wait: Duration,
}

impl Liveness {
    pub(crate) fn new(now: Instant, config: &TcpConfig) -> Self {
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

    /// Records a segment that only the peer can have sent.
    pub(crate) fn on_segment(&mut self, now: Instant) {
        self.last_received_at = now;
        self.probes = 0;
        self.keepalive_due = false;
    }

    /// Records that data were sent.
    pub(crate) fn on_outstanding(&mut self, now: Instant) {
        self.unacked_since.get_or_insert(now);
    }

    /// Records an ACK of data; `more`: data are still outstanding.
    pub(crate) fn on_progress(&mut self, now: Instant, more: bool) {
        self.unacked_since = more.then_some(now);
    }

    /// Returns whether a keepalive or user timeout is configured.
    #[inline]
    pub(crate) fn needs_timer(&self) -> bool {
        self.keepalive.is_some() || self.user_timeout.is_some()
    }

    /// Returns whether the user timeout, not a count of retransmissions, ends the connection.
    pub(crate) fn has_user_timeout(&self) -> bool {
        self.user_timeout.is_some()
    }

    /// Returns when the user timeout ends the connection.
    pub(crate) fn user_timeout_at(&self) -> Option<Instant> {
        Some(self.unacked_since? + self.user_timeout?)
    }

    /// Records that the peer is probed now.
    pub(crate) fn on_probe(&mut self, now: Instant) {
        self.probes = self.probes.saturating_add(1);
        self.probed_at = now;
    }

    /// Returns when the next keepalive probe is due or, once one was sent, the user timeout if that
    /// is earlier.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        let next = if self.probes == 0 {
            self.last_received_at + keepalive.idle
        } else {
            self.probed_at + keepalive.interval
        };
        match self.user_timeout {
            Some(timeout) if self.probes > 0 => {
                Some(next.min(self.silence_ends(timeout, keepalive)))
            }
            _ => Some(next),
        }
    }

    /// Returns when a peer that answers no probe has been silent for the user timeout. It has time
    /// to answer several, of which the first may be sent behind the user timeout: each may be lost.
    fn silence_ends(&self, timeout: Duration, keepalive: Keepalive) -> Instant {
        const PROBES: u32 = 4;
        let after = |probes: u32| keepalive.interval.saturating_mul(probes);
        let since_first = after(u32::from(self.probes.saturating_sub(1)));
        let left = timeout.min(after(PROBES)).saturating_sub(since_first);
        let end = self.last_received_at + timeout;
        end.max(self.probed_at + left)
    }

    /// Returns whether keepalive has failed: after the user timeout if there is one, otherwise
    /// after so many probes.
    pub(crate) fn has_given_up(&self, now: Instant) -> bool {
        match (self.user_timeout, self.keepalive) {
            (Some(timeout), Some(keepalive)) => {
                self.probes > 0 && now >= self.silence_ends(timeout, keepalive)
            }
            (None, Some(keepalive)) => self.probes >= keepalive.count,
            (_, None) => false,
        }
    }
}
