//! Both ends do the same at once, and segments cross or are lost on the way.

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{State, TcpFailure};

fn open() -> Script {
    Script::established(&plain(), "mss 1000,sackOK", 60_000)
}

#[test]
fn both_open_and_one_syn_is_lost() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    // Our SYN is lost; the peer's comes late. Ours is sent again, with the ACK of the peer's.
    t.pass(ms(500));
    t.inject("S 0:0(0) win 5000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.inject("S. 0:0(0) ack 1 win 5000 <mss 1000>");
    t.expect_state(State::Established);
    t.expect(". 1:1(0) ack 1");
}

#[test]
fn both_open_and_the_syn_acks_are_lost() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S 0:0(0) win 5000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.expect_after(seconds(1), "S. 0:0(0) ack 1 <mss 1000>");
    // The peer's first SYN again: our SYN has not reached it.
    t.inject("S 0:0(0) win 5000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.inject(". 1:1(0) ack 1");
    t.expect_state(State::Established);
}

#[test]
fn both_close_with_data_on_the_way() {
    let mut t = open();
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
    t.close();
    t.expect("F. 501:501(0) ack 1");
    // The peer's data and FIN left before ours arrived.
    t.inject("FP. 1:301(300) ack 1");
    t.expect_state(State::Closing);
    t.expect(". 502:502(0) ack 302");
    t.inject(". 302:302(0) ack 501");
    t.expect_state(State::Closing);
    t.inject(". 302:302(0) ack 502");
    t.expect_state(State::TimeWait);
    assert_eq!(t.tcp.acked_offset(), 500);
}

#[test]
fn both_close_and_our_fin_is_lost() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject("F. 1:1(0) ack 1");
    t.expect(". 2:2(0) ack 2");
    t.expect_after(ms(200), "F. 1:1(0) ack 2");
    // The peer's FIN was not acknowledged in time either.
    t.inject("F. 1:1(0) ack 1");
    t.expect(". 2:2(0) ack 2");
    t.inject(". 2:2(0) ack 2");
    t.expect_state(State::TimeWait);
    assert_eq!(t.tcp.failure(), None);
}

#[test]
fn a_reset_while_both_close_is_told() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject("F. 1:1(0) ack 1");
    t.expect_state(State::Closing);
    t.inject("R 2:2(0)");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
}

#[test]
fn a_fin_is_not_acknowledged_by_what_was_never_sent() {
    let mut t = open();
    t.close();
    t.expect("F. 1:1(0) ack 1");
    t.inject(". 1:1(0) ack 3");
    t.expect(". 2:2(0) ack 1");
    t.expect_state(State::FinWait1);
    t.inject(". 1:1(0) ack 2");
    t.expect_state(State::FinWait2);
}

#[test]
fn data_with_an_acknowledgment_of_what_was_never_sent_is_not_taken() {
    let mut t = open();
    assert_eq!(t.inject("P. 1:101(100) ack 2"), None);
    t.expect(". 1:1(0) ack 1");
    assert_eq!(t.inject("P. 1:101(100) ack 1"), Some(0..100));
}

#[test]
fn a_window_pulled_back_behind_what_is_in_flight_holds_new_data_only() {
    let mut t = open();
    t.write(6000);
    for start in [1, 1001, 2001, 3001, 4001, 5001] {
        t.next().unwrap_or_else(|| panic!("the segment at {start}"));
    }
    t.write(4000);
    t.inject(". 1:1(0) ack 1001 win 2000");
    t.expect_nothing();
    // Data in flight may still be acknowledged.
    t.inject(". 1:1(0) ack 6001 win 2000");
    assert_eq!(t.tcp.acked_offset(), 6000);
    t.expect(". 6001:7001(1000) ack 1");
    t.expect(". 7001:8001(1000) ack 1");
    t.expect_nothing();
}

#[test]
fn losses_around_4_gib_are_repaired() {
    let mut t = open();
    let wrap = u64::from(u32::MAX) + 1;
    t.tcp.send.skip(wrap - 2000);
    t.queued = wrap - 2000;
    t.write(6000);
    let mut sent = Vec::new();
    while let Some(segment) = t.next() {
        sent.push(segment.header.seq.0);
    }
    assert_eq!(sent.len(), 6);
    // Relative to the SYN, modulo 2^32: the octets from 4294965297 on, and from 1 on again.
    t.inject(". 1:1(0) ack 4294966297 <sack 1:4001>");
    let again = t.next().expect("a retransmission");
    assert_eq!((again.header.seq.0, again.len), (sent[1], 1000));
    t.inject(". 1:1(0) ack 4001");
    assert_eq!(t.tcp.acked_offset(), wrap + 4000);
    t.expect_nothing();
}
