//! The receive side against the simplest model: the set of the octets that were taken.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::script::ms;
use crate::tcp::recv::Receiver;
use crate::tcp::seq::Seq;
use crate::time::Instant;

const CAPACITY: u32 = 200;

#[derive(Clone, Debug)]
enum Step {
    /// A segment arrives; the owner takes it or not.
    Segment {
        start: i64,
        len: u64,
        taken: bool,
    },
    Advertise,
}

fn step() -> impl Strategy<Value = Step> {
    let segment = (-20_i64..400, 0_u64..60, prop::bool::weighted(0.9));
    prop_oneof![
        5 => segment.prop_map(|(start, len, taken)| Step::Segment { start, len, taken }),
        1 => Just(Step::Advertise),
    ]
}

proptest! {
    /// What is offered is the first piece of a segment that is inside the window and missing, and
    /// what is acknowledged, in order and by SACK, has been taken.
    #[test]
    fn reassembly_agrees_with_a_set_of_octets(syn: u32, steps in prop::collection::vec(step(), 1..80)) {
        let mut receiver = Receiver::new(CAPACITY, 0, 100, ms(40));
        receiver.synchronize(Seq(syn));
        let (mut taken, mut edge) = (BTreeSet::new(), receiver.advertise_in_syn().into());
        for step in steps {
            match step {
                Step::Segment { start, len, taken: takes } => {
                    let window = 0..edge;
                    let octets = (start..start + len as i64).filter_map(|at| u64::try_from(at).ok());
                    let wanted: Vec<_> = octets
                        .filter(|at| window.contains(at))
                        .skip_while(|at| taken.contains(at))
                        .take_while(|at| !taken.contains(at))
                        .collect();
                    let offer = receiver.offer(Instant::ZERO, start, len, false);
                    let offered = offer.unwrap_or(0..0);
                    prop_assert_eq!(offered.clone().collect::<Vec<_>>(), wanted);
                    if takes && !offered.is_empty() {
                        receiver.mark_received(offered.clone());
                        taken.extend(offered);
                    }
                }
                Step::Advertise => {
                    let told = receiver.nxt() + u64::from(receiver.advertise());
                    prop_assert!(told >= edge && told <= receiver.nxt().max(edge - u64::from(CAPACITY)) + u64::from(CAPACITY));
                    edge = told;
                }
            }
            let next = (0..).find(|at| !taken.contains(at)).unwrap_or(0);
            prop_assert_eq!(receiver.data_nxt(), next);
            prop_assert_eq!(receiver.ack(), Seq(syn) + 1 + next as u32);
            let (blocks, duplicate) = receiver.sack_blocks();
            for (left, right) in blocks.iter().skip(usize::from(duplicate)) {
                let [left, right] = [left, right].map(|seq| u64::from((seq - (syn.wrapping_add(1))).0));
                prop_assert!(next < left && left < right);
                prop_assert!((left..right).all(|at| taken.contains(&at)));
                prop_assert!(!taken.contains(&(left - 1)) && !taken.contains(&right), "a block is a part of another");
            }
        }
    }
}
