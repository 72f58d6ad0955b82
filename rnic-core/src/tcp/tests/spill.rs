//! Spilling: octets that a silent peer does not acknowledge are copied to ordinary memory, which
//! frees their frames, and are retransmitted from there.

use std::sync::atomic::Ordering;

use super::script::{OUR_ISN, Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{SpilledOctets, TcpConfig, TcpFailure};

/// Makes a connection with three segments of 1000 octets in flight after a timeout.
fn timed_out(sum: &SpilledOctets) -> Script {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(3000);
    for start in [1, 1001, 2001] {
        t.expect(&segment(start, 1000));
    }
    t.tcp.spill(&mut t.frames, sum);
    assert_eq!(t.frames_free(), 253, "its time has not come");
    t.pass(ms(200));
    t.tcp.spill(&mut t.frames, sum);
    assert_eq!(t.frames_free(), 256);
    assert_eq!(sum.load(Ordering::Relaxed), 3000);
    t
}

fn segment(start: u32, len: u32) -> String {
    format!(". {start}:{}({len}) ack 1", start + len)
}

#[test]
fn after_a_timeout_no_frame_is_held_and_the_same_octets_go_again() {
    let sum = SpilledOctets::default();
    let mut t = timed_out(&sum);
    t.expect(&segment(1, 1000));
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001");
    t.expect(&segment(1001, 1000));
    t.expect(&segment(2001, 1000));
    assert_eq!(t.frames_free(), 256);
    t.inject(". 1:1(0) ack 2001");
    assert_eq!(sum.load(Ordering::Relaxed), 3000);
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(sum.load(Ordering::Relaxed), 0);
    assert_eq!(t.tcp.acked_offset(), 3000);
    // Later segments are in frames again.
    t.write(1000);
    t.expect(&segment(3001, 1000));
    assert_eq!(t.frames_free(), 255);
    t.inject(". 1:1(0) ack 4001");
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn what_is_sent_behind_it_is_spilled_by_the_next_timeout() {
    let sum = SpilledOctets::default();
    let mut t = timed_out(&sum);
    t.expect(&segment(1, 1000));
    t.inject(". 1:1(0) ack 1501");
    t.expect(&segment(1501, 500));
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(sum.load(Ordering::Relaxed), 0);

    let mut t = timed_out(&sum);
    t.expect(&segment(1, 1000));
    t.inject(". 1:1(0) ack 2001");
    t.expect(&segment(2001, 1000));
    t.write(2000);
    t.expect(&segment(3001, 1000));
    t.pass(seconds(1));
    t.tcp.spill(&mut t.frames, &sum);
    assert_eq!(t.frames_free(), 256);
    // Up to 2001 it is acknowledged.
    assert_eq!(sum.load(Ordering::Relaxed), 2000);
    t.expect(&segment(2001, 1000));
    t.inject(". 1:1(0) ack 4001");
    assert_eq!(sum.load(Ordering::Relaxed), 0);
    t.expect(&segment(4001, 1000));
}

#[test]
fn it_is_cut_where_it_lies() {
    let sum = SpilledOctets::default();
    let mut t = timed_out(&sum);
    assert!(t.tcp.handle_too_big(OUR_ISN + 1, 600));
    let mut acked = 1;
    for len in [600, 400, 600, 400, 600, 400] {
        assert_eq!(sum.load(Ordering::Relaxed), 3000);
        let sent = t.next().unwrap();
        assert_eq!((sent.header.seq, sent.len), (OUR_ISN + acked, len));
        acked += len as u32;
        t.inject(&format!(". 1:1(0) ack {acked}"));
    }
    assert_eq!((t.frames_free(), sum.load(Ordering::Relaxed)), (256, 0));
}

#[test]
fn pieces_of_a_frame_are_spilled_and_the_frame_is_free() {
    let sum = SpilledOctets::default();
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(3000);
    for start in [1, 1001, 2001] {
        t.expect(&segment(start, 1000));
    }
    assert!(t.tcp.handle_too_big(OUR_ISN + 1, 300));
    while t.next().is_some() {}
    t.inject(". 1:1(0) ack 601");
    assert_eq!(t.frames_free(), 253);
    t.pass(ms(400));
    t.tcp.spill(&mut t.frames, &sum);
    assert_eq!(t.frames_free(), 256);
    assert_eq!(sum.load(Ordering::Relaxed), 2400);
    t.expect(&segment(601, 300));
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(sum.load(Ordering::Relaxed), 0);
}

#[test]
fn a_closed_window_holds_no_frame() {
    let sum = SpilledOctets::default();
    let mut t = Script::established(&plain(), "mss 1000", 1500);
    t.queue(1000);
    t.queue(1000);
    t.expect(&segment(1, 1000));
    t.inject(". 1:1(0) ack 1001 win 0");
    t.expect_nothing();
    t.pass(ms(300));
    t.tcp.spill(&mut t.frames, &sum);
    assert_eq!(t.frames_free(), 256);
    // The window is probed, and the segment is sent when it opens.
    t.expect(&segment(1001, 1));
    t.inject(". 1:1(0) ack 1001 win 0");
    t.inject(". 1:1(0) ack 1001 win 5000");
    t.expect(&segment(1001, 1000));
    t.inject(". 1:1(0) ack 2001 win 5000");
    assert_eq!(sum.load(Ordering::Relaxed), 0);
    assert_eq!(t.frames_free(), 256);
}

#[test]
fn what_has_not_left_the_device_stays_where_it_is() {
    let sum = SpilledOctets::default();
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.frames.hold();
    t.write(1000);
    t.expect(&segment(1, 1000));
    t.frames.transmit(t.first_frame(), 1000);
    t.pass(ms(300));
    t.tcp.spill(&mut t.frames, &sum);
    assert_eq!(sum.load(Ordering::Relaxed), 0);
    t.expect_nothing();
    t.frames.complete();
    t.expect_after(ms(1), &segment(1, 1000));
}

/// While only the frames are left that are reserved for segments without data, no segment with data
/// is sent, and none is lost.
#[test]
fn the_last_frames_are_for_segments_without_data() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(1000);
    t.expect(&segment(1, 1000));
    t.pass(ms(200));
    let taken: Vec<_> = (0..247).filter_map(|_| t.frames.allocate()).collect();
    assert_eq!((taken.len(), t.frames_free()), (247, 8));
    t.expect_nothing();
    t.inject("P. 1:101(100) ack 1");
    t.expect(". 1001:1001(0) ack 101");
    for frame in taken {
        t.frames.release(frame);
    }
    t.pass(ms(1));
    t.expect(". 1:1001(1000) ack 101");
}

/// Other connections have all frames, and none comes back: the connection ends by its timeouts, and
/// does not retry for ever.
#[test]
fn a_sender_for_which_no_frame_is_free_gives_up_in_time() {
    let config = TcpConfig {
        max_retries: 4,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1000", 60_000);
    t.write(3000);
    for start in [1, 1001, 2001] {
        t.expect(&segment(start, 1000));
    }
    t.inject(". 1:1(0) ack 501");
    while t.frames.allocate().is_some() {}
    // 200 ms, doubled four times.
    for _ in 0..7 {
        assert_eq!(t.tcp.failure(), None);
        for _ in 0..1000 {
            t.pass(ms(1));
            t.expect_nothing();
        }
    }
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

/// Cutting segments that are too large for a link of the path needs no frame.
#[test]
fn no_frame_is_needed_to_try_smaller_segments() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(2000);
    while t.next().is_some() {}
    while t.frames_free() > 9 {
        t.frames.allocate();
    }
    for expiry in 0..8 {
        t.pass(ms(200 << expiry));
        while t.next().is_some() {}
    }
    assert_eq!(t.tcp.counters().mtu_reductions, 1);
    assert_eq!(t.frames_free(), 9);
}
