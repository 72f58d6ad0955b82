//! How the congestion window grows and shrinks, and how it paces segments.

use core::time::Duration;

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{CongestionAlgorithm, TcpConfig};

fn cubic() -> TcpConfig {
    TcpConfig {
        congestion: CongestionAlgorithm::Cubic,
        ..plain()
    }
}

/// Sends all that may be sent, and returns how many octets that was.
fn drain(t: &mut Script) -> u64 {
    let mut octets = 0;
    while let Some(sent) = t.next() {
        octets += sent.len;
    }
    octets
}

#[test]
fn cubic_is_the_default_and_reduces_by_three_tenths() {
    assert_eq!(TcpConfig::default().congestion, CongestionAlgorithm::Cubic);
    let mut t = Script::over_path(&cubic(), "mss 1000,sackOK", ms(10));
    t.write(100_000);
    t.expect_segments(0..10);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 1 <sack 1001:5001>");
    assert_eq!(t.tcp.cwnd(), (7000, 7000));
}

#[test]
fn the_window_after_recovery_is_the_reduced_one_whatever_is_in_flight() {
    for (config, reduced) in [(cubic(), 7000), (plain(), 5000)] {
        let mut t = Script::over_path(&config, "mss 1000,sackOK", ms(10));
        t.write(10_000);
        t.expect_segments(0..10);
        t.pass(ms(10));
        t.inject(". 1:1(0) ack 1 <sack 1001:10001>");
        t.expect(". 1:1001(1000) ack 1");
        t.pass(ms(10));
        t.inject(". 1:1(0) ack 10001");
        assert_eq!(t.tcp.cwnd(), (reduced, reduced));
    }
}

#[test]
fn what_the_same_ack_takes_away_was_in_flight_too() {
    for (config, reduced) in [(cubic(), 7000), (plain(), 5000)] {
        let mut t = Script::over_path(&config, "mss 1000,sackOK", ms(10));
        t.write(100_000);
        t.expect_segments(0..10);
        t.pass(ms(10));
        t.inject(". 1:1(0) ack 6001 <sack 7001:10001>");
        assert_eq!(t.tcp.cwnd(), (reduced, reduced));
    }
}

#[test]
fn the_choice_of_algorithm_outlives_the_handshake() {
    for (config, threshold) in [(cubic(), 7000), (plain(), 5000)] {
        let mut t = Script::connect(&config);
        t.tcp.limit_mss(1000);
        t.next().expect("a SYN");
        t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
        t.write(100_000);
        drain(&mut t);
        t.expect_after(ms(200), ". 1:1001(1000) ack 1");
        assert_eq!(t.tcp.cwnd(), (1000, threshold));
    }
}

#[test]
fn one_lost_syn_keeps_the_initial_window() {
    let mut t = Script::connect(&plain());
    t.next().expect("a SYN");
    t.expect_after(seconds(1), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.write(100_000);
    assert_eq!(drain(&mut t), 10_000);
}

#[test]
fn small_messages_do_not_stay_stop_and_wait_after_lost_syns() {
    let mut t = Script::connect(&plain());
    t.next().expect("a SYN");
    for wait in [1, 2] {
        t.expect_after(seconds(wait), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    }
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.next();
    assert_eq!(t.tcp.cwnd().0, 1000);
    let (mut sent, mut most) = (0, 0);
    for _ in 0..20 {
        let mut flight = 0;
        while t.tcp.wants_data(t.now) && sent < 100 * 64 {
            t.queue(64);
            t.next().expect("the message");
            sent += 64;
            flight += 1;
        }
        most = most.max(flight);
        t.pass(ms(1));
        t.inject(&format!(". 1:1(0) ack {}", sent + 1));
    }
    assert!(most > 3, "{most} in flight");
    assert_eq!(sent, 6400);
}

#[test]
fn a_batch_of_acknowledgments_widens_the_window_as_single_ones_do() {
    let mut t = Script::over_path(&plain(), "mss 1000", ms(10));
    t.write(300_000);
    t.expect_segments(0..10);
    t.expect_after(ms(210), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 10001");
    while t.tcp.cwnd().0 < t.tcp.cwnd().1 {
        drain(&mut t);
        let all = t.queued + 1;
        t.inject(&format!(". 1:1(0) ack {all}"));
    }
    let before = t.tcp.cwnd().0;
    let first = t.queued + 1;
    let segments = drain(&mut t) / 1000;
    // All are handled before anything is sent again.
    for n in 1..=segments {
        t.inject(&format!(". 1:1(0) ack {}", first + n * 1000));
    }
    assert_eq!(t.tcp.cwnd().0, before + 1000);
}

#[test]
fn a_window_that_the_application_does_not_fill_stays() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(10));
    for n in 1..50 {
        t.write(2000);
        drain(&mut t);
        t.pass(ms(10));
        t.inject(&format!(". 1:1(0) ack {}", n * 2000 + 1));
    }
    assert_eq!(t.tcp.cwnd().0, 10_000);
    let rate = t.tcp.delivery_rate().expect("a sample");
    assert!(rate.application_limited);
}

/// Makes a connection whose window has grown to at least so many octets.
fn grown(config: &TcpConfig, round_trip: Duration, window: u64) -> Script {
    let mut t = Script::over_path(config, "mss 1000,wscale 7", round_trip);
    t.inject(". 1:1(0) ack 1 win 60000");
    t.write(10_000_000);
    while t.tcp.cwnd().0 < window {
        let end = t.now + round_trip;
        while t.now < end {
            drain(&mut t);
            t.pass(Duration::from_micros(100));
        }
        t.inject(&format!(". 1:1(0) ack {} win 60000", t.queued + 1));
    }
    t
}

#[test]
fn after_an_idle_timeout_the_window_is_the_initial_one_again() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(10));
    t.write(30_000);
    assert_eq!(drain(&mut t), 10_000);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 10001");
    assert_eq!(drain(&mut t), 20_000);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 30001");
    assert_eq!(t.tcp.cwnd().0, 40_000);
    t.pass(seconds(1));
    t.write(60_000);
    assert_eq!(drain(&mut t), 10_000);
}

