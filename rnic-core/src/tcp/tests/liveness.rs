//! Keepalive, the user timeout, and a FIN that never comes.

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{Keepalive, State, TcpConfig, TcpFailure};

fn with(keepalive: bool, user_timeout: Option<u64>) -> Script {
    let config = TcpConfig {
        keepalive: keepalive.then(Keepalive::default),
        user_timeout: user_timeout.map(seconds),
        ..plain()
    };
    Script::established(&config, "mss 1000", 60_000)
}

const HOURS: u64 = 3600;
/// A keepalive probe: one octet before the window.
const QUESTION: &str = ". 0:0(0) ack 1";

#[test]
fn a_silent_peer_is_probed_after_two_hours_and_given_up_after_nine_probes() {
    let mut t = with(true, None);
    t.expect_after(seconds(2 * HOURS), QUESTION);
    for _ in 1..9 {
        t.expect_after(seconds(75), QUESTION);
    }
    t.expect_after(seconds(75), "R. 1:1(0) ack 1");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
    assert_eq!(t.tcp.counters().keepalives, 9);
    assert!(t.tcp.is_finished());
}

#[test]
fn an_ack_begins_the_wait_anew() {
    let mut t = with(true, None);
    for _ in 0..3 {
        t.expect_after(seconds(2 * HOURS), QUESTION);
        t.expect_after(seconds(75), QUESTION);
        t.inject(". 1:1(0) ack 1");
        t.expect_nothing();
    }
}

#[test]
fn whatever_arrives_puts_the_probe_off() {
    let mut t = with(true, None);
    t.pass(seconds(2 * HOURS - 1));
    t.inject("P. 1:11(10) ack 1");
    t.expect(". 1:1(0) ack 11");
    t.expect_after(
        seconds(2 * HOURS) - core::time::Duration::from_nanos(1),
        ". 0:0(0) ack 11",
    );
}

#[test]
fn a_probe_of_the_peer_puts_the_own_one_off() {
    let mut t = with(true, None);
    t.pass(seconds(2 * HOURS - 1));
    t.inject(". 0:0(0) ack 1");
    t.expect(". 1:1(0) ack 1");
    t.pass(seconds(2 * HOURS - 1));
    t.expect_after(seconds(1), QUESTION);
}

/// Two ends that are idle probe each other at the same time.
#[test]
fn the_answer_to_a_probe_goes_out_although_a_probe_is_due() {
    let mut t = with(true, None);
    t.expect_after(seconds(2 * HOURS), QUESTION);
    t.pass(seconds(75));
    t.inject(". 0:0(0) ack 1");
    t.expect(". 1:1(0) ack 1");
    assert!(t.next().is_none());
}

#[test]
fn what_somebody_else_may_have_sent_does_not() {
    let mut t = with(true, None);
    t.pass(seconds(2 * HOURS - 1));
    t.inject(". 500000:500000(0) ack 1");
    t.expect(". 1:1(0) ack 1");
    t.expect_after(seconds(1), QUESTION);
}

#[test]
fn what_has_no_true_acknowledgment_does_not_either() {
    for forged in [
        "P 1:11(10)",
        "P. 1:11(10) ack 2",
        ". 1:1(0) ack 2000000000",
        ". 0:0(0) ack 2",
    ] {
        let mut t = with(true, None);
        t.pass(seconds(2 * HOURS - 1));
        assert_eq!(t.inject(forged), None);
        while t.next().is_some() {}
        t.expect_after(seconds(1), QUESTION);
    }
}

