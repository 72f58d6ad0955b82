//! Pacing: new data leaves at a rate a little above what the window allows per round trip, not all
//! at once when an ACK for much of it arrives. Queues on the way stay shorter, and fewer of them
//! overflow.
//!
//! Not segment by segment, which would cost a timer for each: bursts go out whole, and the next one
//! waits until the last one is due at the rate. On paths as short as a data centre's ACKs do the
//! same.

use core::time::Duration;

use super::congestion::Congestion;
use crate::time::{Instant, Span};

/// What may leave at once, in octets.
const BURST: u64 = 64 * 1024;
/// Paths with a shorter round-trip time are not paced.
const SHORT_PATH: Span = Span::from_micros(200);
/// The rate, in hundredths of a window per round trip: slow start doubles the window, and after it
/// there must be some room for growth (Linux has the same).
const SLOW_START_PERCENT: u64 = 200;
const AVOIDANCE_PERCENT: u64 = 120;

/// One connection's.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Octets per second, if the path is paced.
    rate: Option<u64>,
    /// When all that was sent would have left at the rate.
    due: Instant,
    /// What that leaves out of a nanosecond, in parts of which the rate makes one: so a burst takes
    /// as long as its segments take one by one.
    fraction: u64,
    /// A whole burst is out, and the next one waits for this time.
    resume_at: Option<Instant>,
}

impl Pacer {
    /// Returns the octets per second, if the path is paced.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Adapts the rate to a change of cwnd or of the round-trip time.
    #[inline]
    pub(super) fn update(&mut self, congestion: &Congestion, srtt: Option<Span>) {
        match srtt.filter(|rtt| *rtt >= SHORT_PATH) {
            Some(rtt) => self.pace(congestion, rtt),
            None => (self.rate, self.resume_at) = (None, None),
        }
    }

    fn pace(&mut self, congestion: &Congestion, rtt: Span) {
        // In the last round of slow start the window does not double any more.
        let growing = congestion.cwnd() < congestion.ssthresh() / 2;
        let percent = if growing {
            SLOW_START_PERCENT
        } else {
            AVOIDANCE_PERCENT
        };
        let octets = u128::from(congestion.cwnd()) * u128::from(percent) / 100;
        let rate = octets * 1_000_000_000 / u128::from(rtt.as_nanos());
        self.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1));
    }

    /// Returns how many octets may leave before the next pause, where the `segment` that completes
    /// a burst goes whole.
    pub(super) fn room(&self, now: Instant, segment: u64) -> u64 {
        let Some(rate) = self.rate else {
            return u64::MAX;
        };
        if self.is_paused(now) {
            return 0;
        }
        let ahead = self.due.as_nanos() as i128 - now.as_nanos() as i128;
        let burst = i128::from(time(BURST, rate));
        let left = (burst - ahead.max(-burst)).max(0) as u128;
        // A part of a nanosecond is taken already, unless a late sender begins anew.
        let taken = if ahead < -burst { 0 } else { self.fraction };
        let parts = (left * u128::from(rate)).saturating_sub(taken.into());
        let octets = parts.div_ceil(1_000_000_000);
        u64::try_from(octets)
            .unwrap_or(u64::MAX)
            .saturating_add(segment - 1)
    }

    /// Records that `octets` were sent.
    pub(super) fn on_sent(&mut self, now: Instant, octets: u64) {
        let Some(rate) = self.rate else { return };
        // A late sender may catch up by one burst, and no more.
        let burst = time(BURST, rate);
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(burst));
        if self.due < earliest {
            (self.due, self.fraction) = (earliest, 0);
        }
        let parts = octets
            .saturating_mul(1_000_000_000)
            .saturating_add(self.fraction);
        self.due = self.due + Duration::from_nanos(parts / rate);
        self.fraction = parts % rate;
        if self.due.since(now) >= Duration::from_nanos(burst) {
            self.resume_at = Some(self.due);
        }
    }

    /// Returns whether a whole burst is out and the next one has to wait.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.resume_at.is_some_and(|at| at > now)
    }

    /// Ends a pause that is over at `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        if self.resume_at.is_some_and(|at| at <= now) {
            self.resume_at = None;
        }
    }

    /// Returns when the next segment may leave, if it has to wait.
    pub(super) fn resume_at(&self) -> Option<Instant> {
        self.resume_at
    }
}

/// Returns the nanoseconds that `octets` take.
fn time(octets: u64, rate: u64) -> u64 {
    octets.saturating_mul(1_000_000_000) / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_room_for_as_much_as_leaves_octet_by_octet() {
        let now = Instant::from_nanos(1_000_000_000);
        for first in 1..20 {
            let mut pacer = Pacer {
                rate: Some(700_000_001),
                due: now,
                ..Pacer::default()
            };
            pacer.on_sent(now, first);
            let room = pacer.room(now, 1);
            let mut octets = 0;
            while !pacer.is_paused(now) {
                pacer.on_sent(now, 1);
                octets += 1;
            }
            assert_eq!(room, octets, "behind {first}");
        }
    }
}
