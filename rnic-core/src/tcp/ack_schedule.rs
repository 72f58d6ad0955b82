//! When to acknowledge: at once, with the next turn, or when the delay is over (RFC 9293 section 3.8.6.3, RFC 5681
//! section 4.2).
//!
//! An ACK costs both ends a frame. So where a stream has come in order for a while, and while it goes on quickly, an ACK
//! stands for more segments than the two that RFC 5681 asks for, as it does behind a NIC or a kernel that hands segments
//! up in one piece. A sender that turns out to wait for the ACK gets it every two segments as before.

use core::time::Duration;

use crate::time::Instant;

/// In-order segments that may stay without an ACK (RFC 9293 section 3.8.6.3).
const SEGMENTS_PER_ACK: u8 = 2;

/// The same where the stream is steady: what a sender has in flight of full-size segments at 10 Gb/s within 20 µs.
const SEGMENTS_PER_ACK_BULK: u8 = 16;

/// That many must come within this time.
const BULK_ACK_DELAY: Duration = Duration::from_micros(100);

/// Segments that come in order before the stream is steady: at first, and at most, where it turned out not to be again and
/// again.
const BULK_AFTER: u16 = 64;
const MAX_BULK_AFTER: u16 = 1 << 14;

/// The least delay that there is: until the next turn of the worker. An application that answers at once has posted
/// its answer by then, and the ACK travels with it.
const NEXT_TURN: Duration = Duration::from_nanos(1);

/// When to acknowledge.
#[derive(Debug)]
pub(super) struct AckSchedule {
    delay: Duration,
    /// Pure ACKs to send at once, one for each segment that has to be answered on its own: duplicate ACKs.
    pub(super) duplicate_acks: u8,
    /// One of those speaks for all that are due: its SACK blocks tell what a count of them would.
    pub(super) sack: bool,
    /// An ACK to send at once, on a data segment if there is one.
    pub(super) ack_now: bool,
    /// An ACK to send by then.
    pub(super) delayed_ack_at: Option<Instant>,
    /// In-order segments since the last ACK.
    segments: u8,
    /// The last of them was pushed: what answers it may carry the ACK.
    reply_expected: bool,
    /// In-order segments since the last disturbance, and how many make the stream steady.
    in_order_count: u16,
    bulk_after: u16,
}

impl AckSchedule {
    /// Nothing is due; in-order data may wait for `delay`.
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

    /// A segment came that has to be answered on its own.
    pub(super) fn duplicate(&mut self) {
        self.in_order_count = 0;
        self.duplicate_acks = if self.sack {
            1
        } else {
            self.duplicate_acks.saturating_add(1)
        };
    }

    /// So many in-order segments came. `at_once`: they are acknowledged by themselves. `push`: the sender waits, for its
    /// work request completes with the ACK; but its peer may have an answer, for the next turn.
    #[inline(always)]
    pub(super) fn in_order(&mut self, now: Instant, count: u32, at_once: bool, push: bool) {
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        self.segments = self.segments.saturating_add(count);
        self.in_order_count = self.in_order_count.saturating_add(count.into());
        self.ack_now |= at_once || self.duplicate_acks > 0;
        // Duplicates not sent yet would follow an ACK for new data, and look to the peer like a loss.
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

    /// Whether an ACK has to go out now.
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

    /// The time has come by which an ACK is to be sent. Whoever sent few segments and no more may have waited for it, as a
    /// small congestion window makes it do: the next ACKs come early, and those after them if this goes on.
    pub(super) fn expire(&mut self) {
        self.delayed_ack_at = None;
        let more_came = self.is_due();
        self.ack_now = true;
        if self.is_bulk() && !self.reply_expected && !more_came {
            self.in_order_count = 0;
            self.bulk_after = (self.bulk_after * 2).min(MAX_BULK_AFTER);
        }
    }

    /// Whether an ACK waits for nothing but the next turn: then it goes with the answer, if there is one.
    #[inline]
    pub(super) fn ack_waits_for_turn(&self) -> bool {
        self.reply_expected && self.delayed_ack_at.is_some()
    }

    /// An ACK is on its way.
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
