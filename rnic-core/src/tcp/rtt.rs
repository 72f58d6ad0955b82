//! The round-trip time and the retransmission timeout (RFC 6298).

use core::time::Duration;

use crate::time::Instant;

/// The timeout to start data with if the handshake itself timed out (RFC 6298 section 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// Estimates the round-trip time from samples, and the retransmission timeout from both.
#[derive(Clone, Debug)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
    /// The timeout without backoff.
    base: Duration,
    /// How often the timeout has been doubled.
    backoff: u32,
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
    pub(super) fn timeout(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.backoff).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// Takes a sample, and ends any backoff.
    ///
    /// The lower bound applies to the variation's part of the timeout, not to the sum (so does Linux's): on a
    /// long and steady path the variation shrinks to nothing, and the first late ACK would be taken for a loss.
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        self.fresh = true;
        let smoothed = match self.smoothed {
            None => {
                self.variation = rtt / 2;
                rtt
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                (smoothed * 7 + rtt) / 8
            }
        };
        self.smoothed = Some(smoothed);
        self.base = (smoothed + (self.variation * 4).max(self.min)).min(self.max);
    }

    /// Doubles the timeout: it has expired.
    pub(super) fn back_off(&mut self) {
        // Beyond 31 the shift saturates, and the upper bound was reached long before.
        self.backoff = (self.backoff + 1).min(31);
    }

    /// Ends the backoff: the window that was probed has opened, or the timeout was not needed.
    pub(super) fn end_backoff(&mut self) {
        self.backoff = 0;
    }

    /// The handshake is over, and its SYN had to be sent again.
    pub(super) fn handshake_timed_out(&mut self) {
        self.backoff = 0;
        if self.smoothed.is_none() {
            self.base = self.base.max(RTO_AFTER_LOST_SYN).min(self.max);
        }
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
