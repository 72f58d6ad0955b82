//! The sending direction: the frames held until they are acknowledged, and the peer's window.

pub(super) mod facts;
mod losses;
mod recut;
mod spill;

use std::collections::VecDeque;

use crate::memory::frames::{FrameId, TxFrames};
use crate::time::Instant;

use super::scoreboard::{AckOutcome, Scoreboard};
use super::sent_segment::{Fate, Fin, FramePart, SentSegment};
use super::seq::{Isn, Seq};
use super::spilled_octets::Spill;

/// One direction's sender.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Sender {
    /// What is not acknowledged: the first one begins at `una`.
    pub(super) segments: VecDeque<SentSegment>,
    /// Index of the first segment not wholly sent.
    pub(super) unsent: usize,
    /// SND.UNA: everything before is acknowledged. The FIN counts as an octet.
    pub(super) una: u64,
    /// SND.NXT: everything before was sent. The FIN counts as an octet.
    pub(super) nxt: u64,
    /// Offset past the last octet queued, where the FIN stands.
    end: u64,
    pub(super) isn: Isn,
    pub(super) fin: Fin,
    pub(super) window: PeerWindow,
    pub(super) board: Scoreboard,
    /// The octets of the first segments, where these are [spilled](FramePart::Spilled).
    spill: Option<Box<Spill>>,
}

/// The peer's receive window (RFC 9293 section 3.10.7.4).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWindow {
    /// Shift count of the peer's window field.
    pub(super) scale: u8,
    /// Offset of the first octet that may not be sent.
    pub(super) edge: u64,
    /// Max(SND.WND): the largest window seen.
    pub(super) max_snd_wnd: u64,
    /// SND.WL1 and SND.WL2: sequence number and ACK of the last window update, as offsets.
    snd_wl1: i64,
    snd_wl2: u64,
}

impl PeerWindow {
    /// Records the window of a segment, unless it is older than the one known. Returns whether the
    /// right edge changed.
    ///
    /// A later acknowledgment is newer wherever its segment stands in the peer's stream: a
    /// retransmission may be the only one to bring it.
    pub(super) fn update(&mut self, at: i64, ack: u64, field: u16) -> bool {
        if (ack, at) < (self.snd_wl2, self.snd_wl1) {
            return false;
        }
        let before = self.edge;
        self.advance(at, ack, field);
        self.edge != before
    }

    /// Records the window of a segment that acknowledges more than any before it.
    #[inline]
    pub(super) fn advance(&mut self, at: i64, ack: u64, field: u16) {
        (self.snd_wl1, self.snd_wl2) = (at, ack);
        let window = u64::from(field) << self.scale;
        self.max_snd_wnd = self.max_snd_wnd.max(window);
        self.edge = ack + window;
    }
}

impl Sender {
    pub(super) fn new(isn: Seq) -> Self {
        Self {
            isn: Isn::new(isn),
            // A connection that only begins, and then waits, sends one.
            segments: VecDeque::with_capacity(1),
            unsent: 0,
            una: 0,
            nxt: 0,
            end: 0,
            fin: Fin::No,
            board: Scoreboard::default(),
            spill: None,
            window: PeerWindow {
                scale: 0,
                edge: 0,
                max_snd_wnd: 0,
                snd_wl1: -1,
                snd_wl2: 0,
            },
        }
    }

    /// Returns the sequence number of our SYN.
    pub(super) fn syn(&self) -> Seq {
        self.isn.syn()
    }

    pub(super) fn seq(&self, offset: u64) -> Seq {
        self.isn.seq(offset)
    }

    /// Returns the stream offset of an acknowledgment number.
    pub(super) fn offset_of(&self, ack: Seq) -> i64 {
        self.isn.offset(ack, self.una)
    }

    /// Returns whether an acknowledgment number stands for some of what was sent and is not
    /// acknowledged.
    #[inline]
    pub(super) fn awaits(&self, ack: Seq) -> bool {
        let ahead = ack.distance_from(self.seq(self.una));
        ahead > 0 && u64::from(ahead) <= self.flight()
    }

    pub(super) fn una(&self) -> u64 {
        self.una
    }

