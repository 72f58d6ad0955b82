//! The round-trip time and the retransmission timeout (RFC 6298).

use core::time::Duration;

use crate::time::{Instant, Span};

/// The timeout to start data with if the handshake itself timed out (RFC 6298 section 5.7).
const RTO_AFTER_LOST_SYN: Span = Span::from_secs(3);

/// More than any round-trip time.
const A_YEAR: Span = Span::from_secs(365 * 24 * 3600);

/// Estimates the round-trip time from samples, and the retransmission timeout from both.
#[derive(Clone, Debug)]
pub(super) struct RttEstimator {
    srtt: Option<Span>,
    rttvar: Span,
    /// The timeout without backoff.
    base: Span,
    /// How often the timeout has been doubled, and what it is then.
    backoff: u32,
    rto: Span,
    min: Span,
    max: Span,
    min_rtt: MinRtt,
    /// There was a sample since the last tail probe.
    sampled_since_probe: bool,
}

/// The least round-trip time of the last minutes: a path that has become longer is believed in
/// after a while.
#[derive(Clone, Debug)]
struct MinRtt {
    /// The least of this period and of the one before; the most that there is, if there was none.
    now: Span,
    before: Span,
    since: Instant,
}

impl MinRtt {
    const PERIOD: Span = Span::from_secs(150);

    const NONE: Self = Self {
        now: Span::MAX,
        before: Span::MAX,
        since: Instant::ZERO,
    };

    fn sample(&mut self, now: Instant, rtt: Span) {
        if now.span_since(self.since) >= Self::PERIOD {
            self.before = std::mem::replace(&mut self.now, Span::MAX);
            self.since = now;
        }
        self.now = self.now.min(rtt);
    }

    #[inline]
    fn get(&self) -> Option<Span> {
        let min_rtt = self.now.min(self.before);
        (min_rtt != Span::MAX).then_some(min_rtt)
    }
}

impl RttEstimator {
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        let [initial, min, max] = [initial, min, max].map(Span::from);
        Self {
            srtt: None,
            rttvar: Span::ZERO,
            base: initial.min(max),
            backoff: 0,
            rto: initial.min(max),
            min,
            max,
            min_rtt: MinRtt::NONE,
            sampled_since_probe: false,
        }
    }

    /// Returns SRTT, once there was a sample.
    pub(super) fn srtt(&self) -> Option<Span> {
        self.srtt
    }

    /// Returns RTTVAR.
    pub(super) fn rttvar(&self) -> Span {
        self.rttvar
    }

    /// Returns the least round-trip time of the last minutes, once one was measured by our own
    /// clock.
    #[inline]
    pub(super) fn min_rtt(&self) -> Option<Span> {
        self.min_rtt.get()
    }

    /// Records an exact sample for `min_rtt`: that of a segment sent only once.
    #[inline]
    pub(super) fn update_min_rtt(&mut self, now: Instant, rtt: Span) {
        self.min_rtt.sample(now, rtt);
    }

    /// Returns whether there was a sample since [`on_tail_probe`](Self::on_tail_probe).
    pub(super) fn sampled_since_probe(&self) -> bool {
        self.sampled_since_probe
    }

    /// Records that a tail probe was sent, which makes the next sample ambiguous.
    pub(super) fn on_tail_probe(&mut self) {
        self.sampled_since_probe = false;
    }

    /// Returns the retransmission timeout (RTO), with its backoff.
    #[inline]
    pub(super) fn rto(&self) -> Span {
        self.rto
    }

    fn set_backoff(&mut self, backoff: u32) {
        self.backoff = backoff;
        let factor = 1_u32.checked_shl(backoff).unwrap_or(u32::MAX);
        self.rto = (self.base * factor).min(self.max);
    }

    /// Records a sample, and ends any backoff.
    ///
    /// The lower bound applies to the variation's part of the timeout, not to the sum (so does
    /// Linux's): on a long and steady path the variation shrinks to nothing, and the first late ACK
    /// would be taken for a loss.
    #[inline]
    pub(super) fn sample(&mut self, rtt: Span) {
        self.backoff = 0;
        self.sampled_since_probe = true;
        // No ACK takes a year: nothing overflows.
        let rtt = rtt.min(A_YEAR).as_nanos();
        let (srtt, rttvar) = match self.srtt {
            None => (rtt, rtt / 2),
            Some(srtt) => {
                let (srtt, rttvar) = (srtt.as_nanos(), self.rttvar.as_nanos());
                ((srtt * 7 + rtt) / 8, (rttvar * 3 + srtt.abs_diff(rtt)) / 4)
            }
        };
        self.srtt = Some(Span::from_nanos(srtt));
        self.rttvar = Span::from_nanos(rttvar);
        let margin = Span::from_nanos(rttvar * 4).max(self.min);
        self.base = (Span::from_nanos(srtt) + margin).min(self.max);
        self.rto = self.base;
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

    /// Handles the end of a handshake whose SYN was retransmitted.
    pub(super) fn handshake_timed_out(&mut self) {
        if self.srtt.is_none() {
            self.base = self.base.max(RTO_AFTER_LOST_SYN).min(self.max);
        }
        self.set_backoff(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    fn estimator() -> RttEstimator {
        let [initial, min, max] = [1000, 200, 60_000].map(Duration::from_millis);
        RttEstimator::new(initial, min, max)
    }

    #[test]
    fn starts_with_the_initial_timeout_and_follows_the_first_sample() {
        let mut rtt = estimator();
        assert_eq!(rtt.rto(), ms(1000));
        rtt.sample(ms(500));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR
        assert_eq!(rtt.srtt(), Some(ms(500)));
        assert_eq!(rtt.rto(), ms(1500));
        rtt.sample(ms(100));
        // RTTVAR = 3/4 250 + 1/4 400, SRTT = 7/8 500 + 1/8 100
        assert_eq!(rtt.srtt(), Some(ms(450)));
        assert_eq!(rtt.rto(), Span::from_micros(450_000 + 4 * 287_500));
    }

    #[test]
    fn a_steady_path_keeps_the_minimum_above_the_round_trip() {
        let mut rtt = estimator();
        for _ in 0..100 {
            rtt.sample(ms(300));
        }
        assert_eq!(rtt.rto(), ms(500));
    }

    #[test]
    fn doubles_up_to_the_limit_and_collapses_on_a_sample() {
        let mut rtt = estimator();
        rtt.back_off();
        assert_eq!(rtt.rto(), ms(2000));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), ms(60_000));
        rtt.sample(ms(1));
        assert_eq!(rtt.rto(), ms(201));
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_minutes() {
        let mut rtt = estimator();
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(1000 + seconds);
        assert_eq!(rtt.min_rtt(), None);
        rtt.update_min_rtt(at(0), ms(10));
        rtt.update_min_rtt(at(100), ms(30));
        assert_eq!(rtt.min_rtt(), Some(ms(10)));
        rtt.update_min_rtt(at(160), ms(40));
        assert_eq!(rtt.min_rtt(), Some(ms(10)));
        rtt.update_min_rtt(at(320), ms(35));
        assert_eq!(rtt.min_rtt(), Some(ms(35)));
    }

    #[test]
    fn a_lost_syn_starts_data_with_three_seconds() {
        let mut rtt = estimator();
        rtt.back_off();
        rtt.handshake_timed_out();
        assert_eq!(rtt.rto(), ms(3000));
    }
}
