//! Time as the engine sees it: nanoseconds on the caller's monotonic clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on the caller's monotonic clock, in nanoseconds. Its zero has no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds on the monotonic clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds on the monotonic clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds on the monotonic clock.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The earliest of those that are set.
    #[inline]
    pub fn earliest<const N: usize>(times: [Option<Self>; N]) -> Option<Self> {
        // The end of time stands for none: 584 years away.
        let nanos = |time: Option<Self>| time.map_or(u64::MAX, Self::as_nanos);
        let first = times.into_iter().map(nanos).fold(u64::MAX, u64::min);
        (first != u64::MAX).then_some(Self(first))
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}
