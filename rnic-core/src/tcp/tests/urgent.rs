//! Urgent data is data like any other: flag and pointer do not change the stream.

use super::script::{Script, plain};
use crate::tcp::State;

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn every_octet_of_an_urgent_segment_is_offered_in_its_place() {
    let mut t = open();
    // The pointer to the last octet, to the one behind it, far beyond, and to none.
    for (number, pointer) in [100, 101, 60_000, 0].into_iter().enumerate() {
        let (start, end) = (1 + number * 100, 101 + number * 100);
        let offered = t.inject(&format!("UP. {start}:{end}(100) ack 1 urg {pointer}"));
        assert_eq!(offered, Some(start as u64 - 1..end as u64 - 1));
        t.expect(&format!(". 1:1(0) ack {end}"));
    }
}

#[test]
fn a_pointer_without_the_flag_says_nothing() {
    let mut t = open();
    assert_eq!(t.inject("P. 1:101(100) ack 1 urg 50"), Some(0..100));
}

#[test]
fn urgent_data_ahead_of_the_stream_waits_like_other_data() {
    let mut t = open();
    assert_eq!(t.inject("UP. 101:201(100) ack 1 urg 100"), Some(100..200));
    t.expect(". 1:1(0) ack 1 <sack 101:201>");
    t.inject("P. 1:101(100) ack 1");
    t.expect(". 1:1(0) ack 201");
}

#[test]
fn an_urgent_segment_without_data_only_acknowledges() {
    let mut t = open();
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.inject("U. 1:1(0) ack 501 urg 30000");
    assert_eq!(t.tcp.acked_offset(), 500);
    t.expect_nothing();
}

#[test]
fn urgent_and_fin_together_close_behind_the_data() {
    let mut t = open();
    assert_eq!(t.inject("UFP. 1:101(100) ack 1 urg 101"), Some(0..100));
    t.expect_state(State::CloseWait);
    t.expect(". 1:1(0) ack 102");
}
