//! What an engine says of itself and of its connections.

use crate::time::Instant;

use super::Engine;
use super::carrier::Carrier;
use super::snapshot::Snapshot;

impl<T: Carrier> Engine<T> {
    /// Returns the counters and the facts of every connection.
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let mut tcp = self.counters.tcp;
        for (_, connection) in &self.connections {
            tcp.add(connection.tcp_counters());
        }
        let facts = |index: usize| {
            let mut facts = self.connections[index].facts(now);
            T::add_facts(self, index, &mut facts);
            facts
        };
        let indices = self.connections.iter().map(|(index, _)| index);
        Snapshot {
            engine: self.counters.engine,
            drops: self.counters.drops,
            tcp,
            rdma: self.counters.rdma,
            connections: indices.map(facts).collect(),
        }
    }
}
