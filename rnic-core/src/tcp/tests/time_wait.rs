//! Which SYN may take the place of a connection in TIME-WAIT (RFC 9293 section 3.10.7.4, RFC 6191).

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{State, TcpConfig};

/// Makes a connection in TIME-WAIT: the peer's next sequence number is 102, ours 12.
fn waiting(config: &TcpConfig, syn: &str, stamp: &str) -> Script {
    let mut t = Script::established(config, syn, 60_000);
    t.write(10);
    t.next().expect("ten octets");
    t.close();
    t.next().expect("the FIN");
    t.inject(&format!("FP. 1:101(100) ack 12{stamp}"));
    t.expect_state(State::TimeWait);
    t.next().expect("the last ACK");
    t
}

fn plainly() -> Script {
    waiting(&plain(), "mss 1000", "")
}

fn stamped() -> Script {
    let config = TcpConfig {
        timestamps: true,
        ..plain()
    };
    waiting(&config, "mss 1000,TS val 500 ecr 0", " <TS val 600 ecr 0>")
}

#[test]
fn a_higher_sequence_number_begins_a_new_connection() {
    let t = plainly();
    assert!(t.yields_to("S 102:102(0) <mss 1000>").is_some());
    assert!(t.yields_to("S 5000:5000(0) <mss 1000>").is_some());
}

#[test]
fn a_sequence_number_of_the_old_connection_does_not() {
    let mut t = plainly();
    for syn in ["S 0:0(0) <mss 1000>", "S 50:50(0)", "S 101:101(0)"] {
        assert_eq!(t.yields_to(syn), None, "{syn}");
    }
    // It gets an ACK, and a peer that lost its state resets us.
    t.inject("S 0:0(0) <mss 1000>");
    t.expect(". 12:12(0) ack 102");
    t.expect_state(State::TimeWait);
}

#[test]
fn a_newer_timestamp_makes_up_for_a_lower_sequence_number() {
    let t = stamped();
    assert!(t.yields_to("S 0:0(0) <TS val 601 ecr 0>").is_some());
    assert_eq!(t.yields_to("S 0:0(0) <TS val 600 ecr 0>"), None);
    assert!(t.yields_to("S 102:102(0) <TS val 600 ecr 0>").is_some());
}

#[test]
fn an_older_timestamp_does_not_begin_a_connection_whatever_its_sequence_number() {
    assert_eq!(
        stamped().yields_to("S 5000:5000(0) <TS val 599 ecr 0>"),
        None
    );
}

#[test]
fn where_one_of_both_has_no_timestamps_the_sequence_number_decides() {
    for t in [plainly(), stamped()] {
        assert!(t.yields_to("S 102:102(0)").is_some());
        assert_eq!(t.yields_to("S 0:0(0)"), None);
    }
    let t = plainly();
    assert_eq!(t.yields_to("S 0:0(0) <TS val 9 ecr 0>"), None);
}

#[test]
fn the_new_connection_begins_beyond_the_old_one() {
    assert_eq!(plainly().yields_to("S 102:102(0)"), Some(12 + 65_538));
}

#[test]
fn no_other_state_yields() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    assert_eq!(t.yields_to("S 5000:5000(0)"), None);
    t.close();
    t.next().expect("the FIN");
    assert_eq!(t.yields_to("S 5000:5000(0)"), None);
    t.inject(". 1:1(0) ack 2");
    t.expect_state(State::FinWait2);
    assert_eq!(t.yields_to("S 5000:5000(0)"), None);
    t.inject("F. 1:1(0) ack 2");
    assert!(t.yields_to("S 5000:5000(0)").is_some());
    t.pass(seconds(60) + ms(1));
    t.expect_state(State::Closed);
    assert_eq!(t.yields_to("S 5000:5000(0)"), None);
}

#[test]
fn only_the_fin_where_it_stood_begins_the_wait_anew() {
    let forged = [
        "F. 5000000:5000000(0) ack 12",
        "F. 50:50(0) ack 12",
        "FP. 1:51(50) ack 12",
        "F. 102:102(0) ack 12",
        // The FIN of the peer, except for what it acknowledges.
        "FP. 1:101(100) ack 2000000000",
        "FP 1:101(100)",
    ];
    for forged in forged {
        let mut t = plainly();
        let ends = t.tcp.next_timeout();
        t.pass(seconds(1));
        t.inject(forged);
        while t.next().is_some() {}
        assert_eq!(t.tcp.next_timeout(), ends, "{forged}");
    }
    let mut t = plainly();
    let ends = t.tcp.next_timeout();
    t.pass(seconds(1));
    t.inject("F. 101:101(0) ack 12");
    t.expect(". 12:12(0) ack 102");
    assert_eq!(t.tcp.next_timeout(), ends.map(|ends| ends + seconds(1)));
}
