//! The associations to receive with, found for each packet.

use core::hash::{BuildHasherDefault, Hash, Hasher};
use std::collections::HashMap;
use std::sync::Arc;

use super::sa::{InboundSa, SaId};

/// The associations, by their names.
#[derive(Debug, Default)]
pub(super) struct InboundSas(HashMap<Receiver, Arc<InboundSa>, BuildHasherDefault<SpiHasher>>);

impl InboundSas {
    pub(super) fn insert(&mut self, association: Arc<InboundSa>) {
        self.0.insert(Receiver(association.sa.id), association);
    }

    pub(super) fn remove(&mut self, id: SaId) {
        self.0.remove(&Receiver(id));
    }

    pub(super) fn get(&self, id: SaId) -> Option<&Arc<InboundSa>> {
        self.0.get(&Receiver(id))
    }
}

/// A name with a hash that takes next to no time. No peer chooses what is in the table: SPIs to
/// receive with are those of this host.
#[derive(Debug, PartialEq, Eq)]
struct Receiver(SaId);

impl Hash for Receiver {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.0.spi);
    }
}

#[derive(Default)]
struct SpiHasher(u64);

impl Hasher for SpiHasher {
    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.write_u32(u32::from(*octet));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 by the golden ratio (Fibonacci hashing) spreads what is alike over the upper half,
        // and the table looks at the lower bits too.
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread.rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
