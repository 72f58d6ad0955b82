//! Closing a connection.

use super::script::{Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, TcpConfig, TcpFailure};

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn we_close_first() {
    let mut t = open();
    t.close();
    t.expect_state(State::FinWait1);
    t.expect("F. 1:1(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.expect_state(State::FinWait2);
    t.inject("F. 1:1(0) ack 2");
    t.expect_state(State::TimeWait);
    t.expect(". 2:2(0) ack 2");
    assert!(t.tcp.peer_closed());
    assert!(!t.tcp.is_finished());
    t.pass(seconds(60) - ms(1));
    t.expect_state(State::TimeWait);
    t.pass(ms(1));
    t.expect_nothing();
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.failure(), None);
}

#[test]
fn the_peer_closes_first() {
    let mut t = open();
    t.inject("F. 1:1(0) ack 1");
    t.expect_state(State::CloseWait);
    t.expect(". 1:1(0) ack 2");
    t.close();
    t.expect_state(State::LastAck);
    t.expect("F. 1:1(0) ack 2");
    t.inject(". 2:2(0) ack 2");
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.failure(), None);
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn both_close_at_the_same_time() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject("F. 1:1(0) ack 1");
    t.expect_state(State::Closing);
    t.expect(". 2:2(0) ack 2");
    t.inject(". 2:2(0) ack 2");
    t.expect_state(State::TimeWait);
}

#[test]
fn the_fin_and_its_acknowledgment_in_one_segment() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject("F. 1:1(0) ack 2");
    t.expect_state(State::TimeWait);
    t.expect(". 2:2(0) ack 2");
}

#[test]
fn half_closed_by_us_the_peer_goes_on() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    assert_eq!(t.inject("P. 1:1001(1000) ack 2"), Some(0..1000));
    t.expect(". 2:2(0) ack 1001");
    assert_eq!(t.inject("FP. 1001:1501(500) ack 2"), Some(1000..1500));
    t.expect(". 2:2(0) ack 1502");
    t.expect_state(State::TimeWait);
}

#[test]
fn half_closed_by_the_peer_we_go_on() {
    let mut t = open();
    t.inject("F. 1:1(0) ack 1");
    t.expect(". 1:1(0) ack 2");
    assert!(t.tcp.wants_data(t.now));
    t.write(1500);
    t.expect(". 1:1001(1000) ack 2");
    t.expect("P. 1001:1501(500) ack 2");
    t.inject(". 2:2(0) ack 1501");
    assert_eq!(t.tcp.acked_offset(), 1500);
    t.expect_state(State::CloseWait);
}

#[test]
fn queued_data_goes_out_before_the_fin_and_is_repaired_after_it() {
    let mut t = Script::established(&plain(), "mss 1000", 1000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 win 0");
    t.write(500);
    t.pump();
    t.close();
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 win 2000");
    t.expect("P. 1001:1501(500) ack 1");
    t.expect("F. 1501:1501(0) ack 1");
    t.expect_nothing();
    t.expect_after(ms(200), "P. 1001:1501(500) ack 1");
    t.inject(". 1:1(0) ack 1501 win 2000");
    t.expect("F. 1501:1501(0) ack 1");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1502 win 2000");
    t.expect_state(State::FinWait2);
    assert_eq!(t.tcp.acked_offset(), 1500);
    assert_eq!(t.frames.available(), 256);
}

#[test]
fn the_fin_is_sent_again_and_given_up() {
    let mut t = Script::established(
        &TcpConfig {
            max_retries: 2,
            ..plain()
        },
        "mss 1000",
        60_000,
    );
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.expect_after(ms(200), "F. 1:1(0) ack 1");
    t.expect_after(ms(400), "F. 1:1(0) ack 1");
    t.pass(ms(800));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_fin_out_of_order_waits_for_the_data_before_it() {
    let mut t = open();
    t.inject("F. 1001:1001(0) ack 1");
    t.expect(". 1:1(0) ack 1");
    assert!(!t.tcp.peer_closed());
    t.inject(". 1:501(500) ack 1");
    t.expect_state(State::Established);
    t.inject(". 501:1001(500) ack 1");
    t.expect(". 1:1(0) ack 1002");
    t.expect_state(State::CloseWait);
}

#[test]
fn the_fin_counts_only_when_its_data_is_taken() {
    let mut t = open();
    t.take = false;
    assert_eq!(t.inject("FP. 1:101(100) ack 1"), Some(0..100));
    t.expect_state(State::Established);
    t.take = true;
    assert_eq!(t.inject("FP. 1:101(100) ack 1"), Some(0..100));
    t.expect_state(State::CloseWait);
    t.expect(". 1:1(0) ack 102");
}

#[test]
fn a_fin_on_data_that_was_taken_before_counts() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1");
    t.next();
    assert_eq!(t.inject("FP. 1:101(100) ack 1"), None);
    t.expect_state(State::CloseWait);
    t.expect(". 1:1(0) ack 102 <sack 1:101>");
}

#[test]
fn nothing_comes_after_the_fin() {
    let mut t = open();
    t.inject("F. 1:1(0) ack 1");
    t.next();
    assert_eq!(t.inject("P. 1:11(10) ack 1"), None);
    assert_eq!(t.inject("P. 2:12(10) ack 1"), None);
    assert_eq!(t.tcp.receive_offset(), 0);

    // Nor beyond a FIN that waits for data; another FIN elsewhere changes nothing.
    let mut t = open();
    t.inject("F. 1001:1001(0) ack 1");
    assert_eq!(t.inject(". 1001:1101(100) ack 1"), None);
    assert_eq!(t.inject("F. 501:501(0) ack 1"), None);
    assert_eq!(t.inject(". 1:2001(2000) ack 1"), Some(0..1000));
    t.expect_state(State::CloseWait);
}

#[test]
fn a_fin_in_front_of_data_already_taken_is_ignored() {
    let mut t = open();
    t.inject(". 1001:2001(1000) ack 1");
    t.inject("F. 501:501(0) ack 1");
    assert_eq!(t.inject(". 1:1001(1000) ack 1"), Some(0..1000));
    assert_eq!(t.tcp.receive_offset(), 2000);
    t.expect_state(State::Established);
}

#[test]
fn time_wait_answers_a_repeated_fin_and_starts_anew() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject("F. 1:1(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.pass(seconds(50));
    t.inject("F. 1:1(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.pass(seconds(50));
    t.expect_state(State::TimeWait);
    t.pass(seconds(10));
    assert!(t.tcp.is_finished());
}

#[test]
fn a_lost_acknowledgment_of_the_last_fin() {
    let mut t = open();
    t.inject("F. 1:1(0) ack 1");
    t.next();
    t.close();
    t.expect("F. 1:1(0) ack 2");
    t.inject("F. 1:1(0) ack 1");
    t.expect(". 2:2(0) ack 2");
    t.expect_after(ms(200), "F. 1:1(0) ack 2");
    t.inject(". 2:2(0) ack 2");
    assert!(t.tcp.is_finished());
}

#[test]
fn closing_twice_is_closing_once() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.close();
    t.expect_nothing();
    t.inject(". 1:1(0) ack 2");
    t.close();
    t.expect_nothing();
    t.expect_state(State::FinWait2);
}
