//! The windows, against the formulas of the RFCs.

use crate::time::Instant;
use core::time::Duration;

use proptest::prelude::*;

use super::*;

const MSS: u64 = 1000;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A controller on a path with a steady round-trip time, whose window is always used.
struct Path {
    congestion: Congestion,
    now: Instant,
    rtt: Duration,
}

impl Path {
    fn new(algorithm: CongestionAlgorithm, rtt: Duration) -> Self {
        Self {
            congestion: Congestion::new(algorithm, MSS),
            now: Instant::ZERO,
            rtt,
        }
    }

    /// One whose window is this many segments, right after a loss.
    fn after_loss(algorithm: CongestionAlgorithm, rtt: Duration, segments: u64) -> Self {
        let mut path = Self::new(algorithm, rtt);
        path.congestion.cwnd = segments * MSS;
        path.congestion.on_loss(segments * MSS);
        path
    }

    fn cubic(segments: u64) -> Self {
        Self::after_loss(CongestionAlgorithm::Cubic, ms(100), segments)
    }

    fn acked(&self, octets: u64, flight: u64, round_ended: bool) -> Acked {
        let cwnd_limited = self.congestion.is_full(flight);
        Acked {
            now: self.now,
            octets,
            flight,
            cwnd_limited,
            rtt: Some(self.rtt.into()),
            srtt: self.rtt.into(),
            round_ended,
        }
    }

    fn ack(&mut self, octets: u64) {
        let acked = self.acked(octets, self.congestion.cwnd(), false);
        self.congestion.on_ack(&acked);
    }

    /// A round trip: the window is acknowledged segment by segment.
    fn round(&mut self) {
        let segments = self.congestion.cwnd() / MSS;
        for n in 0..segments {
            self.now = self.now + self.rtt / segments as u32;
            let acked = self.acked(MSS, self.congestion.cwnd(), n == 0);
            self.congestion.on_ack(&acked);
        }
    }

    fn rounds(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.round();
        }
    }

    fn segments(&self) -> f64 {
        self.congestion.cwnd() as f64 / MSS as f64
    }

    #[track_caller]
    fn expect_near(&self, expected: f64) {
        let segments = self.segments();
        assert!(
            (segments - expected).abs() <= 0.02 * expected,
            "{segments} segments instead of {expected}"
        );
    }
}

fn reno() -> Path {
    Path::new(CongestionAlgorithm::NewReno, ms(100))
}

#[test]
fn begins_with_ten_segments_or_fewer_large_ones() {
    let window = |mss| Congestion::new(CongestionAlgorithm::Cubic, mss).cwnd();
    assert_eq!(window(1448), 14_480);
    assert_eq!(window(8948), 17_896);
}

#[test]
fn slow_start_doubles_per_round_trip_and_reno_then_adds_one_segment() {
    let mut path = reno();
    path.round();
    assert_eq!(path.congestion.cwnd(), 20 * MSS);
    path.congestion.on_loss(20 * MSS);
    assert_eq!(path.congestion.cwnd(), 10 * MSS);
    for _ in 0..9 {
        path.ack(MSS);
    }
    assert_eq!(path.congestion.cwnd(), 10 * MSS);
    path.ack(MSS);
    assert_eq!(path.congestion.cwnd(), 11 * MSS);
}

#[test]
fn slow_start_ends_at_the_threshold() {
    let mut path = reno();
    path.congestion.on_timeout(8 * MSS, true);
    let congestion = &path.congestion;
    assert_eq!((congestion.cwnd(), congestion.ssthresh()), (MSS, 4 * MSS));
    path.ack(100 * MSS);
    assert_eq!(path.congestion.cwnd(), 4 * MSS);
}

#[test]
fn a_second_timeout_of_the_same_octets_keeps_the_threshold() {
    let mut path = reno();
    path.congestion.on_timeout(10 * MSS, true);
    path.congestion.on_timeout(10 * MSS, false);
    assert_eq!(path.congestion.ssthresh(), 5 * MSS);
}

