//! The receiving direction: what was taken, what the peer may send, and when to acknowledge.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use super::ack_schedule::AckSchedule;
use super::due::Due;
use super::ranges::RangeSet;
use super::rtt::RttEstimator;
use super::seq::{Isn, Seq};
use crate::counters::DropReason;
use crate::time::{Instant, Span};
use crate::wire::tcp::{MAX_WINDOW_SCALE, SackBlocks};

/// Ranges beyond the next expected octet that are kept track of. Data that would need one more is
/// dropped: a peer that sends every second octet costs no more than this.
const MAX_OUT_OF_ORDER_RANGES: usize = 256;
/// Duplicates that wait to be reported. More than these in one batch are not worth an ACK each.
const MAX_DSACKS: usize = 8;
/// One direction's receiver.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Receiver {
    /// RCV.NXT without the FIN: the next in-order offset that is not taken.
    data_nxt: u64,
    /// The right edge of the window as last advertised. It never moves back.
    edge: u64,
    /// Last.ACK.sent (RFC 7323), as an offset.
    last_ack_sent: u64,
    isn: Isn,
    /// Octets that the owner accepts beyond `next`, less `buffered`.
    capacity: u32,
    buffered: u32,
    /// The FIN has been taken in order.
    finished: bool,
    /// Shift count of our window field.
    scale: u8,
    /// The least gain of the window that is advertised: silly window avoidance (RFC 9293 section
    /// 3.8.6.2.2).
    sws_threshold: u64,
    schedule: AckSchedule,
    /// Where the stream ends, once a FIN said so.
    end: Option<u64>,
    growth: Growth,
    /// Octets that came twice and were not reported yet, each by an ACK of its own (DSACK, RFC
    /// 2883).
    dsacks: VecDeque<Range<u64>>,
    /// Octets taken out of order, beyond `data_nxt`.
    out_of_order: RangeSet,
    /// The ranges of `taken` that grew last, latest first: what SACK reports (RFC 2018 section 4).
    recent: [Range<u64>; SackBlocks::MAX],
}

/// Auto-tuning of the receive window: measures the stream one interval at a time.
#[derive(Debug)]
struct Growth {
    /// The most octets that `capacity` may become.
    limit: u32,
    /// When the stretch began, and at which offset; when it will have been long enough.
    since: Instant,
    from: u64,
    until: Instant,
}

/// The window field of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowField {
    /// As it stands in the header.
    pub(super) value: u16,
    /// The right edge, which that promises.
    edge: u64,
}

impl Receiver {
    /// Returns a receiver whose peer's SYN is not known yet. Its window is of `capacity` octets,
    /// and may become one of `limit`.
    pub(super) fn new(capacity: u32, limit: u32, mss: u16, delay: Duration) -> Self {
        let limit = limit.max(capacity);
        let scale = (0..MAX_WINDOW_SCALE).find(|&scale| limit >> scale <= 0xffff);
        let scale = scale.unwrap_or(MAX_WINDOW_SCALE);
        let capacity = capacity.min(0xffff << scale);
        Self {
            isn: Isn::new(Seq(0)),
            data_nxt: 0,
            out_of_order: RangeSet::default(),
            recent: [const { 0..0 }; SackBlocks::MAX],
            dsacks: VecDeque::new(),
            end: None,
            finished: false,
            capacity,
            buffered: 0,
            growth: Growth {
                limit: limit.min(0xffff << scale),
                since: Instant::ZERO,
                from: 0,
                until: Instant::ZERO,
            },
            last_ack_sent: 0,
            edge: 0,
            scale,
            sws_threshold: u64::from(capacity / 2).min(u64::from(mss)),
            schedule: AckSchedule::new(delay),
        }
    }

    /// Returns the shift count to offer in our SYN.
    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    /// Records the sequence number of the peer's SYN.
    pub(super) fn synchronize(&mut self, syn: Seq) {
        self.isn = Isn::new(syn);
    }

