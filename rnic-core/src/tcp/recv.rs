//! The receiving direction: what was taken, what the peer may send, and when to acknowledge.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use super::ack_schedule::AckSchedule;
use super::ranges::RangeSet;
use super::rtt::RttEstimator;
use super::seq::{Origin, Seq};
use crate::counters::DropReason;
use crate::time::{Instant, Span};
use crate::wire::tcp::{MAX_WINDOW_SCALE, SackBlocks};

/// Ranges beyond the next expected octet that are kept track of. Data that would need one more is dropped: a
/// peer that sends every second octet costs no more than this.
const MAX_TAKEN_RANGES: usize = 256;
/// Duplicates that wait to be reported. More than these in one batch are not worth an ACK each.
const MAX_DUPLICATED: usize = 8;
/// One direction's receiver.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Receiver {
    /// The next in-order offset that is not taken.
    next: u64,
    /// The right edge of the window as last advertised. It never moves back.
    edge: u64,
    /// What was last acknowledged (Last.ACK.sent), as an offset.
    acked: u64,
    origin: Origin,
    /// Octets that the owner accepts beyond `next`, less `held`.
    capacity: u32,
    held: u32,
    /// The FIN has been taken in order.
    finished: bool,
    /// Shift count of our window field.
    scale: u8,
    /// A gain of the window that is worth telling (RFC 9293 section 3.8.6.2.2).
    worthwhile: u64,
    schedule: AckSchedule,
    /// Where the stream ends, once a FIN said so.
    end: Option<u64>,
    growth: Growth,
    /// What came twice and has not been reported yet, each to an ACK of its own (RFC 2883).
    duplicated: VecDeque<Range<u64>>,
    /// Taken beyond `next`.
    taken: RangeSet,
    /// The ranges of `taken` that grew last, latest first: what SACK reports (RFC 2018 section 4).
    recent: [Range<u64>; SackBlocks::MAX],
}

/// How the window follows what the path holds: a stretch of the stream is measured at a time.
#[derive(Debug)]
struct Growth {
    /// The most octets that `capacity` may become.
    limit: u32,
    /// When the stretch began, and at which offset; when it will have been long enough.
    since: Instant,
    from: u64,
    until: Instant,
}

/// What a segment says of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowField {
    /// As it stands in the header.
    pub(super) value: u16,
    /// The right edge, which that promises.
    edge: u64,
}

impl Receiver {
    /// A receiver whose peer's SYN is not known yet. Its window is of `capacity` octets, and may become one of `limit`.
    pub(super) fn new(capacity: u32, limit: u32, mss: u16, delay: Duration) -> Self {
        let limit = limit.max(capacity);
        let scale = (0..MAX_WINDOW_SCALE).find(|&scale| limit >> scale <= 0xffff);
        let scale = scale.unwrap_or(MAX_WINDOW_SCALE);
        let capacity = capacity.min(0xffff << scale);
        Self {
            origin: Origin::new(Seq(0)),
            next: 0,
            taken: RangeSet::default(),
            recent: [const { 0..0 }; SackBlocks::MAX],
            duplicated: VecDeque::new(),
            end: None,
            finished: false,
            capacity,
            held: 0,
            growth: Growth {
                limit: limit.min(0xffff << scale),
                since: Instant::ZERO,
                from: 0,
                until: Instant::ZERO,
            },
            acked: 0,
            edge: 0,
            scale,
            worthwhile: u64::from(capacity / 2).min(u64::from(mss)),
            schedule: AckSchedule::new(delay),
        }
    }

    /// The shift count to offer in our SYN.
    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    /// The peer's SYN has this sequence number.
    pub(super) fn synchronize(&mut self, syn: Seq) {
        self.origin = Origin::new(syn);
    }

    /// The peer does not scale windows: neither do we (RFC 7323 section 2.2).
    pub(super) fn refuse_scaling(&mut self) {
        self.scale = 0;
        self.capacity = self.capacity.min(0xffff);
        self.growth.limit = self.growth.limit.min(0xffff);
    }

    /// The peer understands SACK.
    pub(super) fn use_sack(&mut self) {
        self.schedule.one_for_all = true;
    }

    /// The next in-order offset that is not taken.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// RCV.NXT as an offset: the FIN counts.
    pub(super) fn position(&self) -> u64 {
        self.next + u64::from(self.finished)
    }

