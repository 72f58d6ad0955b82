//! How fast octets move: over a whole run, and while nothing disturbs it.

use std::time::Instant;

use crate::stats::Samples;

/// The least octets of the pieces that are timed: about half a millisecond's worth.
const PIECE: u64 = 1024 * 1024;

/// Counts octets as they arrive.
pub(crate) struct Pace {
    began: Instant,
    octets: u64,
    piece: u64,
    piece_began: Instant,
    piece_octets: u64,
    /// Gigabits in a second of each piece.
    pieces: Samples,
}

/// Gigabits in a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bandwidth {
    /// The median of the pieces: the rate while the machine does nothing else. It hides stalls.
    pub(crate) steady: f64,
    /// The rate of the whole run, with stalls and what other load on the machine took.
    pub(crate) mean: f64,
}

impl Pace {
    /// Begins to count.
    pub(crate) fn new() -> Self {
        Self::of_rounds(0)
    }

    /// Begins to count what comes in rounds of so many octets. A piece is a round at least: octets
    /// that come together have not been sent in the time between them.
    pub(crate) fn of_rounds(octets: usize) -> Self {
        let now = Instant::now();
        Self {
            began: now,
            octets: 0,
            piece: PIECE.max(octets as u64),
            piece_began: now,
            piece_octets: 0,
            pieces: Samples::default(),
        }
    }

    /// Counts octets that have arrived.
    pub(crate) fn add(&mut self, octets: usize) {
        self.piece_octets += octets as u64;
        if self.piece_octets >= self.piece {
            let now = Instant::now();
            let time = now - self.piece_began;
            self.pieces
                .push((self.piece_octets * 8) as f64 / time.as_nanos() as f64);
            self.octets += self.piece_octets;
            (self.piece_began, self.piece_octets) = (now, 0);
        }
    }

    /// Ends the run and returns its rates.
    pub(crate) fn end(self) -> Bandwidth {
        let octets = self.octets + self.piece_octets;
        let mean = (octets * 8) as f64 / self.began.elapsed().as_nanos() as f64;
        Bandwidth {
            steady: if self.pieces.values().is_empty() {
                mean
            } else {
                self.pieces.median()
            },
            mean,
        }
    }
}