    /// Turns window scaling off, as the peer does not use it (RFC 7323 section 2.2).
    pub(super) fn refuse_scaling(&mut self) {
        self.scale = 0;
        self.capacity = self.capacity.min(0xffff);
        self.growth.limit = self.growth.limit.min(0xffff);
    }

    /// Turns SACK on.
    pub(super) fn use_sack(&mut self) {
        self.schedule.sack = true;
    }

    /// Returns the next in-order offset that is not taken.
    pub(super) fn data_nxt(&self) -> u64 {
        self.data_nxt
    }

    /// Returns RCV.NXT as an offset: the FIN counts.
    pub(super) fn nxt(&self) -> u64 {
        self.data_nxt + u64::from(self.finished)
    }

    /// Returns the acknowledgment number to send.
    pub(super) fn ack(&self) -> Seq {
        self.isn.seq(self.nxt())
    }

    /// Returns the offset of a received sequence number.
    pub(super) fn offset_of(&self, seq: Seq) -> i64 {
        self.isn.offset(seq, self.nxt())
    }

    /// Returns the right edge of the advertised window.
    pub(super) fn edge(&self) -> u64 {
        self.edge.max(self.nxt())
    }

    #[cfg(test)]
    pub(super) fn out_of_order(&self) -> &RangeSet {
        &self.out_of_order
    }

    /// Returns whether the peer's FIN has been taken in order.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Returns whether a segment from offset `start` reaches back to what was last acknowledged:
    /// its timestamp is then the one to echo (RFC 7323 section 4.3).
    pub(super) fn reaches_last_ack(&self, start: i64) -> bool {
        start <= self.last_ack_sent.cast_signed()
    }

    /// Returns whether a segment that ends at this offset was sent since what was last
    /// acknowledged, or right before that: all of it has come already.
    pub(super) fn is_recent(&self, end: i64) -> bool {
        self.last_ack_sent.cast_signed() <= end && end <= self.nxt().cast_signed()
    }

    /// Returns whether a segment that takes `len` octets of sequence space from offset `start`
    /// overlaps the window (RFC 9293 section 3.4). One that begins just where we wait is let in
    /// even while the window is closed, so that its ACK and a bare FIN count.
    pub(super) fn acceptable(&self, start: i64, len: u64) -> bool {
        let (position, edge) = (self.nxt().cast_signed(), self.edge().cast_signed());
        if len == 0 {
            return position <= start && start <= edge;
        }
        let end = start.saturating_add_unsigned(len);
        position < end && (start < edge || start == position)
    }

    /// Returns whether `len` octets from a sequence number are the next of the stream, with nothing
    /// received beyond them and all of them inside the window.
    #[inline]
    pub(super) fn is_next(&self, seq: Seq, len: u64) -> bool {
        len > 0
            && self.out_of_order.is_empty()
            && self.end.is_none()
            && seq == self.isn.seq(self.data_nxt)
            && self.data_nxt + len <= self.edge
    }

    /// Returns the octets that may follow what was taken, inside the window, with nothing received
    /// beyond them.
    pub(super) fn room_for_next(&self) -> u64 {
        if self.out_of_order.is_empty() && self.end.is_none() {
            self.edge.saturating_sub(self.data_nxt)
        } else {
            0
        }
    }

    /// Records `count` segments with the next data of the stream: an ACK will be due.
    #[inline]
    pub(super) fn expect_ack(&mut self, now: Instant, count: u32, push: bool) {
        self.schedule.in_order(now, count, false, push);
    }

