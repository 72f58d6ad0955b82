//! Explicit congestion notification (RFC 3168).

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{EcnMode, TcpConfig};

fn mode(ecn: EcnMode) -> TcpConfig {
    TcpConfig { ecn, ..plain() }
}

/// Opens a connection that uses ECN.
pub(super) fn capable() -> Script {
    let mut t = Script::connect(&mode(EcnMode::Ask));
    t.expect("SEW 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("SE. 0:0(0) ack 1 win 60000 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    assert!(t.tcp.uses_ecn());
    t
}

/// Opens a connection that uses ECN, and sends ten segments.
fn sending() -> Script {
    let mut t = capable();
    t.write(100_000);
    for n in 0..10 {
        t.expect(&format!(
            "[ect0] . {}:{}(1000) ack 1",
            n * 1000 + 1,
            n * 1000 + 1001
        ));
    }
    t
}

#[test]
fn we_do_not_ask_by_default() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    // A SYN-ACK with ECE means nothing if ECN was not asked for.
    t.inject("SE. 0:0(0) ack 1 win 60000 <mss 1000>");
    assert!(!t.tcp.uses_ecn());
}

#[test]
fn we_accept_by_default() {
    let mut t = Script::accept(&plain(), "SEW 0:0(0) win 60000 <mss 1000>");
    t.expect("SE. 0:0(0) ack 1 <mss 1000>");
    t.inject(". 1:1(0) ack 1");
    t.write(1000);
    t.expect("[ect0] . 1:1001(1000) ack 1");
}

