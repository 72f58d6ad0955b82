//! Entries that end in octets, of which there may be fewer than the entry has room for: only those
//! are copied.

use super::{Consumer, Entry, Full, Producer};
use crate::sync::atomic::{AtomicU64, Ordering};

impl<T: Entry> Producer<T> {
    /// Adds an entry whose first `from` words are those of `entry`, with `octets` behind them, as
    /// many as it has room for. In what is left of it the consumer finds anything.
    #[inline(always)]
    pub fn push_octets(&mut self, entry: &T, from: usize, octets: &[u8]) -> Result<(), Full> {
        if self.free_seen() == 0 && self.free() == 0 {
            return Err(Full);
        }
        self.shared.store(self.tail, entry, from);
        if octets.len() <= T::FEWEST_WORDS.saturating_sub(from) * 8 {
            // The compiler knows how many words there are.
            let words = self.shared.front(self.tail, T::FEWEST_WORDS);
            store_octets(words.get(from..).unwrap_or_default(), octets);
        } else {
            self.store_many(from, octets);
        }
        self.publish();
        Ok(())
    }

    #[inline(never)]
    fn store_many(&self, from: usize, octets: &[u8]) {
        let words = self.shared.words(self.tail);
        store_octets(words.get(from..).unwrap_or_default(), octets);
    }
}

impl<T: Entry> Consumer<T> {
    /// Copies octets of the entry `ahead` places behind the oldest, from its word number `from` on.
    /// There has to be such an entry; octets that it does not have stay as they are.
    #[inline(always)]
    pub fn peek_octets(&self, ahead: u32, from: usize, to: &mut [u8]) {
        let index = self.head.wrapping_add(ahead);
        if to.len() <= T::FEWEST_WORDS.saturating_sub(from) * 8 {
            let words = self.shared.front(index, T::FEWEST_WORDS);
            load_octets(words.get(from..).unwrap_or_default(), to);
        } else {
            self.load_many(index, from, to);
        }
    }

    #[inline(never)]
    fn load_many(&self, index: u32, from: usize, to: &mut [u8]) {
        let words = self.shared.words(index);
        load_octets(words.get(from..).unwrap_or_default(), to);
    }
}

/// Copies octets of words, as many as there are.
#[inline(always)]
fn load_octets(words: &[AtomicU64], to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    let last = words.get(whole.len());
    for (to, word) in whole.iter_mut().zip(words) {
        *to = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(last) = last.filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&last.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

/// Writes octets to words, as many as there is room for.
#[inline(always)]
fn store_octets(words: &[AtomicU64], octets: &[u8]) {
    /// Words written without a question.
    const AT_ONCE: usize = 4;
    let store = |word: &AtomicU64, octets| {
        word.store(u64::from_ne_bytes(octets), Ordering::Relaxed);
    };
    let (mut words, mut octets) = (words, octets);
    while let (Some((some, words_behind)), Some((front, behind))) = (
        words.split_first_chunk::<AT_ONCE>(),
        octets.split_first_chunk::<{ 8 * AT_ONCE }>(),
    ) {
        for (word, octets) in some.iter().zip(front.as_chunks().0) {
            store(word, *octets);
        }
        (words, octets) = (words_behind, behind);
    }
    let (whole, rest) = octets.as_chunks();
    for (word, octets) in words.iter().zip(whole) {
        store(word, *octets);
    }
    if let Some(last) = words.get(whole.len())
        && !rest.is_empty()
    {
        let mut octets = [0; 8];
        octets[..rest.len()].copy_from_slice(rest);
        store(last, octets);
    }
}
