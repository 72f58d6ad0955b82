//! When a session looks whether its association takes too long to come up.
//!
//! Linux answers no COOKIE ECHO that comes again once its server has accepted the association: the
//! accepted socket checks the cookie by a key of its own. So one COOKIE ACK that is lost would cost
//! the whole connection.

use crate::connection::FIRST_TRY;
use crate::time::Instant;

/// When a session looks again. How long each try may take, the association says, of which others may
/// wait too.
#[derive(Debug)]
pub(super) struct SetUp {
    overdue_at: Instant,
    is_overdue: bool,
}

impl SetUp {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            overdue_at: now + FIRST_TRY,
            is_overdue: false,
        }
    }

    pub(super) fn overdue_at(&self) -> Instant {
        self.overdue_at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.overdue_at <= now {
            self.overdue_at = now + FIRST_TRY;
            self.is_overdue = true;
        }
    }

    /// Returns whether it is time to look: once each time.
    pub(super) fn take_overdue(&mut self) -> bool {
        std::mem::take(&mut self.is_overdue)
    }
}
