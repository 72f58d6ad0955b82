//! The impairment of frames in one direction: a pure function of a seed and of the times at which
//! they arrive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;

/// Octets of the longest frame: Ethernet's jumbo frames.
pub(crate) const LONGEST: usize = 9216;

/// A frame, Ethernet header first, in a buffer that is used again and again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frame {
    buffer: Box<[u8; LONGEST]>,
    len: usize,
}

impl Frame {
    pub(crate) fn empty() -> Self {
        Self {
            buffer: Box::new([0; LONGEST]),
            len: 0,
        }
    }

    /// Returns the buffer to receive into. [`set_len`](Self::set_len) then sets the length.
    pub(crate) fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..]
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(LONGEST);
    }

    pub(crate) fn octets(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// The impairments. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Impairments {
    /// Frames that never arrive.
    pub(crate) loss: f64,
    /// Frames that arrive twice.
    pub(crate) duplication: f64,
    /// Frames that are delayed, so that others overtake them.
    pub(crate) reordering: f64,
    /// The longest delay that reorders.
    pub(crate) hold_up: Duration,
    /// The delay of every frame.
    pub(crate) delay: Duration,
    /// Bits in a second that the narrowest link carries.
    pub(crate) rate: Option<u64>,
    /// Octets that may wait for that link; what comes when they do is dropped.
    pub(crate) queue: usize,
}

/// The counters of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Frames that came.
    pub(crate) offered: u64,
    pub(crate) lost: u64,
    /// Frames that found the queue full.
    pub(crate) overflowed: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    /// Frames that left, copies included.
    pub(crate) delivered: u64,
}

/// One direction.
pub(crate) struct Lane {
    impairments: Impairments,
    rng: Rng,
    travelling: BinaryHeap<Reverse<Travelling>>,
    numbered: u64,
    /// When the narrow link will have sent what waits for it.
    link_free: Duration,
    statistics: Statistics,
}

/// A frame under way. These are ordered by the time of arrival, then by the order in which they
/// came.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Travelling {
    arrives: Duration,
    number: u64,
    frame: Frame,
}

impl Lane {
    pub(crate) fn new(impairments: Impairments, seed: u64) -> Self {
        Self {
            impairments,
            rng: Rng::with_seed(seed),
            travelling: BinaryHeap::new(),
            numbered: 0,
            link_free: Duration::ZERO,
            statistics: Statistics::default(),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.f64() < share
    }

    /// Accepts a frame that has come to the lane. Returns it if it is dropped, so that its memory
    /// can be used again.
    pub(crate) fn offer(&mut self, now: Duration, frame: Frame) -> Option<Frame> {
        self.statistics.offered += 1;
        if self.happens(self.impairments.loss) {
            self.statistics.lost += 1;
            return Some(frame);
        }
        let Some(sent) = self.pass_link(now, frame.octets().len()) else {
            self.statistics.overflowed += 1;
            return Some(frame);
        };
        let mut arrives = sent + self.impairments.delay;
        if self.happens(self.impairments.reordering) {
            self.statistics.reordered += 1;
            arrives += self.impairments.hold_up.mul_f64(self.rng.f64());
        }
        if self.happens(self.impairments.duplication) {
            self.statistics.duplicated += 1;
            self.put_on_way(arrives, frame.clone());
        }
        self.put_on_way(arrives, frame);
        None
    }

    /// Returns when the narrow link will have sent a frame. Returns `None` if its queue is full.
    fn pass_link(&mut self, now: Duration, octets: usize) -> Option<Duration> {
        let Some(rate) = self.impairments.rate else {
            return Some(now);
        };
        let begins = self.link_free.max(now);
        let waiting = (begins - now).as_secs_f64() * rate as f64 / 8.0;
        if waiting > self.impairments.queue as f64 {
            return None;
        }
        self.link_free = begins + Duration::from_secs_f64(octets as f64 * 8.0 / rate as f64);
        Some(self.link_free)
    }

    fn put_on_way(&mut self, arrives: Duration, frame: Frame) {
        self.numbered += 1;
        self.travelling.push(Reverse(Travelling {
            arrives,
            number: self.numbered,
            frame,
        }));
    }

    /// Returns when the next frame arrives.
    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.travelling.peek().map(|Reverse(next)| next.arrives)
    }

