//! Two ends that exchange segments, in order and ahead of order.

use proptest::prelude::*;
use rnic_core::memory::table::Scope;
use rnic_core::verbs::wr::{completion_flags, send_flags};
use rnic_core::verbs::{SendWr, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::AtomicOperation;

use crate::fixture::{
    BASE, End, MEMORY, PD, SMALL_MSS, SMALL_TAGGED, STREAM, Settings, all_rights, header, pattern,
    pump,
};

/// Each half of the memory has one use: the end's own data, or what the peer writes and sends.
const HALF: usize = MEMORY / 2;

/// An operation of one end.
#[derive(Clone, Copy, Debug)]
struct Ask {
    operation: Operation,
    len: usize,
    fence: bool,
    signaled: bool,
    /// Into how many pieces local memory is cut.
    pieces: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
    Send,
    SendSolicited,
    SendInvalidate,
    SendInline,
    Immediate,
    WriteImmediate,
    FetchAdd,
}

impl Operation {
    /// Returns whether its data come from the peer.
    fn brings(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd)
    }
}

/// What an atomic adds.
const ADDED: u64 = 0x0123_4567_89ab_cdef;

fn asks(count: usize, longest: usize) -> impl Strategy<Value = Vec<Ask>> {
    use Operation::{
        FetchAdd, Immediate, Read, Send, SendInline, SendInvalidate, SendSolicited, Write,
        WriteImmediate,
    };
    let operation = prop::sample::select(vec![
        Write,
        Read,
        Send,
        SendSolicited,
        SendInvalidate,
        SendInline,
        Immediate,
        WriteImmediate,
        FetchAdd,
    ]);
    let len = prop_oneof![1 => Just(0usize), 2 => 1..200usize, 3 => 0..=longest];
    let ask = (operation, len, any::<bool>(), any::<bool>(), 1..=4usize).prop_map(
        |(operation, len, fence, signaled, pieces)| Ask {
            operation,
            len: match operation {
                SendInline => len.min(64),
                Immediate => 0,
                FetchAdd => 8,
                _ => len,
            },
            fence,
            signaled,
            pieces,
        },
    );
    prop::collection::vec(ask, 0..count)
}

/// What both ends must have when all is done.
#[derive(Default)]
struct Expected {
    /// Octets in memory, with their place (in the requester's memory if true).
    octets: Vec<(bool, usize, Vec<u8>)>,
    /// Completions of the requester: request, operation, octets.
    sent: Vec<(u64, WcOpcode, u32)>,
    /// Completions of the other end: octets, flags, invalidated STag, Immediate Data.
    received: Vec<(u32, u16, u32, [u8; 8])>,
}

/// Stands for the octets that Immediate Data tell: Writes of the fixture may have come before them.
const IMMEDIATE: u32 = u32::MAX;

