#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::ids::PdId;
use crate::memory::program::{PAGE, ProgramMemory};
use crate::memory::region::{HugePages, Region};
use crate::memory::table::{Access, StagTable};
use crate::wire::ddp::TaggedOffset;

#[cfg(target_arch = "x86_64")]
mod steps;

const PD: PdId = PdId(1);

/// Memory of rnic's own, and of the program.
fn regions(len: usize) -> [Arc<Region>; 2] {
    let own = Region::allocate_unlocked(len, HugePages::None).unwrap();
    // It stays mapped as long as the process lives.
    let pages = Box::leak(Box::new(ProgramMemory::map(len, false)));
    let foreign = pages.region(0, len, true).unwrap();
    [Arc::new(own), Arc::new(foreign)]
}

/// Runs `with`, which gets a function that places octets at an offset of the region.
fn placing(region: &Arc<Region>, with: impl FnOnce(&dyn Fn(usize, &[u8]))) {
    let table = Arc::new(StagTable::new(8, [42; 32]));
    let all = 0..region.len();
    let stag = table
        .register(region.clone(), all, TaggedOffset(0), Access(7), PD)
        .unwrap();
    let worker = table.worker();
    with(&|offset, octets| {
        let (guard, at) = (worker.enter(), TaggedOffset(offset as u64));
        let right = Access::REMOTE_WRITE;
        let placement = guard.for_placement(stag, at, octets.len(), PD, right);
        placement.unwrap().write(octets).unwrap();
    });
}

/// An element that somebody looks at as a word.
trait Word: Copy + PartialEq {
    const ONES: Self;
    const NONE: Self;
    fn look(at: *mut u8) -> Self;
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl Word for $word {
            const ONES: Self = Self::MAX;
            const NONE: Self = 0;
            fn look(at: *mut u8) -> Self {
                // SAFETY: the tests give an address of a word in a region.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Ordering::Acquire)
            }
        }
    };
}
word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// Looks of a thread while another one stores, and the most rounds of that, should it get no time
/// to look.
const LOOKS: usize = 200_000;
const ROUNDS: u64 = 20_000_000;

/// Lets a thread `look` while this one places pieces, one for each round. Returns how many looks
/// found something wrong.
fn look_while_placing(
    region: &Arc<Region>,
    len: usize,
    piece: impl Fn(u64, &mut [u8]),
    look: impl Fn() -> bool + Sync,
) -> usize {
    let looks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let wrong = scope.spawn(|| {
            let mut wrong = 0;
            while looks.fetch_add(1, Ordering::Relaxed) < LOOKS {
                wrong += usize::from(look());
            }
            wrong
        });
        placing(region, |place| {
            let mut octets = vec![0; len];
            for round in 0..ROUNDS {
                if looks.load(Ordering::Relaxed) >= LOOKS {
                    break;
                }
                piece(round, &mut octets);
                place(AT, &octets);
            }
        });
        looks.store(LOOKS, Ordering::Relaxed);
        wrong.join().unwrap()
    })
}

/// Where pieces are placed.
const AT: usize = 512;

/// A thread looks at the last word of a piece, which is all zeros and all ones by turns.
fn look_at_last<W: Word>(region: &Arc<Region>, len: usize) {
    let last = AT + len - size_of::<W>();
    let torn = look_while_placing(
        region,
        len,
        |round, octets| octets.fill(if round % 2 == 0 { 0xff } else { 0 }),
        || {
            let word = W::look(region.as_ptr().wrapping_add(last));
            word != W::ONES && word != W::NONE
        },
    );
    let word = size_of::<W>();
    assert_eq!(torn, 0, "torn words of {word} at the end of {len} octets");
}

#[test]
fn who_looks_sees_no_torn_word() {
    for region in regions(PAGE) {
        for len in [8, 16, 24, 64, 1424] {
            look_at_last::<u64>(&region, len);
        }
        for len in [4, 12, 20, 64, 1428] {
            look_at_last::<u32>(&region, len);
        }
        for len in [2, 6, 10, 1430] {
            look_at_last::<u16>(&region, len);
        }
    }
}

/// Each word has the number of its round: who sees the last word of a round sees no earlier one
/// before it.
#[test]
fn who_sees_the_last_word_sees_the_others() {
    for (region, words) in regions(PAGE)
        .iter()
        .flat_map(|region| [(region, 2), (region, 178)])
    {
        let look = |n| u64::look(region.as_ptr().wrapping_add(AT + 8 * n));
        let early = look_while_placing(
            region,
            8 * words,
            |round, octets| {
                for word in octets.chunks_exact_mut(8) {
                    word.copy_from_slice(&round.to_ne_bytes());
                }
            },
            || {
                let last = look(words - 1);
                (0..words).any(|n| look(n) < last)
            },
        );
        assert_eq!(early, 0, "looks that saw the last of {words} words first");
    }
}

/// What an RDMA Read takes, or a message is made of: a word that changes meanwhile is loaded whole,
/// beside others too.
#[test]
fn what_is_read_has_no_torn_word() {
    for region in regions(PAGE) {
        let table = Arc::new(StagTable::new(8, [42; 32]));
        let all = 0..PAGE;
        let stag = table
            .register(region.clone(), all, TaggedOffset(0), Access(7), PD)
            .unwrap();
        let worker = table.worker();
        let done = AtomicBool::new(false);
        let torn = std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: it is a word of the region.
                let word = unsafe { AtomicU64::from_ptr(region.as_ptr().wrapping_add(AT).cast()) };
                for value in [u64::MAX, 0].iter().cycle() {
                    word.store(*value, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let is_torn = |len| {
                let (guard, from) = (worker.enter(), TaggedOffset(AT as u64));
                let mut read = [0; 31];
                let source = guard.for_reading(stag, from, len, PD, Access::REMOTE_READ);
                source.unwrap().read(&mut read[..len]).unwrap();
                let word = u64::from_ne_bytes(*read.first_chunk().unwrap());
                word != 0 && word != u64::MAX
            };
            let lengths = [8, 9, 12, 15, 20, 31].into_iter();
            let torn: Vec<usize> = lengths
                .filter(|&len| (0..LOOKS).any(|_| is_torn(len)))
                .collect();
            done.store(true, Ordering::Relaxed);
            torn
        });
        assert!(torn.is_empty(), "torn among {torn:?} octets");
    }
}