#[test]
fn a_short_idle_time_keeps_the_window() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(10));
    t.write(30_000);
    drain(&mut t);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 10001");
    drain(&mut t);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 30001");
    t.pass(ms(150));
    t.write(60_000);
    assert_eq!(drain(&mut t), 40_000);
}

#[test]
fn a_large_window_leaves_in_bursts_at_twice_the_window_per_round_trip() {
    let mut t = grown(&cubic(), ms(100), 150_000);
    let window = t.tcp.cwnd().0;
    let rtt = t.tcp.srtt().expect("samples").as_nanos() as u64;
    assert_eq!(t.tcp.pacing_rate(), Some(window * 2 * 1_000_000_000 / rtt));
    let first = drain(&mut t);
    assert!((64 * 1024..=2 * 66 * 1024).contains(&first), "{first}");
    // The rest in half a round trip.
    let (mut sent, mut pauses) = (first, 0);
    while sent + 1000 <= window {
        let at = t.tcp.next_timeout().expect("a pause");
        t.pass(at - t.now);
        sent += drain(&mut t);
        pauses += 1;
        assert!(pauses < 10, "{sent} of {window}");
    }
    assert!(pauses >= 1);
}

#[test]
fn a_paced_connection_asks_for_no_data_until_it_may_send() {
    let mut t = grown(&cubic(), ms(100), 150_000);
    drain(&mut t);
    assert!(!t.tcp.wants_data(t.now));
    let wait = t.tcp.next_timeout().expect("a pause") - t.now;
    t.pass(wait - Duration::from_nanos(1));
    assert!(!t.tcp.wants_data(t.now));
    t.pass(Duration::from_nanos(1));
    assert!(t.tcp.wants_data(t.now));
}

#[test]
fn a_burst_of_64_kib_is_not_held_up() {
    let mut t = grown(&cubic(), ms(100), 64_000);
    while t.tcp.next_timeout().is_some_and(|at| at < t.now + ms(90)) {
        t.pass(ms(10));
        drain(&mut t);
    }
    t.inject(&format!(". 1:1(0) ack {} win 60000", t.queued + 1));
    assert!(drain(&mut t) >= 64_000);
}

#[test]
fn short_paths_are_not_paced() {
    let mut t = grown(&cubic(), Duration::from_micros(190), 150_000);
    assert_eq!(t.tcp.pacing_rate(), None);
    let window = t.tcp.cwnd().0;
    assert!(drain(&mut t) > window - 1000);
}

#[test]
fn after_slow_start_the_pace_is_a_fifth_above_the_window() {
    let mut t = Script::over_path(&cubic(), "mss 1000,sackOK", ms(100));
    t.write(100_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:5001>");
    assert_eq!(t.tcp.cwnd(), (7000, 7000));
    assert_eq!(t.tcp.pacing_rate(), Some(84_000));
}

#[test]
fn the_delivery_rate_is_what_arrives_in_a_round_trip() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(100));
    t.write(1_000_000);
    let mut acked = 0;
    for _ in 0..2 {
        acked += drain(&mut t);
        t.pass(ms(100));
        t.inject(&format!(". 1:1(0) ack {}", acked + 1));
    }
    let rate = t.tcp.delivery_rate().expect("a sample");
    assert_eq!(rate.octets_per_second, 200_000);
    assert!(!rate.application_limited);
}

/// ACKs that are handled together arrive at the same time: the delivery rate is still measured over
/// a round trip.
#[test]
fn the_delivery_rate_is_bounded_where_acks_come_in_a_burst() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(100));
    t.write(1_000_000);
    let mut acked = 0;
    for _ in 0..3 {
        let sent = drain(&mut t);
        t.pass(ms(100));
        // The first of them ends a round trip, and the others come at the same time.
        for part in 1..=10 {
            t.inject(&format!(". 1:1(0) ack {}", acked + sent * part / 10 + 1));
        }
        acked += sent;
        let rate = t.tcp.delivery_rate().expect("a sample");
        assert_eq!(rate.octets_per_second, 10 * sent, "{acked}");
    }
}

/// ACKs that come close together do not make octets faster than they were sent.
#[test]
fn the_delivery_rate_is_not_above_the_sending_rate() {
    let mut t = Script::over_path(&cubic(), "mss 1000", ms(10));
    let send = |t: &mut Script, after: u64| {
        t.pass(ms(after));
        t.write(1000);
        drain(t);
    };
    (0..9).for_each(|_| send(&mut t, 10));
    t.inject(". 1:1(0) ack 8001");
    send(&mut t, 10);
    t.pass(ms(4));
    t.inject(". 1:1(0) ack 9001");
    // These were sent 15 ms after the last octets delivered, and their ACK comes 11 ms after.
    send(&mut t, 1);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 11001");
    let rate = t.tcp.delivery_rate().expect("a sample");
    assert_eq!(rate.octets_per_second, 2000 * 1000 / 15);
}
