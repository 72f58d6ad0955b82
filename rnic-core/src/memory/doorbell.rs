//! Doorbells: how an application tells a worker which queue pairs have new work requests.
//!
//! A bit per queue pair, and where there are more than 64, a bit above for each 64 of them.
//! Everything is sequentially consistent, so that of a ring and a worker's look at the same bit,
//! one sees the other: no request is left behind unseen.
//!
//! A message that is posted alone pays for all of this by itself: so no barrier stands where a
//! change of a bit, which is one, comes anyway.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

/// The doorbells of one worker.
#[derive(Debug)]
pub struct Doorbells {
    count: u32,
    bells: Box<[AtomicU64]>,
    /// Bit *i* of word *j*: word 64 *j* + *i* of `bells` has bits. None, where `bells` are no more
    /// than one word.
    summary: Box<[AtomicU64]>,
    /// Commands were sent that the worker has not taken.
    commands: AtomicBool,
    sleeping: AtomicBool,
}

impl Doorbells {
    /// Creates doorbells 0 to `count` - 1.
    pub fn new(count: u32) -> Self {
        let words = (count as usize).div_ceil(64);
        let zeroes = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            count,
            bells: zeroes(words),
            summary: zeroes(if words > 1 { words.div_ceil(64) } else { 0 }),
            commands: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
        }
    }

    /// Returns how many doorbells there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Rings a doorbell, after the request was pushed. Returns whether the worker sleeps and the
    /// caller must wake it. A number that does not exist rings nothing.
    #[must_use = "if true, the worker sleeps and has to be woken"]
    pub fn ring(&self, index: u32) -> bool {
        if index >= self.count {
            return false;
        }
        let index = index as usize;
        let new = set(&self.bells[index / 64], index % 64);
        let summary = self.summary.get(index / 4096);
        let new_summary = summary.is_some_and(|word| set(word, index / 64 % 64));
        // The side that sets a bit wakes the worker; while one is set the worker does not fall
        // asleep.
        (new || new_summary) && self.must_wake()
    }

    /// Rings without naming a queue pair, after a command was sent. Returns whether the caller must
    /// wake the worker.
    #[must_use = "if true, the worker sleeps and has to be woken"]
    pub fn ring_commands(&self) -> bool {
        self.commands.store(true, Ordering::SeqCst);
        self.must_wake()
    }

    /// Returns whether commands may have been sent since the last call. Called by the worker, which
    /// then has to look at all of them, or to [ring](Self::ring_commands) itself.
    pub fn take_commands(&self) -> bool {
        // Without any, the cache line is left to its other users.
        self.commands.load(Ordering::SeqCst) && self.commands.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the caller must wake the worker, after it has set a bit or announced
    /// commands. Both are sequentially consistent with what the worker does before it sleeps.
    fn must_wake(&self) -> bool {
        // Of several that ring, one wakes.
        self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst)
    }

    /// Silences all doorbells that ring, and visits each. Called by the worker.
    #[inline(always)]
    pub fn take(&self, mut visit: impl FnMut(u32)) {
        match &*self.bells {
            [only] => bits(take(only)).for_each(|bell| visit(bell as u32)),
            _ => self.take_from_many(visit),
        }
    }

    // A function of its own: what few queue pairs need stays short.
    #[inline(never)]
    fn take_from_many(&self, mut visit: impl FnMut(u32)) {
        for (i, summary) in self.summary.iter().enumerate() {
            for word in bits(take(summary)).map(|bit| i * 64 + bit) {
                let bells = bits(take(&self.bells[word]));
                bells.for_each(|bell| visit((word * 64 + bell) as u32));
            }
        }
    }

    /// Returns whether any doorbell rings, or commands were sent.
    pub fn is_ringing(&self) -> bool {
        let words = match &*self.bells {
            [only] => std::slice::from_ref(only),
            _ => &self.summary,
        };
        self.commands.load(Ordering::SeqCst)
            || words.iter().any(|word| word.load(Ordering::SeqCst) != 0)
    }

    /// Announces that the worker will sleep: from here on each ring wakes it. Returns whether it
    /// may sleep; if a doorbell rings it must not. Before sleeping it has to look at everything
    /// else that is announced by [`ring_commands`](Self::ring_commands) once more; if there is
    /// something, it calls [`awake`](Self::awake).
    pub fn prepare_to_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.is_ringing() {
            self.awake();
            return false;
        }
        true
    }

    /// Announces that the worker is awake: no ring needs to wake it.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Sets a bit, without taking the cache line from its other users if it is set. Returns whether it
