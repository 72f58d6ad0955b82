//! When to acknowledge: at once, with the next turn, or when the delay is over (RFC 9293 section
//! 3.8.6.3, RFC 5681 section 4.2).
//!
//! An ACK costs both ends a frame. So where a stream has come in order for a while, and while it
//! goes on quickly, an ACK stands for more segments than the two that RFC 5681 asks for, as it does
//! behind LRO or GRO. A sender that turns out to wait for the ACK gets it every two segments again.

use core::time::Duration;

use crate::time::Instant;

/// In-order segments that may stay without an ACK (RFC 9293 section 3.8.6.3).
const SEGMENTS_PER_ACK: u8 = 2;

/// In-order segments that may stay without an ACK in a bulk stream: what a sender has in flight of
/// full-size segments at 10 Gb/s within 20 µs.
const SEGMENTS_PER_ACK_BULK: u8 = 16;

/// The delay of an ACK in a bulk stream: that many segments must come within it.
const BULK_ACK_DELAY: Duration = Duration::from_micros(100);

/// Segments in order after which a stream counts as bulk: at first, and at most, where it turned
/// out not to be one.
const BULK_AFTER: u16 = 64;
const MAX_BULK_AFTER: u16 = 1 << 14;

/// The shortest delay: until the next turn of the worker. An application that replies at once has
/// posted its reply by then, and the ACK travels with it.
const NEXT_TURN: Duration = Duration::from_nanos(1);

/// When to acknowledge.
#[derive(Debug)]
pub(super) struct AckSchedule {
    delay: Duration,
    /// Pure ACKs to send at once, one for each segment that has to be answered on its own:
    /// duplicate ACKs.
    pub(super) duplicate_acks: u8,
    /// SACK is in use: one duplicate ACK stands for all that are due, as its SACK blocks tell what
    /// a count of them would.
    pub(super) sack: bool,
    /// An ACK to send at once, on a data segment if there is one.
    pub(super) ack_now: bool,
    /// When the delayed ACK is due.
    pub(super) delayed_ack_at: Option<Instant>,
    /// In-order segments since the last ACK.
    segments: u8,
    /// The last of them was pushed: a reply to it may carry the ACK.
    reply_expected: bool,
    /// In-order segments since the last one out of order, and how many make the stream bulk.
    in_order_count: u16,
    bulk_after: u16,
}

impl AckSchedule {
    /// Creates a schedule with no ACK due, and this delay of ACKs.
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            duplicate_acks: 0,
            sack: false,
            ack_now: false,
            delayed_ack_at: None,
            segments: 0,
            reply_expected: false,
            in_order_count: 0,
            bulk_after: BULK_AFTER,
        }
    }

    /// Records a segment that needs an ACK of its own: a duplicate, or one out of order.
    pub(super) fn duplicate(&mut self) {
        self.in_order_count = 0;
        self.duplicate_acks = if self.sack {
            1
        } else {
            self.duplicate_acks.saturating_add(1)
        };
    }

    /// Records `count` segments that came in order. If `at_once`, they are acknowledged
    /// immediately. If `push`, the sender waits, because its work request completes with the ACK;
    /// but our application may have a reply by the next turn.
    #[inline(always)]
    pub(super) fn in_order(&mut self, now: Instant, count: u32, at_once: bool, push: bool) {
        let (few, many) = (u8::try_from(count), u16::try_from(count));
        self.segments = self.segments.saturating_add(few.unwrap_or(u8::MAX));
        self.in_order_count = self.in_order_count.saturating_add(many.unwrap_or(u16::MAX));
        self.ack_now |= at_once || self.duplicate_acks > 0;
        // Duplicates not sent yet would follow an ACK for new data, and look to the peer like a
        // loss.
        self.duplicate_acks = 0;
        let delay = match push {
            true => NEXT_TURN,
            false if self.is_bulk() => self.delay.min(BULK_ACK_DELAY),
            false => self.delay,
        };
        let by = now + delay;
        self.delayed_ack_at = Some(self.delayed_ack_at.map_or(by, |earlier| earlier.min(by)));
        self.reply_expected = push;
    }

    /// Returns whether an ACK has to go out now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let enough = match self.is_bulk() {
            true => SEGMENTS_PER_ACK_BULK,
            false => SEGMENTS_PER_ACK,
        };
        self.ack_now || (self.segments >= enough && !self.reply_expected)
    }

    #[inline]
    fn is_bulk(&self) -> bool {
        self.in_order_count >= self.bulk_after
    }

    /// Handles the expiry of the delayed ACK. A sender with a small congestion window sends few
    /// segments, and then waits for the ACK. If this one may have waited so, the next ACKs are sent
    /// early again.
    pub(super) fn expire(&mut self) {
        self.delayed_ack_at = None;
        let more_came = self.is_due();
        self.ack_now = true;
        if self.is_bulk() && !self.reply_expected && !more_came {
            self.in_order_count = 0;
            self.bulk_after = (self.bulk_after * 2).min(MAX_BULK_AFTER);
        }
    }

    /// Returns whether an ACK waits only for the next turn, to travel with a reply.
    #[inline]
    pub(super) fn ack_waits_for_turn(&self) -> bool {
        self.reply_expected && self.delayed_ack_at.is_some()
    }

    /// Records that an ACK was sent.
    pub(super) fn sent(&mut self) {
        if self.segments >= SEGMENTS_PER_ACK_BULK && self.is_bulk() {
            self.bulk_after = BULK_AFTER;
        }
        self.duplicate_acks = self.duplicate_acks.saturating_sub(1);
        self.ack_now = false;
        self.delayed_ack_at = None;
        self.segments = 0;
    }
}