/// Posts all requests of one end, and the receives that they need at the other. The requester uses
/// local memory from `HALF` on, its peer from 0 on.
fn post(asker: &mut End, other: &mut End, asks: &[Ask], seed: u64) -> Expected {
    let mut expected = Expected::default();
    let mut at = 0_usize;
    for (index, ask) in asks.iter().enumerate() {
        let (wr_id, len) = (index as u64, ask.len);
        let adds = ask.operation == Operation::FetchAdd;
        if adds {
            at = at.next_multiple_of(8);
        }
        let octets = pattern(seed.wrapping_add(wr_id), len);
        let mut wr = SendWr::new(wr_id, wr_opcode(ask.operation));
        let reads = ask.operation.brings();
        if reads {
            other.fill(at, &octets);
        } else {
            asker.fill(HALF + at, &octets);
        }
        wr = if ask.operation == Operation::SendInline {
            wr.with_inline(&octets).unwrap()
        } else {
            let pieces = if reads { 1 } else { ask.pieces };
            let cut = len / pieces;
            let sges: Vec<_> = (0..pieces)
                .map(|piece| {
                    let end = if piece + 1 == pieces {
                        len
                    } else {
                        (piece + 1) * cut
                    };
                    asker.sge(HALF + at + piece * cut, end - piece * cut)
                })
                .collect();
            wr.with_sges(&sges).unwrap()
        };
        if adds {
            let operation = AtomicOperation::FetchAdd {
                add: ADDED,
                mask: 0,
            };
            wr = SendWr::atomic(wr_id, operation, wr.sges()[0]);
            let found = u64::from_ne_bytes(octets.clone().try_into().unwrap());
            let left = found.wrapping_add(ADDED).to_ne_bytes().to_vec();
            expected.octets.push((false, at, left));
        }
        let mut flags = if ask.signaled {
            send_flags::SIGNALED
        } else {
            0
        };
        if ask.fence {
            flags |= send_flags::FENCE;
        }
        let mut wc_flags = 0;
        if ask.operation == Operation::SendSolicited {
            flags |= send_flags::SOLICITED;
            wc_flags |= completion_flags::SOLICITED;
        }
        let mut invalidated = Stag(0);
        if ask.operation == Operation::SendInvalidate {
            invalidated = other.register(at, 1, all_rights(), Scope::Stream(PD, STREAM));
            wr.invalidate_stag = invalidated.0;
            wc_flags |= completion_flags::WITH_INVALIDATE;
        }
        let mut received = len as u32;
        let mut immediate = [0; 8];
        if matches!(
            ask.operation,
            Operation::Immediate | Operation::WriteImmediate
        ) {
            received = IMMEDIATE;
            immediate = (wr_id ^ seed).to_be_bytes();
            wc_flags |= completion_flags::WITH_IMMEDIATE;
        }
        wr = wr
            .with_flags(flags)
            .with_immediate(immediate)
            .with_remote(other.stag, TaggedOffset(BASE + at as u64));
        asker.post(wr);
        if ask.operation != Operation::Write && !reads {
            other.post_receive(wr_id, at, len);
            expected
                .received
                .push((received, wc_flags, invalidated.0, immediate));
        }
        if ask.signaled {
            let opcode = wr_opcode(ask.operation).into();
            expected.sent.push((wr_id, opcode, len as u32));
        }
        expected
            .octets
            .push((reads, if reads { HALF + at } else { at }, octets));
        at += len;
    }
    assert!(at <= HALF);
    expected
}

fn wr_opcode(operation: Operation) -> WrOpcode {
    match operation {
        Operation::Write => WrOpcode::Write,
        Operation::Read => WrOpcode::Read,
        Operation::SendInvalidate => WrOpcode::SendInvalidate,
        Operation::Immediate => WrOpcode::Immediate,
        Operation::WriteImmediate => WrOpcode::WriteImmediate,
        Operation::FetchAdd => WrOpcode::FetchAdd,
        Operation::Send | Operation::SendSolicited | Operation::SendInline => WrOpcode::Send,
    }
}

fn check(asker: &mut End, other: &mut End, expected: &Expected) {
    assert_eq!(asker.refused(), None);
    assert_eq!(other.refused(), None);
    for (at_asker, start, octets) in &expected.octets {
        let end = if *at_asker { &*asker } else { &*other };
        assert!(
            end.memory(*start, octets.len()) == *octets,
            "octets at {start}"
        );
    }
    let sent: Vec<_> = asker
        .sent()
        .iter()
        .map(|done| {
            assert_eq!(done.status(), WcStatus::Success);
            (done.wr_id, done.opcode().unwrap(), done.byte_len)
        })
        .collect();
    assert_eq!(sent, expected.sent);
    let received: Vec<_> = other
        .received()
        .iter()
        .map(|done| {
            assert_eq!(done.status(), WcStatus::Success);
            let length = match done.flags & completion_flags::WITH_IMMEDIATE {
                0 => done.byte_len,
                _ => IMMEDIATE,
            };
            (length, done.flags, done.invalidated_stag, done.immediate)
        })
        .collect();
    assert_eq!(received, expected.received);
}

/// Exchanges all segments in an order that `seed` decides, some ahead of order and some more than
/// once.
fn shuffle(a: &mut End, b: &mut End, seed: u64) {
    let mut octets = pattern(seed, 1 << 16).into_iter().cycle();
    let mut random = move |below: usize| usize::from(octets.next().unwrap()) % below.max(1);
    let mut amid = [false; 2];
    loop {
        let mut moved = false;
        for (forth, amid) in [true, false].into_iter().zip(&mut amid) {
            let (from, to) = if forth {
                (&mut *a, &mut *b)
            } else {
                (&mut *b, &mut *a)
            };
            let segments = from.segments();
            moved |= !segments.is_empty();
            let mut rest = &segments[..];
            while !rest.is_empty() {
                // A segment of another message arrives first, which must not interrupt one.
                let count = if *amid { 1 } else { 1 + random(8) };
                let (stretch, behind) = rest.split_at(count.min(rest.len()));
                rest = behind;
                if *amid {
                    to.receive(&stretch[0]).unwrap();
                } else {
                    let mut early = to.lay_out(0, stretch);
                    for _ in 0..random(2 * stretch.len()) {
                        early.place(to, random(stretch.len()));
                    }
                    early.deliver(to).unwrap();
                }
                *amid = !header(&stretch[stretch.len() - 1]).last();
            }
            if random(2) == 0 {
                from.acked_all();
            }
        }
        if moved {
            continue;
        }
        // Acknowledgments let the rest be sent.
        a.acked_all();
        b.acked_all();
        if !a.has_sent() && !b.has_sent() {
            return;
        }
    }
}

