//! When to acknowledge: at once, with the next turn, or when the delay is over (RFC 9293 section 3.8.6.3, RFC 5681
//! section 4.2).

use core::time::Duration;

use crate::time::Instant;

/// In-order segments that may stay without an ACK (RFC 9293 section 3.8.6.3).
const SEGMENTS_PER_ACK: u8 = 2;

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
        }
    }

    /// A segment came that has to be answered on its own.
    pub(super) fn duplicate(&mut self) {
        self.duplicates = if self.one_for_all {
            1
        } else {
            self.duplicates.saturating_add(1)
        };
    }

    /// So many in-order segments came. `at_once`: they are acknowledged by themselves. `push`: the sender waits, for its
    /// work request completes with the ACK; but its peer may have an answer, for the next turn.
    #[inline]
    pub(super) fn in_order(&mut self, now: Instant, count: u32, at_once: bool, push: bool) {
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        self.segments = self.segments.saturating_add(count);
        self.due |= at_once || self.duplicates > 0;
        // Duplicates not sent yet would follow an ACK for new data, and look to the peer like a loss.
        self.duplicates = 0;
        let delay = if push { NEXT_TURN } else { self.delay };
        let by = now + delay;
        self.by = Some(self.by.map_or(by, |earlier| earlier.min(by)));
        self.answered = push;
    }

    /// Whether an ACK has to go out now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due || (self.segments >= SEGMENTS_PER_ACK && !self.answered)
    }

    /// Whether an ACK waits for nothing but the next turn: then it goes with the answer, if there is one.
    #[inline]
    pub(super) fn waits_for_turn(&self) -> bool {
        self.answered && self.by.is_some()
    }

    /// An ACK is on its way.
    pub(super) fn sent(&mut self) {
        self.duplicates = self.duplicates.saturating_sub(1);
        self.due = false;
        self.by = None;
        self.segments = 0;
    }
}