/// was not set.
fn set(word: &AtomicU64, bit: usize) -> bool {
    let is_set = || word.load(Ordering::SeqCst) >> bit & 1 == 1;
    if is_set() {
        // Before the look at the bit comes the push: a bit found set is one that the worker has yet
        // to take.
        fence(Ordering::SeqCst);
        if is_set() {
            return false;
        }
    }
    word.fetch_or(1 << bit, Ordering::SeqCst);
    true
}

/// Clears all bits and returns those that were set. If none was, the cache line stays with its
/// other users. Whatever is looked at afterwards is looked at after that.
#[inline]
fn take(word: &AtomicU64) -> u64 {
    if word.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    let bits = word.swap(0, Ordering::SeqCst);
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        // Its exchange is a barrier to loads as well, which loom and Miri do not know.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
    bits
}

/// Returns the numbers of the bits that are set, lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.checked_sub(1)?;
        Some(bit)
    })
}

#[cfg(test)]
mod models;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn takes_exactly_what_was_rung(
            count in 0..10_000u32,
            rung in prop::collection::vec(0..10_000u32, 0..100),
        ) {
            let bells = Doorbells::new(count);
            prop_assert_eq!(bells.count(), count);
            for &bell in &rung {
                prop_assert!(!bells.ring(bell));
            }
            let expected: BTreeSet<u32> = rung.into_iter().filter(|&bell| bell < count).collect();
            prop_assert_eq!(bells.is_ringing(), !expected.is_empty());
            let mut taken = Vec::new();
            bells.take(|bell| taken.push(bell));
            prop_assert_eq!(taken, expected.into_iter().collect::<Vec<_>>());
            prop_assert!(!bells.is_ringing());
        }
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let bells = Doorbells::new(100);
        assert!(bells.prepare_to_sleep());
        assert!(bells.ring(70));
        assert!(!bells.ring(70));
        assert!(!bells.ring_commands());
        // One that rings keeps the worker awake.
        assert!(!bells.prepare_to_sleep());
        bells.take(|_| {});
        // And so do commands, until they are taken.
        assert!(!bells.prepare_to_sleep());
        assert!(bells.take_commands());
        assert!(!bells.take_commands());
        assert!(bells.prepare_to_sleep());
        assert!(bells.ring_commands());
        assert!(!bells.ring_commands());
        assert!(bells.take_commands());
        assert!(bells.prepare_to_sleep());
        bells.awake();
        assert!(!bells.ring(1));
    }

    /// Each of two threads posts and rings; the worker sleeps (parks) whenever it may. A lost ring
    /// or a lost wake-up would leave it asleep for ever.
    #[test]
    fn no_ring_is_lost() {
        const POSTS: u32 = if cfg!(miri) { 100 } else { 30_000 };
        let bells = Arc::new(Doorbells::new(200));
        let posted: Arc<[AtomicU32; 2]> = Arc::default();
        let worker = thread::current();
        let posters: Vec<_> = [(0, 5), (1, 199)]
            .into_iter()
            .map(|(poster, bell)| {
                let (bells, posted, worker) = (bells.clone(), posted.clone(), worker.clone());
                thread::spawn(move || {
                    for n in 1..=POSTS {
                        posted[poster].store(n, Ordering::Release);
                        if bells.ring(bell) {
                            worker.unpark();
                        }
                        if n % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut seen = [0; 2];
        while seen != [POSTS; 2] {
            bells.take(|bell| {
                let poster = usize::from(bell == 199);
                seen[poster] = posted[poster].load(Ordering::Acquire);
            });
            if seen != [POSTS; 2] && bells.prepare_to_sleep() {
                thread::park();
                bells.awake();
            }
        }
        posters
            .into_iter()
            .for_each(|poster| poster.join().unwrap());
    }
}
