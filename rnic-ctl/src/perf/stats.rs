//! Figures out of samples.

use std::time::Duration;

/// Samples of a run of unknown length in bounded memory: when full, every other one is dropped and only every
/// other new one is kept.
#[derive(Debug)]
pub(super) struct Thinned<T> {
    items: Vec<T>,
    limit: usize,
    stride: u64,
    seen: u64,
}

impl<T> Thinned<T> {
    /// Keeps fewer than `limit`, and at least half as many if there are that many.
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

impl Latency {
    /// From samples in nanoseconds, each divided by `divisor`. `None` without samples.
    pub(super) fn of(samples: &[u64], divisor: f64) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let count = sorted.len();
        let micros = |nanos: u64| nanos as f64 / 1000.0 / divisor;
        // The smallest sample that so large a share of all does not exceed.
        let rank = |share: f64| ((count as f64 * share).ceil() as usize).clamp(1, count) - 1;
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let median = if count.is_multiple_of(2) {
            (micros(sorted[count / 2 - 1]) + micros(sorted[count / 2])) / 2.0
        } else {
            micros(sorted[count / 2])
        };
        let average = sorted.iter().map(|&nanos| micros(nanos)).sum::<f64>() / count as f64;
        let squares: f64 = sorted
            .iter()
            .map(|&nanos| (micros(nanos) - average).powi(2))
            .sum();
        Some(Self {
            min: micros(first),
            max: micros(last),
            typical: median,
            average,
            stdev: (squares / count as f64).sqrt(),
            p99: micros(sorted[rank(0.99)]),
            p999: micros(sorted[rank(0.999)]),
        })
    }
}

/// A group of requests that was posted and completed together: when, and how many had been before and after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Since the start of the run.
    pub posted: Duration,
    pub completed: Duration,
    pub before: u64,
    pub after: u64,
}

/// The highest rate, in messages a second, from the posting of any group to the completion of the same or any later
/// one.
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

    #[test]
    fn latency_figures() {
        let samples: Vec<u64> = (1..=1000).rev().map(|i| i * 2000).collect();
        let latency = Latency::of(&samples, 2.0).unwrap();
        assert_eq!((latency.min, latency.max), (1.0, 1000.0));
        assert_eq!((latency.typical, latency.average), (500.5, 500.5));
        assert_eq!((latency.p99, latency.p999), (990.0, 999.0));
        assert!((latency.stdev - 288.675).abs() < 0.001, "{}", latency.stdev);
        let one = Latency::of(&[3000], 1.0).unwrap();
        assert_eq!(
            (one.min, one.max, one.typical, one.p99, one.p999, one.stdev),
            (3.0, 3.0, 3.0, 3.0, 3.0, 0.0)
        );
        assert_eq!(Latency::of(&[], 1.0), None);
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
