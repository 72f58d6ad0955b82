//! Whatever arrives, nothing panics, and segments that cannot be true are not believed.

use proptest::prelude::*;

use super::pair::Random;
use super::script::{OUR_ISN, PEER_ISN, Script, ms, plain, seconds};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, Tcp, TcpConfig};
use crate::wire::tcp::{Flags, TcpHeader, TcpOptions, TcpSegment, Timestamps};

/// Makes a connection in the given state.
fn in_state(state: State, config: &TcpConfig) -> Script {
    if state == State::SynSent {
        let mut t = Script::connect(config);
        t.next();
        return t;
    }
    if state == State::SynReceived {
        let mut t = Script::accept(config, "S 0:0(0) win 60000 <mss 1000,sackOK,wscale 4>");
        t.next();
        return t;
    }
    let mut t = Script::established(config, "mss 1000,sackOK,wscale 4,TS val 9 ecr 0", 60_000);
    t.write(6000);
    while t.next().is_some() {}
    let way: &[&str] = match state {
        State::FinWait1 => &["close"],
        State::FinWait2 => &["close", ". 1:1(0) ack 6002 <TS val 10 ecr 0>"],
        State::CloseWait => &["F. 1:1(0) ack 1 <TS val 10 ecr 0>"],
        State::Closing => &["close", "F. 1:1(0) ack 1 <TS val 10 ecr 0>"],
        State::LastAck => &["F. 1:1(0) ack 1 <TS val 10 ecr 0>", "close"],
        State::TimeWait => &["close", "F. 1:1(0) ack 6002 <TS val 10 ecr 0>"],
        State::Closed => &["R 1:1(0)"],
        _ => &[],
    };
    for step in way {
        match *step {
            "close" => t.close(),
            segment => drop(t.inject(segment)),
        }
        while t.next().is_some() {}
    }
    t.expect_state(state);
    t
}

const STATES: [State; 10] = [
    State::SynSent,
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
    State::Closed,
];

/// Returns a number near one of the interesting ones, or any number.
fn near(random: &mut Random, interesting: &[u32]) -> u32 {
    let base = interesting[random.below(interesting.len() as u64) as usize];
    match random.below(8) {
        0 => random.next() as u32,
        1 => base,
        2 => base.wrapping_add(1 << 31),
        3 => base.wrapping_add(random.below(70_000) as u32),
        4 => base.wrapping_sub(random.below(70_000) as u32),
        _ => base.wrapping_add(random.below(9) as u32).wrapping_sub(4),
    }
}

fn segment<'a>(random: &mut Random, payload: &'a [u8]) -> TcpSegment<'a> {
    let ours = [0, 1, 1001, 5001, 6001, 6002].map(|n| OUR_ISN.0.wrapping_add(n));
    let theirs = [0, 1, 2, 1001, 60_001].map(|n| PEER_ISN.0.wrapping_add(n));
    let mut options = TcpOptions::default();
    if random.below(2) == 0 {
        let stamp = near(random, &[9, 10, 1_000_000]);
        options.timestamps = Some(Timestamps {
            value: stamp,
            echo: near(random, &[0, 1_000_000]),
        });
    }
    for _ in 0..random.below(5) {
        let (left, right) = (near(random, &ours), near(random, &ours));
        options
            .sack
            .push(crate::tcp::Seq(left), crate::tcp::Seq(right));
    }
    if random.below(4) == 0 {
        options.mss = Some(random.next() as u16);
        options.window_scale = Some(random.below(15) as u8);
        options.sack_permitted = random.below(2) == 0;
    }
    let flags = match random.below(4) {
        0 => Flags(random.next() as u8),
        1 => Flags::ACK | Flags(random.next() as u8 & 0x09),
        _ => Flags::ACK,
    };
    let len = [0, 0, 1, 100, 1000][random.below(5) as usize];
    TcpSegment {
        header: TcpHeader {
            source_port: 2000,
            destination_port: 1000,
            seq: crate::tcp::Seq(near(random, &theirs)),
            ack: crate::tcp::Seq(near(random, &ours)),
            flags,
            window: [0, 1, 500, 60_000, 65_535][random.below(5) as usize],
            urgent: random.next() as u16,
            options,
        },
        payload: &payload[..len],
    }
}

