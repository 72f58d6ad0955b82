//! RST, and segments that could be forged (RFC 5961).

use super::script::{Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, TcpFailure};

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn a_reset_with_the_very_next_sequence_number_ends_the_connection() {
    let mut t = open();
    t.write(5000);
    t.next();
    t.inject("R 1:1(0)");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
    assert!(t.tcp.is_finished());
    t.expect_nothing();
    assert_eq!(t.frames.available(), 256);
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn a_reset_elsewhere_in_the_window_is_challenged() {
    let mut t = open();
    t.inject("R 2:2(0)");
    t.expect(". 1:1(0) ack 1");
    t.inject("R 50000:50000(0)");
    t.expect(". 1:1(0) ack 1");
    t.expect_state(State::Established);
    // Outside: nothing.
    t.inject("R 0:0(0)");
    t.inject("R 70000:70000(0)");
    t.expect_nothing();
    t.expect_state(State::Established);
}

#[test]
fn a_reset_counts_from_the_next_octet_not_taken() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1");
    t.next();
    t.inject("R 1:1(0)");
    t.expect_nothing();
    t.inject("R 101:101(0)");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
}

/// It may be the last that the peer says.
#[test]
fn the_acknowledgment_of_a_reset_counts() {
    let mut t = open();
    t.write(3000);
    for start in [1, 1001, 2001] {
        t.expect(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    // Within the window; its own window is none.
    t.inject("R. 2:2(0) ack 1001 win 0");
    assert_eq!(t.tcp.acked_offset(), 1000);
    t.expect(". 3001:3001(0) ack 1");
    t.expect_state(State::Established);
    t.write(1000);
    t.expect(". 3001:4001(1000) ack 1");
    // Outside, and of what was never sent.
    t.inject("R. 70000:70000(0) ack 2001");
    t.inject("R. 2:2(0) ack 4002");
    assert_eq!(t.tcp.acked_offset(), 1000);
    t.inject("R. 1:1(0) ack 2001");
    assert_eq!(t.tcp.acked_offset(), 2000);
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
    assert_eq!(t.frames.available(), 256);
}

#[test]
fn a_syn_is_challenged_wherever_it_stands() {
    let mut t = open();
    for seq in [0, 1, 500, 100_000] {
        t.inject(&format!("S {seq}:{seq}(0)"));
        t.expect(". 1:1(0) ack 1");
        t.expect_nothing();
    }
    t.expect_state(State::Established);
}

#[test]
fn challenges_are_limited() {
    let mut t = open();
    for _ in 0..10 {
        t.inject("S 1:1(0)");
        t.expect(". 1:1(0) ack 1");
    }
    for _ in 0..100 {
        t.inject("S 1:1(0)");
    }
    t.expect_nothing();
    t.pass(seconds(1));
    t.inject("S 1:1(0)");
    t.expect(". 1:1(0) ack 1");
}

#[test]
fn acknowledgments_of_what_was_never_sent_and_of_long_ago_are_challenged() {
    let mut t = open();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    assert_eq!(t.inject("P. 1:11(10) ack 1002"), None);
    t.expect(". 1001:1001(0) ack 1");
    assert_eq!(t.tcp.acked_offset(), 0);
    t.inject(". 1:1(0) ack 1001");
    // Older than any window: 1 + 1000 - 60000 - 1 and below.
    assert_eq!(
        t.inject(&format!(
            "P. 1:11(10) ack {}",
            1001_u32.wrapping_sub(60_001)
        )),
        None
    );
    t.expect(". 1001:1001(0) ack 1");
    // Just old: the data counts.
    assert_eq!(t.inject("P. 1:11(10) ack 1"), Some(0..10));
}

#[test]
fn a_segment_without_acknowledgment_says_nothing() {
    let mut t = open();
    assert_eq!(t.inject("P 1:11(10)"), None);
    assert_eq!(t.inject("FP 1:11(10)"), None);
    t.expect_nothing();
}

#[test]
fn a_segment_outside_the_window_is_answered() {
    let mut t = open();
    assert_eq!(t.inject(". 70001:70101(100) ack 1"), None);
    t.expect(". 1:1(0) ack 1");
    // What it acknowledges does not count.
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    assert_eq!(t.inject(". 70001:70101(100) ack 501"), None);
    t.expect(". 501:501(0) ack 1");
    assert_eq!(t.tcp.acked_offset(), 0);
    t.inject(". 1:1(0) ack 501");
    // A keep-alive.
    assert_eq!(t.inject(". 0:0(0) ack 501"), None);
    t.expect(". 501:501(0) ack 1");
    assert_eq!(t.inject(". 0:1(1) ack 501"), None);
    t.expect(". 501:501(0) ack 1");
}

#[test]
fn a_duplicate_still_acknowledges() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1");
    t.next();
    t.write(500);
    t.expect("P. 1:501(500) ack 101");
    t.inject("P. 1:101(100) ack 501");
    assert_eq!(t.tcp.acked_offset(), 500);
    t.expect(". 501:501(0) ack 101 <sack 1:101>");
}

#[test]
fn what_was_acknowledged_long_ago_acknowledges_nothing() {
    let mut t = open();
    t.inject("P. 1:1001(1000) ack 1");
    t.inject("P. 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001");
    t.write(500);
    t.expect("P. 1:501(500) ack 2001");
    // It ends in front of what was last acknowledged: outside the window, because the peer has sent
    // more since.
    t.inject("P. 1:1001(1000) ack 501");
    t.expect(". 501:501(0) ack 2001 <sack 1:1001>");
    assert_eq!(t.tcp.acked_offset(), 0);
    t.inject("P. 1001:2001(1000) ack 501");
    assert_eq!(t.tcp.acked_offset(), 500);
}

#[test]
fn aborting_resets_the_peer() {
    let mut t = open();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject("P. 1:101(100) ack 1");
    t.tcp.abort();
    assert!(!t.tcp.is_finished());
    t.expect("R. 1001:1001(0) ack 101");
    t.expect_nothing();
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Aborted));
    t.tcp.release_frames(&mut t.frames);
    assert_eq!(t.frames.available(), 256);
    // What comes later does not belong to this connection.
    assert_eq!(t.inject("P. 101:111(10) ack 1"), None);
    t.expect_nothing();
}

#[test]
fn aborting_before_the_peer_knows_us_and_after_the_end_is_silent() {
    let mut t = Script::connect(&plain());
    t.next();
    t.tcp.abort();
    t.expect_nothing();
    assert!(t.tcp.is_finished());

    let mut t = open();
    t.close();
    t.next();
    t.inject("F. 1:1(0) ack 2");
    t.next();
    t.expect_state(State::TimeWait);
    t.tcp.abort();
    t.expect_nothing();
    assert!(t.tcp.is_finished());
}

#[test]
fn a_reset_in_time_wait_is_no_failure() {
    let mut t = open();
    t.close();
    t.next();
    t.inject("F. 1:1(0) ack 2");
    t.next();
    t.inject("R 2:2(0)");
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.failure(), None);
}

#[test]
fn two_ends_that_disagree_do_not_answer_each_other_for_ever() {
    let mut t = open();
    let mut answers = 0;
    for _ in 0..1000 {
        t.inject(". 100000:100000(0) ack 1");
        answers += u32::from(t.next().is_some());
        t.pass(ms(1));
    }
    assert!(answers <= 20, "{answers}");
}
