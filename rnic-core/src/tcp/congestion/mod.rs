//! Congestion control: how much may be in flight.
//!
//! A controller takes events (ACKs, losses, timeouts) and holds cwnd and ssthresh in octets. It
//! knows no segments and no timers. Losses are found by the `recovery` module. Slow start is the
//! same for all; an algorithm says how the window grows after it, and how far it is reduced.

mod acked;
mod cubic;
mod hystart;
mod newreno;
mod rounds;

use core::fmt;

pub(super) use self::acked::Acked;
use self::cubic::Cubic;
use self::hystart::HyStart;
use self::newreno::NewReno;
pub use self::rounds::DeliveryRate;
pub(super) use self::rounds::Rounds;
use crate::time::Span;

/// How the congestion window follows what the path bears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438): the growth depends on the time since the last loss and not on the
    /// round-trip time, which fills fast and long paths. Never slower than `NewReno`.
    #[default]
    Cubic,
    /// One segment per round trip, and half of the window at a loss (RFC 5681).
    NewReno,
}

impl CongestionAlgorithm {
    /// Returns its name, which is Linux's for the same algorithm.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
        }
    }
}

impl fmt::Display for CongestionAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The part that the algorithms differ in.
#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    NewReno(NewReno),
}

/// What a reduction has changed, to be restored if it was spurious.
#[derive(Clone, Debug)]
struct Undo {
    cwnd: u64,
    ssthresh: u64,
    algorithm: Algorithm,
}

/// The congestion control of one connection; all sizes in octets.
#[derive(Debug)]
pub(super) struct Congestion {
    mss: u64,
    cwnd: u64,
    ssthresh: u64,
    hystart: HyStart,
    algorithm: Algorithm,
    /// In a box: most connections never have one.
    undo: Option<Box<Undo>>,
    /// cwnd was reduced, and CWR has not been sent yet (RFC 3168 section 6.1.2).
    cwr: bool,
}

impl Congestion {
    pub(super) fn new(algorithm: CongestionAlgorithm, mss: u64) -> Self {
        let algorithm = match algorithm {
            CongestionAlgorithm::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionAlgorithm::NewReno => Algorithm::NewReno(NewReno::default()),
        };
        Self {
            mss,
            cwnd: initial_window(mss),
            ssthresh: u64::MAX,
            hystart: HyStart::default(),
            algorithm,
            undo: None,
            cwr: false,
        }
    }

    /// Begins again with segments of `mss` octets: nothing was sent yet.
    pub(super) fn agree(&mut self, mss: u64) {
        *self = Self::new(self.algorithm(), mss);
    }

    /// Returns the algorithm.
    pub(super) fn algorithm(&self) -> CongestionAlgorithm {
        match self.algorithm {
            Algorithm::Cubic(_) => CongestionAlgorithm::Cubic,
            Algorithm::NewReno(_) => CongestionAlgorithm::NewReno,
        }
    }