/// Runs random segments, times and calls against a connection.
fn torture(t: &mut Script, seed: u64, steps: u32) {
    let mut random = Random(seed);
    let payload = [0; 1000];
    let mut sent_to = t.queued;
    for _ in 0..steps {
        let segment = segment(&mut random, &payload);
        let before = t.tcp.receive_offset();
        if let Ok(Some(data)) = t.tcp.receive(t.now, &segment, false, &mut t.frames) {
            let end = data.offset + data.bytes.len() as u64;
            assert!(data.offset >= before && !data.bytes.is_empty());
            assert!(end <= t.tcp.recv.edge());
            if random.below(4) > 0 {
                t.tcp.mark_received(t.now, data.offset..end);
            }
        }
        match random.below(20) {
            0 => t.close(),
            1 => t
                .tcp
                .set_buffered(random.below(100_000) as u32, random.below(100_000) as u32),
            2 => t.write(random.below(3000)),
            3 => t.pass(ms(random.below(300))),
            4 => t.pass(seconds(random.below(3))),
            5 if random.below(20) == 0 => t.tcp.abort(),
            _ => {}
        }
        let mut sent = 0;
        while t.next().is_some() {
            sent += 1;
            assert!(sent < 1000, "it never stops sending");
        }
        sent_to = sent_to.max(t.queued);
        assert!(
            t.tcp.acked_offset() <= sent_to,
            "acknowledged what was never queued"
        );
        assert!(t.tcp.send.una() <= t.tcp.send.nxt());
        assert!(t.tcp.send.pipe() <= t.tcp.send.flight() + 1460);
    }
    t.tcp.abort();
    t.tcp.release_frames(&mut t.frames);
    assert_eq!(t.frames.available(), 256, "frames are lost");
}

/// Returns the state that forged segments must not change: all but the counters and the ACKs that
/// are due.
fn essence(tcp: &Tcp) -> String {
    let timers = (
        tcp.retransmit_at,
        tcp.time_wait_ends,
        tcp.retries,
        tcp.probing,
    );
    let ours = (&tcp.send, &tcp.recovery, &tcp.rtt);
    let theirs = (
        tcp.recv.data_nxt(),
        tcp.recv.edge(),
        tcp.peer_closed(),
        tcp.recv.out_of_order(),
    );
    let of_both = (&tcp.options, &tcp.ecn, &tcp.liveness);
    format!(
        "{:?} {timers:?} {ours:?} {theirs:?} {of_both:?}",
        tcp.state()
    )
}

/// Returns whether the sender of a segment may have guessed blindly: the segment does not show
/// where both streams stand. A keepalive probe does, right in front of the window.
fn is_blind(tcp: &Tcp, segment: &TcpSegment<'_>) -> bool {
    let header = &segment.header;
    let len = segment.payload.len() as u64 + u64::from(header.flags.fin());
    let start = tcp.recv.offset_of(header.seq);
    let ack = tcp.send.offset_of(header.ack);
    let (una, nxt) = (tcp.send.una().cast_signed(), tcp.send.nxt().cast_signed());
    let known = una.saturating_sub_unsigned(tcp.send.window.max_snd_wnd)..=nxt;
    let end = start.saturating_add_unsigned(len);
    let probes = start == tcp.recv.nxt().cast_signed() - 1 && len <= 1;
    let inside = tcp.recv.acceptable(start, len)
        || tcp.recv.is_recent(end)
        || probes && (una..=nxt).contains(&ack);
    !inside || !header.flags.ack() || !known.contains(&ack)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_segments_into_every_state(seed: u64, timestamps: bool) {
        let config = TcpConfig { timestamps, receive_window: 100_000, ..plain() };
        for state in STATES {
            torture(&mut in_state(state, &config), seed, 60);
        }
    }

    /// RFC 5961, for everything that a segment can change. Only a RST needs no acknowledgment.
    #[test]
    fn what_is_sent_blindly_changes_nothing(seed: u64) {
        let config = TcpConfig { timestamps: true, receive_window: 100_000, ..plain() };
        let mut random = Random(seed);
        let mut blind = 0;
        for state in STATES.into_iter().filter(|state| !state.is_opening()) {
            let mut t = in_state(state, &config);
            for _ in 0..60 {
                let mut segment = segment(&mut random, &[0; 1000]);
                segment.header.flags = Flags(segment.header.flags.0 & !(Flags::SYN | Flags::RST).0);
                if !is_blind(&t.tcp, &segment) {
                    continue;
                }
                blind += 1;
                t.pass(ms(1));
                let before = essence(&t.tcp);
                prop_assert!(t.tcp.receive(t.now, &segment, true, &mut t.frames).is_err());
                prop_assert_eq!(essence(&t.tcp), before, "{:?}", segment.header);
                while t.next().is_some() {}
            }
        }
        prop_assert!(blind > 60, "{blind}");
    }

    #[test]
    fn a_random_syn_is_accepted(seed: u64) {
        let mut random = Random(seed);
        let mut syn = segment(&mut random, &[0; 1000]);
        syn.header.flags = Flags::SYN;
        let mut t = Script::connect(&plain());
        t.tcp = Tcp::accept(t.now, &TcpConfig::default(), OUR_ISN, &syn);
        prop_assert!(t.tcp.max_payload() >= 148);
        torture(&mut t, seed, 30);
    }
}

#[test]
fn long_torture_in_the_established_state() {
    for seed in 0..20 {
        let config = TcpConfig {
            receive_window: 500_000,
            ..plain()
        };
        torture(&mut in_state(State::Established, &config), seed, 3000);
    }
}