    /// Removes and returns the next frame that has arrived at the lane's end, if there is one.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Frame> {
        if self.next_arrival()? > now {
            return None;
        }
        self.statistics.delivered += 1;
        self.travelling.pop().map(|Reverse(next)| next.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// Sends frames of 100 octets, numbered, one each microsecond; returns when each arrived.
    fn run(impairments: Impairments, seed: u64, frames: u32) -> (Vec<(Duration, u32)>, Statistics) {
        let mut lane = Lane::new(impairments, seed);
        let mut arrivals = Vec::new();
        let mut take = |lane: &mut Lane, until: Duration| {
            while let Some(now) = lane.next_arrival().filter(|&at| at <= until) {
                let frame = lane.take(now).unwrap();
                let number = u32::from_be_bytes(frame.octets()[..4].try_into().unwrap());
                arrivals.push((now, number));
            }
        };
        for number in 0..frames {
            let now = MICROSECOND * number;
            take(&mut lane, now);
            let mut frame = Frame::empty();
            frame.buffer_mut()[..4].copy_from_slice(&number.to_be_bytes());
            frame.set_len(100);
            let _ = lane.offer(now, frame);
        }
        take(&mut lane, Duration::MAX);
        (arrivals, lane.statistics())
    }

    const ALL: Impairments = Impairments {
        loss: 0.01,
        duplication: 0.02,
        reordering: 0.03,
        hold_up: Duration::from_micros(50),
        delay: Duration::from_micros(20),
        rate: Some(900_000_000),
        queue: 10_000,
    };

    #[test]
    fn without_impairments_every_frame_leaves_at_once_and_in_order() {
        let (arrivals, statistics) = run(Impairments::default(), 1, 1000);
        let expected: Vec<_> = (0..1000)
            .map(|number| (MICROSECOND * number, number))
            .collect();
        assert_eq!(arrivals, expected);
        let all = Statistics {
            offered: 1000,
            delivered: 1000,
            ..Statistics::default()
        };
        assert_eq!(statistics, all);
    }

    #[test]
    fn the_same_seed_gives_the_same_fate_and_another_gives_another() {
        assert_eq!(run(ALL, 7, 20_000), run(ALL, 7, 20_000));
        assert_ne!(run(ALL, 7, 20_000), run(ALL, 8, 20_000));
    }

    #[test]
    fn the_statistics_say_what_happened() {
        let (arrivals, statistics) = run(ALL, 3, 100_000);
        assert_eq!(statistics.offered, 100_000);
        assert_eq!(statistics.delivered, arrivals.len() as u64);
        let kept = statistics.offered - statistics.lost - statistics.overflowed;
        assert_eq!(statistics.delivered, kept + statistics.duplicated);
        let mut numbers: Vec<_> = arrivals.iter().map(|arrival| arrival.1).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len() as u64, kept);
        let share = |count: u64, of: u64| count as f64 / of as f64;
        assert!((0.009..0.011).contains(&share(statistics.lost, statistics.offered)));
        assert!((0.019..0.021).contains(&share(statistics.duplicated, kept)));
        assert!((0.029..0.031).contains(&share(statistics.reordered, kept)));
    }

    #[test]
    fn frames_that_are_held_up_are_overtaken_and_others_are_not() {
        let impairments = Impairments {
            loss: 0.0,
            duplication: 0.0,
            rate: None,
            ..ALL
        };
        let (arrivals, statistics) = run(impairments, 5, 10_000);
        let late = |&(at, number): &(Duration, u32)| at - MICROSECOND * number - impairments.delay;
        assert!(
            arrivals
                .iter()
                .all(|arrival| late(arrival) <= impairments.hold_up)
        );
        let held_up = arrivals
            .iter()
            .filter(|arrival| late(arrival) > Duration::ZERO);
        assert_eq!(held_up.count() as u64, statistics.reordered);
        assert!(arrivals.windows(2).any(|two| two[0].1 > two[1].1));
    }

    #[test]
    fn the_rate_spaces_frames_and_a_full_queue_drops_them() {
        // 100 octets each microsecond are 800 Mb/s: twice what the link carries.
        let impairments = Impairments {
            rate: Some(400_000_000),
            queue: 1000,
            ..Impairments::default()
        };
        let (arrivals, statistics) = run(impairments, 1, 10_000);
        assert!(
            arrivals
                .windows(2)
                .all(|two| two[1].0 - two[0].0 == 2 * MICROSECOND)
        );
        assert!(
            (4990..5020).contains(&statistics.delivered),
            "{statistics:?}"
        );
        assert_eq!(statistics.delivered + statistics.overflowed, 10_000);
        // 1000 octets take 20 us; the frame itself is sent behind them.
        let longest = arrivals
            .iter()
            .map(|&(at, number)| at - MICROSECOND * number)
            .max();
        assert!(longest <= Some(22 * MICROSECOND), "{longest:?}");
    }
}