    /// The acknowledgment number to send.
    pub(super) fn ack(&self) -> Seq {
        self.origin.seq(self.position())
    }

    /// The offset of a received sequence number.
    pub(super) fn offset_of(&self, seq: Seq) -> i64 {
        self.origin.offset(seq, self.position())
    }

    /// The right edge of the advertised window.
    pub(super) fn edge(&self) -> u64 {
        self.edge.max(self.position())
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> &RangeSet {
        &self.taken
    }

    /// Whether the peer's FIN has been taken in order.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Whether a segment from offset `start` reaches back to what was last acknowledged: its timestamp is then
    /// the one to echo (RFC 7323 section 4.3).
    pub(super) fn reaches_last_ack(&self, start: i64) -> bool {
        start <= self.acked.cast_signed()
    }

    /// Whether a segment that ends at this offset was sent since what was last acknowledged, or right before that: all of it
    /// has come already.
    pub(super) fn is_recent(&self, end: i64) -> bool {
        self.acked.cast_signed() <= end && end <= self.position().cast_signed()
    }

    /// Whether a segment that takes `len` octets of sequence space from offset `start` overlaps the window
    /// (RFC 9293 section 3.4). One that begins just where we wait is let in even while the window is closed, so
    /// that its ACK and a bare FIN count.
    pub(super) fn acceptable(&self, start: i64, len: u64) -> bool {
        let (position, edge) = (self.position().cast_signed(), self.edge().cast_signed());
        if len == 0 {
            return position <= start && start <= edge;
        }
        let end = start.saturating_add_unsigned(len);
        position < end && (start < edge || start == position)
    }

    /// Whether `len` octets from a sequence number are the next of the stream, with nothing received beyond them and
    /// all of them inside the window.
    #[inline]
    pub(super) fn is_next(&self, seq: Seq, len: u64) -> bool {
        len > 0
            && self.taken.is_empty()
            && self.end.is_none()
            && seq == self.origin.seq(self.next)
            && self.next + len <= self.edge
    }

    /// The octets that may follow what was taken, inside the window, with nothing received beyond them.
    pub(super) fn room_for_next(&self) -> u64 {
        if self.taken.is_empty() && self.end.is_none() {
            self.edge.saturating_sub(self.next)
        } else {
            0
        }
    }

    /// So many segments with the next data of the stream have come, in order.
    #[inline]
    pub(super) fn expect_ack(&mut self, now: Instant, count: u32, push: bool) {
        self.schedule.in_order(now, count, false, push);
    }

    /// Returns which offsets of a segment with `len` octets of data from offset `start` are new and inside the window.
    /// Decides as well when it will be acknowledged. `push`: the sender waits for nothing more to send.
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
        if wanted.start > self.next {
            self.schedule.duplicate();
            if self.taken.len() >= MAX_TAKEN_RANGES && !self.taken.joins(&wanted) {
                return Err(DropReason::TcpOutOfOrderFull);
            }
        } else {
            // RFC 5681 section 4.2: a segment that fills a hole is acknowledged at once.
            self.schedule.in_order(now, 1, !self.taken.is_empty(), push);
        }
        Ok(wanted)
    }

    /// Why nothing is wanted of a segment that begins at this offset.
    pub(super) fn unwanted(&self, start: i64) -> DropReason {
        match start < self.edge().cast_signed() {
            true => DropReason::TcpOldData,
            false => DropReason::TcpOutOfWindow,
        }
    }

    /// A segment with `len` octets of data from offset `start` has come: what of it came before is to be reported.
    pub(super) fn note_duplicate(&mut self, start: i64, len: u64) {
        let end = u64::try_from(start.saturating_add_unsigned(len)).unwrap_or(0);
        let known = self.first_known(u64::try_from(start).unwrap_or(0)..end);
        if !self.schedule.one_for_all || known.is_empty() {
            return;
        }
        let room = self.duplicated.len() < MAX_DUPLICATED;
        match self.duplicated.back_mut() {
            Some(last) if last.end == known.start => last.end = known.end,
            _ if room => self.duplicated.push_back(known),
            _ => {}
        }
    }

    /// The first of these offsets that are taken.
    fn first_known(&self, within: Range<u64>) -> Range<u64> {
        if within.start < self.next {
            return within.start..within.end.min(self.next);
        }
        let gap = self.taken.first_gap(within.clone());
        if gap.start > within.start {
            return within.start..gap.start.min(within.end);
        }
        gap.end..self.taken.first_gap(gap.end..within.end).start
    }

