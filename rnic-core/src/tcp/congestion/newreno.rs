//! Congestion avoidance of RFC 5681: a segment more per round trip, and half of it all at a loss.

#[derive(Clone, Debug, Default)]
pub(super) struct NewReno {
    /// Octets acknowledged since the window last grew.
    counted: u64,
}

impl NewReno {
    /// Returns what `octets` newly acknowledged add to the window.
    pub(super) fn growth(&mut self, window: u64, mss: u64, octets: u64) -> u64 {
        self.counted += octets;
        if self.counted < window {
            return 0;
        }
        self.counted -= window;
        mss
    }

    /// Handles a congestion event with `flight` octets in flight, and returns the new ssthresh.
    pub(super) fn reduce(&mut self, flight: u64) -> u64 {
        self.counted = 0;
        flight / 2
    }
}
