#![cfg(loom)]

use std::sync::Arc;

use loom::thread;

use super::Numbers;

/// Workers take numbers where a block has ended and the next one begins: each number once, and none
/// that is in no block.
///
/// Seen to fail: with the end of a block written before its next number; with `next` stored where
/// it is compared and exchanged.
#[test]
fn workers_take_each_number_once() {
    loom::model(|| {
        let numbers = Arc::new(Numbers::default());
        assert!(numbers.add(1..2));
        assert_eq!(numbers.take(false), Some(1));
        assert!(numbers.add(10..12));
        let other = {
            let numbers = numbers.clone();
            thread::spawn(move || numbers.take(false).unwrap())
        };
        let mut taken = [numbers.take(false).unwrap(), other.join().unwrap()];
        taken.sort_unstable();
        assert_eq!((taken, numbers.take(false)), ([10, 11], None));
    });
}
