//! The sending direction: the frames held until they are acknowledged, and the peer's window.

mod recut;

use std::collections::VecDeque;

use super::seq::{Origin, Seq};
use crate::memory::frames::{FrameId, TxFrames};
use crate::time::Instant;
use crate::wire::tcp::SackBlocks;

/// Segments selectively acknowledged above one that show that it was lost (RFC 6675's DupThresh).
pub(super) const DUPLICATE_THRESHOLD: usize = 3;

/// A segment, built in its frame and kept there until it is acknowledged.
#[derive(Clone, Debug)]
pub(super) struct SentSegment {
    pub(super) frame: FrameId,
    /// Where the payload begins in the frame.
    pub(super) payload_at: u16,
    /// Octets of payload.
    pub(super) len: u16,
    /// Ones-complement sum of the payload.
    pub(super) payload_sum: u16,
    /// The sender has nothing to add for now.
    pub(super) push: bool,
    /// Stream offset of the first octet.
    pub(super) start: u64,
    /// Octets sent at least once: all of them, or the part that the window had room for.
    pub(super) sent: u16,
    pub(super) sent_at: Instant,
    pub(super) retransmitted: bool,
    pub(super) fate: Fate,
}

/// What is known of octets that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// On its way, or not sent yet.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Thought lost, and not sent again yet.
    Lost,
}

impl SentSegment {
    /// The offset past the last octet.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// The application has not closed.
    No,
    /// To be sent behind the last segment.
    Queued,
    /// Sent.
    InFlight,
    /// Thought lost, and not sent again yet.
    Lost,
    /// Acknowledged.
    Acked,
}

/// What an acknowledgment brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Octets newly acknowledged, the FIN included.
    pub(super) octets: u64,
    /// When the latest of them was sent that had not been selectively acknowledged, if all of them were sent only
    /// once (Karn's rule).
    pub(super) sent_at: Option<Instant>,
}

/// One direction's sender.
#[derive(Debug)]
pub(super) struct Sender {
    origin: Origin,
    segments: VecDeque<SentSegment>,
    /// Index of the first segment not wholly sent.
    unsent: usize,
    /// SND.UNA: everything before is acknowledged. The FIN counts as an octet.
    una: u64,
    /// SND.NXT: everything before was sent. The FIN counts as an octet.
    nxt: u64,
    /// Offset past the last octet queued, where the FIN stands.
    end: u64,
    pub(super) fin: Fin,
    /// Octets in segments selectively acknowledged, and in segments thought lost.
    sacked: u64,
    lost: u64,
    /// No segment before this offset is thought lost and waits to be sent again.
    lost_from: u64,
    /// Segments before this offset have been judged by the SACK information.
    judged_to: u64,
    pub(super) window: PeerWindow,
}

/// The peer's receive window (RFC 9293 section 3.10.7.4).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWindow {
    /// Shift count of the peer's window field.
    pub(super) scale: u8,
    /// Offset of the first octet that may not be sent.
    pub(super) edge: u64,
    /// The largest window seen.
    pub(super) largest: u64,
    /// Receive offset and acknowledgment of the segment that set the window last (SND.WL1, SND.WL2).
    set_at: i64,
    set_by_ack: u64,
}

impl PeerWindow {
    /// Takes the window of a segment, unless an older one. True if the right edge changed.
    ///
    /// A later acknowledgment is newer wherever its segment stands in the peer's stream: a retransmission may be
    /// the only one to bring it.
    pub(super) fn update(&mut self, at: i64, ack: u64, field: u16) -> bool {
        if (ack, at) < (self.set_by_ack, self.set_at) {
            return false;
        }
        (self.set_at, self.set_by_ack) = (at, ack);
        let window = u64::from(field) << self.scale;
        self.largest = self.largest.max(window);
        let edge = ack + window;
        core::mem::replace(&mut self.edge, edge) != edge
    }
}

impl Sender {
    pub(super) fn new(isn: Seq) -> Self {
        Self {
            origin: Origin::new(isn),
            segments: VecDeque::new(),
            unsent: 0,
            una: 0,
            nxt: 0,
            end: 0,
            fin: Fin::No,
            sacked: 0,
            lost: 0,
            lost_from: 0,
            judged_to: 0,
            window: PeerWindow {
                scale: 0,
                edge: 0,
                largest: 0,
                set_at: -1,
                set_by_ack: 0,
            },
        }
    }

    /// The sequence number of our SYN.
    pub(super) fn syn(&self) -> Seq {
        self.origin.syn()
    }

    pub(super) fn seq(&self, offset: u64) -> Seq {
        self.origin.seq(offset)
    }

    /// The offset that an acknowledgment number stands for.
    pub(super) fn offset_of(&self, ack: Seq) -> i64 {
        self.origin.offset(ack, self.una)
    }

    pub(super) fn una(&self) -> u64 {
        self.una
    }