    /// The first offsets of a segment that are inside the window and not taken.
    fn wanted(&self, start: i64, len: u64) -> Range<u64> {
        let end = start.saturating_add_unsigned(len);
        let Ok(end) = u64::try_from(end) else {
            return 0..0;
        };
        // From here on nothing is negative: the segment ends past offset 0.
        // rfc: 5041-14
        let start = u64::try_from(start).unwrap_or(0).max(self.next);
        let end = end.min(self.edge).min(self.end.unwrap_or(u64::MAX));
        if start >= end {
            return 0..0;
        }
        if self.taken.is_empty() {
            start..end
        } else {
            self.taken.first_gap(start..end)
        }
    }

    /// The owner has placed or kept the next octets, with nothing received beyond them.
    #[inline]
    pub(super) fn took_next(&mut self, len: u64) {
        self.next += len;
    }

    /// The owner has placed or kept these offsets.
    pub(super) fn took(&mut self, range: Range<u64>) {
        let start = range.start.max(self.next);
        if start >= range.end {
            return;
        }
        if start == self.next && self.taken.is_empty() {
            self.next = range.end;
            return;
        }
        let merged = self.taken.insert(start..range.end);
        self.next = self.taken.advance(self.next);
        self.report_first(merged);
    }

    /// Puts a range at the head of those that SACK reports; those that it swallowed leave.
    fn report_first(&mut self, range: Range<u64>) {
        let old = core::mem::replace(&mut self.recent, [const { 0..0 }; SackBlocks::MAX]);
        let others = old
            .into_iter()
            .filter(|other| other.start < range.start || other.end > range.end);
        let next = self.next;
        let kept = core::iter::once(range.clone())
            .chain(others)
            .filter(|kept| kept.end > next);
        for (slot, kept) in self.recent.iter_mut().zip(kept) {
            *slot = kept;
        }
    }

    /// The SACK blocks to send; and whether the first one reports a duplicate, which is done with then. What came
    /// twice beyond a hole is followed by the block that it is a part of (RFC 2883 section 4).
    pub(super) fn sack_blocks(&mut self) -> (SackBlocks, bool) {
        let mut blocks = SackBlocks::EMPTY;
        let mut add = |range: &Range<u64>| {
            blocks.push(self.origin.seq(range.start), self.origin.seq(range.end));
        };
        let duplicated = self.duplicated.pop_front();
        let covers = |range: &&Range<u64>| {
            let part = duplicated.as_ref();
            part.is_some_and(|part| range.start <= part.start && part.end <= range.end)
        };
        duplicated.iter().for_each(&mut add);
        let kept = || self.recent.iter().filter(|range| range.end > self.next);
        if !self.taken.is_empty() {
            match kept().find(covers) {
                Some(whole) => add(whole),
                None => self
                    .taken
                    .iter()
                    .filter(|range| covers(&range))
                    .for_each(|whole| add(&whole)),
            }
            kept().filter(|range| !covers(range)).for_each(add);
        }
        (blocks, duplicated.is_some())
    }

    /// A FIN stands at this offset. One that contradicts what is known already is ignored.
    pub(super) fn note_fin(&mut self, at: i64) {
        let Ok(at) = u64::try_from(at) else {
            return;
        };
        let taken_to = self.taken.end().unwrap_or(self.next);
        if self.end.is_none() && at >= taken_to && at <= self.edge() {
            self.end = Some(at);
        }
    }

    /// Takes the FIN if everything before it has been taken. True only the first time.
    pub(super) fn take_fin(&mut self) -> bool {
        if self.finished || self.end != Some(self.next) {
            return false;
        }
        self.finished = true;
        self.schedule.due = true;
        true
    }

    /// Octets kept aside by the owner reduce the window; `missing` ones must get in, or they are kept for ever. A
    /// window that opens again is told to the peer.
    #[inline]
    pub(super) fn set_held(&mut self, octets: u32, missing: u32) {
        self.held = octets.min(self.capacity.saturating_sub(missing));
        let open = self.edge.saturating_sub(self.position());
        if open < u64::from(self.capacity) / 2 {
            self.tell_gain();
        }
    }

    #[inline(never)]
    fn tell_gain(&mut self) {
        let gain = (self.position() + self.room()).saturating_sub(self.edge);
        if gain >= self.worthwhile {
            self.schedule.due = true;
        }
    }