#[test]
fn what_was_sent_beyond_the_window_does_not_raise_the_threshold() {
    let mut path = reno();
    path.congestion.on_loss(12 * MSS);
    assert_eq!(path.congestion.ssthresh(), 5 * MSS);
}

#[test]
fn never_below_two_segments_after_a_loss() {
    let mut path = reno();
    path.congestion.on_loss(MSS);
    assert_eq!(path.congestion.cwnd(), 2 * MSS);
}

#[test]
fn a_window_that_did_not_stop_the_sender_does_not_grow() {
    for algorithm in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
        let mut path = Path::new(algorithm, ms(100));
        // In slow start half of it is enough, and later all but a part of a segment.
        let unused = path.acked(MSS, 5 * MSS - 1, false);
        path.congestion.on_ack(&unused);
        assert_eq!(path.congestion.cwnd(), 10 * MSS);
        let used = path.acked(MSS, 5 * MSS, false);
        path.congestion.on_ack(&used);
        assert_eq!(path.congestion.cwnd(), 11 * MSS);
        path.congestion.on_loss(11 * MSS);
        let window = path.congestion.cwnd();
        for _ in 0..1000 {
            path.now = path.now + ms(100);
            let unused = path.acked(MSS, window - MSS, false);
            path.congestion.on_ack(&unused);
        }
        assert_eq!(path.congestion.cwnd(), window);
    }
}

#[test]
fn small_messages_stop_at_a_window_of_one_segment_and_widen_it() {
    let mut path = Path::new(CongestionAlgorithm::Cubic, ms(1));
    path.congestion.on_lost_syn();
    let acked = path.acked(64, 64, false);
    path.congestion.on_ack(&acked);
    assert_eq!(path.congestion.cwnd(), MSS + 64);
}

#[test]
fn cubic_multiplies_by_seven_tenths_and_follows_its_formula_back() {
    // W_max = 1000, K = cbrt(1000 * 0.3 / 0.4) = 9.0856 s.
    let mut path = Path::cubic(1000);
    assert_eq!(path.congestion.cwnd(), 700 * MSS);
    let k = (300.0_f64 / 0.4).cbrt();
    for _ in 0..12 {
        path.rounds(10);
        let t = path.now.since(Instant::ZERO).as_secs_f64();
        path.expect_near(0.4 * (t - k).powi(3) + 1000.0);
    }
}

#[test]
fn cubic_is_flat_around_the_last_maximum() {
    let mut path = Path::cubic(1000);
    path.rounds(80);
    let before = path.segments();
    path.rounds(20);
    assert!(path.segments() - before < 2.0);
    path.rounds(50);
    assert!(path.segments() > 1030.0);
}

#[test]
fn cubic_does_not_depend_on_the_round_trip_time() {
    let run = |rtt: u64| {
        let mut path = Path::after_loss(CongestionAlgorithm::Cubic, ms(rtt), 4000);
        path.rounds(20_000 / rtt);
        path.segments()
    };
    let (short, long) = (run(50), run(400));
    assert!((short - long).abs() < 0.03 * short, "{short} {long}");
}

#[test]
fn cubic_is_at_least_as_fast_as_reno_where_reno_is_fast() {
    // 10 ms and 20 segments: Reno adds one per round, CUBIC's Reno 9/17 until it is back where it
    // was.
    let mut path = Path::after_loss(CongestionAlgorithm::Cubic, ms(10), 20);
    path.rounds(5);
    path.expect_near(14.0 + 5.0 * 9.0 / 17.0);
    path.rounds(7);
    let at_prior = path.segments();
    path.rounds(10);
    path.expect_near(at_prior + 10.0);
}

#[test]
fn cubic_gives_way_when_its_share_becomes_smaller() {
    let mut path = Path::cubic(1000);
    path.rounds(1);
    // Lost again below the last maximum: the next plateau is at 85 % of this window.
    let window = path.segments();
    path.congestion.on_loss(path.congestion.cwnd());
    let k = (window * (0.85 - 0.7) / 0.4).cbrt();
    path.rounds((k * 10.0) as u64);
    path.expect_near(window * 0.85);
}

