//! The send window and the receive window.

use core::time::Duration;

use super::script::{Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{Due, Payload, State, TcpConfig, TcpFailure};

/// An established connection whose peer offers this window.
fn open(window: u32) -> Script {
    Script::established(&plain(), "mss 1000", window)
}

#[test]
fn no_more_than_the_window_is_sent() {
    let mut t = open(2500);
    t.write(10_000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect(". 1001:2001(1000) ack 1");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 win 2500");
    t.expect(". 2001:3001(1000) ack 1");
    t.expect_nothing();
}

/// Even in a segment with predicted headers.
#[test]
fn data_may_bring_a_new_window() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect_nothing();
    t.inject(". 1:101(100) ack 1 win 2000");
    t.expect(". 1001:2001(1000) ack 101");
}

#[test]
fn a_closed_window_is_probed_with_one_octet() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    for wait in [200, 400, 800] {
        t.expect_after(ms(wait), ". 1001:1002(1) ack 1");
        t.inject(". 1:1(0) ack 1001 win 0");
    }
    assert_eq!(t.tcp.counters().window_probes, 3);
    // It opens: the whole segment is sent at once, with the timer of a new segment.
    t.inject(". 1:1(0) ack 1001 win 1000");
    t.expect(". 1001:2001(1000) ack 1");
    t.expect_after(ms(200), ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001 win 1000");
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn a_probe_that_is_taken_is_followed_by_the_next_octet() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_after(ms(200), ". 1001:1002(1) ack 1");
    t.inject(". 1:1(0) ack 1002 win 0");
    assert_eq!(t.tcp.acked_offset(), 1001);
    t.expect_after(ms(400), ". 1002:1003(1) ack 1");
    t.inject(". 1:1(0) ack 1003 win 5000");
    t.expect(". 1003:2001(998) ack 1");
    t.inject(". 1:1(0) ack 2001 win 5000");
    t.expect_nothing();
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn a_window_closed_for_ever_is_no_failure_while_the_peer_acknowledges() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    for _ in 0..100 {
        t.expect_nothing();
        let at = t.tcp.next_timeout().expect("the persist timer");
        assert!(at.since(t.now) <= seconds(60));
        t.pass(at.since(t.now));
        t.expect(". 1001:1002(1) ack 1");
        t.inject(". 1:1(0) ack 1001 win 0");
    }
    t.expect_state(State::Established);
}

#[test]
fn probes_without_any_ack_end_the_connection() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    for _ in 0..10 {
        t.expect_nothing();
        let at = t.tcp.next_timeout().expect("the persist timer");
        t.pass(at.since(t.now));
        t.expect(". 1001:1002(1) ack 1");
    }
    let at = t.tcp.next_timeout().expect("the persist timer");
    t.pass(at.since(t.now));
    t.expect_nothing();
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_silly_window_waits_for_more_and_then_takes_what_there_is() {
    let mut t = open(5000);
    t.write(10_000);
    for _ in 0..5 {
        t.next().expect("a segment");
    }
    // 300 octets of room: below the segment and below half of the largest window.
    t.inject(". 1:1(0) ack 5001 win 300");
    t.expect_after(ms(200), ". 5001:5301(300) ack 1");
    t.inject(". 1:1(0) ack 5301 win 5000");
    // The rest of that frame, and then the next.
    t.expect(". 5301:6001(700) ack 1");
    t.expect(". 6001:7001(1000) ack 1");
}

#[test]
fn a_silly_window_is_not_waited_on_for_ever_while_the_peer_sends() {
    let mut t = open(5000);
    t.write(6000);
    for _ in 0..5 {
        t.next().expect("a segment");
    }
    t.inject(". 1:1(0) ack 5001 win 300");
    t.expect_nothing();
    for n in 0..19_u64 {
        t.pass(ms(10) - Duration::from_nanos(1));
        t.inject(&format!(
            "P. {}:{}(10) ack 5001 win 300",
            n * 10 + 1,
            n * 10 + 11
        ));
        t.expect(&format!(". 5001:5001(0) ack {}", n * 10 + 11));
    }
    t.expect_after(ms(10), ". 5001:5301(300) ack 191");
}

#[test]
fn the_persist_timer_does_not_outlive_its_reason() {
    let mut t = open(5000);
    t.write(6000);
    for _ in 0..5 {
        t.next().expect("a segment");
    }
    t.inject(". 1:1(0) ack 5001 win 300");
    t.expect_nothing();
    t.pass(ms(190));
    t.inject(". 1:1(0) ack 5001 win 5000");
    t.expect(". 5001:6001(1000) ack 1");
    t.expect_after(ms(200), ". 5001:6001(1000) ack 1");
}

#[test]
fn half_of_the_largest_window_is_not_silly() {
    let mut t = open(800);
    t.write(2000);
    t.expect(". 1:801(800) ack 1");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 801 win 800");
    t.expect(". 801:1001(200) ack 1");
    t.expect(". 1001:1601(600) ack 1");
    t.expect_nothing();
}

#[test]
fn a_part_that_was_lost_is_sent_again() {
    let mut t = open(800);
    t.write(1000);
    t.expect(". 1:801(800) ack 1");
    t.expect_after(ms(200), ". 1:801(800) ack 1");
    // Meanwhile there is room for all of it.
    t.inject(". 1:1(0) ack 1 win 1000");
    t.expect(". 801:1001(200) ack 1");
    t.inject(". 1:1(0) ack 1001 win 1000");
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn the_rest_of_a_lost_part_waits_for_the_part() {
    let mut t = open(800);
    t.frames.hold();
    t.write(1000);
    t.expect(". 1:801(800) ack 1");
    t.frames.transmit(t.first_frame(), 1000);
    t.pass(ms(200));
    t.inject(". 1:1(0) ack 1 win 5000");
    t.expect_nothing();
    t.frames.complete();
    t.expect_after(ms(1), ". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 5000");
    assert_eq!(t.frames_free(), 256);
}

/// The device keeps the frame so long that the part is thought lost, acknowledged, and followed by
/// a probe.
#[test]
fn a_probe_goes_on_where_a_part_thought_lost_ended() {
    let mut t = open(800);
    t.frames.hold();
    t.write(1000);
    t.expect(". 1:801(800) ack 1");
    t.frames.transmit(t.first_frame(), 1000);
    t.pass(ms(200));
    t.inject(". 1:1(0) ack 801 win 0");
    t.expect_after(ms(400), ". 801:802(1) ack 1");
    t.frames.complete();
    t.expect_nothing();
    t.inject(". 1:1(0) ack 802 win 5000");
    t.expect(". 802:1001(199) ack 1");
    t.inject(". 1:1(0) ack 1001 win 5000");
    assert_eq!(t.tcp.due(t.now), Due::Nothing);
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn a_window_that_shrinks_is_obeyed() {
    let mut t = open(5000);
    t.write(10_000);
    for _ in 0..5 {
        t.next().expect("a segment");
    }
    t.inject(". 1:1(0) ack 1001 win 1500");
    t.expect_nothing();
    // Only what lies inside is sent again.
    t.expect_after(ms(200), ". 1001:2001(1000) ack 1");
    t.expect_nothing();
    // Shrunk to nothing with data in flight: probed by its first octet, without giving up.
    t.inject(". 1:1(0) ack 1001 win 0");
    for _ in 0..20 {
        t.expect_nothing();
        let at = t.tcp.next_timeout().expect("the persist timer");
        t.pass(at.since(t.now));
        t.expect(". 1001:1002(1) ack 1");
        t.inject(". 1:1(0) ack 1001 win 0");
    }
    // Nor are the ACKs taken for duplicates.
    assert_eq!(t.tcp.counters().fast_retransmits, 0);
    t.inject(". 1:1(0) ack 1001 win 5000");
    t.expect(". 1001:2001(1000) ack 1");
    t.expect_state(State::Established);
}

#[test]
fn an_old_window_does_not_replace_a_newer_one() {
    let mut t = open(5000);
    t.write(10_000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 11:11(0) ack 1001 win 3000");
    // Sent before that one, arrived after it.
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect(". 1001:2001(1000) ack 1");
}

#[test]
fn a_retransmission_that_alone_brings_a_new_acknowledgment_opens_the_window() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 11:21(10) ack 1 win 1000");
    t.inject(". 1:11(10) ack 1001 win 1000");
    t.expect(". 1001:2001(1000) ack 21");
}

#[test]
fn a_probe_is_dropped_when_the_window_opens_first_and_its_data_gets_a_timer() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_nothing();
    // The persist timer expires, and the window opens before anything is sent.
    t.pass(ms(200));
    t.inject(". 1:1(0) ack 1001 win 1000");
    t.expect(". 1001:2001(1000) ack 1");
    assert_eq!(t.tcp.counters().window_probes, 0);
    t.expect_after(ms(400), ". 1001:2001(1000) ack 1");
}

#[test]
fn a_probe_is_timed() {
    let mut t = open(1000);
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_nothing();
    t.pass(ms(200));
    // A window too small for a segment opens meanwhile: probing goes on.
    t.inject(". 1:1(0) ack 1001 win 300");
    t.expect(". 1001:1301(300) ack 1");
    t.expect_after(ms(400), ". 1001:1301(300) ack 1");
}

#[test]
fn a_probe_of_one_octet_is_never_the_frame_that_the_device_may_have() {
    let mut t = open(1);
    t.frames.hold();
    t.write(1);
    t.expect("P. 1:2(1) ack 1");
    t.frames.transmit(t.first_frame(), 101);
    t.inject(". 1:1(0) ack 1 win 0");
    t.pass(ms(200));
    let outgoing = t.tcp.poll_transmit(t.now, &mut t.frames).expect("a probe");
    assert!(matches!(outgoing.payload, Payload::Part { .. }));
}

#[test]
fn one_segment_is_wanted_into_a_closed_window() {
    let mut t = open(0);
    assert!(t.tcp.wants_data(t.now));
    t.write(2000);
    t.expect_nothing();
    assert!(!t.tcp.wants_data(t.now));
    t.expect_after(ms(200), ". 1:2(1) ack 1");
    assert!(!t.tcp.wants_data(t.now));
}

#[test]
fn the_fin_probes_as_well() {
    let mut t = open(1000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.close();
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_after(ms(200), "F. 1001:1001(0) ack 1");
    t.expect_after(ms(400), "F. 1001:1001(0) ack 1");
    t.inject(". 1:1(0) ack 1001 win 1000");
    t.expect("F. 1001:1001(0) ack 1");
    t.inject(". 1:1(0) ack 1002 win 1000");
    t.expect_state(State::FinWait2);
}

#[test]
fn a_probe_that_has_become_needless_is_not_sent() {
    let mut t = open(2000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    // Shrunk to nothing; the timer expires, and then comes the ACK of all there is.
    t.inject(". 1:1(0) ack 1 win 0");
    t.pass(ms(200));
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_nothing();
    t.expect_state(State::Established);
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn our_window_slides_with_what_is_taken() {
    let config = TcpConfig {
        receive_window: 10_000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001 win 10000");
    // Out of order: the right edge stays.
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001 win 10000");
}

#[test]
fn what_is_held_shrinks_the_window_but_never_its_right_edge() {
    let config = TcpConfig {
        receive_window: 10_000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    t.tcp.set_buffered(9_500, 0);
    t.inject("P. 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 win 9000");
    t.inject("P. 1001:9001(8000) ack 1");
    t.expect(". 1:1(0) ack 9001 win 1000");
    t.inject("P. 9001:10001(1000) ack 1");
    t.expect(". 1:1(0) ack 10001 win 0");
    // Beyond the window: not offered, but acknowledged. So is a probe.
    assert_eq!(t.inject(". 10001:11001(1000) ack 1"), None);
    t.expect(". 1:1(0) ack 10001 win 0");
    assert_eq!(t.inject(". 10001:10002(1) ack 1"), None);
    t.expect(". 1:1(0) ack 10001 win 0");
    // It opens by less than a segment: no window update.
    t.tcp.set_buffered(9_100, 0);
    t.expect_nothing();
    t.tcp.set_buffered(4_000, 0);
    t.expect(". 1:1(0) ack 10001 win 6000");
    t.tcp.set_buffered(0, 0);
    t.expect_nothing();
}

#[test]
fn what_is_missing_is_let_in_whatever_is_held() {
    let config = TcpConfig {
        receive_window: 10_000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    t.inject("P. 1:10001(10000) ack 1");
    t.tcp.set_buffered(10_000, 3000);
    t.expect(". 1:1(0) ack 10001 win 4000");
}

/// So few octets are missing that a window of them alone would be silly, and is not advertised.
#[test]
fn the_last_octets_missing_are_let_in() {
    let config = TcpConfig {
        receive_window: 10_000,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    t.inject("P. 1:10001(10000) ack 1");
    t.tcp.set_buffered(10_000, 4);
    t.expect(". 1:1(0) ack 10001 win 1004");
}

#[test]
fn what_is_held_counts_against_the_window_that_can_be_told() {
    // Not scaled, 64 KiB less one octet are all that the peer can use.
    let mut t = Script::established(&TcpConfig::default(), "mss 1000", 60_000);
    t.tcp.set_buffered(60_000, 0);
    t.inject("P. 1:20001(20000) ack 1");
    t.expect(". 1:1(0) ack 20001 win 45535");
}

#[test]
fn a_segment_is_cut_at_the_right_edge() {
    let config = TcpConfig {
        receive_window: 1500,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    // The FIN is cut off too.
    assert_eq!(t.inject("F. 1:2001(2000) ack 1"), Some(0..1500));
    assert_eq!(t.inject("F. 1501:1501(0) ack 1"), None);
    t.expect(". 1:1(0) ack 1502");
    t.expect_state(State::CloseWait);
}

#[test]
fn a_scaled_window_never_pulls_its_edge_back_by_rounding() {
    let config = TcpConfig {
        receive_window: 1 << 20,
        ..plain()
    };
    let mut t = Script::connect(&config);
    t.tcp.set_buffered((1 << 20) - 60_001, 0);
    t.next();
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000,wscale 0>");
    t.next();
    let mut edge = 0;
    for n in 0..200_u32 {
        t.inject(&format!("P. {}:{}(7) ack 1", n * 7 + 1, n * 7 + 8));
        let sent = t.next_turn().expect("an ACK");
        let now = n * 7 + 7 + (u32::from(sent.header.window) << 5);
        assert!(now >= edge, "{now} after {edge}");
        edge = now;
    }
    // 1400 octets came, and the buffered 60,001 were not freed in steps smaller than a segment.
    assert!(edge <= 60_001 + 1400 + 32, "{edge}");
}