    /// Grows the window to four times what arrives in the `least` round-trip time: a sender in slow start is two
    /// doublings ahead of what has been measured. A queue on the way is not fed: it makes the round trip longer, but
    /// no more arrive in the least.
    #[inline]
    pub(super) fn grow(&mut self, now: Instant, rtt: &RttEstimator) {
        if now >= self.growth.until
            && let Some(least) = rtt.least()
        {
            self.end_stretch(now, least);
        }
    }

    #[inline]
    fn end_stretch(&mut self, now: Instant, least: Span) {
        let octets = self.next - self.growth.from;
        // It has taken the least round-trip time at least: of fewer octets the window is four times as large anyway.
        if 4 * octets > u64::from(self.capacity) {
            self.grow_to(octets, now.span_since(self.growth.since), least);
        }
        (self.growth.since, self.growth.from) = (now, self.next);
        self.growth.until = now + least;
    }

    /// So many octets have arrived in a stretch that took this long.
    #[inline(never)]
    fn grow_to(&mut self, octets: u64, elapsed: Span, least: Span) {
        let elapsed = u128::from(elapsed.as_nanos().max(1));
        let arrived = u128::from(octets) * u128::from(least.as_nanos());
        // Divided only where it is of use.
        if 4 * arrived > u128::from(self.capacity) * elapsed {
            let limit = u128::from(self.growth.limit);
            // Not more than `limit`, which fits.
            self.capacity = (4 * arrived / elapsed).min(limit) as u32;
        }
    }

    fn room(&self) -> u64 {
        u64::from(self.capacity.saturating_sub(self.held))
    }

    /// The window field of a segment that carries our ACK now. The right edge moves only forward, and only if
    /// it is worth it; every ACK that is due or scheduled is done with.
    pub(super) fn advertise(&mut self) -> u16 {
        let field = self.window_field();
        self.advertised(&field);
        field.value
    }

    /// What a segment that carries our ACK now would say of the window. [`advertised`](Self::advertised) is to follow if
    /// one is sent.
    #[inline(always)]
    pub(super) fn window_field(&self) -> WindowField {
        let position = self.position();
        let target = position + self.room();
        let edge = if target >= self.edge + self.worthwhile {
            target
        } else {
            self.edge
        };
        let open = edge.saturating_sub(position);
        // The field counts in units: rounding down may not pull the edge back behind what the peer was told.
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

    /// A segment was sent with the ACK that was due, and this window.
    #[inline]
    pub(super) fn advertised(&mut self, field: &WindowField) {
        self.schedule.sent();
        self.acked = self.position();
        self.edge = field.edge;
    }

    /// The window field of a SYN: never scaled (RFC 7323 section 2.2).
    pub(super) fn advertise_in_syn(&mut self) -> u16 {
        self.schedule.sent();
        let field = self.room().min(0xffff);
        self.edge = self.edge.max(field);
        field as u16
    }

    /// Acknowledge at once, on any segment.
    pub(super) fn ack_now(&mut self) {
        self.schedule.due = true;
    }

    /// Answer at once with an ACK of its own.
    pub(super) fn ack_alone(&mut self) {
        self.schedule.duplicate();
    }

    /// Whether a duplicate ACK waits, which has to go out without data.
    pub(super) fn owes_duplicate(&self) -> bool {
        self.schedule.duplicates > 0 || !self.duplicated.is_empty()
    }

    /// Whether an ACK has to go out now.
    pub(super) fn ack_due(&self) -> bool {
        self.schedule.is_due()
    }

    /// Whether an ACK is to be sent at this time, be it a duplicate.
    #[inline]
    pub(super) fn owes_ack(&self, now: Instant) -> bool {
        self.owes_duplicate() || self.ack_due() || self.schedule.by.is_some_and(|by| by <= now)
    }

    /// Whether an ACK waits for the next turn.
    #[inline]
    pub(super) fn waits_for_turn(&self) -> bool {
        self.schedule.waits_for_turn()
    }

    /// When a delayed ACK is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.schedule.by
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.schedule.by.is_some_and(|by| by <= now) {
            self.schedule.expire();
        }
    }

    /// No ACK is owed any longer: the connection is gone.
    pub(super) fn owe_nothing(&mut self) {
        self.schedule.duplicates = 0;
        self.duplicated.clear();
        self.schedule.sent();
    }
}
