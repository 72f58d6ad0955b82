//! Connections of this device with itself: which these are, and how their frames are received.

use super::Engine;
use crate::connection::FlowKey;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::packet::Checksums;

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
