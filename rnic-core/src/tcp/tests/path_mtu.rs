//! Paths with a smaller MTU than was thought: routers that report it, and routers that do not.

use super::script::{OUR_ISN, Script, ms, plain};
use crate::memory::frames::TxFrames;
use crate::tcp::{Due, TcpConfig};

/// Ten segments of 1000 octets are in flight.
fn in_flight(options: &str) -> Script {
    let mut t = Script::over_path(&plain(), options, ms(100));
    t.write(10_000);
    for start in 0..10 {
        t.expect(&segment(start * 1000 + 1, 1000));
    }
    t
}

fn segment(start: u32, len: u32) -> String {
    format!(". {start}:{}({len}) ack 1", start + len)
}

const WITH_SACK: &str = "mss 1000,sackOK";
const WITHOUT_SACK: &str = "mss 1000";

#[test]
fn what_was_too_large_is_sent_again_at_once_in_smaller_pieces() {
    for options in [WITH_SACK, WITHOUT_SACK] {
        let mut t = in_flight(options);
        let window = t.tcp.cwnd();
        assert!(t.tcp.handle_too_big(OUR_ISN + 1, 600));
        for start in 0..10 {
            t.expect(&segment(start * 1000 + 1, 600));
            t.expect(&segment(start * 1000 + 601, 400));
        }
        t.expect_nothing();
        assert_eq!(t.tcp.cwnd(), window);
        t.inject(". 1:1(0) ack 10001");
        assert_eq!(t.frames_free(), 256);
        // Later segments have that size from the start.
        assert_eq!(t.tcp.max_payload(), 600);
        t.write(1000);
        t.expect(&segment(10_001, 600));
    }
}

#[test]
fn what_the_peer_has_is_not_sent_again() {
    let mut t = in_flight(WITH_SACK);
    t.pass(ms(100));
    // The front has arrived, and segments that took another path.
    t.inject(". 1:1(0) ack 2001 <sack 4001:5001>");
    assert!(t.tcp.handle_too_big(OUR_ISN + 2001, 600));
    for start in [2, 3, 5, 6, 7, 8, 9] {
        t.expect(&segment(start * 1000 + 1, 600));
        t.expect(&segment(start * 1000 + 601, 400));
    }
}

