//! Tail loss probes, where no ACK comes back (RFC 8985 section 7).

use super::script::{Script, ms, plain};
use crate::tcp::TcpConfig;

/// A path of 100 ms: a probe goes out after 202 ms without an ACK, the retransmission timeout is
/// 300 ms.
fn open() -> Script {
    Script::over_path(&plain(), "mss 1000,sackOK", ms(100))
}

#[test]
fn a_lost_tail_is_repaired_one_round_trip_after_the_probe() {
    let mut t = open();
    t.write(4000);
    t.expect_segments(0..4);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001");
    // 1 to 3 are lost.
    t.expect_after(ms(202), "P. 3001:4001(1000) ack 1");
    assert_eq!(t.tcp.counters().tail_probes, 1);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001 <sack 3001:4001>");
    t.expect_segments([1]);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 2001 <sack 3001:4001>");
    t.expect_segments([2]);
    assert_eq!(t.tcp.counters().timeouts, 0);
}

#[test]
fn the_echo_of_what_came_in_order_does_not_hide_that_the_probe_has_arrived() {
    let config = TcpConfig {
        mss: 1012,
        timestamps: true,
        ..plain()
    };
    let mut t = Script::over_path(&config, "mss 1012,sackOK,TS val 1 ecr 1000000", ms(100));
    t.write(4000);
    t.expect_segments(0..4);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001 <TS val 2 ecr 1000100>");
    t.expect_after(ms(202), "P. 3001:4001(1000) ack 1");
    t.pass(ms(100));
    // The first segment was the last in order: its timestamp is echoed.
    t.inject(". 1:1(0) ack 1001 <TS val 3 ecr 1000100,sack 3001:4001>");
    t.expect_segments([1]);
    assert_eq!(t.tcp.counters().rack_losses, 2);
    assert_eq!(t.tcp.counters().timeouts, 0);
}

#[test]
fn new_data_is_the_better_probe_whatever_the_congestion_window() {
    let mut t = open();
    t.write(20_000);
    t.expect_segments(0..10);
    t.expect_after(ms(202), "P. 10001:11001(1000) ack 1");
    t.expect_nothing();
    assert_eq!(t.tcp.counters().tail_probes, 1);
    assert_eq!(t.tcp.counters().retransmits, 0);
}

#[test]
fn a_probe_keeps_to_the_window_of_the_peer() {
    let mut t = Script::connect(&plain());
    t.next();
    t.pass(ms(100));
    t.inject("S. 0:0(0) ack 1 win 3000 <mss 1000,sackOK>");
    t.next();
    t.write(5000);
    t.expect_segments(0..3);
    t.expect_after(ms(202), "P. 2001:3001(1000) ack 1");
}

