//! How much a client may send.

use nix::time::{ClockId, clock_gettime};
use rnic_manager::PoliceVerdict::{Rate, ToNic, ToPort, Truncated};

use crate::frames::{Segment, allowed, segment};
use crate::program::{FREE, Policy, with_rig};

const NANO: u64 = 1_000_000_000;
/// Frames of this length are sent in these tests.
const LEN: u64 = 14 + 20 + 20 + 12 + 100;
/// What a frame takes of the wire beside its octets: check sequence, preamble and gap.
const BESIDE: u64 = 4 + 8 + 12;
/// What these frames take of it.
const FRAME: u64 = LEN + BESIDE;

fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() as u64 * NANO + now.tv_nsec() as u64
}

/// A client with tokens for so many octets, which get no more within this test.
fn with_tokens(tokens: u64) -> Policy {
    Policy {
        rate: 1,
        burst: 4000,
        fill_time: 4000 * NANO,
        tokens: tokens * NANO,
        refilled: now(),
        ..FREE
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_burst_goes_out_and_no_more() {
    with_rig(|rig| {
        let frame = allowed()[0].octets();
        assert_eq!(frame.len() as u64, LEN);
        // Octets that come for the time of the test make no frame.
        for frames in [0, 1, 5] {
            rig.set_client(with_tokens(frames * FRAME));
            for _ in 0..frames {
                rig.expect(&frame, ToNic);
            }
            rig.expect(&frame, Rate);
            rig.expect(&frame, Rate);
        }
        // What does not go out takes no tokens: a shorter frame still fits.
        rig.set_client(with_tokens(FRAME - 20));
        rig.expect(&frame, Rate);
        rig.expect(&frame[..20], Truncated);
        let mut shorter = allowed()[0];
        shorter.payload -= 30;
        rig.expect(&shorter.octets(), ToNic);
        rig.expect(&shorter.octets(), Rate);
    });
}

/// A network has no frames below 64 octets with the check sequence: what is shorter is padded.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_short_frame_takes_as_much_as_the_shortest_on_a_wire() {
    with_rig(|rig| {
        let whole = Segment {
            tcp_options: 0,
            payload: 0,
            ..allowed()[0]
        };
        for payload in [0, 1, 5, 6, 7, 8, 100] {
            let frame = Segment { payload, ..whole }.octets();
            let len = 54 + payload as u64;
            assert_eq!(frame.len() as u64, len);
            let takes = len.max(60) + BESIDE;
            rig.set_client(with_tokens(takes - 1));
            rig.expect(&frame, Rate);
            rig.set_client(with_tokens(takes));
            rig.expect(&frame, ToNic);
            assert!(rig.tokens().0 < NANO, "{payload}");
        }
        // On a wire of 1 Gbit/s, 1,488,095 such frames pass in a second.
        assert_eq!(1_000_000_000 / 8 / (60 + BESIDE), 1_488_095);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_rate_holds_on_this_host_too() {
    with_rig(|rig| {
        let frame = segment("10.1.2.3:4420", "10.1.2.3:5000").octets();
        rig.set_client(with_tokens(FRAME));
        rig.expect(&frame, ToPort);
        rig.expect(&frame, Rate);
    });
}

/// Tokens come at the rate, to a billionth of an octet, and never more than a burst.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn tokens_come_with_time() {
    with_rig(|rig| {
        let frame = allowed()[0].octets();
        let policy = Policy {
            rate: 12_345_677,
            burst: 1 << 32,
            fill_time: ((1 << 32) * NANO).div_ceil(12_345_677),
            tokens: 7,
            refilled: now() - NANO,
            ..FREE
        };
        rig.set_client(policy);
        let (mut tokens, mut refilled) = (policy.tokens, policy.refilled);
        for _ in 0..100 {
            rig.expect(&frame, ToNic);
            let (left, then) = rig.tokens();
            let come = (then - refilled) * policy.rate;
            assert_eq!(left, tokens + come - FRAME * NANO);
            (tokens, refilled) = (left, then);
        }
        // After a pause in which all would have come, and after a shorter one, when most were there
        // already.
        for refilled in [0, now() - 2 * NANO] {
            let full = Policy {
                rate: 1000,
                burst: 4000,
                fill_time: 4 * NANO,
                tokens: 3999 * NANO,
                refilled,
                ..FREE
            };
            rig.set_client(full);
            rig.expect(&frame, ToNic);
            assert_eq!(rig.tokens().0, (4000 - FRAME) * NANO);
        }
    });
}

/// The tokens of a long pause at a high rate are more than the program can count: whatever is left
/// of their number, it must not look at it. Sixteen pauses leave sixteen numbers, from all parts of
/// the range.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_long_pause_at_a_high_rate_fills_the_burst() {
    with_rig(|rig| {
        let frame = allowed()[0].octets();
        let (rate, burst) = (1 << 40, 1 << 32);
        for part in 0..16 {
            let policy = Policy {
                rate,
                burst,
                fill_time: (burst * NANO).div_ceil(rate),
                tokens: 0,
                refilled: part << 20,
                ..FREE
            };
            rig.set_client(policy);
            rig.expect(&frame, ToNic);
            assert_eq!(rig.tokens().0, (burst - FRAME) * NANO);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_without_a_rate_needs_no_tokens() {
    with_rig(|rig| {
        for _ in 0..100 {
            rig.expect(&allowed()[0].octets(), ToNic);
        }
        assert_eq!(rig.tokens(), (0, 0));
    });
}
