//! Reports of duplicates by D-SACK (RFC 2883).

use super::script::{Script, plain};

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn a_segment_that_came_before_is_reported_once() {
    let mut t = open();
    t.inject("P. 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    t.inject("P. 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 <sack 1:1001>");
    t.expect_nothing();
    t.inject("P. 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001");
    assert_eq!(t.tcp.counters().dsacks_sent, 1);
}

#[test]
fn a_duplicate_beyond_a_hole_is_followed_by_the_block_around_it() {
    let mut t = open();
    t.inject(". 1001:3001(2000) ack 1");
    t.next();
    t.inject(". 5001:6001(1000) ack 1");
    t.next();
    t.inject(". 2001:3001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 2001:3001 1001:3001 5001:6001>");
    t.inject(". 7001:8001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 7001:8001 5001:6001 1001:3001>");
}

#[test]
fn only_the_part_that_came_before_is_reported() {
    let mut t = open();
    t.inject("P. 1:1001(1000) ack 1");
    t.next();
    assert_eq!(t.inject("P. 501:1501(1000) ack 1"), Some(1000..1500));
    t.expect(". 1:1(0) ack 1501 <sack 501:1001>");
}

#[test]
fn duplicates_of_a_batch_that_join_are_reported_as_one() {
    let mut t = open();
    t.inject("P. 1:3001(3000) ack 1");
    t.next();
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 3001 <sack 1:2001>");
    t.expect_nothing();
}

#[test]
fn others_are_reported_each_on_its_own() {
    let mut t = open();
    t.inject("P. 1:4001(4000) ack 1");
    t.next();
    t.inject(". 1:1001(1000) ack 1");
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 4001 <sack 1:1001>");
    t.expect(". 1:1(0) ack 4001 <sack 3001:4001>");
    t.expect_nothing();
}

#[test]
fn a_peer_without_sack_gets_no_report() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.inject("P. 1:1001(1000) ack 1");
    t.next();
    t.inject("P. 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    assert_eq!(t.tcp.counters().dsacks_sent, 0);
}

#[test]
fn what_lies_outside_of_the_window_and_never_came_is_no_duplicate() {
    let mut t = open();
    t.inject(". 70001:71001(1000) ack 1");
    t.expect(". 1:1(0) ack 1");
}

#[test]
fn a_batch_of_many_duplicates_is_not_worth_an_acknowledgment_each() {
    let mut t = open();
    t.inject("P. 1:40001(40000) ack 1");
    t.next();
    for n in 0..20 {
        let start = n * 2000 + 1;
        t.inject(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    let mut reports = 0;
    while t.next().is_some() {
        reports += 1;
    }
    assert_eq!(reports, 8);
}