    pub(super) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns the number of octets of the stream that are acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.una.min(self.end)
    }

    /// Returns the number of octets sent and not acknowledged, the FIN included.
    pub(super) fn flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// Returns whether no segment is queued or held.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns whether everything queued was sent once.
    pub(super) fn all_sent(&self) -> bool {
        self.unsent == self.segments.len()
    }

    /// Returns whether data or a FIN waits to be sent for the first time.
    pub(super) fn has_unsent(&self) -> bool {
        !self.all_sent() || self.fin == Fin::Queued
    }

    /// Returns what the peer's window has room for beyond what was sent.
    pub(super) fn window_room(&self) -> u64 {
        self.window.edge.saturating_sub(self.nxt)
    }

    /// Returns whether the peer accepts nothing at all.
    pub(super) fn window_closed(&self) -> bool {
        self.window.edge <= self.una
    }

    /// Returns whether the window is open, and this field leaves it as it is.
    #[inline]
    pub(super) fn keeps_window(&self, field: u16) -> bool {
        let window = u64::from(field) << self.window.scale;
        !self.window_closed() && self.una + window == self.window.edge
    }

    /// Returns whether the peer's window suffices to send `len` more octets without silliness (RFC
    /// 9293 section 3.8.6.2.1): all of them, or half of the largest window it ever had.
    pub(super) fn window_suffices(&self, len: u64) -> bool {
        let room = self.window_room();
        room >= len || (room > 0 && room >= self.window.max_snd_wnd / 2)
    }

    /// Returns whether the peer's window keeps what is next from being sent.
    pub(super) fn is_blocked(&self) -> bool {
        match self.next_unsent() {
            Some(next) => !self.window_suffices(u64::from(next.len - next.sent)),
            None => self.fin == Fin::Queued && self.window_room() == 0,
        }
    }

    /// Queues a frame with `len` octets of payload, and takes it over. Returns the stream offset
    /// past them.
    pub(super) fn queue(
        &mut self,
        frame: FrameId,
        payload_at: u16,
        len: u16,
        payload_sum: u16,
    ) -> u64 {
        self.segments.push_back(SentSegment {
            frame,
            payload_at,
            len,
            payload_sum,
            push: false,
            start: self.end,
            sent: 0,
            sent_at: Instant::ZERO,
            retransmitted: false,
            fate: Fate::InFlight,
            part: FramePart::Whole,
        });
        self.end += u64::from(len);
        self.end
    }

    /// Queues a frame with `len` octets of payload, and takes it over. All of them are sent now,
    /// behind all that was sent before.
    #[inline]
    pub(super) fn queue_sent(
        &mut self,
        now: Instant,
        frame: FrameId,
        payload_at: u16,
        len: u16,
        payload_sum: u16,
        push: bool,
    ) {
        debug_assert!(self.all_sent());
        self.segments.push_back(SentSegment {
            frame,
            payload_at,
            len,
            payload_sum,
            push,
            start: self.end,
            sent: len,
            sent_at: now,
            retransmitted: false,
            fate: Fate::InFlight,
            part: FramePart::Whole,
        });
        self.unsent += 1;
        self.end += u64::from(len);
        self.nxt = self.end;
    }

    /// Returns the offset past the last octet queued.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the segment queued last, if it is still held.
    pub(super) fn last_mut(&mut self) -> Option<&mut SentSegment> {
        self.segments.back_mut()
    }

    /// Returns the first segment that is not wholly sent.
    pub(super) fn next_unsent(&self) -> Option<&SentSegment> {
        self.segments.get(self.unsent)
    }

    /// Marks the first `sent` octets of the first unsent segment as sent now.
    pub(super) fn mark_sent(&mut self, now: Instant, sent: u16) {
        let Some(segment) = self.segments.get_mut(self.unsent) else {
            return;
        };
        if segment.fate == Fate::Lost {
            // A part of it was sent and thought lost: it is counted with what it has now.
            self.board.lost += u64::from(sent.saturating_sub(segment.sent));
        }
        segment.sent = sent;
        segment.sent_at = now;
        if segment.retransmitted {
            self.board.on_resent(segment.start, now);
        }
        self.nxt = segment.start + u64::from(sent);
        if sent == segment.len {
            self.unsent += 1;
        }
    }

    /// Marks the FIN as sent.
    pub(super) fn mark_fin_sent(&mut self) {
        self.fin = Fin::InFlight;
        self.nxt = self.end + 1;
    }

    /// Handles a cumulative acknowledgment, which is after `una` and not after `nxt`. Releases the
    /// frames that are wholly acknowledged.
    pub(super) fn acknowledge<F: TxFrames>(
        &mut self,
        ack: u64,
        frames: &mut F,
        outcome: &mut AckOutcome,
    ) {
        outcome.acked = ack - self.una;
        outcome.delivered = outcome.acked;
        self.una = ack;
        let (mut once, mut released) = (true, 0);
        while let Some(head) = self.segments.front()
            && head.end() <= ack
        {
            self.board.on_acknowledged(head, outcome);
            once &= !head.retransmitted;
            if head.fate != Fate::Sacked {
                outcome.sent_at = Some(head.sent_at);
            }
            if head.part.ends_frame() {
                frames.release(head.frame);
            } else {
                let end = head.end();
                self.drop_spill(end);
            }
            self.segments.pop_front();
            released += 1;
        }
        self.unsent = self.unsent.saturating_sub(released);
        match self.segments.front() {
            // The next stand where these did, which is in the cache.
            None => self.segments.clear(),
            Some(head) if head.start < ack => self.trim(ack, frames, outcome),
            Some(_) => {}
        }
        if !once {
            outcome.sent_at = None;
        }
        if ack > self.end {
            self.fin = Fin::Acked;
        }
        self.board.advance(ack);
    }

    /// Returns the first segment that is held.
    pub(super) fn first(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    /// Acts as if so many octets had been sent and acknowledged.
    #[cfg(test)]
    pub(super) fn skip(&mut self, octets: u64) {
        assert!(self.segments.is_empty());
        self.una += octets;
        self.nxt += octets;
        self.end += octets;
        self.window.edge += octets;
    }

    /// Returns the number of segments that are held.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.segments.len()
    }

    /// Forgets every segment. Their frames are to be released.
    pub(super) fn take_frames(&mut self) -> impl Iterator<Item = FrameId> + '_ {
        self.spill = None;
        self.unsent = 0;
        self.board = Scoreboard::default();
        let last = self
            .segments
            .drain(..)
            .filter(|segment| segment.part.ends_frame());
        last.map(|segment| segment.frame)
    }
}
