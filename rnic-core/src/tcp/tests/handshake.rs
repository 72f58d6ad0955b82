//! Opening a connection.

use super::script::{Script, ms, plain, seconds};
use crate::tcp::{Seq, State, Tcp, TcpConfig, TcpFailure};
use crate::wire::tcp::{Flags, TcpHeader, TcpOptions, TcpSegment};

#[test]
fn active_open_with_all_options() {
    let mut t = Script::connect(&TcpConfig::default());
    t.expect("S 0:0(0) win 65535 <mss 1460,sackOK,wscale 8,TS val 1000000 ecr 0>");
    t.expect_state(State::SynSent);
    t.now = t.now + ms(50);
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1400,sackOK,TS val 77 ecr 1000000,wscale 7>");
    t.expect_state(State::Established);
    // 512 KiB in units of 256.
    t.expect(". 1:1(0) ack 1 win 2048 <TS val 1000050 ecr 77>");
    t.expect_nothing();
    assert_eq!(t.tcp.max_payload(), 1388);
    assert_eq!(t.tcp.srtt(), Some(ms(50)));
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn the_acknowledgment_of_the_syn_travels_with_data() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.write(10);
    t.expect("P. 1:11(10) ack 1");
    t.expect_nothing();
}

#[test]
fn passive_open_offers_only_what_was_asked() {
    let mut t = Script::accept(&TcpConfig::default(), "S 0:0(0) win 30000 <mss 1460>");
    t.expect_state(State::SynReceived);
    t.expect("S. 0:0(0) ack 1 win 65535 <mss 1460>");
    t.inject(". 1:1(0) ack 1 win 30000");
    t.expect_state(State::Established);
    // Not scaled: no window above 65535 can be advertised.
    t.write(1);
    t.expect("P. 1:2(1) ack 1 win 65535");
    assert_eq!(t.tcp.max_payload(), 1460);
}

/// RFC 9293 section 3.7.1: the option says what its sender takes, and both directions are
/// independent.
#[test]
fn passive_open_states_its_own_segment_size_whatever_the_peers_is() {
    let accept = || Script::accept(&plain(), "S 0:0(0) win 30000 <mss 600>");
    let mut t = accept();
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    // The route is known before the SYN-ACK is sent.
    let mut t = accept();
    t.tcp.limit_mss(1460);
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    assert_eq!(t.tcp.max_payload(), 600);
    let mut t = accept();
    t.tcp.limit_mss(800);
    t.expect("S. 0:0(0) ack 1 <mss 800>");
    assert_eq!(t.tcp.max_payload(), 600);
    // The route asks peers for less than it takes (`advmss`).
    let mut t = Script::accept(&plain(), "S 0:0(0) win 30000 <mss 1000>");
    t.tcp.limit_offered_mss(500);
    t.expect("S. 0:0(0) ack 1 <mss 500>");
    assert_eq!(t.tcp.max_payload(), 1000);
}

#[test]
fn passive_open_with_all_options_and_the_window_scaled_after_the_handshake() {
    let mut t = Script::accept(
        &TcpConfig {
            mss: 1000,
            ..TcpConfig::default()
        },
        "S 0:0(0) win 1000 <mss 9000,sackOK,TS val 5 ecr 0,wscale 3>",
    );
    t.expect("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,wscale 8,TS val 1000000 ecr 5>");
    t.inject(". 1:1(0) ack 1 win 500 <TS val 6 ecr 1000000>");
    t.write(10_000);
    // 500 in units of 8 is four segments of 988 octets and less than a fifth.
    t.expect(". 1:989(988) ack 1");
    t.expect(". 989:1977(988) ack 1");
    t.expect(". 1977:2965(988) ack 1");
    t.expect(". 2965:3953(988) ack 1");
    t.expect_nothing();
}

#[test]
fn data_on_the_last_segment_of_the_handshake_is_offered() {
    let mut t = Script::accept(&plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    assert_eq!(t.inject("P. 1:21(20) ack 1"), Some(0..20));
    t.expect(". 1:1(0) ack 21");
}

#[test]
fn simultaneous_open() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S 0:0(0) win 5000 <mss 1000,sackOK>");
    t.expect_state(State::SynReceived);
    t.expect("S. 0:0(0) ack 1 <mss 1000,sackOK>");
    t.inject("S. 0:0(0) ack 1 win 5000 <mss 1000,sackOK>");
    t.expect_state(State::Established);
    t.write(500);
    t.expect("P. 1:501(500) ack 1");
}

#[test]
fn simultaneous_open_ended_by_a_plain_acknowledgment() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S 0:0(0) win 5000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.inject(". 1:1(0) ack 1");
    t.expect_state(State::Established);
}

