//! Slow start and congestion avoidance (RFC 5681), and NewReno's answers to loss (RFC 6582).

use super::Acked;

/// The state of one connection; all sizes in octets.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct NewReno {
    mss: u64,
    window: u64,
    slow_start_threshold: u64,
    /// Octets acknowledged in congestion avoidance since the window last grew.
    counted: u64,
    /// The window and the threshold before they were last reduced.
    before: Option<(u64, u64)>,
}

impl NewReno {
    /// Starts with the initial window of RFC 6928: ten segments, but fewer of those above 1460 octets.
    pub(in crate::tcp) fn new(mss: u64) -> Self {
        let window = (10 * mss).min(14_600.max(2 * mss));
        Self {
            mss,
            window,
            slow_start_threshold: u64::MAX,
            counted: 0,
            before: None,
        }
    }

    /// Segments have become smaller.
    pub(in crate::tcp) fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
    }

    /// What may be in flight.
    pub(in crate::tcp) fn window(&self) -> u64 {
        self.window
    }

    /// Where slow start ends.
    pub(in crate::tcp) fn slow_start_threshold(&self) -> u64 {
        self.slow_start_threshold
    }

    /// The SYN was lost: begin with one segment (RFC 5681 section 3.1).
    pub(in crate::tcp) fn on_lost_syn(&mut self) {
        self.window = self.mss;
    }

    /// New data was acknowledged outside of fast recovery.
    ///
    /// Octets count, not ACKs: a peer that acknowledges a whole burst at once does not slow us down, and one that
    /// splits its ACKs gains nothing.
    pub(in crate::tcp) fn on_ack(&mut self, acked: Acked) {
        if !acked.window_used {
            return;
        }
        if self.window < self.slow_start_threshold {
            self.window = self
                .window
                .saturating_add(acked.octets)
                .min(self.slow_start_threshold);
            return;
        }
        self.counted += acked.octets;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window = self.window.saturating_add(self.mss);
        }
    }

    /// A loss was found by duplicate ACKs or SACK, with `flight` octets not acknowledged.
    pub(in crate::tcp) fn on_loss(&mut self, flight: u64) {
        self.before = Some((self.window, self.slow_start_threshold));
        self.slow_start_threshold = self.half(flight);
        self.window = self.slow_start_threshold;
        self.counted = 0;
    }

    /// Fast recovery is over, with `flight` octets not acknowledged. The window allows no burst (RFC 6582
    /// section 3.2, step 3, option 1); slow start leads back to the threshold.
    pub(in crate::tcp) fn on_recovered(&mut self, flight: u64) {
        self.window = self
            .slow_start_threshold
            .min(flight.max(self.mss) + self.mss);
    }

    /// The retransmission timer expired. `flight` only where this is the first time for these octets: the
    /// threshold is not lowered twice for the same loss (RFC 5681 section 3.1).
    pub(in crate::tcp) fn on_timeout(&mut self, flight: Option<u64>) {
        if let Some(flight) = flight {
            self.before = Some((self.window, self.slow_start_threshold));
            self.slow_start_threshold = self.half(flight);
        }
        self.window = self.mss;
        self.counted = 0;
    }

    /// Nothing had been lost: the last reduction is taken back.
    pub(in crate::tcp) fn undo(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.slow_start_threshold = self.slow_start_threshold.max(threshold);
        }
    }

    fn half(&self, flight: u64) -> u64 {
        (flight / 2).max(2 * self.mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn acked(octets: u64) -> Acked {
        Acked {
            octets,
            window_used: true,
        }
    }

    #[test]
    fn begins_with_ten_segments_or_fewer_large_ones() {
        assert_eq!(NewReno::new(1448).window(), 14_480);
        assert_eq!(NewReno::new(8948).window(), 17_896);
    }

    #[test]
    fn slow_start_doubles_per_round_trip_and_avoidance_adds_one_segment() {
        let mut reno = NewReno::new(MSS);
        for _ in 0..10 {
            reno.on_ack(acked(MSS));
        }
        assert_eq!(reno.window(), 20 * MSS);
        reno.on_loss(20 * MSS);
        assert_eq!(reno.window(), 10 * MSS);
        for _ in 0..9 {
            reno.on_ack(acked(MSS));
        }
        assert_eq!(reno.window(), 10 * MSS);
        reno.on_ack(acked(MSS));
        assert_eq!(reno.window(), 11 * MSS);
    }

    #[test]
    fn slow_start_ends_at_the_threshold() {
        let mut reno = NewReno::new(MSS);
        reno.on_timeout(Some(8 * MSS));
        assert_eq!((reno.window(), reno.slow_start_threshold()), (MSS, 4 * MSS));
        reno.on_ack(acked(100 * MSS));
        assert_eq!(reno.window(), 4 * MSS);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut reno = NewReno::new(MSS);
        reno.on_ack(Acked {
            octets: MSS,
            window_used: false,
        });
        assert_eq!(reno.window(), 10 * MSS);
    }

    #[test]
    fn a_second_timeout_of_the_same_octets_keeps_the_threshold() {
        let mut reno = NewReno::new(MSS);
        reno.on_timeout(Some(20 * MSS));
        reno.on_timeout(None);
        assert_eq!(
            (reno.window(), reno.slow_start_threshold()),
            (MSS, 10 * MSS)
        );
    }

    #[test]
    fn never_below_two_segments_after_loss_and_no_burst_after_recovery() {
        let mut reno = NewReno::new(MSS);
        reno.on_loss(MSS);
        assert_eq!(reno.window(), 2 * MSS);
        reno.on_loss(40 * MSS);
        reno.on_recovered(3 * MSS);
        assert_eq!(reno.window(), 4 * MSS);
    }
}
