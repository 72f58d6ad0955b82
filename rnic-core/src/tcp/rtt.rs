//! The round-trip time and the retransmission timeout (RFC 6298).

use core::time::Duration;

use crate::time::Instant;

/// The timeout to start data with if the handshake itself timed out (RFC 6298 section 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// More than any round-trip time.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Estimates the round-trip time from samples, and the retransmission timeout from both.
#[derive(Clone, Debug)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
    /// The timeout without backoff.
    base: Duration,
    /// How often the timeout has been doubled, and what it is then.
    backoff: u32,
    timeout: Duration,
    min: Duration,
    max: Duration,
    least: LeastRtt,
    /// There was a sample since the last tail probe.
    fresh: bool,
}

/// The least round-trip time of the last minutes: a path that has become longer is believed in after a while.
#[derive(Clone, Debug, Default)]
struct LeastRtt {
    /// The least of this period and of the one before.
    now: Option<Duration>,
    before: Option<Duration>,
    since: Instant,
}

impl LeastRtt {
    const PERIOD: Duration = Duration::from_secs(150);

    fn sample(&mut self, now: Instant, rtt: Duration) {
        if now - self.since >= Self::PERIOD {
            self.before = self.now.take();
            self.since = now;
        }
        self.now = Some(self.now.map_or(rtt, |least| least.min(rtt)));
    }

    fn get(&self) -> Option<Duration> {
        match (self.now, self.before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }
}

impl RttEstimator {
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        Self {
            smoothed: None,
            variation: Duration::ZERO,
            base: initial.min(max),
            backoff: 0,
            timeout: initial.min(max),
            min,
            max,
            least: LeastRtt::default(),
            fresh: false,
        }
    }

    /// The smoothed round-trip time, once there was a sample.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How much the round-trip time varies.
    pub(super) fn variation(&self) -> Duration {
        self.variation
    }

    /// The least round-trip time of the last minutes, once one was measured by our own clock.
    pub(super) fn least(&self) -> Option<Duration> {
        self.least.get()
    }

    /// A segment sent only once took this long: it may be the fastest of late.
    pub(super) fn exact(&mut self, now: Instant, rtt: Duration) {
        self.least.sample(now, rtt);
    }

    /// Whether there was a sample since [`use_up`](Self::use_up).
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// A tail probe makes the next answer ambiguous.
    pub(super) fn use_up(&mut self) {
        self.fresh = false;
    }

    /// The time to wait for an acknowledgment.
    #[inline]
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn set_backoff(&mut self, backoff: u32) {
        self.backoff = backoff;
        let factor = 1_u32.checked_shl(backoff).unwrap_or(u32::MAX);
        self.timeout = self.base.saturating_mul(factor).min(self.max);
    }

    /// Takes a sample, and ends any backoff.
    ///
    /// The lower bound applies to the variation's part of the timeout, not to the sum (so does Linux's): on a
    /// long and steady path the variation shrinks to nothing, and the first late ACK would be taken for a loss.
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        self.fresh = true;
        // In nanoseconds, which divide faster. Nobody waits for an acknowledgment for a year: nothing overflows.
        let nanos = |time: Duration| time.as_nanos() as u64;
        let rtt = nanos(rtt.min(A_YEAR));
        let (smoothed, variation) = match self.smoothed {
            None => (rtt, rtt / 2),
            Some(smoothed) => {
                let (smoothed, variation) = (nanos(smoothed), nanos(self.variation));
                (
                    (smoothed * 7 + rtt) / 8,
                    (variation * 3 + smoothed.abs_diff(rtt)) / 4,
                )
            }
        };
        self.smoothed = Some(Duration::from_nanos(smoothed));
        self.variation = Duration::from_nanos(variation);
        self.base = Duration::from_nanos(smoothed + (variation * 4).max(nanos(self.min)));
        self.base = self.base.min(self.max);
        self.timeout = self.base;
    }

    /// Doubles the timeout: it has expired.
    pub(super) fn back_off(&mut self) {
        // Beyond 31 the shift saturates, and the upper bound was reached long before.
        self.set_backoff((self.backoff + 1).min(31));
    }

    /// Ends the backoff: the window that was probed has opened, or the timeout was not needed.
    pub(super) fn end_backoff(&mut self) {
        self.set_backoff(0);
    }

    /// The handshake is over, and its SYN had to be sent again.
    pub(super) fn handshake_timed_out(&mut self) {
        if self.smoothed.is_none() {
            self.base = self.base.max(RTO_AFTER_LOST_SYN).min(self.max);
        }
        self.set_backoff(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn estimator() -> RttEstimator {
        RttEstimator::new(ms(1000), ms(200), ms(60_000))
    }

    #[test]
    fn starts_with_the_initial_timeout_and_follows_the_first_sample() {
        let mut rtt = estimator();
        assert_eq!(rtt.timeout(), ms(1000));
        rtt.sample(ms(500));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR
        assert_eq!(rtt.smoothed(), Some(ms(500)));
        assert_eq!(rtt.timeout(), ms(1500));
        rtt.sample(ms(100));
        // RTTVAR = 3/4 250 + 1/4 400, SRTT = 7/8 500 + 1/8 100
        assert_eq!(rtt.smoothed(), Some(ms(450)));
        assert_eq!(rtt.timeout(), Duration::from_micros(450_000 + 4 * 287_500));
    }

    #[test]
    fn a_steady_path_keeps_the_minimum_above_the_round_trip() {
        let mut rtt = estimator();
        for _ in 0..100 {
            rtt.sample(ms(300));
        }
        assert_eq!(rtt.timeout(), ms(500));
    }

    #[test]
    fn doubles_up_to_the_limit_and_collapses_on_a_sample() {
        let mut rtt = estimator();
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(2000));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), ms(60_000));
        rtt.sample(ms(1));
        assert_eq!(rtt.timeout(), ms(201));
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_minutes() {
        let mut rtt = estimator();
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(1000 + seconds);
        assert_eq!(rtt.least(), None);
        rtt.exact(at(0), ms(10));
        rtt.exact(at(100), ms(30));
        assert_eq!(rtt.least(), Some(ms(10)));
        rtt.exact(at(160), ms(40));
        assert_eq!(rtt.least(), Some(ms(10)));
        rtt.exact(at(320), ms(35));
        assert_eq!(rtt.least(), Some(ms(35)));
    }

    #[test]
    fn a_lost_syn_starts_data_with_three_seconds() {
        let mut rtt = estimator();
        rtt.back_off();
        rtt.handshake_timed_out();
        assert_eq!(rtt.timeout(), ms(3000));
    }
}
