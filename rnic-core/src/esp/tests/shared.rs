//! Workers that share associations: what one of them sends, any of the peer's may open, and once.

use std::collections::BTreeSet;
use std::thread;

use super::packets::{ALGORITHMS, Pair, keys, segment};
use crate::counters::DropReason;
use crate::esp::{BLOCK, Change, InboundSa, Numbers, OutboundSa, Window};

const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// Two pairs of workers with the same associations, with numbers of one block.
fn workers() -> [Pair; 2] {
    let mut pairs = [Pair::usual(), Pair::usual()];
    let (sa, keys) = (pairs[0].sa.clone(), keys(ALGORITHMS[0], 9));
    let outbound = OutboundSa::new(sa.clone(), &keys, 0).unwrap();
    assert!(outbound.numbers().add(1..BLOCK));
    let inbound = InboundSa::new(sa, &keys, Window::new(64, true, 0)).unwrap();
    let (outbound, inbound) = (outbound.into(), inbound.into());
    let changes = [Change::Outbound(outbound), Change::Inbound(inbound)];
    for pair in &mut pairs {
        let [outbound, inbound] = changes.clone();
        pair.from.apply(outbound);
        pair.to.apply(inbound);
    }
    pairs
}

#[test]
fn what_one_worker_seals_another_one_opens() {
    let mut pairs = workers();
    let frame = segment(ENDS, None, 0, b"payload");
    let mut sealed: Vec<_> = (0..10)
        .map(|turn: usize| pairs[turn % 2].send(&frame).unwrap())
        .collect();
    // As queues of a device may bring them.
    sealed.swap(3, 4);
    let opened = sealed.iter().enumerate();
    for (turn, frame) in opened {
        assert!(pairs[turn / 2 % 2].receive(frame).is_ok(), "{turn}");
    }
    for frame in &sealed {
        for pair in &mut pairs {
            assert_eq!(pair.receive(frame), Err(DropReason::EspReplayed));
        }
    }
}

#[test]
fn a_limit_is_for_all_workers_together() {
    let mut pairs = workers();
    let made = OutboundSa::new(pairs[0].sa.clone(), &keys(ALGORITHMS[0], 9), 1).unwrap();
    made.usage().limit(5, u64::MAX);
    assert!(made.numbers().add(1..BLOCK));
    let change = Change::Outbound(made.into());
    for pair in &mut pairs {
        pair.from.apply(change.clone());
    }
    let frame = segment(ENDS, None, 0, b"payload");
    let sent = |turn: &usize| pairs[turn % 2].send(&frame).is_some();
    assert_eq!((0..20).filter(sent).count(), 5);
}

#[test]
fn threads_take_each_number_once() {
    const BLOCKS: u64 = 200;
    let numbers = Numbers::default();
    let taken = thread::scope(|scope| {
        let taker = || {
            let mut taken = Vec::new();
            let mut last = 0;
            while last < BLOCKS * 100 - 1 {
                if numbers.is_low() {
                    let first = (numbers.last() / 100 + 1) * 100;
                    numbers.add(first..first + 100);
                }
                for number in (0..7).map_while(|_| numbers.take()) {
                    assert!(number > last);
                    last = number;
                    taken.push(number);
                }
                last = last.max(numbers.last());
            }
            taken
        };
        let takers = [scope.spawn(taker), scope.spawn(taker)];
        takers.map(|taker| taker.join().unwrap())
    });
    let all: BTreeSet<_> = taken.iter().flatten().collect();
    assert_eq!(all.len(), taken[0].len() + taken[1].len(), "one came twice");
}

#[test]
fn threads_receive_each_number_once() {
    const LAST: u64 = 100_000;
    let window = Window::new(64, true, 0);
    let new = thread::scope(|scope| {
        let receiver = || (1..LAST).filter(|number| window.receive(*number)).count();
        let receivers = [scope.spawn(receiver), scope.spawn(receiver)];
        receivers.map(|receiver| receiver.join().unwrap() as u64)
    });
    // One may be too old when the thread that is behind comes to it.
    assert!(new[0] + new[1] < LAST, "one came twice: {new:?}");
    assert_eq!(window.top(), LAST - 1);
}
