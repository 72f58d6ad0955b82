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
const SEGMENTS_GATHERED: u8 = 16;

/// That many must come within this time.
const GATHERED_WITHIN: Duration = Duration::from_micros(100);

/// Segments that come in order before the stream is steady: at first, and at most, where it turned out not to be again and
/// again.
const STEADY: u16 = 64;
const MOST_STEADY: u16 = 1 << 14;

/// The least delay that there is: until the next turn of the worker. An application that answers at once has posted
/// its answer by then, and the ACK travels with it.
const NEXT_TURN: Duration = Duration::from_nanos(1);

/// When to acknowledge.
#[derive(Debug)]
pub(super) struct AckSchedule {
    delay: Duration,
    /// Pure ACKs to send at once, one for each segment that has to be answered on its own: duplicate ACKs.
    pub(super) duplicates: u8,
    /// One of those speaks for all that are due: its SACK blocks tell what a count of them would.
    pub(super) one_for_all: bool,
    /// An ACK to send at once, on a data segment if there is one.
    pub(super) due: bool,
    /// An ACK to send by then.
    pub(super) by: Option<Instant>,
    /// In-order segments since the last ACK.
    segments: u8,
    /// The last of them was pushed: what answers it may carry the ACK.
    answered: bool,
    /// In-order segments since the last disturbance, and how many make the stream steady.
    undisturbed: u16,
    steady: u16,
}

impl AckSchedule {
    /// Nothing is due; in-order data may wait for `delay`.
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            duplicates: 0,
            one_for_all: false,
            due: false,
            by: None,
            segments: 0,
            answered: false,
            undisturbed: 0,
            steady: STEADY,
        }
    }

    /// A segment came that has to be answered on its own.
    pub(super) fn duplicate(&mut self) {
        self.undisturbed = 0;
        self.duplicates = if self.one_for_all {
            1
        } else {
            self.duplicates.saturating_add(1)
        };
    }

    /// So many in-order segments came. `at_once`: they are acknowledged by themselves. `push`: the sender waits, for its
    /// work request completes with the ACK; but its peer may have an answer, for the next turn.
    #[inline(always)]
    pub(super) fn in_order(&mut self, now: Instant, count: u32, at_once: bool, push: bool) {
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        self.segments = self.segments.saturating_add(count);
        self.undisturbed = self.undisturbed.saturating_add(count.into());
        self.due |= at_once || self.duplicates > 0;
        // Duplicates not sent yet would follow an ACK for new data, and look to the peer like a loss.
        self.duplicates = 0;
        let delay = match push {
            true => NEXT_TURN,
            false if self.is_steady() => self.delay.min(GATHERED_WITHIN),
            false => self.delay,
        };
        let by = now + delay;
        self.by = Some(self.by.map_or(by, |earlier| earlier.min(by)));
        self.answered = push;
    }

    /// Whether an ACK has to go out now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let enough = match self.is_steady() {
            true => SEGMENTS_GATHERED,
            false => SEGMENTS_PER_ACK,
        };
        self.due || (self.segments >= enough && !self.answered)
    }

    #[inline]
    fn is_steady(&self) -> bool {
        self.undisturbed >= self.steady
    }

    /// The time has come by which an ACK is to be sent. Whoever sent few segments and no more may have waited for it, as a
    /// small congestion window makes it do: the next ACKs come early, and those after them if this goes on.
    pub(super) fn expire(&mut self) {
        self.by = None;
        let more_came = self.is_due();
        self.due = true;
        if self.is_steady() && !self.answered && !more_came {
            self.undisturbed = 0;
            self.steady = (self.steady * 2).min(MOST_STEADY);
        }
    }

    /// Whether an ACK waits for nothing but the next turn: then it goes with the answer, if there is one.
    #[inline]
    pub(super) fn waits_for_turn(&self) -> bool {
        self.answered && self.by.is_some()
    }

    /// An ACK is on its way.
    pub(super) fn sent(&mut self) {
        if self.segments >= SEGMENTS_GATHERED && self.is_steady() {
            self.steady = STEADY;
        }
        self.duplicates = self.duplicates.saturating_sub(1);
        self.due = false;
        self.by = None;
        self.segments = 0;
    }
}
