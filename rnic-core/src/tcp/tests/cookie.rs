//! Connections that the ACK of a SYN cookie opens.

use super::script::{Script, plain};
use crate::tcp::{State, TcpConfig};

fn stamping() -> TcpConfig {
    TcpConfig {
        timestamps: true,
        ..plain()
    }
}

/// Returns the value of the timestamp in a segment.
fn stamp(segment: &str) -> u32 {
    let (_, rest) = segment.split_once("TS val ").expect("a timestamp");
    let (value, _) = rest.split_once(' ').expect("an echo");
    value.parse().expect("a number")
}

#[test]
fn without_timestamps_only_the_segment_size_is_agreed_on() {
    let syn = "S 0:0(0) win 5000 <mss 900,sackOK,wscale 7>";
    let (mut t, answer) =
        Script::accept_cookie(&stamping(), syn, 900, |_| ". 1:1(0) ack 1 win 5000".into());
    assert_eq!(answer, "S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.expect_state(State::Established);
    t.write(6000);
    // The window is not scaled: five segments.
    for start in [1, 901, 1801, 2701, 3601] {
        t.expect(&format!(". {start}:{}(900) ack 1", start + 900));
    }
    t.expect_nothing();
    t.inject("P. 101:201(100) ack 1 win 5000");
    t.expect(". 4501:4501(0) ack 1");
}

#[test]
fn with_timestamps_scale_and_sack_come_back_in_them() {
    let syn = "S 0:0(0) win 5000 <mss 900,sackOK,TS val 77 ecr 0,wscale 3>";
    let (mut t, answer) = Script::accept_cookie(&stamping(), syn, 900, |answer| {
        format!(". 1:1(0) ack 1 win 500 <TS val 78 ecr {}>", stamp(answer))
    });
    let stamp = stamp(&answer);
    assert_eq!(
        answer,
        format!("S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK,wscale 0,TS val {stamp} ecr 77>")
    );
    assert!(stamp <= 1_000_000, "never later than the clock");
    t.expect_state(State::Established);
    t.inject("P. 101:201(100) ack 1 win 500 <TS val 79 ecr 0>");
    t.expect(". 1:1(0) ack 1 <TS val 1000000 ecr 78,sack 101:201>");
    // 500 units of eight octets.
    t.write(6000);
    for start in [1, 889, 1777, 2665] {
        t.expect(&format!(". {start}:{}(888) ack 1", start + 888));
    }
    t.expect_nothing();
    assert_eq!(t.tcp.srtt(), None, "the SYN-ACK is not remembered");
}

#[test]
fn a_peer_without_sack_or_scale_is_remembered_as_such() {
    let syn = "S 0:0(0) win 5000 <mss 900,TS val 77 ecr 0>";
    let (mut t, answer) = Script::accept_cookie(&stamping(), syn, 900, |answer| {
        format!(". 1:1(0) ack 1 win 500 <TS val 78 ecr {}>", stamp(answer))
    });
    assert!(!answer.contains("wscale") && !answer.contains("sackOK"));
    t.inject("P. 101:201(100) ack 1 win 500 <TS val 79 ecr 0>");
    t.expect(". 1:1(0) ack 1 <TS val 1000000 ecr 78>");
    t.write(6000);
    t.expect(". 1:501(500) ack 1");
}

#[test]
fn data_on_the_acknowledgment_of_a_cookie_is_offered() {
    let syn = "S 0:0(0) win 5000 <mss 900>";
    let (mut t, _) = Script::accept_cookie(&stamping(), syn, 900, |_| {
        "P. 1:21(20) ack 1 win 5000".into()
    });
    t.expect_state(State::Established);
    assert_eq!(t.tcp.receive_offset(), 20);
    t.expect(". 1:1(0) ack 21");
}

#[test]
fn timestamps_are_not_used_where_they_are_switched_off() {
    let syn = "S 0:0(0) win 5000 <mss 900,sackOK,TS val 77 ecr 0,wscale 3>";
    let (mut t, answer) =
        Script::accept_cookie(&plain(), syn, 900, |_| ". 1:1(0) ack 1 win 5000".into());
    assert_eq!(answer, "S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.write(900);
    t.expect(". 1:901(900) ack 1");
}