#[test]
fn time_in_which_the_window_is_not_used_does_not_count_for_cubic() {
    let mut busy = Path::cubic(1000);
    busy.rounds(60);
    let mut lazy = Path::cubic(1000);
    lazy.rounds(30);
    // The application has little to send for a while, then nothing, then much.
    for _ in 0..100 {
        lazy.now = lazy.now + ms(100);
        let acked = lazy.acked(MSS, MSS, false);
        lazy.congestion.on_ack(&acked);
    }
    lazy.now = lazy.now + ms(20_000);
    lazy.congestion
        .on_idle(ms(20_000).into(), ms(30_000).into());
    lazy.rounds(30);
    lazy.expect_near(busy.segments());
}

#[test]
fn after_a_timeout_cubic_has_no_plateau_to_find() {
    let mut path = Path::cubic(1000);
    path.congestion.on_timeout(700 * MSS, true);
    assert_eq!(path.congestion.cwnd(), MSS);
    assert_eq!(path.congestion.ssthresh(), 490 * MSS);
    while path.congestion.in_slow_start() {
        path.round();
    }
    let (begin, window) = (path.now, path.segments());
    path.rounds(50);
    let t = path.now.since(begin).as_secs_f64();
    path.expect_near(window + 0.4 * t.powi(3));
}

#[test]
fn undo_brings_back_the_window_the_threshold_and_the_plateau() {
    let mut path = Path::cubic(1000);
    path.rounds(20);
    let mut twin = Path::cubic(1000);
    twin.rounds(20);
    path.congestion.on_loss(path.congestion.cwnd());
    path.congestion.undo();
    assert_eq!(path.congestion.cwnd(), twin.congestion.cwnd());
    let threshold = twin.congestion.ssthresh();
    assert_eq!(path.congestion.ssthresh(), threshold);
    path.rounds(100);
    twin.rounds(100);
    assert_eq!(path.congestion.cwnd(), twin.congestion.cwnd());
    // Only once.
    path.congestion.undo();
    assert_eq!(path.congestion.cwnd(), twin.congestion.cwnd());
}

#[test]
fn a_timeout_is_undone_as_a_loss_is() {
    let mut path = Path::cubic(1000);
    path.congestion.on_timeout(700 * MSS, true);
    path.congestion.on_timeout(700 * MSS, false);
    path.congestion.undo();
    assert_eq!(path.congestion.cwnd(), 700 * MSS);
    assert_eq!(path.congestion.ssthresh(), 700 * MSS);
}

#[test]
fn a_long_idle_time_restarts_with_the_initial_window() {
    let mut path = Path::cubic(1000);
    path.congestion.on_idle(ms(300).into(), ms(300).into());
    assert_eq!(path.congestion.cwnd(), 700 * MSS);
    path.congestion.on_idle(ms(301).into(), ms(300).into());
    assert_eq!(path.congestion.cwnd(), 10 * MSS);
    assert_eq!(path.congestion.ssthresh(), 700 * MSS);
    // A window that is smaller stays.
    path.congestion.on_lost_syn();
    path.congestion.on_idle(ms(301).into(), ms(300).into());
    assert_eq!(path.congestion.cwnd(), MSS);
}

/// Two rounds of this round-trip time, and one of the other.
fn queue_grows(from: Duration, to: Duration) -> Path {
    let mut path = Path::new(CongestionAlgorithm::Cubic, from);
    path.rounds(2);
    path.rtt = to;
    path.round();
    path
}

#[test]
fn slow_start_slows_down_when_the_round_trip_time_grows_by_an_eighth() {
    let mut slower = queue_grows(ms(100), Duration::from_micros(112_500));
    let window = slower.segments();
    slower.round();
    slower.expect_near(window * 1.25);
    let mut faster = queue_grows(ms(100), Duration::from_micros(112_499));
    let window = faster.segments();
    faster.round();
    faster.expect_near(window * 2.0);
}

#[test]
fn the_growth_that_counts_is_between_4_and_16_milliseconds() {
    for (rtt, threshold) in [(1, 4), (16, 4), (64, 8), (400, 16)] {
        for (late, growth) in [(ms(threshold), 1.25), (ms(threshold) - ms(1), 2.0)] {
            let mut path = queue_grows(ms(rtt), ms(rtt) + late);
            let window = path.segments();
            path.round();
            path.expect_near(window * growth);
        }
    }
}