    /// Changes the segment size. cwnd stays what it is in octets.
    pub(super) fn set_mss(&mut self, mss: u64) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.resize(mss as f64 / self.mss as f64);
        }
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
        self.ssthresh = self.ssthresh.max(2 * mss);
    }

    /// Returns the congestion window.
    pub(super) fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Returns the slow-start threshold.
    pub(super) fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns whether `pipe` octets in the network leave no room for another segment. It counts as
    /// one of full size, or small messages would never get more than one of them into a window of
    /// one segment.
    pub(super) fn is_full(&self, pipe: u64) -> bool {
        pipe + self.mss > self.cwnd
    }

    /// Returns whether the window was used, so that its growth has something to stand on. Slow
    /// start doubles it: half of it shows enough.
    fn is_cwnd_limited(&self, flight: u64, limited: bool) -> bool {
        limited || (self.in_slow_start() && flight * 2 >= self.cwnd)
    }

    /// Returns whether an ACK changes anything, where `flight` octets were in flight. Slow start
    /// doubles a window that is used, and only then do round-trip times tell what the path bears.
    #[inline]
    pub(super) fn responds_to(&self, flight: u64, limited: bool) -> bool {
        !self.in_slow_start() || self.is_cwnd_limited(flight, limited)
    }

    /// Handles an ACK of new data outside of fast recovery.
    ///
    /// Octets count, not ACKs: a peer that acknowledges a whole burst at once does not slow us
    /// down, and one that splits its ACKs gains nothing.
    #[inline]
    pub(super) fn on_ack(&mut self, acked: &Acked) {
        if self.responds_to(acked.flight, acked.cwnd_limited) {
            self.grow(
                acked,
                self.is_cwnd_limited(acked.flight, acked.cwnd_limited),
            );
        }
    }

    fn grow(&mut self, acked: &Acked, used: bool) {
        if self.in_slow_start() {
            let growth = self.slow_start(acked);
            self.cwnd = (self.cwnd + growth).min(self.ssthresh);
            return;
        }
        let (window, mss) = (self.cwnd, self.mss);
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) if !used => cubic.pause(acked.now),
            Algorithm::NewReno(_) if !used => {}
            Algorithm::Cubic(cubic) => self.cwnd += cubic.growth(window, mss, acked),
            Algorithm::NewReno(reno) => self.cwnd += reno.growth(window, mss, acked.octets),
        }
    }

    /// Returns what slow start adds to a window that is used. Only the first slow start looks for
    /// its end by the round-trip time: later ones know theirs (RFC 9406 section 4.3).
    fn slow_start(&mut self, acked: &Acked) -> u64 {
        if self.ssthresh != u64::MAX {
            return acked.octets;
        }
        if self.hystart.on_ack(acked) {
            self.ssthresh = self.cwnd;
        }
        self.hystart.growth(acked.octets)
    }

    /// Handles a congestion event with `flight` octets in flight: a loss, or an echo of a CE mark.
    /// In fast recovery proportional rate reduction leads to this window, which stays when it is
    /// over (RFC 6937 section 3, RFC 6582 section 3.2, step 3, option 2); pacing keeps what is free
    /// then from leaving at once.
    pub(super) fn on_loss(&mut self, flight: u64) {
        self.save_undo();
        self.reduce(flight);
        self.cwnd = self.ssthresh;
    }

    /// Handles a retransmission timeout with `flight` octets in flight. `first`: it is the first
    /// for these octets. ssthresh is lowered only then (RFC 5681 section 3.1).
    pub(super) fn on_timeout(&mut self, flight: u64, first: bool) {
        if first {
            self.save_undo();
            self.reduce(flight);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.forget();
        }
        self.cwnd = self.mss;
    }

    /// Lowers the threshold. What was sent beyond the window, upon the first duplicates, does not
    /// count (RFC 5681 section 3.2, step 2).
    fn reduce(&mut self, flight: u64) {
        let flight = flight.min(self.cwnd);
        let reduced = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reduce(self.cwnd, flight, self.mss),
            Algorithm::NewReno(reno) => reno.reduce(flight),
        };
        self.ssthresh = reduced.max(2 * self.mss);
        self.cwr = true;
    }

    /// Returns whether CWR is to be sent.
    pub(super) fn cwr_due(&self) -> bool {
        self.cwr
    }

    /// Returns whether CWR is to be sent; the caller sends it now.
    pub(super) fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.cwr)
    }

    fn save_undo(&mut self) {
        self.undo = Some(Box::new(Undo {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            algorithm: self.algorithm.clone(),
        }));
    }

    /// Undoes the last reduction: it was spurious.
    pub(super) fn undo(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.cwnd = self.cwnd.max(undo.cwnd);
            self.ssthresh = undo.ssthresh.max(2 * self.mss);
            self.algorithm = undo.algorithm;
        }
    }

    /// Handles the end of an idle time. If it was longer than `rto`, there are no ACKs left that
    /// would clock the window out, and what is known of the path is old. Then the window is the
    /// initial one again, and slow start leads back to most of what it was (RFC 5681 section 4.1,
    /// RFC 2861).
    pub(super) fn on_idle(&mut self, idle: Span, rto: Span) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.skip(idle);
        }
        let restart = initial_window(self.mss);
        if idle > rto && self.cwnd > restart {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
            self.cwnd = restart;
            self.hystart = HyStart::default();
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.begin_anew();
            }
        }
    }

    /// Begins with one segment, as the SYN was lost more than once (RFC 5681 section 3.1). A single
    /// loss would make the start of a connection slow for what may have been chance (Linux does the
    /// same).
    pub(super) fn on_lost_syn(&mut self) {
        self.cwnd = self.mss;
    }
}

/// Returns the initial window of RFC 6928: ten segments, but fewer of those above 1460 octets.
fn initial_window(mss: u64) -> u64 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
