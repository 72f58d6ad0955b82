//! Two ends that exchange segments through memory: in order, and placed in any order.

use std::collections::VecDeque;

use proptest::prelude::*;
use rnic_core::ddp::Placed;
use rnic_core::memory::table::Scope;
use rnic_core::verbs::wr::{completion_flags, send_flags};
use rnic_core::verbs::{SendWr, WcOpcode, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{Msn, Stag, TaggedOffset};
use rnic_core::wire::rdmap::AtomicOperation;

use crate::fixture::{BASE, End, MEMORY, PD, STREAM, Ulpdu, all_rights, pattern, pump, queues};

/// Where each half of the memory is for what: own data, and what the peer writes or sends.
const HALF: usize = MEMORY / 2;

/// What one end asks of the other.
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
    /// Whether its data come from the peer.
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

/// What is to be seen when all is done.
#[derive(Default)]
struct Expected {
    /// Where in whose memory (the asker's if true) which octets stand.
    octets: Vec<(bool, usize, Vec<u8>)>,
    /// The asker's completions: request, operation, octets.
    sent: Vec<(u64, WcOpcode, u32)>,
    /// The other's completions: octets, flags, invalidated STag, Immediate Data.
    received: Vec<(u32, u16, u32, [u8; 8])>,
}

/// Posts all requests of one end, and the receives that they need at the other. Local memory is used from `HALF` on
/// by the asker, from 0 on by the peer that is asked.
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
            received = 0;
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
    assert_eq!(asker.refused, None);
    assert_eq!(other.refused, None);
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
            (
                done.byte_len,
                done.flags,
                done.invalidated_stag,
                done.immediate,
            )
        })
        .collect();
    assert_eq!(received, expected.received);
    assert!(asker.rdmap.is_idle(&asker.qp));
}

/// One direction of a network that shuffles what it carries.
#[derive(Default)]
struct Link {
    /// Segments in the order of the stream, those that were placed early with what is kept of them, and the offset
    /// of the stream behind each.
    queue: VecDeque<(Ulpdu, Option<Placed>, u64)>,
}

impl Link {
    /// Places some segments at the receiver before their turn, some more than once, then delivers some in their turn.
    /// Returns how far the receiver has come.
    fn carry(&mut self, to: &mut End, random: &mut impl FnMut(usize) -> usize) -> Option<u64> {
        for _ in 0..random(4) {
            if self.queue.is_empty() {
                break;
            }
            let pick = random(self.queue.len());
            let (ulpdu, placed, _) = &mut self.queue[pick];
            if let Ok(early) = to.place(ulpdu) {
                *placed = Some(early);
            }
        }
        let mut reached = None;
        for _ in 0..random(4) {
            let Some((ulpdu, placed, end)) = self.queue.pop_front() else {
                break;
            };
            match placed {
                Some(placed) => to.deliver(placed).unwrap(),
                None => to.receive(&ulpdu).unwrap(),
            }
            reached = Some(end);
        }
        reached
    }
}

/// Carries everything both ways in an order that `seed` decides.
fn shuffle(a: &mut End, b: &mut End, mulpdu: usize, seed: u64) {
    let mut octets = pattern(seed, 1 << 16).into_iter().cycle();
    let mut random = move |below: usize| usize::from(octets.next().unwrap()) % below.max(1);
    let (mut to_a, mut to_b) = (Link::default(), Link::default());
    let mut idle = 0;
    while idle < 100 {
        let mut moved = false;
        for (from, link) in [(&mut *a, &mut to_b), (&mut *b, &mut to_a)] {
            for _ in 0..random(5) {
                if let Some(ulpdu) = from.next_segment(mulpdu) {
                    link.queue.push_back((ulpdu, None, from.stream));
                    moved = true;
                }
            }
        }
        if let Some(acked) = to_b.carry(b, &mut random) {
            moved = true;
            a.acked(acked);
        }
        if let Some(acked) = to_a.carry(a, &mut random) {
            moved = true;
            b.acked(acked);
        }
        idle = if moved { 0 } else { idle + 1 };
    }
}

fn pair(ird: u16, ord: u16, msn: u32) -> (End, End) {
    let (mut a, mut b) = (End::new(ird, ord), End::new(ord, ird));
    a.ddp = queues(ird, ord, Msn(msn));
    b.ddp = queues(ord, ird, Msn(msn));
    (a, b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // rfc: 5040-27, 5040-37, 5040-54, 5040-56, 5040-69, 5040-70, 5040-72, 5040-74, 5040-80, 5041-59
    // rfc: 5041-60
    #[test]
    fn every_operation_both_ways_in_order(
        from_a in asks(5, 100_000),
        from_b in asks(5, 100_000),
        mulpdu in 64usize..9000,
        (ird, ord) in (1u16..4, 1u16..4),
        seed: u64,
    ) {
        let (mut a, mut b) = pair(ird, ord, 1);
        // Each end's lower half is where the other writes, its upper half where its own requests work.
        let by_a = post(&mut a, &mut b, &from_a, seed);
        let by_b = post(&mut b, &mut a, &from_b, !seed);
        pump(&mut a, &mut b, mulpdu);
        check(&mut a, &mut b, &by_a);
        check(&mut b, &mut a, &by_b);
    }

    // rfc: 5041-44, 5041-61, 5041-62, 5041-63
    #[test]
    fn every_operation_both_ways_placed_in_any_order(
        from_a in asks(40, 3000),
        from_b in asks(40, 3000),
        mulpdu in 40usize..2000,
        (ird, ord) in (1u16..8, 1u16..8),
        msn in prop_oneof![Just(1u32), u32::MAX - 20..=u32::MAX],
        seed: u64,
    ) {
        let (mut a, mut b) = pair(ird, ord, msn);
        let by_a = post(&mut a, &mut b, &from_a, seed);
        let by_b = post(&mut b, &mut a, &from_b, !seed);
        shuffle(&mut a, &mut b, mulpdu, seed);
        check(&mut a, &mut b, &by_a);
        check(&mut b, &mut a, &by_b);
    }
}

#[test]
fn a_message_of_each_length_around_the_mulpdu() {
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        for len in [0, 1, 81, 82, 83, 85, 86, 87, 164, 172, 173, 100_000] {
            let (mut a, mut b) = pair(1, 1, 1);
            let ask = Ask {
                operation,
                len,
                fence: false,
                signaled: true,
                pieces: 3,
            };
            let expected = post(&mut a, &mut b, &[ask], 5);
            pump(&mut a, &mut b, 100);
            check(&mut a, &mut b, &expected);
        }
    }
}

#[test]
fn many_rounds_through_small_rings() {
    let (mut a, mut b) = (End::with_rings(2, 2, 8, 16), End::with_rings(2, 2, 8, 16));
    for round in 0..200 {
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
        shuffle(&mut a, &mut b, 200, round as u64);
        check(&mut a, &mut b, &expected);
    }
}
