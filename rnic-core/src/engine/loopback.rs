//! Connections of this device with itself: which these are, and how their frames are received.

use super::Engine;
use crate::connection::FlowKey;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::packet::Checksums;

/// The most octets of a Write that is carried out at once: longer ones would keep others waiting.
const LONGEST_DIRECT: u32 = 1 << 20;

/// Octets of such Writes in a turn, or one Write more.
const OF_A_TURN: u32 = 1 << 18;

impl Engine {
    /// Returns whether the remote end of a connection is a listener of this device. One of any
    /// address has all of this host's, of which only the connection's own is known here.
    pub(super) fn is_own(&self, key: &FlowKey) -> bool {
        let there = key.remote;
        self.listeners.values().any(|listener| {
            let local = listener.local;
            let any_address = local.ip().is_unspecified() && local.is_ipv4() == there.is_ipv4();
            local.port() == there.port()
                && (local.ip() == there.ip() || any_address && key.local.ip() == there.ip())
        })
    }

    /// Carries out the Writes of a connection to another one of this engine, as far as they need no
    /// frames. Returns whether that was enough for a turn, and others are to have theirs.
    #[cold]
    pub(super) fn write_directly(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let there = self.connections[index].key().reversed();
        let is_there = |index| *self.connections[index].key() == there;
        let Some(other) = self.flows.find(&there, is_there) else {
            return false;
        };
        let mut left = OF_A_TURN;
        while let Some(sink) = self.connections[other].takes_direct_writes() {
            let (connection, mut context) = self.lend(index, now, guard);
            let Some(octets) = connection.write_directly(sink, LONGEST_DIRECT, &mut context) else {
                return false;
            };
            left = left.saturating_sub(octets);
            if left == 0 {
                return true;
            }
        }
        false
    }

    /// Returns whether frames wait to be received again.
    #[inline]
    pub(super) fn has_looped(&self) -> bool {
        !self.looped.is_empty()
    }

    /// Receives a frame of no connection again. Without room it is lost, and TCP sends it again.
    #[cold]
    pub(super) fn loop_reply(&mut self, frame: &[u8]) {
        if let Some(mut parcel) = self.looped.take_empty() {
            parcel.add(frame, Checksums::Unnecessary);
            self.looped.push(parcel);
        }
    }

    /// Receives the frames that wait. What is sent in answer waits for the next turn.
    #[cold]
    pub(super) fn handle_looped<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) {
        for _ in 0..self.looped.len() {
            let Some(mut parcel) = self.looped.pop() else {
                return;
            };
            self.handle_frames(now, guard, &mut parcel.frames(), tx);
            parcel.clear();
            self.looped.push(parcel);
        }
    }
}
