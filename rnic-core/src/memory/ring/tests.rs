use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::shared::Header;
use super::*;
use crate::testing::deep;

impl Entry for u64 {}

impl<const N: usize> Entry for [u64; N] {}

/// An entry whose last words a ring may leave out.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
struct Long([u64; 8]);

impl Entry for Long {
    const FEWEST_WORDS: usize = 2;
}

/// A ring whose indices start at `index`.
fn ring_at<T: Entry>(capacity: u32, index: u32) -> (Producer<T>, Consumer<T>) {
    let shared = Shared::create(capacity, usize::MAX, Memory::own).unwrap();
    shared.tail().store(index, Ordering::Relaxed);
    shared.head().store(index, Ordering::Relaxed);
    (
        Producer::new(shared.clone(), index, index),
        Consumer::new(shared, index, index),
    )
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let refused = Memory::own(isize::MAX as usize).map(drop).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::OutOfMemory);
}

#[test]
fn capacity_is_a_power_of_two() {
    for wrong in [0, 3, 100, MAX_CAPACITY * 2, u32::MAX] {
        assert!(matches!(ring::<u64>(wrong), Err(RingError::Capacity(n)) if n == wrong));
    }
    assert_eq!(ring::<u64>(1).unwrap().0.capacity(), 1);
}

#[test]
fn full_and_empty() {
    let (mut producer, mut consumer) = ring::<u64>(4).unwrap();
    assert!(producer.is_empty() && consumer.is_empty());
    assert_eq!(consumer.pop(), None);
    for n in 0..4 {
        assert_eq!(producer.free(), 4 - n as u32);
        producer.push(n).unwrap();
    }
    assert_eq!(producer.push(4), Err(Full));
    assert_eq!((producer.len(), consumer.len()), (4, 4));
    assert_eq!(
        [0, 3, 4, u32::MAX].map(|ahead| consumer.peek(ahead)),
        [Some(0), Some(3), None, None]
    );
    consumer.release(2);
    producer.push(4).unwrap();
    assert_eq!(consumer.pop(), Some(2));
    // No more is released than there is.
    consumer.release(100);
    assert_eq!((producer.len(), consumer.len()), (0, 0));
    assert!(!producer.is_broken() && !consumer.is_broken());
}

#[test]
fn a_part_of_an_entry_goes_in_and_out() {
    let (mut producer, consumer) = ring::<[u64; 4]>(1).unwrap();
    producer.push([1, 2, 3, 4]).unwrap();
    let mut entry = [9; 4];
    assert!(consumer.peek_front(0, 2, &mut entry));
    assert_eq!(entry, [1, 2, 9, 9]);
    assert!(!consumer.peek_front(1, 2, &mut entry));
    let mut consumer = consumer;
    consumer.release(1);
    producer.push_front(&[5, 6, 7, 8], 3).unwrap();
    assert_eq!(producer.push_front(&[5, 6, 7, 8], 3), Err(Full));
    assert_eq!(consumer.peek(0), Some([5, 6, 7, 4]));
    let whole: Vec<u8> = [5u64, 6, 7, 4].map(u64::to_ne_bytes).concat();
    for from in 0..=4 {
        for len in 0..=40 {
            let mut octets = vec![0xee; len];
            consumer.peek_octets(0, from, &mut octets);
            let there = &whole[8 * from..];
            let copied = len.min(there.len());
            assert_eq!(octets[..copied], there[..copied]);
            assert!(octets[copied..].iter().all(|octet| *octet == 0xee));
        }
    }
}

#[test]
fn entries_stay_in_order_across_threads() {
    let count = if cfg!(miri) { 200 } else { deep(2_000_000) };
    let (mut producer, mut consumer) = ring_at::<[u64; 12]>(64, u32::MAX - 100);
    let pusher = thread::spawn(move || {
        for n in 0..count {
            while producer.push([n; 12]).is_err() {
                thread::yield_now();
            }
        }
    });
    let mut next = 0;
    while next < count {
        // Now and then in batches, as a worker does.
        let batch = if next % 3 == 0 { consumer.len() } else { 1 };
        for ahead in 0..batch {
            let Some(entry) = consumer.peek(ahead) else {
                thread::yield_now();
                break;
            };
            assert_eq!(entry, [next; 12]);
            next += 1;
            if batch == 1 {
                consumer.release(1);
            }
        }
        if batch > 1 {
            consumer.release(batch);
        }
    }
    pusher.join().unwrap();
    assert!(consumer.is_empty());
}