#[test]
fn a_single_segment_leaves_the_peer_time_for_a_delayed_acknowledgment() {
    let mut t = open();
    t.write(1000);
    t.expect_segments([0]);
    // Not later than the timeout would be, and without its congestion response.
    t.expect_after(ms(300), "P. 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 0);
    assert_eq!(t.tcp.cwnd().0, 10_000);
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
}

#[test]
fn one_probe_is_enough_and_the_timeout_follows() {
    let mut t = open();
    t.write(3000);
    t.expect_segments(0..3);
    t.expect_after(ms(202), "P. 2001:3001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
    assert_eq!(t.tcp.counters().tail_probes, 1);
}

#[test]
fn each_acknowledgment_puts_the_probe_off() {
    let mut t = open();
    t.write(4000);
    t.expect_segments(0..4);
    t.pass(ms(150));
    t.inject(". 1:1(0) ack 1001");
    t.pass(ms(150));
    // A round trip of 150 ms: SRTT is 106.25 ms.
    t.inject(". 1:1(0) ack 2001");
    t.pass(ms(202));
    t.expect_nothing();
    t.pass(ms(100));
    t.expect("P. 3001:4001(1000) ack 1");
}

#[test]
fn without_sack_there_is_no_probe() {
    let mut t = Script::over_path(&plain(), "mss 1000", ms(100));
    t.write(3000);
    t.expect_segments(0..3);
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
}

#[test]
fn after_a_probe_a_new_round_trip_is_measured_before_the_next() {
    let mut t = open();
    t.write(2000);
    t.expect_segments(0..2);
    t.expect_after(ms(202), "P. 1001:2001(1000) ack 1");
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 2001 <sack 1001:2001>");
    t.write(2000);
    t.expect_segments(2..4);
    t.expect_after(ms(300), ". 2001:3001(1000) ack 1");
    assert_eq!(t.tcp.counters().tail_probes, 1);
    assert_eq!(t.tcp.counters().timeouts, 1);
}

/// Sends three segments and the probe, for which these ACKs come. Returns the slow-start threshold
/// once another segment has been acknowledged.
fn threshold_after(answers: &[&str]) -> u64 {
    let mut t = open();
    t.write(3000);
    t.expect_segments(0..3);
    t.expect_after(ms(202), "P. 2001:3001(1000) ack 1");
    for answer in answers {
        t.pass(ms(50));
        t.inject(&format!("P. 1:1(0) ack {answer}"));
    }
    t.write(1000);
    t.expect_segments([3]);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 4001");
    t.tcp.cwnd().1
}

#[test]
fn a_loss_that_the_probe_repaired_is_a_loss_to_congestion_control() {
    assert!(threshold_after(&["3001"]) < u64::MAX);
}

#[test]
fn a_probe_reported_as_a_duplicate_repaired_nothing() {
    assert_eq!(threshold_after(&["3001 <sack 2001:3001>"]), u64::MAX);
    assert_eq!(
        threshold_after(&["3001", "3001 <sack 2001:3001>"]),
        u64::MAX
    );
}

#[test]
fn a_duplicate_acknowledgment_of_a_peer_without_such_reports_says_the_same() {
    assert_eq!(threshold_after(&["3001", "3001"]), u64::MAX);
}

#[test]
fn a_needless_probe_says_nothing_about_reordering() {
    let mut t = open();
    t.write(2000);
    t.expect_segments(0..2);
    t.expect_after(ms(202), "P. 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001 <sack 1001:2001>");
    assert_eq!(t.tcp.reo_wnd(), ms(25));
}

#[test]
fn a_frame_that_has_not_left_the_device_is_no_probe() {
    let mut t = open();
    t.frames.hold();
    t.write(2000);
    t.expect_segments(0..2);
    let last = t.tcp.send.segments[1].frame;
    crate::memory::frames::TxFrames::transmit(&mut t.frames, last, 1000);
    t.pass(ms(202));
    t.expect_nothing();
    assert_eq!(t.tcp.counters().tail_probes, 0);
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
}

#[test]
fn a_lost_fin_is_probed_for() {
    let mut t = open();
    t.write(1000);
    t.expect_segments([0]);
    t.close();
    t.expect("F. 1001:1001(0) ack 1");
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001");
    t.expect_after(ms(300), "F. 1001:1001(0) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 0);
}

#[test]
fn nothing_is_probed_where_nothing_is_in_flight() {
    let mut t = open();
    t.write(2000);
    t.expect_segments(0..2);
    t.inject(". 1:1(0) ack 2001");
    assert_eq!(t.tcp.next_timeout(), None);
}

/// The first of ten segments is lost, and found to be.
fn recovering() -> Script {
    let mut t = open();
    t.write(10_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:10001>");
    t.expect_segments([0]);
    t
}

#[test]
fn a_retransmission_that_is_lost_as_well_is_probed_for_in_recovery() {
    let mut t = recovering();
    t.expect_after(ms(202), "P. 1:1001(1000) ack 1");
    // One at a time: from here on the retransmission timer runs.
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().tail_probes, 1);
    assert_eq!(t.tcp.counters().timeouts, 1);
}

#[test]
fn a_probe_in_recovery_finds_out_that_only_the_acknowledgment_was_lost() {
    let mut t = recovering();
    let window = t.tcp.cwnd();
    t.expect_after(ms(202), "P. 1:1001(1000) ack 1");
    t.pass(ms(90));
    t.inject(". 1:1(0) ack 10001 <sack 1:1001>");
    // The loss was real, and counts once.
    assert_eq!(t.tcp.counters().spurious_recoveries, 0);
    assert_eq!(t.tcp.cwnd(), window);
    assert_eq!(t.tcp.counters().timeouts, 0);
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn whatever_arrives_in_recovery_puts_the_probe_off() {
    let mut t = open();
    t.write(10_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:5001>");
    t.expect_segments([0]);
    t.pass(ms(50));
    t.inject(". 1:1(0) ack 1 <sack 1001:10001>");
    t.expect_after(ms(202), "P. 1:1001(1000) ack 1");
}
