//! Losses found by segments that were sent later and have arrived (RACK, RFC 8985 section 6).

use super::script::{Script, ms, plain};

/// A path of 100 ms: the reordering window is 25 ms, the retransmission timeout 300 ms.
fn open() -> Script {
    Script::over_path(&plain(), "mss 1000,sackOK", ms(100))
}

/// Sends ten segments, whose ACKs come later.
fn ten_sent(t: &mut Script, octets: u64) {
    t.write(octets);
    t.expect_segments(0..10);
    t.pass(ms(100));
}

#[test]
fn a_segment_that_is_a_little_late_is_not_sent_again() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.expect_nothing();
    t.pass(ms(24));
    t.inject(". 1:1(0) ack 2001");
    t.pass(ms(100));
    t.expect_nothing();
    assert_eq!(t.tcp.counters().retransmits, 0);
    assert_eq!(t.tcp.counters().reordering_seen, 1);
}

#[test]
fn a_segment_that_was_overtaken_is_lost_after_a_quarter_of_the_round_trip() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.expect_after(ms(25), ". 1:1001(1000) ack 1");
    t.expect_nothing();
    assert_eq!(t.tcp.counters().rack_losses, 1);
    assert_eq!(t.tcp.counters().fast_retransmits, 1);
    assert_eq!(t.tcp.counters().timeouts, 0);
}

#[test]
fn three_that_have_overtaken_it_suffice_at_once() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:3001>");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
}

#[test]
fn after_reordering_was_seen_three_do_not_suffice() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.inject(". 1:1(0) ack 10001");
    t.write(10_000);
    t.expect_segments(10..20);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 10001 <sack 11001:14001>");
    t.expect_after(ms(25), ". 10001:11001(1000) ack 1");
}

#[test]
fn in_recovery_what_was_overtaken_is_lost_at_once() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
    // The sixth too; there is room when two more have arrived.
    t.inject(". 1:1(0) ack 1 <sack 1001:5001 6001:7001>");
    assert_eq!(t.tcp.counters().rack_losses, 2);
    t.inject(". 1:1(0) ack 1 <sack 1001:5001 6001:9001>");
    t.expect_segments([5]);
}

#[test]
fn a_retransmission_that_is_lost_too_is_found_without_a_timeout() {
    let mut t = open();
    ten_sent(&mut t, 11_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
    t.inject(". 1:1(0) ack 1 <sack 1001:7001>");
    // New data, sent after the retransmission, and arriving without it.
    t.expect_segments([10]);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:11001>");
    t.expect_segments([0]);
    t.expect_nothing();
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 11001");
    assert_eq!(t.tcp.counters().timeouts, 0);
    assert_eq!(t.tcp.counters().retransmits, 2);
}

#[test]
fn an_ack_that_comes_too_soon_is_not_the_retransmissions() {
    let mut t = open();
    t.write(3000);
    t.expect_segments(0..3);
    t.expect_after(ms(202), "P. 2001:3001(1000) ack 1");
    // It is for the first transmission. That the others were sent 200 ms before the second one says
    // nothing.
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 1 <sack 2001:3001>");
    t.pass(ms(50));
    t.expect_nothing();
    assert_eq!(t.tcp.counters().rack_losses, 0);
}

#[test]
fn reports_of_duplicates_widen_the_window_once_in_a_round() {
    let mut t = open();
    assert_eq!(t.tcp.reo_wnd(), ms(25));
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1001 <sack 1:1001>");
    assert_eq!(t.tcp.reo_wnd(), ms(50));
    t.inject(". 1:1(0) ack 2001 <sack 1:1001>");
    assert_eq!(t.tcp.reo_wnd(), ms(50));
    t.inject(". 1:1(0) ack 10001 <sack 1001:2001>");
    assert_eq!(t.tcp.reo_wnd(), ms(75));
    assert_eq!(t.tcp.counters().dsacks_received, 3);
}

#[test]
fn the_window_stays_below_the_round_trip() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    for _ in 0..10 {
        t.inject(". 1:1(0) ack 10001 <sack 1:1001>");
    }
    assert_eq!(t.tcp.reo_wnd(), ms(100));
}

#[test]
fn sixteen_recoveries_later_the_window_is_small_again() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 10001 <sack 1:1001>");
    let mut acked = 10_000;
    for _ in 0..16 {
        assert_eq!(t.tcp.reo_wnd(), ms(50));
        t.write(2000);
        while t.next().is_some() {}
        t.pass(ms(100));
        let (una, second, end) = (acked + 1, acked + 1001, acked + 2001);
        t.inject(&format!(". 1:1(0) ack {una} <sack {second}:{end}>"));
        t.expect_after(ms(50), &format!(". {una}:{second}(1000) ack 1"));
        t.pass(ms(100));
        t.inject(&format!(". 1:1(0) ack {end}"));
        acked += 2000;
    }
    assert_eq!(t.tcp.counters().fast_retransmits, 16);
    assert_eq!(t.tcp.reo_wnd(), ms(25));
}

#[test]
fn a_timeout_does_not_take_for_lost_what_was_sent_just_now() {
    let mut t = open();
    t.write(2000);
    t.expect_segments(0..2);
    t.expect_after(ms(202), "P. 1001:2001(1000) ack 1");
    t.pass(ms(290));
    t.write(1000);
    t.expect_segments([2]);
    t.expect_after(ms(10), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
    t.inject(". 1:1(0) ack 2001");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(t.tcp.counters().retransmits, 2);
}

#[test]
fn a_reset_ends_the_wait_for_late_segments() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.inject("R 1:1(0)");
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn in_recovery_a_single_one_that_has_overtaken_it_suffices() {
    let mut t = open();
    ten_sent(&mut t, 10_000);
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 4001 <sack 6001:7001>");
    // 0, and now 4 and 5.
    assert_eq!(t.tcp.counters().rack_losses, 3);
    t.expect_segments([4]);
}