proptest! {
    #[test]
    fn behaves_like_a_bounded_queue(
        index in prop_oneof![Just(0), u32::MAX - 40..=u32::MAX],
        bits in 0..5u32,
        steps in prop::collection::vec((0..4u8, 0..20u32), 0..200),
    ) {
        let capacity = 1 << bits;
        let (mut producer, mut consumer) = ring_at::<u64>(capacity, index);
        let mut model = VecDeque::new();
        for (n, (step, argument)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    let fits = model.len() < capacity as usize;
                    prop_assert_eq!(producer.push(n as u64).is_ok(), fits);
                    if fits {
                        model.push_back(n as u64);
                    }
                }
                2 => prop_assert_eq!(consumer.pop(), model.pop_front()),
                _ => {
                    prop_assert_eq!(consumer.peek(argument), model.get(argument as usize).copied());
                    consumer.release(argument);
                    model.drain(..model.len().min(argument as usize));
                }
            }
            prop_assert_eq!(consumer.len() as usize, model.len());
            prop_assert_eq!(producer.free() as usize, capacity as usize - model.len());
        }
    }

    /// Whatever the other side writes into its index, nothing is read or written outside the ring.
    #[test]
    fn lies_of_the_other_side_look_empty_or_full(ours in any::<u32>(), theirs in any::<u32>()) {
        let (producer, mut consumer) = ring_at::<u64>(8, ours);
        producer.shared.tail().store(theirs, Ordering::Relaxed);
        let said = theirs.wrapping_sub(ours);
        prop_assert_eq!(consumer.is_broken(), said > 8);
        prop_assert_eq!(consumer.len(), if said > 8 { 0 } else { said });
        prop_assert_eq!(consumer.peek(0).is_some(), (1..=8).contains(&said));
        consumer.release(u32::MAX);
        prop_assert_eq!(consumer.head, if said > 8 { ours } else { theirs });

        let (mut producer, consumer) = ring_at::<u64>(8, ours);
        consumer.shared.head().store(theirs, Ordering::Relaxed);
        let used = ours.wrapping_sub(theirs);
        prop_assert_eq!(producer.is_broken(), used > 8);
        prop_assert_eq!(producer.free(), 8u32.saturating_sub(used));
        // Within its cached view of the ring (empty, as it was made) it still writes inside the
        // ring.
        while producer.push(1).is_ok() {}
        prop_assert!(producer.tail.wrapping_sub(ours) <= 16);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn another_process_attaches_by_file() {
    let (mut producer, mut consumer) = shared_ring::<u64>(8).unwrap();
    producer.push(1).unwrap();
    producer.push(2).unwrap();
    assert_eq!(consumer.pop(), Some(1));
    let file = producer.file().unwrap().try_clone_to_owned().unwrap();
    let mut attached = Consumer::<u64>::attach(file).unwrap();
    drop(consumer);
    assert_eq!((attached.capacity(), attached.pop()), (8, Some(2)));

    let file = attached.file().unwrap().try_clone_to_owned().unwrap();
    drop(producer);
    let mut producer = Producer::<u64>::attach(file).unwrap();
    producer.push(3).unwrap();
    assert_eq!(attached.pop(), Some(3));
}

/// A process may have a thousand files, and shall have more queue pairs.
#[test]
fn a_ring_of_one_process_takes_no_file() {
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let rings: Vec<_> = (0..1000).map(|_| ring::<u64>(8).unwrap()).collect();
    // Other tests run meanwhile, and have some.
    assert!(files() < before + 500);
    assert!(rings[0].0.file().is_none() && rings[0].1.file().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn what_is_no_such_ring_is_refused() {
    let (producer, consumer) = shared_ring::<u64>(8).unwrap();
    let file = || producer.file().unwrap().try_clone_to_owned().unwrap();
    // Entries of another size.
    assert!(matches!(
        Consumer::<[u64; 2]>::attach(file()),
        Err(RingError::NotARing { entry_size: 16 })
    ));
    // More entries than the memory holds, or a number that is no capacity.
    for capacity in [0, 3, 1 << 12, u32::MAX] {
        let header = consumer.shared.start.as_ptr().cast::<Header>();
        // SAFETY: the header lies in the mapping, and no other thread uses it.
        unsafe { (&raw mut (*header).capacity).write_volatile(capacity) };
        assert!(matches!(
            Producer::<u64>::attach(file()),
            Err(RingError::NotARing { .. })
        ));
    }
    // Memory that could shrink.
    let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
    let unsealed = nix::sys::memfd::memfd_create("rnic-test", flags).unwrap();
    nix::unistd::ftruncate(&unsealed, 4096).unwrap();
    assert!(matches!(
        Consumer::<u64>::attach(unsealed),
        Err(RingError::Map { .. })
    ));
}

/// Entries without their last words take less memory, and do not run into each other.
#[test]
fn a_ring_keeps_as_many_words_as_it_is_made_for() {
    for (words, kept) in [(0, 2), (2, 2), (3, 3), (7, 7), (8, 8), (usize::MAX, 8)] {
        let (mut producer, mut consumer) = ring_of::<Long>(4, words).unwrap();
        for round in 0..10 {
            for n in 0..4 {
                producer.push(Long([100 * round + n; 8])).unwrap();
            }
            for n in 0..4 {
                let mut entry = Long([7; 8]);
                assert!(consumer.peek_into(0, &mut entry));
                let mut expected = [7; 8];
                expected[..kept].fill(100 * round + n);
                assert_eq!(entry.0, expected);
                let mut entry = Long([7; 8]);
                consumer.peek_behind(0, 1, 2, &mut entry);
                assert_eq!(entry.0, [7, 100 * round + n, 7, 7, 7, 7, 7, 7]);
                consumer.release(1);
            }
        }
    }
}

/// Octets behind the words that every ring has go the same way.
#[test]
fn octets_fill_an_entry_as_far_as_it_goes() {
    let octets: Vec<u8> = (1..=70).collect();
    for (words, len) in (2..=8).flat_map(|words| (0..=70).map(move |len| (words, len))) {
        let (mut producer, mut consumer) = ring_of::<Long>(2, words).unwrap();
        // The entry behind stays whole.
        producer.push(Long([8; 8])).unwrap();
        producer.push(Long([9; 8])).unwrap();
        consumer.release(1);
        producer
            .push_octets(&Long([7; 8]), 1, &octets[..len])
            .unwrap();
        let mut copied = [0xee; 70];
        consumer.peek_octets(1, 1, &mut copied[..len]);
        let fits = len.min(8 * (words - 1));
        assert_eq!(copied[..fits], octets[..fits]);
        assert!(copied[fits..].iter().all(|octet| *octet == 0xee));
        let mut behind = Long([0; 8]);
        assert!(consumer.peek_into(0, &mut behind));
        assert!(behind.0[..words].iter().all(|word| *word == 9));
    }
}
