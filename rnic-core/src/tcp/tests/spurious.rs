//! Spurious retransmissions: they are detected, and the congestion response is undone.

use super::script::{Script, ms, plain};
use crate::tcp::TcpConfig;

/// A path of 100 ms: the retransmission timeout is 300 ms.
fn open() -> Script {
    Script::over_path(&plain(), "mss 1000,sackOK", ms(100))
}

/// Sets up the same connection with timestamps. Our clock is at 1,000,100.
fn with_timestamps() -> Script {
    let config = TcpConfig {
        mss: 1012,
        timestamps: true,
        ..plain()
    };
    let options = "mss 1012,sackOK,TS val 1 ecr 1000000";
    Script::over_path(&config, options, ms(100))
}

/// Sends ten segments, and the first one again because three have overtaken it.
fn first_sent_again(t: &mut Script, stamps: &str) {
    t.write(10_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(&format!(". 1:1(0) ack 1 <{stamps}sack 1001:4001>"));
    t.expect_segments([0]);
    assert!(t.tcp.cwnd().1 < u64::MAX);
    t.pass(ms(10));
}

#[test]
fn an_old_timestamp_shows_that_the_first_sending_has_arrived() {
    let mut t = with_timestamps();
    first_sent_again(&mut t, "TS val 2 ecr 1000100,");
    t.inject(". 1:1(0) ack 4001 <TS val 3 ecr 1000100>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    assert!(t.tcp.cwnd().0 >= 10_000);
    assert_eq!(t.tcp.cwnd().1, u64::MAX);
    // From now on such a delay is no loss: three that overtake do not suffice.
    t.inject(". 1:1(0) ack 4001 <TS val 3 ecr 1000100,sack 5001:8001>");
    t.expect_nothing();
}

#[test]
fn one_late_segment_does_not_excuse_another_that_was_lost() {
    let mut t = with_timestamps();
    t.write(10_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <TS val 2 ecr 1000100,sack 1001:3001 4001:10001>");
    t.expect_segments([0, 3]);
    t.pass(ms(10));
    // The first transmission of the first has arrived; that of the fourth has not.
    t.inject(". 1:1(0) ack 3001 <TS val 3 ecr 1000100,sack 4001:10001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    t.pass(ms(90));
    t.inject(". 1:1(0) ack 10001 <TS val 4 ecr 1000200>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    assert_eq!(t.tcp.cwnd(), (5000, 5000));
}

#[test]
fn the_timestamp_of_the_retransmission_shows_that_it_was_needed() {
    let mut t = with_timestamps();
    first_sent_again(&mut t, "TS val 2 ecr 1000100,");
    t.pass(ms(90));
    t.inject(". 1:1(0) ack 4001 <TS val 3 ecr 1000200>");
    t.inject(". 1:1(0) ack 10001 <TS val 3 ecr 1000100>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    assert!(t.tcp.cwnd().1 < u64::MAX);
}

#[test]
fn a_report_that_the_retransmission_was_a_duplicate_undoes_the_recovery() {
    let mut t = open();
    first_sent_again(&mut t, "");
    t.inject(". 1:1(0) ack 10001");
    assert!(t.tcp.cwnd().1 < u64::MAX);
    t.pass(ms(90));
    t.inject(". 1:1(0) ack 10001 <sack 1:1001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    assert!(t.tcp.cwnd().0 >= 10_000);
    assert_eq!(t.tcp.cwnd().1, u64::MAX);
}

#[test]
fn every_retransmission_must_have_been_a_duplicate() {
    let mut t = open();
    t.write(10_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 2001:5001>");
    t.expect_segments([0]);
    t.inject(". 1:1(0) ack 1 <sack 2001:9001>");
    t.expect_segments([1]);
    t.inject(". 1:1(0) ack 10001");
    t.inject(". 1:1(0) ack 10001 <sack 1:1001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    t.inject(". 1:1(0) ack 10001 <sack 1001:2001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
}

#[test]
fn a_duplicate_that_was_not_sent_again_undoes_nothing() {
    let mut t = open();
    t.write(2000);
    t.expect_segments(0..2);
    t.inject(". 1:1(0) ack 2001");
    t.queued = 2000;
    t.write(10_000);
    t.expect_segments(2..12);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 2001 <sack 3001:6001>");
    t.expect_segments([2]);
    // The network has duplicated an earlier one.
    t.inject(". 1:1(0) ack 2001 <sack 1001:2001 3001:6001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    assert!(t.tcp.cwnd().1 < u64::MAX);
}

#[test]
fn a_timeout_was_needless_if_what_was_sent_once_is_acknowledged_after_it() {
    let mut t = Script::over_path(&plain(), "mss 1000", ms(100));
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.cwnd().0, 1000);
    // It may be for either transmission. Two new segments find out.
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(10..12);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 2001");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    assert!(t.tcp.cwnd().0 >= 10_000);
    while t.next().is_some() {}
    assert_eq!(t.tcp.counters().retransmits, 1);
}

#[test]
fn a_timeout_was_needless_if_what_was_sent_once_is_sacked_after_it() {
    let mut t = open();
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_after(ms(202), "P. 10001:11001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(11..13);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 <sack 2001:3001>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    while t.next().is_some() {}
    assert_eq!(t.tcp.counters().retransmits, 1);
}

#[test]
fn a_timeout_was_needed_if_only_the_new_segments_arrive() {
    let mut t = open();
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_after(ms(202), "P. 10001:11001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(11..13);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001 <sack 11001:12001>");
    t.expect_segments([1]);
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
}

#[test]
fn without_new_data_the_timeout_is_believed() {
    let mut t = open();
    t.write(5000);
    t.expect_segments(0..5);
    t.expect_after(ms(202), "P. 4001:5001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(1..3);
    t.expect_nothing();
}

#[test]
fn a_second_timeout_of_the_same_segment_can_still_turn_out_needless() {
    let mut t = Script::over_path(&plain(), "mss 1000", ms(100));
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    t.expect_after(ms(600), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(10..12);
    t.inject(". 1:1(0) ack 2001");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    assert!(t.tcp.cwnd().0 >= 10_000);
}

#[test]
fn an_old_timestamp_undoes_a_timeout_at_once() {
    let mut t = with_timestamps();
    t.write(10_000);
    t.expect_segments(0..10);
    t.expect_after(ms(202), "P. 9001:10001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 <TS val 2 ecr 1000100>");
    assert_eq!(t.tcp.counters().spurious_recoveries, 1);
    assert!(t.tcp.cwnd().0 >= 10_000);
    t.expect_nothing();
}
