//! Timestamps: round-trip times and old duplicates (RFC 7323).

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{TcpConfig, TcpFailure};

/// Our clock stands at 1,000,000 when the connection opens.
fn open() -> Script {
    let config = TcpConfig {
        timestamps: true,
        mss: 1012,
        ..plain()
    };
    Script::established(&config, "mss 1012,sackOK,TS val 500 ecr 1000000", 60_000)
}

#[test]
fn every_segment_carries_them_and_the_payload_makes_room() {
    let mut t = open();
    t.now = t.now + ms(7);
    assert_eq!(t.tcp.max_payload(), 1000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1 <TS val 1000007 ecr 500>");
    t.inject("P. 1:2(1) ack 1001 <TS val 510 ecr 1000007>");
    t.expect(". 1001:1001(0) ack 2 <TS val 1000007 ecr 510>");
    t.close();
    t.expect("F. 1001:1001(0) ack 2 <TS val 1000007 ecr 510>");
}

#[test]
fn an_offset_hides_the_clock() {
    let config = TcpConfig {
        timestamp_offset: u32::MAX - 999_999,
        ..TcpConfig::default()
    };
    let mut t = Script::connect(&config);
    t.expect("S 0:0(0) <mss 1460,sackOK,wscale 8,TS val 0 ecr 0>");
}

#[test]
fn the_timestamp_of_the_first_segment_not_acknowledged_is_echoed() {
    let mut t = open();
    // Both come before an ACK is sent: the first one's time counts.
    t.inject(". 1:1001(1000) ack 1 <TS val 600 ecr 1000000>");
    t.inject(". 1001:2001(1000) ack 1 <TS val 601 ecr 1000000>");
    t.expect(". 1:1(0) ack 2001 <TS val 1000000 ecr 600>");
    // Out of order: the timestamp of the last one in order is echoed.
    t.inject(". 3001:4001(1000) ack 1 <TS val 603 ecr 1000000>");
    t.expect(". 1:1(0) ack 2001 <TS val 1000000 ecr 600,sack 3001:4001>");
    // The hole is filled: the timestamp of that segment is echoed.
    t.inject(". 2001:3001(1000) ack 1 <TS val 650 ecr 1000000>");
    t.expect(". 1:1(0) ack 4001 <TS val 1000000 ecr 650>");
}

#[test]
fn a_retransmission_of_what_we_have_changes_no_time() {
    let mut t = open();
    t.inject("P. 1:1001(1000) ack 1 <TS val 600 ecr 1000000>");
    t.expect(". 1:1(0) ack 1001 <TS val 1000000 ecr 600>");
    // It lies outside the window.
    t.inject("P. 1:1001(1000) ack 1 <TS val 900 ecr 1000000>");
    t.expect(". 1:1(0) ack 1001 <TS val 1000000 ecr 600,sack 1:1001>");
}

/// Half the range of timestamps ahead of 600: after it, all that the true peer sends would be old.
const POISON: &str = "<TS val 2147484247 ecr 1000000>";

/// Injects a forged segment, and checks that the next of the true peer still counts.
#[track_caller]
fn survives(forged: &str) {
    for long in [false, true] {
        let mut t = open();
        t.inject("P. 1:1001(1000) ack 1 <TS val 600 ecr 1000000>");
        t.expect(". 1:1(0) ack 1001 <TS val 1000000 ecr 600>");
        let forged = format!("{forged} {POISON}");
        let offered = match long {
            true => t.inject_long(&forged),
            false => t.inject(&forged),
        };
        assert_eq!(offered, None, "{forged}");
        while t.next().is_some() {}
        let next = t.inject("P. 1001:2001(1000) ack 1 <TS val 601 ecr 1000000>");
        assert_eq!(next, Some(1000..2000), "behind {forged}");
        t.expect(". 1:1(0) ack 2001 <TS val 1000000 ecr 601>");
    }
}

#[test]
fn what_lies_outside_the_window_sets_no_time() {
    let next = 1001_u32;
    let behind = [1, 2, 1000, 1001, 0xfffe, 0xffff, 0x1_0000, 1 << 30];
    let beyond = [60_001, 70_000, 1 << 30].map(|n| next + n);
    for seq in behind
        .map(|n| next.wrapping_sub(n))
        .into_iter()
        .chain(beyond)
    {
        for ack in ["", " ack 1", " ack 2", " ack 4294967295", " ack 2000000000"] {
            let flags = if ack.is_empty() { "P" } else { "P." };
            survives(&format!("{flags} {seq}:{seq}(0){ack}"));
        }
    }
    // All of its octets have come already.
    survives("P. 1:1001(1000) ack 1");
}

#[test]
fn what_has_no_true_acknowledgment_sets_no_time() {
    for segment in ["1001:1001(0)", "1001:1101(100)", "501:1501(1000)"] {
        survives(&format!("P {segment}"));
        // Never sent, and older than any window of ours.
        for ack in [2, 60_000, 1 << 31, u32::MAX - 60_000] {
            survives(&format!("P. {segment} ack {ack}"));
        }
    }
}

#[test]
fn data_that_fill_a_hole_set_the_time_though_their_acknowledgment_was_overtaken() {
    let mut t = open();
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect(". 1001:2001(1000) ack 1");
    t.inject("P. 1001:2001(1000) ack 2001 <TS val 600 ecr 1000000>");
    t.expect(". 2001:2001(0) ack 1 <TS val 1000000 ecr 500,sack 1001:2001>");
    t.inject("P. 1:1001(1000) ack 1001 <TS val 600 ecr 1000000>");
    t.expect(". 2001:2001(0) ack 2001 <TS val 1000000 ecr 600>");
}

#[test]
fn an_old_duplicate_is_not_taken() {
    let mut t = open();
    t.inject("P. 1:101(100) ack 1 <TS val 600 ecr 1000000>");
    t.next();
    assert_eq!(
        t.inject("P. 101:201(100) ack 1 <TS val 599 ecr 1000000>"),
        None
    );
    t.expect(". 1:1(0) ack 101 <TS val 1000000 ecr 600>");
    assert_eq!(
        t.inject("P. 101:201(100) ack 1 <TS val 600 ecr 1000000>"),
        Some(100..200)
    );
    // A RST counts whatever its timestamp.
    t.inject("R 201:201(0) <TS val 1 ecr 0>");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
}

#[test]
fn after_24_days_any_timestamp_is_new() {
    let mut t = open();
    t.pass(seconds(24 * 24 * 3600));
    assert_eq!(
        t.inject("P. 1:101(100) ack 1 <TS val 499 ecr 1000000>"),
        Some(0..100)
    );
}

#[test]
fn the_peers_clock_may_wrap() {
    let config = TcpConfig {
        timestamps: true,
        ..plain()
    };
    let mut t = Script::established(&config, "mss 1012,TS val 4294967295 ecr 1000000", 60_000);
    assert_eq!(
        t.inject("P. 1:101(100) ack 1 <TS val 3 ecr 1000000>"),
        Some(0..100)
    );
    t.expect(". 1:1(0) ack 101 <TS val 1000000 ecr 3>");
    assert_eq!(
        t.inject("P. 101:201(100) ack 1 <TS val 4294967295 ecr 1000000>"),
        None
    );
}

#[test]
fn a_segment_without_timestamp_is_taken_all_the_same() {
    let mut t = open();
    assert_eq!(t.inject("P. 1:101(100) ack 1"), Some(0..100));
}

#[test]
fn a_retransmission_is_measured_by_the_timestamp_echoed() {
    let mut t = open();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect_after(ms(200), "P. 1:1001(1000) ack 1 <TS val 1000200 ecr 500>");
    t.pass(ms(80));
    t.inject(". 1:1(0) ack 1001 <TS val 700 ecr 1000200>");
    // SRTT was 0 from the handshake: an eighth of 80 ms.
    assert_eq!(t.tcp.srtt(), Some(ms(10)));
    // The backoff has ended with the sample.
    t.write(1000);
    t.expect(". 1001:2001(1000) ack 1");
    t.expect_after(ms(210), ". 1001:2001(1000) ack 1");
}

#[test]
fn an_echo_that_is_none_of_ours_is_no_sample() {
    let mut t = open();
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect_after(ms(200), "P. 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 1001 <TS val 700 ecr 3000000000>");
    assert_eq!(t.tcp.srtt(), Some(ms(0)));
}
