//! Workers that share associations: what one of them sends, any of the peer's may open, and once.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
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
fn a_limit_holds_while_workers_send_and_receive_at_once() {
    let keys = keys(ALGORITHMS[0], 9);
    let frame = segment(ENDS, None, 0, b"payload");
    for _ in 0..300 {
        let mut pairs = workers();
        let sa = pairs[0].sa.clone();
        let outbound = Arc::new(OutboundSa::new(sa.clone(), &keys, 1).unwrap());
        let inbound = InboundSa::new(sa, &keys, Window::new(64, true, 0)).unwrap();
        let inbound = Arc::new(inbound);
        outbound.usage().limit(7, u64::MAX);
        // The packet that begins with an octet left may have more.
        inbound.usage().limit(u64::MAX, 1);
        assert!(outbound.numbers().add(1..BLOCK));
        for pair in &mut pairs {
            pair.from.apply(Change::Outbound(outbound.clone()));
            pair.to.apply(Change::Inbound(inbound.clone()));
        }
        let barrier = Barrier::new(2);
        let all = |pair: &mut Pair| {
            barrier.wait();
            (0..20)
                .filter_map(|_| pair.send(&frame))
                .collect::<Vec<_>>()
        };
        let sent: Vec<_> = thread::scope(|scope| {
            let senders = pairs.each_mut().map(|pair| scope.spawn(|| all(pair)));
            senders.map(|sender| sender.join().unwrap()).concat()
        });
        assert_eq!(sent.len(), 7);
        let received = |(pair, frames): (&mut Pair, &[Vec<u8>])| {
            barrier.wait();
            let mut frames = frames.iter();
            frames
                .by_ref()
                .filter(|frame| pair.receive(frame).is_ok())
                .count()
        };
        let (some, others) = sent.split_at(3);
        let opened: usize = thread::scope(|scope| {
            let [one, other] = pairs.each_mut();
            let receivers = [(one, some), (other, others)];
            let receivers = receivers.map(|work| scope.spawn(|| received(work)));
            receivers
                .map(|receiver| receiver.join().unwrap())
                .iter()
                .sum()
        });
        assert_eq!(opened, 1);
    }
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
                for number in (0..7).map_while(|_| numbers.take(false)) {
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
        let receiver = || {
            (1..LAST)
                .filter(|number| window.receive(*number, false))
                .count()
        };
        let receivers = [scope.spawn(receiver), scope.spawn(receiver)];
        receivers.map(|receiver| receiver.join().unwrap() as u64)
    });
    // One may be too old when the thread that is behind comes to it.
    assert!(new[0] + new[1] < LAST, "one came twice: {new:?}");
    assert_eq!(window.top(), LAST - 1);
}