    /// Returns which offsets of a segment with `len` octets of data from offset `start` are new and
    /// inside the window. Decides as well when it will be acknowledged. `push`: the sender waits
    /// for nothing more to send.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        start: i64,
        len: u64,
        push: bool,
    ) -> Result<Range<u64>, DropReason> {
        let wanted = self.wanted(start, len);
        if wanted.end - wanted.start < len {
            self.note_duplicate(start, len);
        }
        if wanted.is_empty() {
            self.schedule.duplicate();
            return Err(self.unwanted(start));
        }
        if wanted.start > self.data_nxt {
            self.schedule.duplicate();
            if self.out_of_order.len() >= MAX_OUT_OF_ORDER_RANGES
                && !self.out_of_order.joins(&wanted)
            {
                return Err(DropReason::TcpOutOfOrderFull);
            }
        } else {
            // RFC 5681 section 4.2: a segment that fills a hole is acknowledged at once.
            self.schedule
                .in_order(now, 1, !self.out_of_order.is_empty(), push);
        }
        Ok(wanted)
    }

    /// Returns why a segment that begins at this offset is dropped.
    pub(super) fn unwanted(&self, start: i64) -> DropReason {
        match start < self.edge().cast_signed() {
            true => DropReason::TcpOldData,
            false => DropReason::TcpOutOfWindow,
        }
    }

    /// Notes what of a segment, `len` octets from offset `start`, came before: a DSACK reports it.
    pub(super) fn note_duplicate(&mut self, start: i64, len: u64) {
        let end = u64::try_from(start.saturating_add_unsigned(len)).unwrap_or(0);
        let known = self.first_known(u64::try_from(start).unwrap_or(0)..end);
        if !self.schedule.sack || known.is_empty() {
            return;
        }
        let room = self.dsacks.len() < MAX_DSACKS;
        match self.dsacks.back_mut() {
            Some(last) if last.end == known.start => last.end = known.end,
            _ if room => self.dsacks.push_back(known),
            _ => {}
        }
    }

    /// Returns the first of these offsets that are taken.
    fn first_known(&self, within: Range<u64>) -> Range<u64> {
        if within.start < self.data_nxt {
            return within.start..within.end.min(self.data_nxt);
        }
        let gap = self.out_of_order.first_gap(within.clone());
        if gap.start > within.start {
            return within.start..gap.start.min(within.end);
        }
        gap.end..self.out_of_order.first_gap(gap.end..within.end).start
    }

    /// Returns the first offsets of a segment that are inside the window and not taken.
    fn wanted(&self, start: i64, len: u64) -> Range<u64> {
        let end = start.saturating_add_unsigned(len);
        let Ok(end) = u64::try_from(end) else {
            return 0..0;
        };
        // From here on nothing is negative: the segment ends past offset 0.
        // rfc: 5041-14 nothing that was handed up is handed up again
        let start = u64::try_from(start).unwrap_or(0).max(self.data_nxt);
        let end = end.min(self.edge).min(self.end.unwrap_or(u64::MAX));
        if start >= end {
            return 0..0;
        }
        if self.out_of_order.is_empty() {
            start..end
        } else {
            self.out_of_order.first_gap(start..end)
        }
    }

    /// Marks the next `len` octets as received, with nothing received beyond them: advances
    /// RCV.NXT.
    #[inline]
    pub(super) fn mark_next_received(&mut self, len: u64) {
        self.data_nxt += len;
    }

    /// Marks octets as received.
    pub(super) fn mark_received(&mut self, range: Range<u64>) {
        let start = range.start.max(self.data_nxt);
        if start >= range.end {
            return;
        }
        if start == self.data_nxt && self.out_of_order.is_empty() {
            self.data_nxt = range.end;
            return;
        }
        let merged = self.out_of_order.insert(start..range.end);
        self.data_nxt = self.out_of_order.advance(self.data_nxt);
        self.report_first(merged);
    }

    /// Puts a range at the head of those that SACK reports; those that it swallowed leave.
    fn report_first(&mut self, range: Range<u64>) {
        let old = core::mem::replace(&mut self.recent, [const { 0..0 }; SackBlocks::MAX]);
        let others = old
            .into_iter()
            .filter(|other| other.start < range.start || other.end > range.end);
        let next = self.data_nxt;
        let kept = core::iter::once(range.clone())
            .chain(others)
            .filter(|kept| kept.end > next);
        for (slot, kept) in self.recent.iter_mut().zip(kept) {
            *slot = kept;
        }
    }

    /// Returns the SACK blocks to send; and whether the first one reports a duplicate, which is
    /// done with then. What came twice beyond a hole is followed by the block that it is a part of
    /// (RFC 2883 section 4).
    pub(super) fn sack_blocks(&mut self) -> (SackBlocks, bool) {
        let mut blocks = SackBlocks::EMPTY;
        let mut add = |range: &Range<u64>| {
            blocks.push(self.isn.seq(range.start), self.isn.seq(range.end));
        };
        let dsacks = self.dsacks.pop_front();
        let covers = |range: &&Range<u64>| {
            let part = dsacks.as_ref();
            part.is_some_and(|part| range.start <= part.start && part.end <= range.end)
        };
        dsacks.iter().for_each(&mut add);
        let kept = || self.recent.iter().filter(|range| range.end > self.data_nxt);
        if !self.out_of_order.is_empty() {
            match kept().find(covers) {
                Some(whole) => add(whole),
                None => self
                    .out_of_order
                    .iter()
                    .filter(|range| covers(&range))
                    .for_each(|whole| add(&whole)),
            }
            kept().filter(|range| !covers(range)).for_each(add);
        }
        (blocks, dsacks.is_some())
    }

    /// Notes the offset of the FIN. One that contradicts what is known already is ignored.
    pub(super) fn note_fin(&mut self, at: i64) {
        let Ok(at) = u64::try_from(at) else {
            return;
        };
        let taken_to = self.out_of_order.end().unwrap_or(self.data_nxt);
        if self.end.is_none() && at >= taken_to && at <= self.edge() {
            self.end = Some(at);
        }
    }

    /// Accepts the FIN if everything before it has been received. Returns true only the first time.
    pub(super) fn take_fin(&mut self) -> bool {
        if self.finished || self.end != Some(self.data_nxt) {
            return false;
        }
        self.finished = true;
        self.schedule.ack_now = true;
        true
    }

    /// Sets how many octets the owner buffers, by which the window is smaller. The `missing` ones
    /// must fit in, or the others stay for ever. Schedules a window update where the window opens
    /// again.
    #[inline]
    pub(super) fn set_buffered(&mut self, octets: u32, missing: u32) {
        self.buffered = octets;
        if missing > 0 {
            self.let_in(missing);
        }
        let open = self.edge.saturating_sub(self.nxt());
        if open < u64::from(self.capacity) / 2 {
            self.update_window();
        }
    }

    /// Lets the window have room for so many octets, and for as many more as make it worth
    /// advertising them.
    fn let_in(&mut self, missing: u32) {
        let worth = self.sws_threshold.max(1 << self.scale) as u32;
        let room = missing.saturating_add(worth);
        self.buffered = self.buffered.min(self.capacity.saturating_sub(room));
    }

    #[inline(never)]
    fn update_window(&mut self) {
        let gain = (self.nxt() + self.room()).saturating_sub(self.edge);
        if gain >= self.sws_threshold {
            self.schedule.ack_now = true;
        }
    }

    /// Grows the window to four times what arrives in `min_rtt`: a sender in slow start is two
    /// doublings ahead of what has been measured. A queue on the way is not fed: it makes the round
    /// trip longer, but no more arrive in the least.
    #[inline]
    pub(super) fn grow(&mut self, now: Instant, rtt: &RttEstimator) {
        if now >= self.growth.until
            && let Some(min_rtt) = rtt.min_rtt()
        {
            self.end_stretch(now, min_rtt);
        }
    }

    #[inline]
    fn end_stretch(&mut self, now: Instant, min_rtt: Span) {
        let octets = self.data_nxt - self.growth.from;
        // It has taken at least min_rtt: of fewer octets the window is four times as large anyway.
        if 4 * octets > u64::from(self.capacity) {
            self.grow_to(octets, now.span_since(self.growth.since), min_rtt);
        }
        (self.growth.since, self.growth.from) = (now, self.data_nxt);
        self.growth.until = now + min_rtt;
    }

    /// Grows the window, where `octets` have arrived in `elapsed` time.
    #[inline(never)]
    fn grow_to(&mut self, octets: u64, elapsed: Span, min_rtt: Span) {
        let elapsed = u128::from(elapsed.as_nanos().max(1));
        let arrived = u128::from(octets) * u128::from(min_rtt.as_nanos());
        // Divided only where it is of use.
        if 4 * arrived > u128::from(self.capacity) * elapsed {
            let limit = u128::from(self.growth.limit);
            // Not more than `limit`, which fits.
            self.capacity = (4 * arrived / elapsed).min(limit) as u32;
        }
    }

    fn room(&self) -> u64 {
        u64::from(self.capacity.saturating_sub(self.buffered))
    }

    /// Returns the window field of a segment that carries our ACK now. The right edge moves only
    /// forward, and only if it is worth it; every ACK that is due or scheduled is done with.
    pub(super) fn advertise(&mut self) -> u16 {
        let field = self.window_field();
        self.advertised(&field);
        field.value
    }

    /// Returns the window field of a segment that carries our ACK now. The caller then calls
    /// [`advertised`](Self::advertised) if one is sent.
    #[inline(always)]
    pub(super) fn window_field(&self) -> WindowField {
        let position = self.nxt();
        let target = position + self.room();
        let edge = if target >= self.edge + self.sws_threshold {
            target
        } else {
            self.edge
        };
        let open = edge.saturating_sub(position);
        // The field counts in units: rounding down may not pull the edge back behind what the peer
        // was told.
        let mut field = open >> self.scale;
        if position + (field << self.scale) < self.edge {
            field += 1;
        }
        let field = field.min(0xffff);
        WindowField {
            value: field as u16,
            edge: self.edge.max(position + (field << self.scale)),
        }
    }

    /// Records that a segment with our ACK and this window was sent.
    #[inline]
    pub(super) fn advertised(&mut self, field: &WindowField) {
        self.schedule.sent();
        self.last_ack_sent = self.nxt();
        self.edge = field.edge;
    }

    /// Returns the window field of a SYN: never scaled (RFC 7323 section 2.2).
    pub(super) fn advertise_in_syn(&mut self) -> u16 {
        self.schedule.sent();
        let field = self.room().min(0xffff);
        self.edge = self.edge.max(field);
        field as u16
    }

    /// Schedules an ACK at once, on any segment.
    pub(super) fn ack_now(&mut self) {
        self.schedule.ack_now = true;
    }

    /// Schedules a pure ACK at once.
    pub(super) fn ack_alone(&mut self) {
        self.schedule.duplicate();
    }

    /// Returns which ACK is to be sent at this time. A duplicate ACK has to go alone.
    #[inline(always)]
    pub(super) fn due(&self, now: Instant) -> Due {
        let expired = |by: Instant| by <= now;
        if self.schedule.duplicate_acks > 0 || !self.dsacks.is_empty() {
            Due::Segment
        } else if self.schedule.is_due() || self.schedule.delayed_ack_at.is_some_and(expired) {
            Due::Acknowledgment
        } else {
            Due::Nothing
        }
    }

    /// Returns whether an ACK waits for the next turn.
    #[inline]
    pub(super) fn ack_waits_for_turn(&self) -> bool {
        self.schedule.ack_waits_for_turn()
    }

    /// Returns when a delayed ACK is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.schedule.delayed_ack_at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.schedule.delayed_ack_at.is_some_and(|by| by <= now) {
            self.schedule.expire();
        }
    }

    /// Cancels every ACK: the connection is gone.
    pub(super) fn cancel_acks(&mut self) {
        self.schedule.duplicate_acks = 0;
        self.dsacks.clear();
        self.schedule.sent();
    }
}