#[test]
fn a_syn_is_sent_again_with_doubled_intervals_and_then_given_up() {
    let mut t = Script::connect(&TcpConfig {
        syn_retries: 3,
        ..plain()
    });
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    for wait in [1, 2, 4] {
        t.expect_after(seconds(wait), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    }
    t.pass(seconds(8) - ms(1));
    assert_eq!(t.tcp.failure(), None);
    t.pass(ms(1));
    t.expect_nothing();
    assert_eq!(t.tcp.failure(), Some(TcpFailure::TimedOut));
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.next_timeout(), None);
}

#[test]
fn a_connection_attempt_lasts_three_minutes() {
    // RFC 9293 section 3.8.3.
    let mut t = Script::connect(&plain());
    t.next().expect("a SYN");
    for _ in 0..180 {
        t.pass(seconds(1));
        t.next();
    }
    assert_eq!(t.tcp.failure(), None);
}

#[test]
fn after_two_lost_syns_one_segment_and_three_seconds() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.expect_after(seconds(1), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.expect_after(seconds(2), "S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.write(5000);
    t.expect(". 1:1001(1000) ack 1");
    t.expect_after(seconds(3), ". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.srtt(), None);
    // The first timeout of these octets: it sets the threshold.
    assert_eq!(t.tcp.cwnd(), (1000, 2000));
}

#[test]
fn a_syn_ack_is_sent_again_by_the_timer_and_for_a_second_syn() {
    let mut t = Script::accept(&plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.expect_after(seconds(1), "S. 0:0(0) ack 1 <mss 1000>");
    t.inject("S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.expect_nothing();
}

#[test]
fn a_second_syn_ack_is_answered_after_the_handshake() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.inject("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    t.expect_state(State::Established);
}

#[test]
fn refused() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    // Without the right ACK it may be forged.
    t.inject("R 0:0(0)");
    t.inject("R. 0:0(0) ack 2");
    t.inject("R. 0:0(0) ack 0");
    t.expect_nothing();
    t.expect_state(State::SynSent);
    t.inject("R. 0:0(0) ack 1");
    t.expect_nothing();
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Refused));
    assert!(t.tcp.is_finished());
}

#[test]
fn a_half_open_peer_is_reset() {
    // RFC 9293 figure 9: the peer still has the connection that we have forgotten.
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject(". 300:300(0) ack 100");
    t.expect("R 100:100(0)");
    t.expect_nothing();
    t.expect_state(State::SynSent);
}

#[test]
fn the_handshake_is_ended_only_by_the_right_acknowledgment() {
    let mut t = Script::accept(&plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.inject(". 1:1(0) ack 2");
    t.expect("R 2:2(0)");
    t.inject("P. 1:11(10) ack 0");
    t.expect("R 0:0(0)");
    t.inject("P 1:11(10)");
    t.expect_nothing();
    for ack in [1, 2] {
        // A RST from outside the window does not count either.
        t.inject(&format!(". 0:0(0) ack {ack}"));
        t.expect(". 1:1(0) ack 1");
    }
    t.expect_state(State::SynReceived);
    t.inject("R 1:1(0)");
    assert_eq!(t.tcp.failure(), Some(TcpFailure::Reset));
}

#[test]
fn segment_size_of_a_peer_that_says_none_or_nonsense() {
    for (options, expected) in [
        ("", 536),
        ("mss 0", 148),
        ("mss 100", 148),
        ("mss 200", 200),
        ("mss 65535", 1000),
        ("mss 536", 536),
    ] {
        let t = Script::established(&plain(), options, 1000);
        assert_eq!(t.tcp.max_payload(), expected, "{options}");
    }
}

#[test]
fn closing_before_the_handshake_is_over() {
    let mut t = Script::connect(&plain());
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.close();
    assert!(t.tcp.is_finished());
    assert_eq!(t.tcp.failure(), None);

    let mut t = Script::accept(&plain(), "S 0:0(0) win 1000 <mss 1000>");
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    t.close();
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1");
    t.expect("F. 1:1(0) ack 1");
    t.expect_state(State::FinWait1);
}

#[test]
fn the_reset_for_a_segment_without_connection() {
    let segment = |flags, payload| TcpSegment {
        header: TcpHeader {
            source_port: 7,
            destination_port: 9,
            seq: Seq(u32::MAX),
            ack: Seq(50),
            flags,
            window: 1,
            urgent: 0,
            options: TcpOptions::default(),
        },
        payload,
    };
    let reply = Tcp::reset_reply(&segment(Flags::SYN, b"abc")).unwrap();
    assert_eq!((reply.source_port, reply.destination_port), (9, 7));
    assert_eq!((reply.flags, reply.seq), (Flags::RST | Flags::ACK, Seq(0)));
    assert_eq!(reply.ack, Seq(3));
    let reply = Tcp::reset_reply(&segment(Flags::ACK | Flags::FIN, b"")).unwrap();
    assert_eq!((reply.flags, reply.seq), (Flags::RST, Seq(50)));
    assert_eq!(
        Tcp::reset_reply(&segment(Flags::RST | Flags::ACK, b"")),
        None
    );
}
