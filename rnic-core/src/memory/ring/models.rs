#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::level::Level;
use super::ring;

/// Both ends pass the place of an entry to each other: each has it for itself until it gives it
/// away.
///
/// Seen to fail: with a store of the tail or of the head that does not release, or a load that does
/// not acquire.
#[test]
fn an_entry_belongs_to_one_end_at_a_time() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::<[u64; 2]>(1).unwrap();
        let place = Arc::new(UnsafeCell::new(()));
        let same = place.clone();
        thread::spawn(move || {
            for n in 1..=2 {
                while producer.free() == 0 {
                    thread::yield_now();
                }
                same.with_mut(|_| producer.push([n; 2]).unwrap());
            }
        });
        for n in 1..=2 {
            while !consumer.has(0) {
                thread::yield_now();
            }
            place.with(|_| assert_eq!(consumer.peek(0), Some([n; 2])));
            consumer.release(1);
        }
    });
}

/// Seen to fail: with a relaxed store or load of the tail.
#[test]
fn octets_are_whole() {
    loom::model(|| {
        let (mut producer, consumer) = ring::<[u64; 2]>(1).unwrap();
        thread::spawn(move || producer.push_octets(&[1; 2], 1, b"octet").unwrap());
        while !consumer.has(0) {
            thread::yield_now();
        }
        let mut octets = [0; 5];
        consumer.peek_octets(0, 1, &mut octets);
        assert_eq!(&octets, b"octet");
    });
}

/// Seen to fail: with a load of the head that does not acquire, or behind that of the tail.
#[test]
fn a_level_is_never_more_than_was_pushed() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::<u64>(4).unwrap();
        let level = Level::from(&producer);
        thread::spawn(move || producer.push(1).unwrap());
        thread::spawn(move || consumer.pop());
        assert!(level.len() <= 1);
    });
}
