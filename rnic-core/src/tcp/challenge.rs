//! How many segments of doubtful origin are answered.

use core::time::Duration;

use crate::time::Instant;

/// Limits challenge ACKs (RFC 5961 section 7).
#[derive(Debug)]
pub(super) struct ChallengeLimit {
    since: Instant,
    sent: u8,
}

impl ChallengeLimit {
    const PER_SECOND: u8 = 10;

    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            sent: 0,
        }
    }

    /// Returns whether one more may be sent now; if so, it counts.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        let allowed = self.sent < Self::PER_SECOND;
        self.sent += u8::from(allowed);
        allowed
    }
}
