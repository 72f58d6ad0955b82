//! Proportional rate reduction (RFC 6937, RFC 9937): in fast recovery each delivery clocks out new
//! transmissions, so that the flight shrinks to `ssthresh` without a pause and without a burst.

/// One fast recovery, in the names of RFC 9937 section 6.2; all sizes in octets.
#[derive(Clone, Debug, Default)]
pub(super) struct Prr {
    ssthresh: u64,
    /// RecoverFS: what was in flight at the beginning.
    recover_fs: u64,
    /// Octets delivered since then.
    prr_delivered: u64,
    /// Octets sent since then.
    prr_out: u64,
    /// What may be in flight now.
    cwnd: u64,
}

impl Prr {
    /// Begins a recovery with `flight` octets in flight, of which `pipe` are thought to be in the
    /// network.
    pub(super) fn begin(ssthresh: u64, flight: u64, pipe: u64, mss: u64) -> Self {
        Self {
            ssthresh,
            recover_fs: flight.max(1),
            prr_delivered: 0,
            prr_out: 0,
            cwnd: pipe + mss,
        }
    }

    /// Returns what may be in flight.
    pub(super) fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Handles an ACK that delivers `octets`; `pipe` remain in the network. `safe_ack` (SafeACK):
    /// it advances SND.UNA and shows no further loss, so that the flight may grow to `ssthresh` as
    /// in slow start.
    pub(super) fn on_delivered(&mut self, octets: u64, pipe: u64, safe_ack: bool, mss: u64) {
        if octets == 0 {
            return;
        }
        self.prr_delivered += octets;
        let mut sndcnt = if pipe > self.ssthresh {
            let share = (self.prr_delivered * self.ssthresh).div_ceil(self.recover_fs);
            share.saturating_sub(self.prr_out)
        } else {
            let conserved = self.prr_delivered.saturating_sub(self.prr_out).max(octets);
            let limit = conserved + if safe_ack { mss } else { 0 };
            limit.min(self.ssthresh - pipe)
        };
        if self.prr_out == 0 && sndcnt < mss {
            // The first retransmission goes at once.
            sndcnt = mss;
        }
        self.cwnd = pipe + sndcnt;
    }

    /// Records that `octets` were sent.
    pub(super) fn on_sent(&mut self, octets: u64) {
        self.prr_out += octets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    /// Returns a recovery with 20 segments in flight, of which the first is lost, down to 10:
    /// `(delivered, sent)` of each ACK for one more segment.
    fn run(threshold: u64, lost: u64) -> Vec<u64> {
        let mut prr = Prr::begin(threshold * MSS, 20 * MSS, (20 - lost) * MSS, MSS);
        let mut pipe = (20 - lost) * MSS;
        let mut sent = Vec::new();
        for _ in 0..(20 - lost) {
            pipe -= MSS;
            prr.on_delivered(MSS, pipe, false, MSS);
            let mut now = 0;
            while pipe + MSS <= prr.cwnd() {
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
        // 15 of 20 are lost: the flight is below the threshold at once, and each arrival lets one
        // out.
        let sent = run(10, 15);
        assert!(sent.iter().all(|&segments| segments == 1), "{sent:?}");
    }

    #[test]
    fn good_progress_lets_the_flight_grow_to_the_threshold() {
        let mut prr = Prr::begin(10 * MSS, 20 * MSS, 5 * MSS, MSS);
        prr.on_sent(MSS);
        prr.on_delivered(MSS, 5 * MSS, true, MSS);
        assert_eq!(prr.cwnd(), 7 * MSS);
        prr.on_sent(2 * MSS);
        prr.on_delivered(5 * MSS, 8 * MSS, true, MSS);
        assert_eq!(prr.cwnd(), 10 * MSS);
    }

    #[test]
    fn the_first_retransmission_waits_for_nothing() {
        let mut prr = Prr::begin(2 * MSS, 20 * MSS, 19 * MSS, MSS);
        prr.on_delivered(MSS, 18 * MSS, false, MSS);
        assert_eq!(prr.cwnd(), 19 * MSS);
    }
}