#[test]
fn nobody_is_probed_unless_that_was_chosen() {
    let mut t = with(false, None);
    assert_eq!(t.tcp.next_timeout(), None);
    t.tcp.set_keepalive(Some(Keepalive {
        idle: seconds(10),
        interval: seconds(1),
        count: 1,
    }));
    t.expect_after(seconds(10), QUESTION);
    t.tcp.set_keepalive(None);
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn a_peer_that_owes_an_acknowledgment_is_not_probed_but_sent_again() {
    let mut t = with(true, None);
    t.pass(seconds(2 * HOURS - 1));
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.expect_after(ms(200), "P. 1:501(500) ack 1");
    t.expect_after(ms(400), "P. 1:501(500) ack 1");
    t.expect_after(ms(800), "P. 1:501(500) ack 1");
    assert_eq!(t.tcp.counters().keepalives, 0);
}

#[test]
fn the_probe_of_the_peer_is_acknowledged() {
    let mut t = with(false, None);
    t.inject(". 0:0(0) ack 1");
    t.expect(". 1:1(0) ack 1");
    // With an octet of garbage, as some stacks send it.
    t.inject("P. 1:11(10) ack 1");
    t.expect(". 1:1(0) ack 11");
    t.inject(". 10:11(1) ack 1");
    t.expect(". 1:1(0) ack 11");
}

#[test]
fn a_user_timeout_ends_the_connection_when_it_has_passed() {
    let mut t = with(false, Some(1));
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.expect_after(ms(200), "P. 1:501(500) ack 1");
    t.expect_after(ms(400), "P. 1:501(500) ack 1");
    t.pass(ms(399));
    assert_eq!(t.tcp.failure(), None);
    t.pass(ms(1));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_long_user_timeout_outlasts_the_number_of_retransmissions() {
    let mut t = with(false, Some(4 * HOURS));
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.pass(seconds(4 * HOURS - 1));
    assert_eq!(t.tcp.failure(), None);
    t.pass(seconds(1));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn the_user_timeout_counts_from_the_last_progress() {
    let mut t = with(false, Some(1));
    t.write(3000);
    for start in [1, 1001, 2001] {
        t.expect(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    t.pass(ms(150));
    t.inject(". 1:1(0) ack 1001");
    t.pass(ms(999));
    assert_eq!(t.tcp.failure(), None);
    t.pass(ms(1));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_peer_that_owes_nothing_may_be_silent_longer_than_the_user_timeout() {
    let mut t = with(false, Some(1));
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.inject(". 1:1(0) ack 501");
    assert_eq!(t.tcp.next_timeout(), None);
    t.pass(seconds(100));
    t.write(500);
    t.expect("P. 501:1001(500) ack 1");
    t.pass(ms(999));
    assert_eq!(t.tcp.failure(), None);
}

#[test]
fn a_window_kept_closed_uses_up_the_user_timeout_though_the_peer_acknowledges() {
    let mut t = with(false, Some(5));
    t.inject(". 1:1(0) ack 1 win 0");
    t.write(1000);
    t.expect_nothing();
    let start = t.now;
    while t.tcp.failure().is_none() {
        t.pass(ms(10));
        if t.next().is_some() {
            t.inject(". 1:1(0) ack 1 win 0");
        }
        assert!(t.now.since(start) <= seconds(5));
    }
    assert_eq!(t.now.since(start), seconds(5));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_window_that_opens_in_time_ends_the_wait() {
    let mut t = with(false, Some(5));
    t.inject(". 1:1(0) ack 1 win 0");
    t.write(1000);
    t.expect_after(ms(200), ". 1:2(1) ack 1");
    t.pass(seconds(3));
    t.inject(". 1:1(0) ack 1 win 60000");
    t.next().expect("the octets");
    t.pass(seconds(4));
    assert_eq!(t.tcp.failure(), None, "the wait began anew");
    t.inject(". 1:1(0) ack 1001 win 60000");
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn with_a_user_timeout_it_is_time_and_not_the_number_of_probes_that_counts() {
    let mut t = with(true, Some(2 * HOURS + 100));
    t.expect_after(seconds(2 * HOURS), QUESTION);
    for _ in 0..3 {
        t.expect_after(seconds(75), QUESTION);
    }
    t.expect_after(seconds(75), "R. 1:1(0) ack 1");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_peer_may_answer_a_probe_that_is_sent_behind_the_user_timeout() {
    let mut t = with(true, Some(100));
    for _ in 0..3 {
        t.expect_after(seconds(2 * HOURS), QUESTION);
        t.pass(seconds(70));
        assert_eq!(t.tcp.failure(), None);
        t.inject(". 1:1(0) ack 1");
    }
    t.expect_after(seconds(2 * HOURS), QUESTION);
    t.expect_after(seconds(75), QUESTION);
    t.expect_after(seconds(25), "R. 1:1(0) ack 1");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_closed_window_of_a_peer_that_is_heard_can_be_excused() {
    let mut t = with(false, Some(5));
    t.inject(". 1:1(0) ack 1 win 0");
    t.write(1000);
    t.expect_after(ms(200), ". 1:2(1) ack 1");
    for _ in 0..4 {
        t.pass(seconds(4));
        t.inject(". 1:1(0) ack 1 win 0");
        t.tcp.excuse_closed_window(t.now);
        assert_eq!(t.tcp.failure(), None);
    }
    // Whoever is not heard any more is given up.
    t.tcp.excuse_closed_window(t.now);
    t.pass(seconds(5));
    t.tcp.excuse_closed_window(t.now);
    t.pass(seconds(1));
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_fin_that_never_comes_is_waited_for_a_minute() {
    let mut t = with(false, None);
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.expect_state(State::FinWait2);
    // As long as the peer sends, it may take its time.
    t.pass(seconds(59));
    t.inject("P. 1:11(10) ack 2");
    t.expect(". 2:2(0) ack 11");
    t.pass(seconds(59));
    t.expect_state(State::FinWait2);
    t.pass(seconds(1));
    t.expect("R. 2:2(0) ack 11");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn only_the_peer_prolongs_the_wait_for_its_fin() {
    let mut t = with(false, None);
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.expect_state(State::FinWait2);
    t.pass(seconds(59));
    assert_eq!(t.inject("P 1:11(10)"), None);
    assert_eq!(t.inject("P. 1:11(10) ack 2000000000"), None);
    t.next().expect("a challenge");
    t.expect_after(seconds(1), "R. 2:2(0) ack 1");
}
