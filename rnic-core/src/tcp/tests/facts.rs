//! The facts of a connection for an administrator.

use super::script::{Script, ms, plain, seconds};
use crate::tcp::State;

#[test]
fn a_quiet_connection() {
    let t = Script::established(&plain(), "mss 1000,sackOK", 60_000);
    let facts = t.tcp.facts(t.now);
    assert_eq!(facts.state, State::Established);
    assert_eq!((facts.mss, facts.path_mss), (1000, 1000));
    assert_eq!(facts.ssthresh, None);
    assert_eq!((facts.unacked, facts.in_flight, facts.timer), (0, 0, None));
    assert_eq!((facts.send_window, facts.receive_window), (60_000, 60_000));
    assert_eq!(facts.options, [true, false, false, false]);
    assert_eq!(facts.last_sent, None);
}

#[test]
fn what_is_in_flight_by_what_is_known_of_it() {
    let mut t = Script::established(&plain(), "mss 1000,sackOK", 60_000);
    t.write(10_000);
    while t.next().is_some() {}
    t.pass(ms(30));
    t.inject(". 1:1(0) ack 1001 <sack 3001:6001>");
    let facts = t.tcp.facts(t.now);
    assert_eq!((facts.unacked, facts.sacked), (9000, 3000));
    assert_eq!(facts.lost, 2000);
    assert_eq!(facts.in_flight, 4000);
    t.next().expect("a retransmission");
    let facts = t.tcp.facts(t.now);
    assert_eq!((facts.lost, facts.retransmitted), (1000, 1000));
    assert_eq!(facts.acked, 1000);
    assert_eq!(facts.counters.retransmits, 1);
    assert!(facts.ssthresh.is_some());
}

#[test]
fn times_are_ages() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(500);
    t.next().expect("data");
    t.pass(ms(30));
    t.inject("P. 1:11(10) ack 501");
    t.next_turn();
    t.pass(seconds(2));
    let facts = t.tcp.facts(t.now);
    assert_eq!(facts.last_sent.unwrap().as_millis(), 2030);
    assert_eq!(facts.last_received.as_millis(), 2000);
    assert_eq!((facts.acked, facts.received), (500, 10));
    // The handshake took no time, the data 30 ms.
    let (rtt, variation) = facts.rtt.unwrap();
    assert_eq!((rtt, variation), (ms(30) / 8, ms(30) / 4));
}
