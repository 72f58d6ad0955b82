//! Sending data, and finding and repairing losses.

use core::time::Duration;

use super::script::{Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, TcpConfig, TcpFailure};

fn with_sack() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

fn without_sack() -> Script {
    Script::established(&plain(), "mss 1000", 60_000)
}

#[test]
fn ten_segments_first_then_slow_start() {
    let mut t = with_sack();
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 2001");
    t.expect_segments(10..14);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 10001");
    t.expect_segments(14..30);
    t.expect_nothing();
}

#[test]
fn frames_are_held_until_they_are_acknowledged_wholly() {
    let mut t = with_sack();
    t.write(3000);
    while t.next().is_some() {}
    assert_eq!(t.frames.available(), 253);
    t.inject(". 1:1(0) ack 1500");
    assert_eq!(t.tcp.acked_offset(), 1499);
    assert_eq!(t.frames.available(), 254);
    t.inject(". 1:1(0) ack 2001");
    assert_eq!(t.frames.available(), 255);
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(t.frames.available(), 256);
    assert_eq!(t.tcp.next_timeout(), None);
}

/// Even in a segment with predicted headers.
#[test]
fn data_may_bring_blocks() {
    let mut t = with_sack();
    t.write(5000);
    t.expect_segments(0..5);
    t.inject(". 1:101(100) ack 1 <sack 1001:5001>");
    t.expect(". 1:1001(1000) ack 101");
    t.expect_nothing();
}

#[test]
fn what_was_queued_unasked_waits_for_the_window() {
    let mut t = with_sack();
    for _ in 0..12 {
        t.queue(1000);
    }
    t.expect_segments(0..10);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(10..12);
}

#[test]
fn the_round_trip_is_not_measured_by_what_was_sacked_before() {
    let mut t = with_sack();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.pass(ms(100));
    t.write(1000);
    t.expect(". 1001:2001(1000) ack 1");
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.pass(ms(50));
    t.inject(". 1:1(0) ack 2001");
    // An eighth of the first segment's 160 ms, as the handshake took no time.
    assert_eq!(t.tcp.srtt(), Some(ms(20)));
}

#[test]
fn pushes_the_segment_that_is_not_full_and_what_it_is_told_to() {
    let mut t = with_sack();
    t.write(1500);
    t.expect(". 1:1001(1000) ack 1");
    t.expect("P. 1001:1501(500) ack 1");
    t.write(1000);
    t.pump();
    t.tcp.push();
    t.expect("P. 1501:2501(1000) ack 1");
}

#[test]
fn the_timer_sends_again_with_doubled_intervals_until_it_gives_up() {
    let mut t = Script::established(
        &TcpConfig {
            max_retries: 4,
            ..plain()
        },
        "mss 1000",
        60_000,
    );
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    // The handshake took no time: the minimum holds.
    for wait in [200, 400, 800, 1600] {
        t.expect_after(ms(wait), "P. 1:501(500) ack 1");
    }
    t.pass(ms(3199));
    t.expect_state(State::Established);
    t.pass(ms(1));
    t.expect_nothing();
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
    assert_eq!(t.tcp.counters().timeouts, 4);
    assert!(t.tcp.is_finished());
    t.tcp.release_frames(&mut t.frames);
    assert_eq!(t.frames.available(), 256);
}

#[test]
fn the_timer_restarts_with_each_new_acknowledgment() {
    let mut t = without_sack();
    t.write(2000);
    t.expect_segments(0..2);
    t.pass(ms(150));
    t.inject(". 1:1(0) ack 1001");
    // The sample of 150 ms: SRTT 18.75, RTTVAR 37.5 (the first one was 0), so the minimum rules.
    t.expect_after(Duration::from_micros(218_750), ". 1001:2001(1000) ack 1");
}