#[test]
fn slow_start_ends_after_five_slow_rounds() {
    let mut path = queue_grows(ms(100), ms(120));
    path.rounds(4);
    assert!(path.congestion.in_slow_start());
    let acked = path.acked(MSS, path.congestion.cwnd(), true);
    path.congestion.on_ack(&acked);
    let window = path.congestion.cwnd();
    assert_eq!(path.congestion.ssthresh(), window);
}

#[test]
fn slow_start_goes_on_when_the_round_trip_time_falls_again() {
    let mut path = queue_grows(ms(100), ms(120));
    path.rtt = ms(119);
    path.round();
    let window = path.segments();
    path.rounds(6);
    path.expect_near(window * 64.0);
    assert!(path.congestion.in_slow_start());
}

#[test]
fn fewer_than_eight_samples_tell_nothing() {
    let mut path = Path::new(CongestionAlgorithm::Cubic, ms(10));
    path.rounds(2);
    path.rtt = ms(100);
    for n in 0..7 {
        let acked = path.acked(MSS, path.congestion.cwnd(), n == 0);
        path.congestion.on_ack(&acked);
    }
    let window = path.segments();
    path.ack(10 * MSS);
    // That was the eighth, and the growth is slow from here.
    path.expect_near(window + 2.5);
}

#[derive(Clone, Debug)]
enum Event {
    Ack(u64),
    Unused(u64),
    Loss,
    Timeout(bool),
    Undo,
    Idle(u64),
    Mss(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (1..20_000_u64).prop_map(Event::Ack),
        3 => (1..20_000_u64).prop_map(Event::Unused),
        2 => Just(Event::Loss),
        1 => any::<bool>().prop_map(Event::Timeout),
        1 => Just(Event::Undo),
        1 => (0..3000_u64).prop_map(Event::Idle),
        1 => (160..9000_u64).prop_map(Event::Mss),
    ]
}

fn check(path: &mut Path, event: &Event) -> Result<(), TestCaseError> {
    let before = path.congestion.cwnd();
    let mss = path.congestion.mss;
    match *event {
        Event::Ack(octets) => {
            path.ack(octets);
            let grown = path.congestion.cwnd() - before;
            prop_assert!(grown <= octets.max(mss), "{grown} by {octets}");
        }
        Event::Unused(octets) => {
            let acked = path.acked(octets, 0, false);
            path.congestion.on_ack(&acked);
            // No flight leaves less than a segment of room in a window of less than two.
            prop_assert!(path.congestion.cwnd() == before || before < 2 * mss);
        }
        Event::Loss => {
            path.congestion.on_loss(before);
            prop_assert!(path.congestion.cwnd() <= before.max(2 * mss));
            prop_assert!(path.congestion.cwnd() >= before / 2);
        }
        Event::Timeout(first) => {
            path.congestion.on_timeout(before, first);
            prop_assert_eq!(path.congestion.cwnd(), mss);
        }
        Event::Undo => {
            path.congestion.undo();
            prop_assert!(path.congestion.cwnd() >= before);
        }
        Event::Idle(idle) => {
            path.now = path.now + ms(idle);
            path.congestion.on_idle(ms(idle).into(), ms(1000).into());
            prop_assert!(path.congestion.cwnd() <= before);
        }
        Event::Mss(mss) => path.congestion.set_mss(mss),
    }
    prop_assert!(path.congestion.cwnd() >= path.congestion.mss.min(mss));
    Ok(())
}

proptest! {
    #[test]
    fn the_window_stays_within_its_bounds(
        cubic: bool, rtt in 1..500_u64, events in proptest::collection::vec((event(), 0..200_u64), 1..200),
    ) {
        let algorithm = if cubic { CongestionAlgorithm::Cubic } else { CongestionAlgorithm::NewReno };
        let mut path = Path::new(algorithm, ms(rtt));
        for (event, wait) in &events {
            path.now = path.now + ms(*wait);
            check(&mut path, event)?;
        }
    }
}