#[test]
fn we_refuse_if_it_is_off() {
    let mut t = Script::accept(&mode(EcnMode::Off), "SEW 0:0(0) win 60000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.inject(". 1:1(0) ack 1");
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
}

#[test]
fn half_a_request_is_none() {
    for syn in ["SE", "SW", "S"] {
        let mut t = Script::accept(&plain(), &format!("{syn} 0:0(0) win 60000 <mss 1000>"));
        t.expect("S. 0:0(0) ack 1 <mss 1000>");
    }
}

#[test]
fn a_peer_that_reflects_the_request_has_not_understood_it() {
    for answer in ["SEW.", "SW.", "S."] {
        let mut t = Script::connect(&mode(EcnMode::Ask));
        t.expect("SEW 0:0(0) <mss 1000,sackOK,wscale 0>");
        t.inject(&format!("{answer} 0:0(0) ack 1 win 60000 <mss 1000>"));
        assert!(!t.tcp.uses_ecn(), "{answer}");
    }
}

#[test]
fn a_retransmitted_syn_does_not_ask() {
    let mut t = Script::connect(&mode(EcnMode::Ask));
    t.expect("SEW 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.expect_after(seconds(1), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    // It may acknowledge the first SYN, or this one.
    t.inject("SE. 0:0(0) ack 1 win 60000 <mss 1000>");
    assert!(!t.tcp.uses_ecn());
}

#[test]
fn a_peer_that_asks_again_without_is_answered_without() {
    let mut t = Script::accept(&plain(), "SEW 0:0(0) win 60000 <mss 1000>");
    t.expect("SE. 0:0(0) ack 1 <mss 1000>");
    t.inject("S 0:0(0) win 60000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    assert!(!t.tcp.uses_ecn());
}

#[test]
fn a_connection_from_a_cookie_goes_without() {
    let (t, answer) =
        Script::accept_cookie(&plain(), "SEW 0:0(0) win 60000 <mss 1000>", 1000, |_| {
            ". 1:1(0) ack 1".to_owned()
        });
    assert!(answer.starts_with("S. "), "{answer}");
    assert!(!t.tcp.uses_ecn());
}

#[test]
fn acknowledgments_and_retransmissions_are_not_capable() {
    let mut t = Script::connect(&mode(EcnMode::Ask));
    t.expect("SEW 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("SE. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    t.write(1000);
    t.expect("[ect0] . 1:1001(1000) ack 1");
    t.expect_after(ms(200), ". 1:1001(1000) ack 1");
}

#[test]
fn probes_are_not_capable() {
    let mut t = capable();
    t.inject(". 1:1(0) ack 1 win 0");
    t.write(1000);
    t.expect_after(ms(200), ". 1:2(1) ack 1");
}

#[test]
fn a_mark_is_echoed_at_once_and_until_the_peer_has_reduced() {
    let mut t = capable();
    t.inject("[ce] . 1:1001(1000) ack 1");
    t.expect("E. 1:1(0) ack 1001");
    for n in 1..4 {
        t.inject(&format!(
            ". {}:{}(1000) ack 1",
            n * 2000 - 999,
            n * 2000 + 1
        ));
        t.inject(&format!(
            ". {}:{}(1000) ack 1",
            n * 2000 + 1,
            n * 2000 + 1001
        ));
        t.expect(&format!("E. 1:1(0) ack {}", n * 2000 + 1001));
    }
    t.inject("W. 7001:8001(1000) ack 1");
    t.expect(". 1:1(0) ack 8001");
    assert_eq!(t.tcp.counters().congestion_marks, 1);
}

#[test]
fn data_carries_the_echo_too() {
    let mut t = capable();
    t.inject("[ce] . 1:1001(1000) ack 1");
    t.write(1000);
    t.expect("[ect0] E. 1:1001(1000) ack 1001");
}

#[test]
fn a_mark_on_the_segment_that_tells_of_the_reduction_is_a_new_one() {
    let mut t = capable();
    t.inject("[ce] . 1:1001(1000) ack 1");
    t.expect("E. 1:1(0) ack 1001");
    t.inject("[ce] W. 1001:2001(1000) ack 1");
    t.expect("E. 1:1(0) ack 2001");
}

#[test]
fn marks_outside_the_window_and_without_agreement_are_ignored() {
    let mut t = capable();
    t.inject("[ce] . 70001:70101(100) ack 1");
    t.expect(". 1:1(0) ack 1");
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.inject("[ce] P. 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    assert_eq!(t.tcp.counters().congestion_marks, 0);
}

#[test]
fn an_echo_halves_the_window_once_and_the_next_new_segment_says_so() {
    let mut t = sending();
    t.inject("E. 1:1(0) ack 2001");
    assert_eq!(t.tcp.cwnd(), (5000, 5000));
    for ack in [3001, 4001, 5001] {
        t.inject(&format!("E. 1:1(0) ack {ack}"));
        t.expect_nothing();
        assert_eq!(t.tcp.cwnd().1, 5000);
    }
    t.inject("E. 1:1(0) ack 6001");
    t.expect("[ect0] W. 10001:11001(1000) ack 1");
    t.inject(". 1:1(0) ack 7001");
    t.expect("[ect0] . 11001:12001(1000) ack 1");
    assert_eq!(t.tcp.counters().congestion_echoes, 1);
    assert_eq!(t.tcp.counters().retransmits, 0);
}

#[test]
fn an_echo_for_what_was_sent_after_the_reduction_counts_again() {
    let mut t = sending();
    t.inject("E. 1:1(0) ack 2001");
    let (_, first) = t.tcp.cwnd();
    t.inject("E. 1:1(0) ack 10001");
    while t.next().is_some() {}
    assert_eq!(t.tcp.cwnd().1, first);
    t.inject("E. 1:1(0) ack 11001");
    assert!(t.tcp.cwnd().1 < first);
    assert_eq!(t.tcp.counters().congestion_echoes, 2);
}

#[test]
fn a_loss_counts_as_the_reduction_and_is_told_like_one() {
    let mut t = sending();
    t.pass(ms(10));
    t.inject("E. 1:1(0) ack 1 <sack 1001:5001>");
    t.expect(". 1:1001(1000) ack 1");
    let (_, threshold) = t.tcp.cwnd();
    t.inject("E. 1:1(0) ack 10001");
    assert_eq!(t.tcp.cwnd().1, threshold);
    assert_eq!(t.tcp.counters().congestion_echoes, 0);
    t.expect("[ect0] W. 10001:11001(1000) ack 1");
}

#[test]
fn an_echo_without_agreement_means_nothing() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(10_000);
    t.expect_segments(0..10);
    t.inject("E. 1:1(0) ack 2001");
    assert_eq!(t.tcp.cwnd().1, u64::MAX);
}
