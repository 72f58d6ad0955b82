//! Finding a connection by its addresses.

use std::hash::{self, BuildHasher, Hasher};

use siphasher::sip::SipHasher13;

use crate::connection::FlowKey;
use crate::memory::prefetch::prefetch;

/// A hash with a secret, so that a peer cannot choose ports that collide.
#[derive(Clone)]
pub struct Keyed {
    k0: u64,
    k1: u64,
}

impl Keyed {
    /// Makes a hash with this secret, which must be unpredictable.
    pub fn new(secret: &[u8; 16]) -> Self {
        let (k0, k1) = secret.split_at(8);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Self {
            k0: word(k0),
            k1: word(k1),
        }
    }
}

impl Keyed {
    /// Derives another secret from this one.
    pub(crate) fn derive(&self, purpose: &str) -> Self {
        let word = |number: u8| self.hash_one((purpose, number));
        Self {
            k0: word(0),
            k1: word(1),
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.k0, self.k1)
    }

    /// Always becomes a part of its caller: whether it does is otherwise chance, and each frame is
    /// looked up by it.
    #[inline(always)]
    #[allow(clippy::manual_hash_one)] // it is that method
    fn hash_one<T: hash::Hash>(&self, value: T) -> u64 {
        let mut hasher = self.build_hasher();
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// A hash table of connections by their addresses. It keeps a hash of the addresses, not the
/// addresses, so that a look-up reads one cache line of the table: the caller says whether a
/// connection with that hash is the one.
pub struct Flows {
    hasher: Keyed,
    /// Their number is a power of two, and at least a quarter of them is free. A connection is in
    /// the slot that its hash names, or in a later one with no free slot in between (linear
    /// probing).
    slots: Box<[FlowSlot]>,
    taken: usize,
}

/// The hash of a connection's addresses.
pub(super) type Hash = u32;

/// A place for a connection.
#[derive(Clone, Copy, Debug)]
struct FlowSlot {
    hash: Hash,
    /// The number of the connection.
    index: u32,
}

impl FlowSlot {
    const FREE: Self = Self {
        hash: 0,
        index: u32::MAX,
    };

    fn is_free(self) -> bool {
        self.index == u32::MAX
    }
}

/// The number of slots in a table without connections.
const MIN_SLOTS: usize = 8;

impl Flows {
    /// Makes a table without connections.
    pub fn new(hasher: Keyed) -> Self {
        Self {
            hasher,
            slots: vec![FlowSlot::FREE; MIN_SLOTS].into_boxed_slice(),
            taken: 0,
        }
    }

    /// Returns the hash of these addresses.
    #[inline]
    pub(super) fn hash(&self, key: &FlowKey) -> Hash {
        self.hasher.hash_one(*key) as Hash
    }

    /// Returns the slot where the search for a hash begins.
    fn home(&self, hash: Hash) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Returns the slot of the connection with this hash that `is` accepts.
    fn position(&self, hash: Hash, is: impl Fn(usize) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
        while !self.slots[at].is_free() {
            let FlowSlot { hash: other, index } = self.slots[at];
            if other == hash && is(index as usize) {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    /// Returns the number of the connection with these addresses; `is` says of a number whether
    /// that connection has them.
    pub fn find(&self, key: &FlowKey, is: impl Fn(usize) -> bool) -> Option<usize> {
        let at = self.position(self.hash(key), is)?;
        Some(self.slots[at].index as usize)
    }

    /// Prefetches the slot where the search for this hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: Hash) {
        prefetch(&self.slots[self.home(hash)]);
    }

    /// Returns the number of the connection that most likely has the addresses of this hash.
    #[inline]
    pub(super) fn guess(&self, hash: Hash) -> Option<usize> {
        let at = self.position(hash, |_| true)?;
        Some(self.slots[at].index as usize)
    }

    /// Adds a connection by its number, which is below 2^32 - 1. No other may have its addresses.
    pub fn insert(&mut self, key: &FlowKey, index: usize) {
        if 4 * (self.taken + 1) > 3 * self.slots.len() {
            let free = vec![FlowSlot::FREE; 2 * self.slots.len()].into_boxed_slice();
            let old = std::mem::replace(&mut self.slots, free);
            for slot in old.into_iter().filter(|slot| !slot.is_free()) {
                self.put(slot);
            }
        }
        let (hash, index) = (self.hash(key), index as u32);
        self.put(FlowSlot { hash, index });
        self.taken += 1;
    }

    /// Puts a connection into the first free slot for it.
    fn put(&mut self, slot: FlowSlot) {
        let mut at = self.home(slot.hash);
        while !self.slots[at].is_free() {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    /// Removes a connection, which is found by its addresses and number.
    pub fn remove(&mut self, key: &FlowKey, index: usize) {
        let Some(mut hole) = self.position(self.hash(key), |other| other == index) else {
            return;
        };
        self.taken -= 1;
        // Connections in the slots behind move up, unless they would come before the slot where
        // their search begins.
        let mut at = self.next(hole);
        while !self.slots[at].is_free() {
            let mask = self.slots.len() - 1;
            let way = |to: usize| to.wrapping_sub(self.home(self.slots[at].hash)) & mask;
            if way(hole) < way(at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = FlowSlot::FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;

    fn key(number: u16) -> FlowKey {
        let local = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4791);
        FlowKey::new(
            local,
            SocketAddr::new(Ipv4Addr::new(192, 0, 2, 2).into(), number),
        )
    }

    proptest! {
        /// A few keys in a small table collide often.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0..40_u16, any::<bool>()), 1..300)) {
            let mut flows = Flows::new(Keyed::new(&[7; 16]));
            let mut map = HashMap::new();
            for (number, add) in steps {
                if add && !map.contains_key(&number) {
                    flows.insert(&key(number), number.into());
                    map.insert(number, usize::from(number));
                } else if !add && map.remove(&number).is_some() {
                    flows.remove(&key(number), number.into());
                }
                for number in 0..40 {
                    let found = flows.find(&key(number), |index| index == usize::from(number));
                    prop_assert_eq!(found, map.get(&number).copied());
                    prop_assert!(found.is_none() || flows.guess(flows.hash(&key(number))) == found);
                }
            }
            prop_assert_eq!(flows.taken, map.len());
        }
    }

    #[test]
    fn equal_hashes_are_told_apart() {
        let mut flows = Flows::new(Keyed::new(&[7; 16]));
        // The same key twice stands for two keys with the same hash: the caller knows which is
        // meant.
        for index in [3, 5] {
            flows.insert(&key(1), index);
        }
        for meant in [5, 3] {
            assert_eq!(flows.find(&key(1), |index| index == meant), Some(meant));
        }
        flows.remove(&key(1), 3);
        assert_eq!(flows.find(&key(1), |index| index == 3), None);
        assert_eq!(flows.find(&key(1), |index| index == 5), Some(5));
    }

    #[test]
    fn a_connection_takes_few_octets() {
        let mut flows = Flows::new(Keyed::new(&[7; 16]));
        for number in 0..10_000 {
            flows.insert(&key(number), number.into());
        }
        assert!(size_of_val::<[FlowSlot]>(&flows.slots) <= 10_000 * 16);
    }
}
