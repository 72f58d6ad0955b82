//! What an ACK says to congestion control.

use crate::time::{Instant, Span};

/// New data was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Acked {
    pub(in crate::tcp) now: Instant,
    /// How many octets.
    pub(in crate::tcp) octets: u64,
    /// Octets not acknowledged before.
    pub(in crate::tcp) flight: u64,
    /// The window had no room for another segment when they were sent.
    pub(in crate::tcp) cwnd_limited: bool,
    /// The round-trip time that it tells, if any, and the smoothed one.
    pub(in crate::tcp) rtt: Option<Span>,
    pub(in crate::tcp) srtt: Span,
    /// What was sent first in this round trip is acknowledged: another one begins.
    pub(in crate::tcp) round_ended: bool,
}
