//! How long a session waits for its association before that is set up anew.
//!
//! Linux answers no COOKIE ECHO that comes again once its server has accepted the association: the
//! accepted socket checks the cookie by a key of its own. So one COOKIE ACK that is lost would cost
//! the whole connection.

use std::time::Duration;

use crate::connection::FIRST_TRY;
use crate::time::Instant;

/// When a session wants its association set up anew.
#[derive(Debug)]
pub(super) struct SetUp {
    overdue_at: Instant,
    patience: Duration,
    is_overdue: bool,
}

impl SetUp {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            overdue_at: now + FIRST_TRY,
            patience: FIRST_TRY,
            is_overdue: false,
        }
    }

    pub(super) fn overdue_at(&self) -> Instant {
        self.overdue_at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.overdue_at <= now {
            self.patience *= 2;
            self.overdue_at = now + self.patience;
            self.is_overdue = true;
        }
    }

    /// Returns whether it takes too long: once for each try.
    pub(super) fn take_overdue(&mut self) -> bool {
        std::mem::take(&mut self.is_overdue)
    }
}