/// Makes two ends with these depths and this MSS.
fn pair(ird: u16, ord: u16, mss: u16) -> (End, End) {
    let settings = |ird, ord| Settings {
        mss,
        ..Settings::new(ird, ord).with_markers()
    };
    (settings(ird, ord).connect(), settings(ord, ird).connect())
}

/// Checks that neither end has anything left to do.
fn assert_done(mut ends: (End, End)) {
    ends.0.acked_all();
    ends.1.acked_all();
    assert!(ends.0.closes() && ends.1.closes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    // rfc: 5040-27, 5040-37, 5040-54, 5040-56, 5040-69, 5040-70, 5040-72, 5040-74, 5040-80, 5041-59
    // rfc: 5041-60
    #[test]
    fn every_operation_both_ways_in_order(
        from_a in asks(5, 50_000),
        from_b in asks(5, 50_000),
        mss in SMALL_MSS..=1460,
        (ird, ord) in (1u16..4, 1u16..4),
        seed: u64,
    ) {
        let (mut a, mut b) = pair(ird, ord, mss);
        // Each end's lower half is where the other writes, its upper half where its own requests
        // work.
        let by_a = post(&mut a, &mut b, &from_a, seed);
        let by_b = post(&mut b, &mut a, &from_b, !seed);
        pump(&mut a, &mut b);
        check(&mut a, &mut b, &by_a);
        check(&mut b, &mut a, &by_b);
        assert_done((a, b));
    }

    // rfc: 5041-44, 5041-61, 5041-62, 5041-63
    #[test]
    fn every_operation_both_ways_placed_in_any_order(
        from_a in asks(40, 3000),
        from_b in asks(40, 3000),
        mss in SMALL_MSS..=1460,
        (ird, ord) in (1u16..8, 1u16..8),
        seed: u64,
    ) {
        let (mut a, mut b) = pair(ird, ord, mss);
        let by_a = post(&mut a, &mut b, &from_a, seed);
        let by_b = post(&mut b, &mut a, &from_b, !seed);
        shuffle(&mut a, &mut b, seed);
        check(&mut a, &mut b, &by_a);
        check(&mut b, &mut a, &by_b);
        assert_done((a, b));
    }
}

#[test]
fn a_message_of_each_length_around_the_mulpdu() {
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        // The header of an untagged segment is 4 octets longer than that of a tagged one.
        let whole = [SMALL_TAGGED - 4, SMALL_TAGGED];
        let around = whole
            .into_iter()
            .flat_map(|len| [len - 1, len, len + 1, 2 * len, 2 * len + 1]);
        for len in around.chain([0, 1, 100_000]) {
            let (mut a, mut b) = pair(1, 1, SMALL_MSS);
            let ask = Ask {
                operation,
                len,
                fence: false,
                signaled: true,
                pieces: 3,
            };
            let expected = post(&mut a, &mut b, &[ask], 5);
            pump(&mut a, &mut b);
            check(&mut a, &mut b, &expected);
        }
    }
}

#[test]
fn many_rounds_through_small_rings() {
    let settings = Settings::new(2, 2).with_rings(8, 32).small().with_markers();
    let (mut a, mut b) = (settings.connect(), settings.connect());
    for round in 0..100 {
        let asks: Vec<_> = (0..8)
            .map(|i| Ask {
                operation: [Operation::Send, Operation::Read, Operation::Write][(round + i) % 3],
                len: round * 7 + i,
                fence: i == 3,
                signaled: i % 2 == 0,
                pieces: 1 + i % 4,
            })
            .collect();
        let expected = post(&mut a, &mut b, &asks, round as u64);
        shuffle(&mut a, &mut b, round as u64);
        check(&mut a, &mut b, &expected);
    }
}
