//! The ready-to-receive Write of an initiator, sent again while its peer is silent.

use std::time::Duration;

use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::rdmap::RtrMessage;
use crate::time::Instant;

use super::Stream;

/// After how long without an answer an initiator sends its ready-to-receive Write again.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(30),
    Duration::from_millis(120),
    Duration::from_millis(480),
];

impl Stream {
    /// Sends the ready-to-receive Write again, a few times, unless the peer sends something. Such a
    /// Write has no effect, and its peer reads what lies before it: the kernel's siw can overlook
    /// what has come right behind its Reply until more comes.
    pub(super) fn repeat_opening(&mut self, now: Instant) {
        // Both sides of a connection with the semantics of RC are ours.
        if self.opens_with_write && !self.rc {
            self.wakes_at = Some(now + AGAIN[0]);
            self.repeats_left = AGAIN.len() as u8;
        }
    }

    /// Sends it again now, and says when next.
    pub(super) fn open_again(&mut self, now: Instant) {
        let LocalUlp::Rdmap(RdmapUser { rdmap, .. }) = &mut self.user else {
            return;
        };
        if self.ddp.is_finishing() || self.ddp.has_failed() {
            return;
        }
        rdmap.begin_with_rtr(RtrMessage::Write);
        self.between_messages = false;
        self.repeats_left -= 1;
        let done = AGAIN.len() - usize::from(self.repeats_left);
        self.wakes_at = AGAIN.get(done).map(|&gap| now + gap);
    }
}
