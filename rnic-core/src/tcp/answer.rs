//! The acknowledgment of the only segment in flight: what every message gets that waits for its answer before the next one
//! goes. Nothing is lost, nothing was sent again and nothing is left on its way, so that little remains of what
//! [`receive_news`](super::Tcp::receive_news) does; the outcome is the same.

use super::Tcp;
use super::recovery::Answer;
use super::send::{Fate, FramePart};
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

impl Tcp {
    /// Whether a segment with `len` octets is [the next](Self::receive_next), is pushed, and acknowledges all of ours that was
    /// on its way, in one segment: an answer. Where [`receive_next`](Self::receive_next) would tell so, this may say no.
    #[inline(always)]
    pub fn is_answer(&self, now: Instant, header: &DataHeader, len: usize) -> bool {
        header.flags == Flags::ACK | Flags::PSH
            && header.ack == self.send.seq(self.send.nxt)
            && self.is_only_answer(self.send.nxt)
            && self.is_next(now, header, len)
    }

    /// Takes a segment that [is an answer](Self::is_answer), all of whose octets the owner takes, keeping none aside. What
    /// is left to do is as behind a [`NextSegment::Answer`](super::NextSegment::Answer). Returns up to where the peer has
    /// acknowledged.
    // A function of its own: it needs all registers.
    #[inline(never)]
    pub fn take_answer<F: TxFrames>(
        &mut self,
        now: Instant,
        header: &DataHeader,
        len: usize,
        frames: &mut F,
    ) -> u64 {
        let offset = self.hear_next(now, header, true);
        let ack = self.send.nxt;
        self.send.window.advance(offset, ack, header.window);
        self.settle_answer(now, ack, frames);
        self.took_next(now, len);
        self.recv.set_held(0, 0);
        ack
    }

    /// Takes an acknowledgment up to `ack` without SACK blocks, if it is one of these. Says no, and changes nothing, if it
    /// is another.
    #[inline]
    pub(super) fn receive_only_answer<F: TxFrames>(
        &mut self,
        now: Instant,
        ack: u64,
        frames: &mut F,
    ) -> bool {
        let only = self.sole_ack && self.is_only_answer(ack);
        if only {
            taken::count(FastPath::SoleAck);
            self.settle_answer(now, ack, frames);
        }
        only
    }

    #[inline(always)]
    fn is_only_answer(&self, ack: u64) -> bool {
        if self.send.segments.len() != 1 || ack != self.send.nxt || !self.recovery.is_calm() {
            return false;
        }
        // Sent only in part, there is more to come; behind it may be a FIN.
        self.send.segments.front().is_some_and(|only| {
            only.end() == ack
                && !only.retransmitted
                && only.fate == Fate::InFlight
                && only.part == FramePart::Whole
        })
    }

    #[inline(always)]
    fn settle_answer<F: TxFrames>(&mut self, now: Instant, ack: u64, frames: &mut F) {
        let Some(only) = self.send.segments.front() else {
            return;
        };
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
    }
}
