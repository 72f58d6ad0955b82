//! Congestion control: how much may be in flight.
//!
//! A controller is told what happened and holds a window in octets. It knows nothing of segments, timers or of
//! how losses are found: that is the `recovery` module's. Slow start is the same for all; an algorithm says how the
//! window grows after it, and how far it is reduced.

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
    /// CUBIC (RFC 9438): the growth depends on the time since the last loss and not on the round-trip time, which
    /// fills fast and long paths. Never slower than `NewReno`.
    #[default]
    Cubic,
    /// One segment per round trip, and half of the window at a loss (RFC 5681).
    NewReno,
}

impl fmt::Display for CongestionAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
        })
    }
}

/// The part that the algorithms differ in.
#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    NewReno(NewReno),
}

/// What a reduction has changed, to be taken back if it was for nothing.
#[derive(Clone, Debug)]
struct Before {
    window: u64,
    slow_start_threshold: u64,
    algorithm: Algorithm,
}

/// The congestion control of one connection; all sizes in octets.
#[derive(Debug)]
pub(super) struct Congestion {
    mss: u64,
    window: u64,
    slow_start_threshold: u64,
    hystart: HyStart,
    algorithm: Algorithm,
    /// In a box: most connections never have one.
    before: Option<Box<Before>>,
    /// The window was reduced, and the peer does not know yet (CWR, RFC 3168 section 6.1.2).
    reduced: bool,
}

impl Congestion {
    pub(super) fn new(algorithm: CongestionAlgorithm, mss: u64) -> Self {
        let algorithm = match algorithm {
            CongestionAlgorithm::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionAlgorithm::NewReno => Algorithm::NewReno(NewReno::default()),
        };
        Self {
            mss,
            window: initial_window(mss),
            slow_start_threshold: u64::MAX,
            hystart: HyStart::default(),
            algorithm,
            before: None,
            reduced: false,
        }
    }

    /// Begins anew with segments of `mss` octets: nothing was sent yet.
    pub(super) fn agree(&mut self, mss: u64) {
        *self = Self::new(self.algorithm(), mss);
    }

    /// Which one it is.
    pub(super) fn algorithm(&self) -> CongestionAlgorithm {
        match self.algorithm {
            Algorithm::Cubic(_) => CongestionAlgorithm::Cubic,
            Algorithm::NewReno(_) => CongestionAlgorithm::NewReno,
        }
    }

