#![cfg(loom)]

use std::sync::Arc;

use loom::thread;

use super::Doorbells;
use crate::memory::ring::{Consumer, ring};

/// A worker takes doorbells and sleeps whenever it may, until it has seen what each of these
/// threads posts: so many requests for the queue pair with this doorbell. A request that stays
/// unseen is a deadlock.
fn all_is_seen(count: u32, posters: &'static [(u32, u64)]) {
    loom::model(move || {
        let (bells, worker) = (Arc::new(Doorbells::new(count)), thread::current());
        let mut queues = Vec::new();
        for &(bell, posts) in posters {
            let (mut producer, consumer) = ring::<u64>(2).unwrap();
            let (bells, worker) = (bells.clone(), worker.clone());
            thread::spawn(move || {
                for n in 0..posts {
                    producer.push(n).unwrap();
                    if bells.ring(bell) {
                        worker.unpark();
                    }
                }
            });
            queues.push((bell, consumer));
        }
        let mut left: u64 = posters.iter().map(|(_, posts)| posts).sum();
        while left > 0 {
            bells.take(|rung| {
                let of_it = |queue: &&mut (u32, Consumer<u64>)| queue.0 == rung;
                for (_, queue) in queues.iter_mut().filter(of_it) {
                    left -= std::iter::from_fn(|| queue.pop()).count() as u64;
                }
            });
            if left > 0 && bells.prepare_to_sleep() {
                thread::park();
                bells.awake();
            }
        }
    });
}

/// Seen to fail: without the fence in `set` or in `take`; with a relaxed load of `sleeping` in
/// `must_wake`, or a relaxed store of it in `prepare_to_sleep`.
#[test]
fn a_request_behind_one_that_is_being_taken_is_seen() {
    all_is_seen(1, &[(0, 2)]);
}

/// Seen to fail: with the bit of the summary set first.
#[test]
fn requests_below_a_summary_are_seen() {
    all_is_seen(65, &[(64, 2)]);
}

/// Seen to fail: with the relaxed accesses to `sleeping` above.
#[test]
fn of_two_that_ring_one_wakes() {
    all_is_seen(2, &[(0, 1), (1, 1)]);
}

#[test]
fn of_two_that_ring_below_a_summary_one_wakes() {
    all_is_seen(65, &[(0, 1), (64, 1)]);
}

/// Seen to fail: with a relaxed store of `commands`, or a relaxed swap of it.
#[test]
fn commands_are_seen() {
    loom::model(|| {
        let (bells, worker) = (Arc::new(Doorbells::new(1)), thread::current());
        let (mut sender, mut commands) = ring::<u64>(2).unwrap();
        let ringing = bells.clone();
        thread::spawn(move || {
            for n in 0..2 {
                sender.push(n).unwrap();
                if ringing.ring_commands() {
                    worker.unpark();
                }
            }
        });
        let mut left = 2;
        while left > 0 {
            if bells.take_commands() {
                left -= std::iter::from_fn(|| commands.pop()).count();
            }
            if left > 0 && bells.prepare_to_sleep() {
                thread::park();
                bells.awake();
            }
        }
    });
}
