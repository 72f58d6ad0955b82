//! What an acknowledgment says to loss recovery.

use crate::tcp::options::Echo;
use crate::tcp::scoreboard::AckOutcome;
use crate::time::{Instant, Span};

/// An ACK, after the scoreboard has processed it.
pub(in crate::tcp) struct Ack<'a> {
    pub(in crate::tcp) now: Instant,
    pub(in crate::tcp) outcome: &'a AckOutcome,
    /// Octets not acknowledged before.
    pub(in crate::tcp) flight: u64,
    /// The round-trip time, if it measures one exactly.
    pub(in crate::tcp) round_trip: Option<Span>,
    /// Its number is SND.UNA, and its segment has neither data nor a window update.
    pub(in crate::tcp) repeats: bool,
    /// It has SACK blocks.
    pub(in crate::tcp) sacks: bool,
    /// Our timestamp that it echoes.
    pub(in crate::tcp) echo: Option<Echo>,
}

impl Ack<'_> {
    /// Returns whether it is a duplicate acknowledgment (RFC 5681 section 2).
    pub(super) fn is_duplicate(&self) -> bool {
        self.repeats && self.flight > 0
    }

    /// Returns whether it echoes a timestamp from before `at`.
    pub(super) fn echoes_before(&self, at: Instant) -> bool {
        self.echo.is_some_and(|echo| echo.is_before(at))
    }
}
