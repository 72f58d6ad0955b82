//! Whether the processors are ours alone.
//!
//! On a shared machine another user may compute on the same core, by its other hardware thread.
//! Work that keeps a core busy takes up to twice as long then, for a moment or for seconds, and no
//! counter of this machine shows it.

use std::hint::black_box;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bed::{Bed, Cores};
use crate::failure::Failure;

/// How much longer than its shortest time a probe may take on a processor that is ours alone.
const SLOWEST: f64 = 1.15;
/// How long to measure at first how fast a processor is.
const SURVEY: Duration = Duration::from_secs(2);
const BETWEEN_PROBES: Duration = Duration::from_millis(10);
/// How long to wait for the others to end.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often to repeat a measurement that was disturbed.
const ATTEMPTS: usize = 4;
/// Parts of a probe, of which the fastest counts: an interrupt falls into one.
const PARTS: usize = 10;
const STEPS: u64 = 10_000;

/// The speed of the processors, and the disturbances that were found.
pub(crate) struct Quiet {
    /// The shortest probe of each, in seconds.
    best: Vec<f64>,
    readings: usize,
    disturbed: usize,
}

impl Quiet {
    /// Finds out how fast the processors are.
    pub(crate) fn survey(bed: &Bed) -> Result<Self, Failure> {
        let processors = if bed.allows(Cores::Two) { 2 } else { 1 };
        let mut quiet = Self {
            best: vec![f64::MAX; processors],
            readings: 0,
            disturbed: 0,
        };
        let end = Instant::now() + SURVEY;
        while Instant::now() < end {
            quiet.holds(bed, processors)?;
            sleep(BETWEEN_PROBES);
        }
        Ok(quiet)
    }

    /// Returns whether no other load is on the first `processors` processors.
    fn holds(&mut self, bed: &Bed, processors: usize) -> Result<bool, Failure> {
        let mut quiet = true;
        for (processor, best) in self.best.iter_mut().enumerate().take(processors) {
            let took = bed.on(processor, || Ok(probe()))?;
            quiet &= is_alone(best, took);
        }
        Ok(quiet)
    }

    /// Measures, with a probe before and after. Repeats a measurement that was disturbed, and
    /// accepts the last one in any case.
    pub(crate) fn measure<T>(
        &mut self,
        bed: &Bed,
        processors: usize,
        mut run: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.readings += 1;
        for _ in 1..ATTEMPTS {
            let until = Instant::now() + PATIENCE;
            while !self.holds(bed, processors)? && Instant::now() < until {
                sleep(BETWEEN_PROBES);
            }
            let outcome = run()?;
            if self.holds(bed, processors)? {
                return Ok(outcome);
            }
        }
        self.disturbed += 1;
        // They may be slower for good: each measurement would wait in vain.
        self.best.fill(f64::MAX);
        run()
    }

    /// Reports the disturbances.
    pub(crate) fn describe(&self) -> String {
        let Self {
            readings,
            disturbed,
            ..
        } = self;
        format!("there at {disturbed} of {readings} measurements, {ATTEMPTS} times in a row")
    }
}

/// Returns whether a probe took hardly longer than the best so far, which it may be itself.
fn is_alone(best: &mut f64, took: f64) -> bool {
    *best = best.min(took);
    took <= *best * SLOWEST
}

/// Returns how long it takes to keep all of a core busy with so much, in seconds.
fn probe() -> f64 {
    let parts = (0..PARTS as u64).map(|part| {
        let began = Instant::now();
        black_box(compute(black_box(part)));
        began.elapsed().as_secs_f64()
    });
    parts.fold(f64::MAX, f64::min)
}

/// Computes six sums side by side: one hardware thread alone takes a cycle for what two on a core
/// take two.
fn compute(seed: u64) -> u64 {
    let [mut a, mut b, mut c, mut d, mut e, mut f] = [seed; 6];
    for step in 0..STEPS {
        a = a.wrapping_add(b ^ step);
        b = b.wrapping_add(c ^ step);
        c = c.wrapping_add(d ^ step);
        d = d.wrapping_add(e ^ step);
        e = e.wrapping_add(f ^ step);
        f = f.wrapping_add(a ^ step);
    }
    a ^ b ^ c ^ d ^ e ^ f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_half_as_long_again_is_not_alone() {
        let mut best = f64::MAX;
        assert!(is_alone(&mut best, 30.0));
        assert!(is_alone(&mut best, 20.0));
        assert!(!is_alone(&mut best, 30.0));
        assert!(is_alone(&mut best, 20.5));
        assert_eq!(best, 20.0);
    }
}
