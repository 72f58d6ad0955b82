//! Statistics.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Items of a run of unknown length in bounded memory: when full, every other one is dropped, and
/// only every other new one is kept.
#[derive(Debug)]
pub(super) struct Thinned<T> {
    items: Vec<T>,
    limit: usize,
    stride: u64,
    seen: u64,
}

impl<T> Thinned<T> {
    /// Makes an empty one that keeps fewer than `limit` items, and at least half as many if there
    /// are that many.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            items: Vec::new(),
            limit: limit.max(2),
            stride: 1,
            seen: 0,
        }
    }

    pub(super) fn push(&mut self, item: T) {
        if self.seen.is_multiple_of(self.stride) {
            self.items.push(item);
            if self.items.len() == self.limit {
                let mut keep = false;
                self.items.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.stride *= 2;
            }
        }
        self.seen += 1;
    }

    pub(super) fn items(&self) -> &[T] {
        &self.items
    }
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latency {
    pub min: f64,
    pub max: f64,
    /// The median.
    pub typical: f64,
    pub average: f64,
    /// The standard deviation.
    pub stdev: f64,
    pub p99: f64,
    pub p999: f64,
}

/// The latencies of a run of any length, to three significant figures. They take 270 KiB, however
/// many there are.
#[derive(Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    /// Nanoseconds of the longest latency, an hour. Longer ones count as this.
    const LONGEST: u64 = 3_600_000_000_000;

    /// Makes an empty histogram.
    pub(super) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, Self::LONGEST, 3).expect("bounds in order"))
    }

    /// Counts a sample in nanoseconds.
    pub(super) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Returns the figures, each sample divided by `divisor`. `None` without samples.
    pub(super) fn figures(&self, divisor: f64) -> Option<Latency> {
        let count = self.0.len();
        if count == 0 {
            return None;
        }
        let micros = |nanos: f64| nanos / 1000.0 / divisor;
        let quantile = |share| micros(self.0.value_at_quantile(share) as f64);
        Some(Latency {
            min: micros(self.0.min() as f64),
            max: micros(self.0.max() as f64),
            // Of an even number of samples, the mean of the two in the middle.
            typical: (quantile(0.5) + quantile(0.5 + 0.25 / count as f64)) / 2.0,
            average: micros(self.0.mean()),
            stdev: micros(self.0.stdev()),
            p99: quantile(0.99),
            p999: quantile(0.999),
        })
    }
}

/// A group of requests that was posted and completed together: when, and how many had completed
/// before and after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Since the start of the run.
    pub posted: Duration,
    pub completed: Duration,
    pub before: u64,
    pub after: u64,
}

/// Returns the highest rate, in messages a second, from the posting of any group to the completion
/// of the same or any later one.
pub(super) fn peak_rate(stretches: &[Stretch]) -> f64 {
    let mut peak = 0.0_f64;
    for (i, from) in stretches.iter().enumerate() {
        for to in &stretches[i..] {
            let time = to.completed.saturating_sub(from.posted).as_secs_f64();
            if time > 0.0 {
                peak = peak.max(to.after.saturating_sub(from.before) as f64 / time);
            }
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(samples: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        samples
            .into_iter()
            .for_each(|nanos| latencies.record(nanos));
        latencies
    }

    /// Returns whether a figure is what it should be, to three significant figures.
    fn is(figure: f64, exact: f64) -> bool {
        (figure - exact).abs() <= exact / 1000.0
    }

    #[test]
    fn latency_figures() {
        let latency = latencies((1..=1000).rev().map(|i| i * 2000)).figures(2.0);
        let latency = latency.unwrap();
        for (figure, exact) in [
            (latency.min, 1.0),
            (latency.max, 1000.0),
            (latency.typical, 500.5),
            (latency.average, 500.5),
            (latency.p99, 990.0),
            (latency.p999, 999.0),
            (latency.stdev, 288.675),
        ] {
            assert!(is(figure, exact), "{figure} is not {exact}");
        }
        // Below 2048 nanoseconds every sample is kept as it is.
        let few = latencies([1000, 1500]).figures(1.0).unwrap();
        assert_eq!((few.min, few.max), (1.0, 1.5));
        assert_eq!((few.typical, few.average, few.stdev), (1.25, 1.25, 0.25));
        let one = latencies([1300]).figures(1.0).unwrap();
        let figures = (one.min, one.max, one.typical, one.p99, one.p999, one.stdev);
        assert_eq!(figures, (1.3, 1.3, 1.3, 1.3, 1.3, 0.0));
        assert_eq!(latencies([]).figures(1.0), None);
    }

    #[test]
    fn percentiles_of_a_long_run_count_every_sample() {
        // Every sixteenth sample is a hundred times as long as the others: dropping every other one
        // would lose it, or keep no other.
        let samples = (0..1 << 23).map(|i: u64| if i % 16 == 1 { 400_000 } else { 4000 });
        let latency = latencies(samples).figures(1.0).unwrap();
        for (figure, exact) in [
            (latency.typical, 4.0),
            (latency.average, 28.75),
            (latency.p99, 400.0),
        ] {
            assert!(is(figure, exact), "{figure} is not {exact}");
        }
    }

    #[test]
    fn no_latency_is_too_short_or_too_long() {
        let latency = latencies([0, u64::MAX]).figures(1.0).unwrap();
        assert_eq!(latency.min, 0.0);
        assert!(is(latency.max, Latencies::LONGEST as f64 / 1000.0));
    }

    #[test]
    fn thinning_keeps_an_even_share() {
        let mut thinned = Thinned::new(8);
        for i in 0..100 {
            thinned.push(i);
        }
        let items = thinned.items();
        assert!((4..8).contains(&items.len()), "{items:?}");
        let step = items[1] - items[0];
        assert!(
            items.windows(2).all(|pair| pair[1] - pair[0] == step),
            "{items:?}"
        );
        let mut few = Thinned::new(8);
        (0..5).for_each(|i| few.push(i));
        assert_eq!(few.items(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_peak_is_the_best_stretch() {
        let at = |posted, completed, before, after| Stretch {
            posted: Duration::from_millis(posted),
            completed: Duration::from_millis(completed),
            before,
            after,
        };
        // 10 in 100 ms, then 30 in 100 ms, then 10 in 100 ms.
        let run = [
            at(0, 100, 0, 10),
            at(100, 200, 10, 40),
            at(200, 300, 40, 50),
        ];
        assert!((peak_rate(&run) - 300.0).abs() < 1e-9);
        assert_eq!(peak_rate(&[]), 0.0);
    }
}