#[test]
fn after_a_timeout_slow_start_from_one_segment() {
    let mut t = without_sack();
    t.write(20_000);
    t.expect_segments(0..10);
    t.expect_after(ms(200), ". 1:1001(1000) ack 1");
    t.expect_nothing();
    assert_eq!(t.tcp.cwnd(), (1000, 5000));
    t.inject(". 1:1(0) ack 1001");
    // Two new segments find out whether the timeout was needed (F-RTO). A duplicate shows that it
    // was.
    t.expect_segments(10..12);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001");
    t.expect_segments(1..3);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 3001");
    t.expect_segments(3..7);
    t.expect_nothing();
    // Slow start ends at half of what was in flight.
    t.inject(". 1:1(0) ack 7001");
    assert_eq!(t.tcp.cwnd(), (5000, 5000));
    t.expect_segments([7, 8, 9, 12, 13]);
    t.expect_nothing();
}

#[test]
fn karn_the_backoff_ends_with_a_sample_of_what_was_sent_once() {
    let mut t = without_sack();
    t.write(2000);
    t.expect_segments(0..2);
    t.expect_after(ms(200), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001");
    t.expect(". 1001:2001(1000) ack 1");
    t.expect_after(ms(400), ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001");
    t.write(1000);
    t.expect(". 2001:3001(1000) ack 1");
    t.pass(ms(10));
    t.inject(". 1:1(0) ack 3001");
    t.write(1000);
    t.expect(". 3001:4001(1000) ack 1");
    t.pass(ms(200));
    t.expect_nothing();
    t.pass(ms(5));
    t.expect(". 3001:4001(1000) ack 1");
}

#[test]
fn fast_retransmit_and_newreno_without_sack() {
    let mut t = without_sack();
    t.write(100_000);
    t.expect_segments(0..10);
    // Segments 0 and 4 are lost. Two duplicates send something new each (limited transmit).
    t.inject(". 1:1(0) ack 1");
    t.expect_segments([10]);
    t.inject(". 1:1(0) ack 1");
    t.expect_segments([11]);
    t.inject(". 1:1(0) ack 1");
    t.expect_segments([0]);
    t.expect_nothing();
    assert_eq!(t.tcp.cwnd(), (5000, 5000));
    assert_eq!(t.tcp.counters().fast_retransmits, 1);
    // Of the twelve in flight, nine arrive beyond the first hole; 5 may be in flight from the
    // seventh on. What limited transmit sent does not count for the window.
    for _ in 0..4 {
        t.inject(". 1:1(0) ack 1");
        t.expect_nothing();
    }
    t.inject(". 1:1(0) ack 1");
    t.expect_segments([12]);
    // A partial ACK shows the next hole at once.
    t.inject(". 1:1(0) ack 4001");
    t.expect_segments([4]);
    // All that was sent before recovery is acknowledged: recovery ends.
    t.inject(". 1:1(0) ack 12001");
    assert_eq!(t.tcp.cwnd().1, 5000);
    t.inject(". 1:1(0) ack 13001");
    assert_eq!(t.tcp.counters().fast_retransmits, 1);
    assert_eq!(t.tcp.counters().timeouts, 0);
    assert_eq!(t.tcp.counters().retransmits, 2);
}

#[test]
fn a_fast_retransmit_gets_a_whole_timeout() {
    // On a path of 300 ms the first timeout is one of 900 ms, of which 300 have passed when the
    // loss shows.
    let mut t = Script::connect(&plain());
    t.next();
    t.pass(ms(300));
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK>");
    t.next();
    t.write(6000);
    t.expect_segments(0..6);
    t.pass(ms(300));
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
    // Two round trips for its ACK; the probe for it gets a whole timeout, too.
    t.expect_after(ms(602), "P. 1:1001(1000) ack 1");
    t.expect_after(ms(900), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
}

#[test]
fn duplicates_after_recovery_do_not_begin_another() {
    // RFC 6582 section 3.2, step 1: they may be echoes of unneeded retransmissions.
    let mut t = without_sack();
    t.write(100_000);
    t.expect_segments(0..10);
    t.expect_after(ms(200), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 10001");
    t.expect_segments(10..12);
    for _ in 0..6 {
        t.inject(". 1:1(0) ack 10001");
    }
    assert_eq!(t.tcp.counters().fast_retransmits, 0);
    assert_eq!(t.tcp.counters().retransmits, 1);
}

#[test]
fn what_is_no_duplicate_acknowledgment() {
    let mut t = without_sack();
    t.write(5000);
    t.expect_segments(0..5);
    for n in 0..4_u64 {
        // With data, with a different window.
        t.inject(&format!(". {}:{}(10) ack 1", n * 10 + 1, n * 10 + 11));
        t.inject(&format!(". 41:41(0) ack 1 win {}", 50_000 + n));
    }
    while let Some(sent) = t.next() {
        assert_eq!(sent.len, 0);
    }
    assert_eq!(t.tcp.counters().fast_retransmits, 0);
}

#[test]
fn sack_names_the_lost_segments_and_only_those_are_sent_again() {
    let mut t = Script::over_path(&plain(), "mss 1000,sackOK", ms(100));
    t.write(100_000);
    t.expect_segments(0..10);
    t.pass(ms(100));
    // 0, 2 and 5 are lost.
    t.inject(". 1:1(0) ack 1 <sack 1001:2001>");
    t.expect_segments([10]);
    t.inject(". 1:1(0) ack 1 <sack 3001:4001 1001:2001>");
    t.expect_segments([11]);
    // Three have arrived: recovery, with 12 in flight; what was sent before them is lost.
    t.inject(". 1:1(0) ack 1 <sack 3001:5001 1001:2001>");
    t.expect_segments([0]);
    t.expect_nothing();
    assert_eq!(t.tcp.cwnd(), (5000, 5000));
    // The sixth is lost as well: six are in flight, one more than allowed. Then one follows for
    // each that arrives.
    t.inject(". 1:1(0) ack 1 <sack 6001:7001 3001:5001 1001:2001>");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1 <sack 6001:8001 3001:5001 1001:2001>");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1 <sack 6001:9001 3001:5001 1001:2001>");
    t.expect_segments([2]);
    t.inject(". 1:1(0) ack 1 <sack 6001:10001 3001:5001 1001:2001>");
    t.expect_segments([5]);
    t.expect_nothing();
    // Partial ACKs: the next holes have been sent again already.
    t.pass(ms(100));
    for ack in [
        "2001 <sack 6001:10001 3001:5001>",
        "5001 <sack 6001:10001>",
        "12001",
    ] {
        t.inject(&format!(". 1:1(0) ack {ack}"));
        while t.next().is_some() {}
    }
    assert_eq!(t.tcp.counters().retransmits, 3);
    assert_eq!(t.tcp.counters().fast_retransmits, 1);
}

#[test]
fn more_duplicates_than_segments_let_out_no_more_than_those() {
    let mut t = without_sack();
    t.write(100_000);
    t.expect_segments(0..10);
    for _ in 0..100 {
        t.inject(". 1:1(0) ack 1");
    }
    // The missing segment, and as many new ones for the other nine as half of the window has room
    // for.
    t.expect_segments([0]);
    t.expect_segments(10..14);
    t.expect_nothing();
}

#[test]
fn after_a_timeout_sacked_segments_are_not_sent_again() {
    let mut t = Script::over_path(&plain(), "mss 1000,sackOK", ms(100));
    t.write(5000);
    t.expect_segments(0..5);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:2001 3001:4001>");
    // A quarter of the round trip, for segments that were overtaken.
    t.expect_after(ms(25), ". 1:1001(1000) ack 1");
    t.expect_after(ms(202), "P. 1:1001(1000) ack 1");
    t.expect_after(ms(300), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.counters().timeouts, 1);
    t.inject(". 1:1(0) ack 2001 <sack 3001:4001>");
    t.expect_segments([2, 4]);
    t.inject(". 1:1(0) ack 5001");
    t.expect_nothing();
    assert_eq!(t.tcp.counters().retransmits, 5);
}

#[test]
fn a_peer_that_forgets_what_it_sacked_gets_it_again() {
    let mut t = Script::over_path(&plain(), "mss 1000,sackOK", ms(100));
    t.write(4000);
    t.expect_segments(0..4);
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect_segments([0]);
    // It has what was missing, and has dropped what it had reported by SACK.
    t.pass(ms(100));
    t.inject(". 1:1(0) ack 1001");
    t.expect_nothing();
    t.expect_after(ms(202), "P. 1001:2001(1000) ack 1");
    t.expect_after(ms(300), ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001");
    t.expect_segments(2..4);
}

#[test]
fn sack_blocks_that_make_no_sense_are_ignored() {
    let mut t = with_sack();
    t.write(5000);
    t.expect_segments(0..5);
    t.inject(". 1:1(0) ack 2001");
    for blocks in [
        "1:1001 1001:2001",
        "1001:4001",
        "2001:2900",
        "6001:7001 4001:9001",
        "4001:3001 3001:3001",
        "2501:2900",
        "0:5001",
    ] {
        t.inject(&format!(". 1:1(0) ack 2001 <sack {blocks}>"));
    }
    t.expect_nothing();
    assert_eq!(t.tcp.counters().fast_retransmits, 0);
    assert_eq!(t.tcp.send.pipe(), 3000);
}

#[test]
fn a_frame_that_the_device_still_has_is_not_sent_again_until_it_is_done() {
    let mut t = without_sack();
    t.frames.hold();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    let frame = t.first_frame();
    t.frames.transmit(frame, 1000);
    t.pass(ms(200));
    t.expect_nothing();
    t.frames.complete();
    t.expect_after(ms(1), ". 1:1001(1000) ack 1");
}

#[test]
fn a_retransmission_that_cannot_leave_is_not_waited_for_for_ever() {
    for answered in [true, false] {
        let config = TcpConfig {
            max_retries: 5,
            ..plain()
        };
        let mut t = Script::established(&config, "mss 1000", 60_000);
        t.frames.hold();
        t.write(1000);
        t.expect(". 1:1001(1000) ack 1");
        t.frames.transmit(t.first_frame(), 1000);
        for _ in 0..10 {
            t.pass(seconds(1));
            t.expect_nothing();
        }
        // A stuck device says nothing of the path.
        assert_eq!(t.tcp.counters().timeouts, 1);
        assert_eq!(t.tcp.max_payload(), 1000);
        if answered {
            t.frames.complete();
            t.expect_after(ms(1), ". 1:1001(1000) ack 1");
            t.inject(". 1:1(0) ack 1001");
        }
        t.pass(seconds(3));
        let failure = (!answered).then_some(TcpFailure::TimedOut);
        assert_eq!(t.tcp.failure(), failure);
    }
}

#[test]
fn a_syn_that_cannot_leave_is_not_waited_for_for_ever() {
    let config = TcpConfig {
        syn_retries: 2,
        ..plain()
    };
    let mut t = Script::connect(&config);
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    // The device has no room: nothing is transmitted.
    t.pass(seconds(6));
    t.expect_state(State::SynSent);
    t.pass(seconds(2));
    t.expect_state(State::Closed);
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn acknowledged_while_the_device_still_has_it() {
    let mut t = with_sack();
    t.frames.hold();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    let frame = t.first_frame();
    t.frames.transmit(frame, 1000);
    t.inject(". 1:1(0) ack 1001");
    assert_eq!(t.frames.available(), 255);
    t.frames.complete();
    assert_eq!(t.frames.available(), 256);
}

#[test]
fn an_idle_application_does_not_grow_the_window() {
    let mut t = with_sack();
    for n in 0..50_u64 {
        t.write(100);
        t.next().unwrap();
        t.inject(&format!(". 1:1(0) ack {}", n * 100 + 101));
    }
    assert_eq!(t.tcp.cwnd().0, 10_000);
}

#[test]
fn a_stream_of_more_than_4_gib_is_sent() {
    let mut t = with_sack();
    let mut acked = 0_u64;
    while acked < (1 << 32) + 100_000 {
        t.tcp.send.skip(1_000_000);
        acked += 1_000_000;
    }
    t.queued = acked;
    t.write(1000);
    let seq = (acked + 1) as u32;
    t.expect(&format!(". {seq}:{}(1000) ack 1", seq + 1000));
    t.inject(&format!(". 1:1(0) ack {}", seq + 1000));
    assert_eq!(t.tcp.acked_offset(), acked + 1000);
    t.expect_nothing();
    assert!(
        t.tcp
            .next_timeout()
            .is_none_or(|at| at > t.now + seconds(1))
    );
}