    pub(super) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Octets of the stream that are acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.una.min(self.end)
    }

    /// Octets sent and not acknowledged, the FIN included.
    pub(super) fn flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// Octets thought to be in the network: neither selectively acknowledged nor lost (RFC 6675's pipe).
    /// Segments count wholly even if their front is acknowledged.
    pub(super) fn pipe(&self) -> u64 {
        let head = self.segments.front().map_or(self.una, |head| head.start);
        self.nxt
            .saturating_sub(head)
            .saturating_sub(self.sacked + self.lost)
    }

    /// Whether no segment is queued or held.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether everything queued was sent once.
    pub(super) fn all_sent(&self) -> bool {
        self.unsent == self.segments.len()
    }

    /// Whether data or a FIN waits to be sent for the first time.
    pub(super) fn has_unsent(&self) -> bool {
        !self.all_sent() || self.fin == Fin::Queued
    }

    /// Whether the peer has selectively acknowledged anything beyond `una`.
    pub(super) fn has_sacked(&self) -> bool {
        self.sacked > 0
    }

    /// Whether the first octets not acknowledged are thought lost and wait to be sent again.
    pub(super) fn head_is_lost(&self) -> bool {
        match self.segments.front() {
            Some(head) => head.fate == Fate::Lost,
            None => self.fin == Fin::Lost,
        }
    }

    /// Whether something thought lost waits to be sent again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0 || self.fin == Fin::Lost
    }

    /// What the peer's window has room for beyond what was sent.
    pub(super) fn window_room(&self) -> u64 {
        self.window.edge.saturating_sub(self.nxt)
    }

    /// Whether the peer accepts nothing at all.
    pub(super) fn window_closed(&self) -> bool {
        self.window.edge <= self.una
    }

    /// Whether the peer's window suffices to send `len` more octets without silliness (RFC 9293 section
    /// 3.8.6.2.1): all of them, or half of the largest window it ever had.
    pub(super) fn window_suffices(&self, len: u64) -> bool {
        let room = self.window_room();
        room >= len || (room > 0 && room >= self.window.largest / 2)
    }

    /// Whether the peer's window keeps what is next from being sent.
    pub(super) fn is_blocked(&self) -> bool {
        match self.next_unsent() {
            Some(next) => !self.window_suffices(u64::from(next.len - next.sent)),
            None => self.fin == Fin::Queued && self.window_room() == 0,
        }
    }

    /// Takes over a frame with `len` octets of payload.
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
        });
        self.end += u64::from(len);
        self.end
    }

    /// The segment queued last, if it is still held.
    pub(super) fn last_mut(&mut self) -> Option<&mut SentSegment> {
        self.segments.back_mut()
    }

    /// The first segment that is not wholly sent.
    pub(super) fn next_unsent(&self) -> Option<&SentSegment> {
        self.segments.get(self.unsent)
    }

    /// The first `sent` octets of the first unsent segment have been sent now.
    pub(super) fn mark_sent(&mut self, now: Instant, sent: u16) {
        let Some(segment) = self.segments.get_mut(self.unsent) else {
            return;
        };
        segment.sent = sent;
        segment.sent_at = now;
        self.nxt = segment.start + u64::from(sent);
        if sent == segment.len {
            self.unsent += 1;
        }
    }

    /// The FIN is sent now.
    pub(super) fn mark_fin_sent(&mut self) {
        self.fin = Fin::InFlight;
        self.nxt = self.end + 1;
    }

    /// Takes a cumulative acknowledgment, which is after `una` and not after `nxt`. Frames wholly acknowledged
    /// are released.
    pub(super) fn acknowledge<F: TxFrames>(&mut self, ack: u64, frames: &mut F) -> Progress {
        let mut progress = Progress {
            octets: ack - self.una,
            sent_at: None,
        };
        let mut once = true;
        self.una = ack;
        while let Some(head) = self.segments.front()
            && head.end() <= ack
        {
            match head.fate {
                Fate::InFlight => {}
                Fate::Sacked => self.sacked -= u64::from(head.len),
                Fate::Lost => self.lost -= u64::from(head.sent),
            }
            once &= !head.retransmitted;
            if head.fate != Fate::Sacked {
                progress.sent_at = Some(head.sent_at);
            }
            frames.release(head.frame);
            self.segments.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        if ack > self.end {
            self.fin = Fin::Acked;
        }
        if !once {
            progress.sent_at = None;
        }
        progress
    }

    /// Takes SACK blocks. True if they acknowledge anything new. Blocks outside of what is in flight are
    /// ignored, those for octets already acknowledged (RFC 2883) among them.
    pub(super) fn apply_sack(&mut self, blocks: &SackBlocks) -> bool {
        let mut news = false;
        for (left, right) in blocks.iter() {
            let (left, right) = (self.offset_of(left), self.offset_of(right));
            let (Ok(left), Ok(right)) = (u64::try_from(left), u64::try_from(right)) else {
                continue;
            };
            if left < self.una || left >= right || right > self.nxt {
                continue;
            }
            let first = self
                .segments
                .partition_point(|segment| segment.start < left);
            for segment in self.segments.range_mut(first..) {
                if segment.end() > right {
                    break;
                }
                match segment.fate {
                    Fate::Sacked => continue,
                    Fate::InFlight => {}
                    Fate::Lost => self.lost -= u64::from(segment.sent),
                }
                segment.fate = Fate::Sacked;
                self.sacked += u64::from(segment.len);
                news = true;
            }
        }
        news
    }

    /// Judges which segments are lost by what was selectively acknowledged above them (RFC 6675 IsLost). A
    /// segment is judged once: whether its retransmission is lost too is the timer's business.
    pub(super) fn judge_by_sack(&mut self) {
        if self.sacked == 0 {
            return;
        }
        let sacked = self
            .segments
            .range(..self.unsent)
            .rev()
            .filter(|s| s.fate == Fate::Sacked);
        let Some(limit) = sacked.map(|s| s.start).nth(DUPLICATE_THRESHOLD - 1) else {
            return;
        };
        let from = self
            .segments
            .partition_point(|segment| segment.start < self.judged_to);
        for index in from..self.unsent {
            if self.segments[index].start >= limit {
                break;
            }
            if !self.segments[index].retransmitted {
                self.mark_lost(index);
            }
        }
        self.judged_to = self.judged_to.max(limit);
    }

    fn mark_lost(&mut self, index: usize) {
        let Some(segment) = self.segments.get_mut(index) else {
            return;
        };
        if segment.fate == Fate::InFlight && segment.sent > 0 {
            segment.fate = Fate::Lost;
            self.lost += u64::from(segment.sent);
            self.lost_from = self.lost_from.min(segment.start);
        }
    }

    /// The first octets not acknowledged are thought lost, unless they have been sent again already.
    pub(super) fn lose_head(&mut self) {
        match self.segments.front() {
            Some(head) if head.retransmitted => {}
            Some(_) => self.mark_lost(0),
            None if self.fin == Fin::InFlight => self.fin = Fin::Lost,
            None => {}
        }
    }

    /// The zero-window probe at the head was most likely dropped: it is to be sent again, whole.
    pub(super) fn lose_probe(&mut self) {
        self.mark_lost(0);
        if self.segments.is_empty() && self.fin == Fin::InFlight {
            self.fin = Fin::Lost;
        }
    }

    /// The timer expired: all that was sent and not selectively acknowledged is thought lost. If the peer
    /// has selectively acknowledged the head and yet not moved on, it has dropped what it had: all is lost
    /// (RFC 2018 section 8).
    pub(super) fn lose_all(&mut self) {
        let reneged = self
            .segments
            .front()
            .is_some_and(|head| head.fate == Fate::Sacked);
        let sent = self.unsent + usize::from(self.next_unsent().is_some_and(|s| s.sent > 0));
        for index in 0..sent {
            let segment = &mut self.segments[index];
            if reneged && segment.fate == Fate::Sacked {
                segment.fate = Fate::InFlight;
                self.sacked -= u64::from(segment.len);
            }
            self.mark_lost(index);
        }
        if self.fin == Fin::InFlight {
            self.fin = Fin::Lost;
        }
        self.judged_to = self.nxt;
    }

    /// The first segment thought lost that waits to be sent again, with its index.
    pub(super) fn next_lost(&mut self) -> Option<(usize, &SentSegment)> {
        if self.lost == 0 {
            return None;
        }
        let from = self
            .segments
            .partition_point(|segment| segment.start < self.lost_from);
        let lost = self
            .segments
            .range(from..)
            .position(|segment| segment.fate == Fate::Lost)?;
        let segment = &self.segments[from + lost];
        self.lost_from = segment.start;
        Some((from + lost, segment))
    }

    /// The first `sent` octets of a segment thought lost are sent again now.
    pub(super) fn mark_retransmitted(&mut self, now: Instant, index: usize, sent: u16) {
        let first_unsent = self.unsent;
        let Some(segment) = self.segments.get_mut(index) else {
            return;
        };
        self.lost -= u64::from(segment.sent);
        segment.fate = Fate::InFlight;
        segment.retransmitted = true;
        segment.sent_at = now;
        if index == first_unsent {
            // A part of it was all that had been sent: this may have been more.
            segment.sent = segment.sent.max(sent);
            self.nxt = segment.start + u64::from(segment.sent);
            if segment.sent == segment.len {
                self.unsent += 1;
            }
        }
    }

    /// A copy of the first segment that is held, of which an octet is sent once more now.
    pub(super) fn head_sent_again(&mut self, now: Instant) -> Option<SentSegment> {
        let head = self.segments.front_mut()?;
        head.sent_at = now;
        head.retransmitted = true;
        Some(head.clone())
    }

    /// The first segment that is held.
    pub(super) fn first(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    /// As if so many octets had been sent and acknowledged.
    #[cfg(test)]
    pub(super) fn skip(&mut self, octets: u64) {
        assert!(self.segments.is_empty());
        self.una += octets;
        self.nxt += octets;
        self.end += octets;
        self.window.edge += octets;
    }

    /// Gives every frame back.
    pub(super) fn release_all<F: TxFrames>(&mut self, frames: &mut F) {
        for segment in self.segments.drain(..) {
            frames.release(segment.frame);
        }
        (self.unsent, self.sacked, self.lost) = (0, 0, 0);
    }
}