#[test]
fn a_frame_is_free_when_its_last_piece_is_acknowledged() {
    let mut t = in_flight(WITH_SACK);
    t.tcp.handle_too_big(OUR_ISN + 1, 400);
    while t.next().is_some() {}
    assert_eq!(t.frames_free(), 256 - 10);
    t.inject(". 1:1(0) ack 401");
    assert_eq!(t.frames_free(), 256 - 10);
    t.inject(". 1:1(0) ack 401 <sack 801:1001>");
    t.inject(". 1:1(0) ack 1001");
    assert_eq!(t.frames_free(), 256 - 9);
    t.inject(". 1:1(0) ack 10001");
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn a_router_that_quotes_what_is_not_in_flight_is_not_believed() {
    let mut t = in_flight(WITH_SACK);
    t.inject(". 1:1(0) ack 1001");
    for seq in [0, 1, 1000, 10_001, 20_000, 1 << 31] {
        assert!(!t.tcp.handle_too_big(OUR_ISN + seq, 600), "{seq}");
    }
    assert!(
        !t.tcp.handle_too_big(OUR_ISN + 1001, 1000),
        "no less than now"
    );
    assert!(!t.tcp.handle_too_big(OUR_ISN + 1001, 1400), "never more");
    assert_eq!(t.tcp.max_payload(), 1000);
    assert!(t.tcp.handle_too_big(OUR_ISN + 10_000, 600));
    assert_eq!(t.tcp.counters().mtu_reductions, 1);
}

#[test]
fn duplicates_for_what_was_dropped_are_no_sign_of_congestion() {
    for options in [WITH_SACK, WITHOUT_SACK] {
        let mut t = in_flight(options);
        t.write(400);
        t.next();
        let window = t.tcp.cwnd();
        t.tcp.handle_too_big(OUR_ISN + 1, 600);
        while t.next().is_some() {}
        for _ in 0..5 {
            t.inject(". 1:1(0) ack 1");
            t.inject(". 1:1(0) ack 1 <sack 9001:9601>");
        }
        assert_eq!(t.tcp.cwnd(), window);
        assert_eq!(t.tcp.counters().fast_retransmits, 0);
    }
}

#[test]
fn what_was_queued_and_not_sent_is_cut_before_it_is() {
    let mut t = Script::established(&plain(), "mss 1000", 1100);
    t.queue(1000);
    t.queue(1000);
    t.expect(&segment(1, 1000));
    assert!(t.tcp.handle_too_big(OUR_ISN + 1, 400));
    for (start, len) in [(1, 400), (401, 400), (801, 200)] {
        t.expect(&segment(start, len));
    }
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 win 5000");
    for (start, len) in [(1001, 400), (1401, 400), (1801, 200)] {
        t.expect(&segment(start, len));
    }
    t.expect_nothing();
}

#[test]
fn a_part_that_was_sent_into_a_small_window_is_cut_where_it_must() {
    let mut t = Script::established(&plain(), "mss 1000", 700);
    t.queue(1000);
    t.expect(&segment(1, 700));
    assert!(t.tcp.handle_too_big(OUR_ISN + 1, 500));
    t.expect(&segment(1, 500));
    t.expect(&segment(501, 200));
    t.inject(". 1:1(0) ack 701 win 700");
    t.expect(&segment(701, 300));
    t.inject(". 1:1(0) ack 1001 win 700");
    assert_eq!(t.frames_free(), 256);
    assert_eq!(t.tcp.acked_offset(), 1000);
}

#[test]
fn a_frame_still_in_the_device_waits_with_its_pieces() {
    let mut t = in_flight(WITH_SACK);
    t.frames.hold();
    let first = t.first_frame();
    t.frames.transmit(first, 1100);
    t.tcp.handle_too_big(OUR_ISN + 1, 600);
    t.expect_nothing();
    t.frames.complete();
    t.expect_after(ms(1), &segment(1, 600));
    t.expect(&segment(601, 400));
}

#[test]
fn full_segments_that_keep_vanishing_become_smaller() {
    let config = TcpConfig {
        mss: 3000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 3000", 60_000);
    t.write(3000);
    t.expect(&segment(1, 3000));
    t.expect_after(ms(200), &segment(1, 3000));
    t.expect_after(ms(400), &segment(1, 3000));
    t.expect_after(ms(800), &segment(1, 1024));
    t.expect_after(ms(1600), &segment(1, 512));
    t.expect_after(ms(3200), &segment(1, 512));
    assert_eq!(t.tcp.counters().mtu_reductions, 2);
    // Now they get through, one round after the other.
    let mut acked = 1;
    while acked < 3001 {
        acked = (acked + 512).min(3001);
        t.inject(&format!(". 1:1(0) ack {acked}"));
        while t.next().is_some() {}
    }
    assert_eq!(t.tcp.acked_offset(), 3000);
    assert_eq!(t.frames_free(), 256);
}

/// The window had room for a part of a segment alone, which was acknowledged. What is left of it
/// vanishes, until it becomes smaller.
#[test]
fn what_was_acknowledged_of_a_segment_is_not_sent_again_in_its_pieces() {
    let config = TcpConfig {
        mss: 6000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 6000", 3500);
    t.queue(6000);
    t.expect(&segment(1, 3500));
    t.inject(". 1:1(0) ack 3501 win 3500");
    t.expect(&segment(3501, 2500));
    t.expect_after(ms(200), &segment(3501, 2500));
    t.expect_after(ms(400), &segment(3501, 2500));
    t.expect_after(ms(800), &segment(3501, 1024));
    t.inject(". 1:1(0) ack 4525 win 3500");
    t.expect(&segment(4525, 1024));
    t.inject(". 1:1(0) ack 5549 win 3500");
    t.expect(&segment(5549, 452));
    t.inject(". 1:1(0) ack 6001 win 3500");
    assert_eq!(t.tcp.due(t.now), Due::Nothing);
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn a_path_that_has_just_carried_full_segments_loses_them_by_chance() {
    let config = TcpConfig {
        mss: 3000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 3000", 60_000);
    t.write(6000);
    t.expect(&segment(1, 3000));
    t.expect(&segment(3001, 3000));
    t.inject(". 1:1(0) ack 3001");
    for wait in [200, 400, 800, 1600, 3200] {
        t.expect_after(ms(wait), &segment(3001, 3000));
    }
    // Ten seconds have passed: the path may have changed.
    t.expect_after(ms(6400), &segment(3001, 1024));
    assert_eq!(t.tcp.counters().mtu_reductions, 1);
}

#[test]
fn small_segments_that_vanish_say_nothing_of_the_path() {
    let config = TcpConfig {
        mss: 1460,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1460", 60_000);
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    for wait in [200, 400, 800, 1600, 3200] {
        t.expect_after(ms(wait), "P. 1:501(500) ack 1");
    }
    assert_eq!(t.tcp.max_payload(), 1460);
    assert_eq!(t.tcp.counters().mtu_reductions, 0);
}

#[test]
fn pieces_keep_the_push_at_the_end() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(900);
    t.expect("P. 1:901(900) ack 1");
    t.tcp.handle_too_big(OUR_ISN + 1, 500);
    t.expect(". 1:501(500) ack 1");
    t.expect("P. 501:901(400) ack 1");
}

/// First the window has no room for the whole segment, and then the path has none either.
#[test]
fn the_rest_of_a_segment_sent_in_part_follows_in_parts() {
    let mut t = Script::established(&plain(), WITH_SACK, 1800);
    t.write(3000);
    t.expect(&segment(1, 1000));
    t.inject(". 1:1(0) ack 1001 win 900");
    t.expect(&segment(1001, 900));
    t.tcp.limit_mss(600);
    t.inject(". 1:1(0) ack 1901 win 1800");
    t.expect(&segment(1901, 100));
    t.expect(&segment(2001, 600));
    t.expect("P. 2601:3001(400) ack 1");
}
