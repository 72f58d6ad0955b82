//! Time as the engine sees it: nanoseconds on the caller's monotonic clock.

use core::num::NonZeroU64;
use core::ops::{Add, Div, Mul, Sub};
use core::time::Duration;

/// A point on the caller's monotonic clock, in nanoseconds. Its zero has no meaning.
///
/// One more than the nanoseconds, so that an optional one, of which each connection has many, takes
/// no more octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

const _: () = assert!(size_of::<Option<Instant>>() == 8);

impl Instant {
    /// The start of the clock.
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    /// Creates it from nanoseconds on the monotonic clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Returns nanoseconds on the monotonic clock.
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns whole milliseconds on the monotonic clock.
    pub const fn as_millis(self) -> u64 {
        self.as_nanos() / 1_000_000
    }

    /// Returns the earliest of those that are set.
    #[inline]
    pub fn earliest<const N: usize>(times: [Option<Self>; N]) -> Option<Self> {
        // None comes last: it is 0, and one less than that is the most.
        let place = |time: Option<Self>| time.map_or(0, |time| time.0.get()).wrapping_sub(1);
        let first = times.into_iter().map(place).fold(u64::MAX, u64::min);
        NonZeroU64::new(first.wrapping_add(1)).map(Self)
    }

    /// Returns [`since`](Self::since) in nanoseconds.
    #[inline]
    pub(crate) const fn span_since(self, earlier: Self) -> Span {
        Span(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// Returns the time from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

/// A length of time in nanoseconds: what is computed with for each segment takes the form that is
/// computed with fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl Span {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const MAX: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(micros * 1000)
    }

    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    pub(crate) const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Span {
    #[inline]
    fn from(time: Duration) -> Self {
        Self(nanos(time))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl Mul<u32> for Span {
    type Output = Self;
    fn mul(self, rhs: u32) -> Self {
        Self(self.0.saturating_mul(u64::from(rhs)))
    }
}

impl Div<u32> for Span {
    type Output = Self;
    fn div(self, rhs: u32) -> Self {
        Self(self.0 / u64::from(rhs))
    }
}

impl Add<Span> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, rhs: Span) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

/// Returns the nanoseconds of a time, saturating: without the 128 bits of [`Duration::as_nanos`].
#[inline]
pub(crate) const fn nanos(time: Duration) -> u64 {
    let seconds = time.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(time.subsec_nanos() as u64)
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}