    /// Segments are of `mss` octets from now on. The window stays what it is in octets.
    pub(super) fn set_mss(&mut self, mss: u64) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.resize(mss as f64 / self.mss as f64);
        }
        self.mss = mss;
        self.window = self.window.max(mss);
        self.slow_start_threshold = self.slow_start_threshold.max(2 * mss);
    }

    /// What may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Where slow start ends.
    pub(super) fn slow_start_threshold(&self) -> u64 {
        self.slow_start_threshold
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.window < self.slow_start_threshold
    }

    /// Whether `pipe` octets in the network leave no room for another segment. It counts as one of full size, or small
    /// messages would never get more than one of them into a window of one segment.
    pub(super) fn is_full(&self, pipe: u64) -> bool {
        pipe + self.mss > self.window
    }

    /// Whether the window was used, so that its growth has something to stand on. Slow start doubles it: half of it
    /// shows enough.
    fn was_used(&self, flight: u64, limited: bool) -> bool {
        limited || (self.in_slow_start() && flight * 2 >= self.window)
    }

    /// Whether an acknowledgment of something changes anything, while so much was in flight. Slow start doubles a window
    /// that is used, and only then do round-trip times tell what the path bears.
    #[inline]
    pub(super) fn heeds(&self, flight: u64, limited: bool) -> bool {
        !self.in_slow_start() || self.was_used(flight, limited)
    }

    /// New data was acknowledged outside of fast recovery.
    ///
    /// Octets count, not ACKs: a peer that acknowledges a whole burst at once does not slow us down, and one that
    /// splits its ACKs gains nothing.
    #[inline]
    pub(super) fn on_ack(&mut self, acked: &Acked) {
        if self.heeds(acked.flight, acked.window_limited) {
            self.adapt(acked, self.was_used(acked.flight, acked.window_limited));
        }
    }

    fn adapt(&mut self, acked: &Acked, used: bool) {
        if self.in_slow_start() {
            let growth = self.slow_start(acked);
            self.window = (self.window + growth).min(self.slow_start_threshold);
            return;
        }
        let (window, mss) = (self.window, self.mss);
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) if !used => cubic.pause(acked.now),
            Algorithm::NewReno(_) if !used => {}
            Algorithm::Cubic(cubic) => self.window += cubic.growth(window, mss, acked),
            Algorithm::NewReno(reno) => self.window += reno.growth(window, mss, acked.octets),
        }
    }

    /// What slow start adds to a window that is used. Only the first slow start looks for its end by the round-trip
    /// time: later ones know theirs (RFC 9406 section 4.3).
    fn slow_start(&mut self, acked: &Acked) -> u64 {
        if self.slow_start_threshold != u64::MAX {
            return acked.octets;
        }
        if self.hystart.on_ack(acked) {
            self.slow_start_threshold = self.window;
        }
        self.hystart.growth(acked.octets)
    }

    /// The network is congested, with `flight` octets not acknowledged: a loss was found, or the peer echoed a mark.
    /// In fast recovery proportional rate reduction leads to this window, which stays when it is over (RFC 6937
    /// section 3, RFC 6582 section 3.2, step 3, option 2); pacing keeps what is free then from leaving at once.
    pub(super) fn on_loss(&mut self, flight: u64) {
        self.remember();
        self.reduce(flight);
        self.window = self.slow_start_threshold;
    }

    /// The retransmission timer expired with `flight` octets not acknowledged. The threshold is not lowered twice
    /// for the same ones, but the `first` time (RFC 5681 section 3.1).
    pub(super) fn on_timeout(&mut self, flight: u64, first: bool) {
        if first {
            self.remember();
            self.reduce(flight);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.forget();
        }
        self.window = self.mss;
    }

    /// Lowers the threshold. What was sent beyond the window, upon the first duplicates, does not count (RFC 5681
    /// section 3.2, step 2).
    fn reduce(&mut self, flight: u64) {
        let flight = flight.min(self.window);
        let reduced = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reduce(self.window, flight, self.mss),
            Algorithm::NewReno(reno) => reno.reduce(flight),
        };
        self.slow_start_threshold = reduced.max(2 * self.mss);
        self.reduced = true;
    }

    /// Whether the window was reduced and the peer does not know.
    pub(super) fn was_reduced(&self) -> bool {
        self.reduced
    }

    /// The same; the peer is told now.
    pub(super) fn take_reduction(&mut self) -> bool {
        core::mem::take(&mut self.reduced)
    }

    fn remember(&mut self) {
        self.before = Some(Box::new(Before {
            window: self.window,
            slow_start_threshold: self.slow_start_threshold,
            algorithm: self.algorithm.clone(),
        }));
    }

    /// The last reduction was for nothing.
    pub(super) fn undo(&mut self) {
        if let Some(before) = self.before.take() {
            self.window = self.window.max(before.window);
            self.slow_start_threshold = before.slow_start_threshold.max(2 * self.mss);
            self.algorithm = before.algorithm;
        }
    }

    /// Nothing was sent for this long, and now there is something again. After a timeout's length the ACKs that would
    /// clock it out are gone, and what is known of the path is old: the window is the initial one again, and slow
    /// start leads back to most of what it was (RFC 5681 section 4.1, RFC 2861).
    pub(super) fn on_idle(&mut self, idle: Span, timeout: Span) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.skip(idle);
        }
        let restart = initial_window(self.mss);
        if idle > timeout && self.window > restart {
            self.slow_start_threshold = self.slow_start_threshold.max(self.window / 4 * 3);
            self.window = restart;
            self.hystart = HyStart::default();
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.begin_anew();
            }
        }
    }

    /// The SYN was lost, and not just once: begin with one segment (RFC 5681 section 3.1). A single loss would make
    /// the start of a connection slow for what may have been chance (Linux does the same).
    pub(super) fn on_lost_syn(&mut self) {
        self.window = self.mss;
    }
}

/// The initial window of RFC 6928: ten segments, but fewer of those above 1460 octets.
fn initial_window(mss: u64) -> u64 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
