//! A peer that sends anything: nothing panics, nothing is written but what was granted, and every
//! request completes once.

use std::collections::HashSet;

use proptest::prelude::*;
use rnic_core::memory::table::Access;
use rnic_core::verbs::{RecvWr, SendWr, Sge, WrOpcode};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::rdmap::AtomicOperation;

use crate::fixture::{BASE, End, MEMORY, PD, Ulpdu, segment};

/// Each use has a part of the memory of this size; the rest is not accessible.
const PART: usize = 4096;
const RECEIVES: usize = PART;
const SINKS: usize = 3 * PART;
const GRANTED: usize = 5 * PART;
const REQUESTS: usize = 8;

/// A step of a test.
#[derive(Clone, Debug)]
enum Step {
    /// Segments arrive ahead of order, the last ones first, and then in order.
    Early(Vec<Ulpdu>),
    /// A segment arrives in order.
    InTurn(Ulpdu),
    /// The peer acknowledges everything.
    Acknowledge,
}

/// Returns values near those that mean something.
fn number(meaningful: Vec<u32>) -> impl Strategy<Value = u32> {
    let near = (prop::sample::select(meaningful), 0..4u32)
        .prop_map(|(value, off)| value.wrapping_add(off).wrapping_sub(1));
    prop_oneof![10 => near, 1 => any::<u32>()]
}

fn ulpdu(stags: Vec<Stag>) -> impl Strategy<Value = Ulpdu> {
    let ulp = prop_oneof![8 => 0x40..0x4cu8, 1 => any::<u8>()];
    let len = prop_oneof![
        Just(0usize),
        1..40usize,
        Just(28usize),
        Just(12usize),
        Just(52usize),
        1..1500usize
    ];
    let stag = prop_oneof![8 => prop::sample::select(stags), 1 => any::<u32>().prop_map(Stag)];
    let base = BASE as u32;
    let starts = [RECEIVES, SINKS, GRANTED].map(|part| base + part as u32);
    let ends = starts.map(|start| start + PART as u32);
    let offset = prop_oneof![
        10 => number([starts, ends].concat()).prop_map(u64::from),
        1 => any::<u64>(),
    ];
    let tagged =
        (any::<bool>(), ulp.clone(), stag, offset).prop_map(|(last, ulp, stag, offset)| {
            let offset = TaggedOffset(offset);
            DdpHeader::Tagged(TaggedHeader {
                last,
                ulp,
                stag,
                offset,
            })
        });
    let queue = number(vec![0, 1, 2, 3]);
    let (msn, offset) = (number(vec![1, 2, 4]), number(vec![0, 28, PART as u32]));
    let untagged = (any::<bool>(), ulp, any::<u32>(), queue, msn, offset).prop_map(
        |(last, ulp, ulp32, queue, msn, offset)| {
            DdpHeader::Untagged(UntaggedHeader {
                last,
                ulp,
                ulp32,
                queue: QueueNumber(queue),
                msn: Msn(msn),
                offset: MessageOffset(offset),
            })
        },
    );
    (prop_oneof![tagged, untagged], len).prop_map(|(header, len)| segment(header, &vec![0xee; len]))
}

/// Makes an Atomic Request or Response that is well-formed but for its values.
fn atomic(stags: Vec<Stag>) -> impl Strategy<Value = Ulpdu> {
    let offset = (GRANTED - 16..GRANTED + PART + 16).prop_map(|at| BASE + at as u64);
    let stag = prop::sample::select(stags);
    let request = (1..5u32, stag, offset, any::<u64>()).prop_map(|(msn, stag, offset, add)| {
        let operation = AtomicOperation::FetchAdd { add, mask: 0 };
        crate::atomic::request(msn, operation, stag, offset)
    });
    let response = (1..5u32, 0..5u32, any::<u64>())
        .prop_map(|(msn, identifier, value)| crate::atomic::response(msn, identifier, value));
    prop_oneof![request, response]
}

fn steps(stags: Vec<Stag>) -> impl Strategy<Value = Vec<Step>> {
    let any = prop_oneof![
        3 => ulpdu(stags.clone()),
        1 => atomic(stags),
    ];
    let step = prop_oneof![
        2 => prop::collection::vec(any.clone(), 1..4).prop_map(Step::Early),
        3 => any.prop_map(Step::InTurn),
        1 => Just(Step::Acknowledge),
    ];
    prop::collection::vec(step, 0..40)
}

/// Makes an end with receives, Reads and Sends posted, and one part of its memory granted to the
/// peer.
fn end() -> (End, Vec<Stag>) {
    let mut end = End::with_markers(2, 4);
    let receives = end.register(RECEIVES, PART, Access::LOCAL_WRITE, PD);
    let sinks = end.register(SINKS, PART, Access::LOCAL_WRITE, PD);
    let granted = end.register(
        GRANTED,
        PART,
        Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        PD,
    );
    for wr_id in 0..REQUESTS {
        let length = PART / REQUESTS;
        let sge = |part: usize, lkey: Stag| Sge {
            offset: BASE + (part + wr_id * length) as u64,
            length: length as u32,
            lkey: lkey.0,
        };
        let wr_id = wr_id as u64;
        end.post_receive_wr(RecvWr::new(wr_id, &[sge(RECEIVES, receives)]).unwrap());
        let sink = sge(SINKS, sinks);
        let with_sink = |opcode| SendWr::new(wr_id, opcode).with_sges(&[sink]).unwrap();
        let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        end.post(match wr_id {
            0 | 3 => SendWr::atomic(wr_id, add, Sge { length: 8, ..sink }),
            1 | 2 => with_sink(WrOpcode::Read),
            _ => with_sink(WrOpcode::Send),
        });
    }
    (end, vec![receives, sinks, granted])
}

/// Returns the parts of the memory that the peer must not reach.
fn unreached(memory: &[u8]) -> [&[u8]; 4] {
    [
        &memory[..RECEIVES],
        &memory[RECEIVES + PART..SINKS],
        &memory[SINKS + PART..GRANTED],
        &memory[GRANTED + PART..],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // rfc: 5041-74, 5041-88, 5040-107
    #[test]
    fn a_peer_that_sends_anything(steps in steps(end().1)) {
        let (mut end, _) = end();
        for step in steps {
            match step {
                Step::Early(ulpdus) => {
                    let mut early = end.lay_out(0, &ulpdus);
                    for which in (0..ulpdus.len()).rev() {
                        early.place(&mut end, which);
                    }
                    let _ = early.deliver(&mut end);
                }
                Step::InTurn(ulpdu) => { let _ = end.receive(&ulpdu); }
                Step::Acknowledge => {
                    end.segments();
                    end.acked_all();
                }
            }
        }
        end.raw().abort();
        for completions in [end.sent(), end.received()] {
            let ids: HashSet<_> = completions.iter().map(|done| done.wr_id).collect();
            prop_assert_eq!((completions.len(), ids.len()), (REQUESTS, REQUESTS));
        }
        let memory = end.memory(0, MEMORY);
        for part in unreached(&memory) {
            prop_assert!(part == vec![0; part.len()]);
        }
    }

    #[test]
    fn a_peer_that_sends_noise(noise in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..100), 0..20,
    )) {
        let (mut end, _) = end();
        for ulpdu in noise {
            let _ = end.receive(&ulpdu);
        }
        end.raw().abort();
        prop_assert_eq!(end.sent().len() + end.received().len(), 2 * REQUESTS);
    }
}
