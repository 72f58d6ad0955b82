//! Proportional rate reduction (RFC 6937, RFC 9937): during fast recovery what leaves the network clocks out what
//! enters it, so that the flight comes down to the new threshold without a pause and without a burst.

/// One fast recovery; all sizes in octets.
#[derive(Clone, Debug, Default)]
pub(super) struct Prr {
    /// What is to be in flight at the end.
    threshold: u64,
    /// What was in flight at the beginning (RecoverFS).
    flight: u64,
    /// What has left the network since, and what has been sent.
    delivered: u64,
    sent: u64,
    /// What may be in flight now.
    window: u64,
}

impl Prr {
    pub(super) fn begin(threshold: u64, flight: u64, pipe: u64, mss: u64) -> Self {
        Self {
            threshold,
            flight: flight.max(1),
            delivered: 0,
            sent: 0,
            window: pipe + mss,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// `octets` have left the network, and `pipe` are in it. `progress`: the peer has moved on, and no more losses
    /// have been found; the flight may then catch up with the threshold as in slow start.
    pub(super) fn on_delivered(&mut self, octets: u64, pipe: u64, progress: bool, mss: u64) {
        if octets == 0 {
            return;
        }
        self.delivered += octets;
        let mut room = if pipe > self.threshold {
            let share = (self.delivered * self.threshold).div_ceil(self.flight);
            share.saturating_sub(self.sent)
        } else {
            let conserved = self.delivered.saturating_sub(self.sent).max(octets);
            let room = conserved + if progress { mss } else { 0 };
            room.min(self.threshold - pipe)
        };
        if self.sent == 0 && room < mss {
            // The first retransmission waits for nothing.
            room = mss;
        }
        self.window = pipe + room;
    }

    pub(super) fn on_sent(&mut self, octets: u64) {
        self.sent += octets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    /// A recovery with 20 segments in flight, of which the first is lost, down to 10: `(delivered, sent)` of each
    /// ACK for one more segment.
    fn run(threshold: u64, lost: u64) -> Vec<u64> {
        let mut prr = Prr::begin(threshold * MSS, 20 * MSS, (20 - lost) * MSS, MSS);
        let mut pipe = (20 - lost) * MSS;
        let mut sent = Vec::new();
        for _ in 0..(20 - lost) {
            pipe -= MSS;
            prr.on_delivered(MSS, pipe, false, MSS);
            let mut now = 0;
            while pipe + MSS <= prr.window() {
                pipe += MSS;
                now += 1;
                prr.on_sent(MSS);
            }
            sent.push(now);
        }
        sent
    }

    #[test]
    fn half_of_what_is_delivered_is_sent_when_the_threshold_is_half() {
        let sent = run(10, 1);
        assert_eq!(sent.iter().sum::<u64>(), 10);
        // One for every two, without a pause at the beginning.
        assert!(sent.iter().all(|&segments| segments <= 1));
        assert!(sent.chunks(2).all(|pair| pair.iter().sum::<u64>() <= 2));
        assert_eq!(sent[..6].iter().sum::<u64>(), 3);
    }

    #[test]
    fn heavy_losses_let_out_no_more_than_what_arrives() {
        // 15 of 20 are lost: the flight is below the threshold at once, and each arrival lets one out.
        let sent = run(10, 15);
        assert!(sent.iter().all(|&segments| segments == 1), "{sent:?}");
    }

    #[test]
    fn good_progress_lets_the_flight_grow_to_the_threshold() {
        let mut prr = Prr::begin(10 * MSS, 20 * MSS, 5 * MSS, MSS);
        prr.on_sent(MSS);
        prr.on_delivered(MSS, 5 * MSS, true, MSS);
        assert_eq!(prr.window(), 7 * MSS);
        prr.on_sent(2 * MSS);
        prr.on_delivered(5 * MSS, 8 * MSS, true, MSS);
        assert_eq!(prr.window(), 10 * MSS);
    }

    #[test]
    fn the_first_retransmission_waits_for_nothing() {
        let mut prr = Prr::begin(2 * MSS, 20 * MSS, 19 * MSS, MSS);
        prr.on_delivered(MSS, 18 * MSS, false, MSS);
        assert_eq!(prr.window(), 19 * MSS);
    }
}
