//! Unpredictable numbers from a seed: what makes STags hard to guess.

use std::fmt;

use siphasher::sip::SipHasher24;

/// Random numbers that are unpredictable without the seed: SipHash-2-4, a pseudo-random function,
/// of a counter, under one half of the seed and then, with that result beside the counter, under
/// the other.
pub(super) struct Random {
    halves: [SipHasher24; 2],
    counter: u64,
}

impl Random {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        let mut keys = [[0; 16]; 2];
        keys[0].copy_from_slice(&seed[..16]);
        keys[1].copy_from_slice(&seed[16..]);
        Self {
            halves: keys.map(|key| SipHasher24::new_with_key(&key)),
            counter: 0,
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        let mut block = [0; 16];
        block[..8].copy_from_slice(&self.counter.to_le_bytes());
        let inner = self.halves[0].hash(&block);
        block[8..].copy_from_slice(&inner.to_le_bytes());
        self.halves[1].hash(&block)
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_of_the_seed_counts() {
        let first = |seed| Random::new(seed).next();
        let plain = first([7; 32]);
        for octet in 0..32 {
            let mut seed = [7; 32];
            seed[octet] ^= 1;
            assert_ne!(first(seed), plain, "octet {octet}");
        }
        assert_eq!(first([7; 32]), plain);
    }
}
