//! The acknowledgment of the only segment in flight: what every message gets that waits for its answer before the next one
//! goes. Nothing is lost, nothing was sent again and nothing is left on its way, so that little remains of what
//! [`receive_news`](super::Tcp::receive_news) does; the outcome is the same.

use super::Tcp;
use super::recovery::Answer;
use super::send::Fate;
use crate::memory::frames::TxFrames;
use crate::time::Instant;

impl Tcp {
    /// Takes an acknowledgment up to `ack` without SACK blocks, if it is one of these. Says no, and changes nothing, if it
    /// is another.
    #[inline]
    pub(super) fn receive_only_answer<F: TxFrames>(
        &mut self,
        now: Instant,
        ack: u64,
        frames: &mut F,
    ) -> bool {
        if !self.recovery.is_calm() || self.send.segments.len() != 1 || ack != self.send.nxt {
            return false;
        }
        let Some(only) = self.send.segments.front() else {
            return false;
        };
        // Sent only in part, there is more to come; behind it may be a FIN.
        if only.end() != ack || only.retransmitted || only.fate != Fate::InFlight {
            return false;
        }
        let (frame, sent_at, len) = (only.frame, only.sent_at, only.len);
        frames.release(frame);
        let from = core::mem::replace(&mut self.send.una, ack);
        self.send.segments.clear();
        self.send.unsent = 0;
        self.send.board.advance(ack, ack);

        let round_trip = now.span_since(sent_at);
        self.rtt.exact(now, round_trip);
        self.rtt.sample(round_trip);
        self.retries = 0;
        self.note_size(now, len);
        let answer = Answer {
            now,
            sent_at,
            acked: from..ack,
            round_trip,
        };
        self.recovery.on_answer(&answer, &self.rtt);
        self.retransmit_at = None;
        self.probe_due = false;
        self.liveness.progress(now, false);
        self.pacer
            .update(self.recovery.congestion(), self.rtt.smoothed());
        true
    }
}
