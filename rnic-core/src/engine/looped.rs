//! Connections of this device with itself: their frames do not go to the network. What a connection
//! sends in its turn is copied to a parcel, which is received again in the next turn of the engine,
//! like a batch of the device.

use std::collections::VecDeque;

use super::Engine;
use crate::connection::FlowKey;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::memory::parcel::Parcel;
use crate::time::Instant;
use crate::wire::packet::Checksums;

/// The most parcels that wait, each with a burst. While there are so many, connections wait as for
/// a device whose ring is full.
const PARCELS: usize = 8;

/// Frames that wait to be received again.
#[derive(Default)]
pub(super) struct Looped {
    waiting: VecDeque<Box<Parcel>>,
    /// Empty parcels, which keep their memory.
    empty: Vec<Box<Parcel>>,
}

impl Looped {
    /// Returns an empty parcel, unless too many wait.
    fn take_empty(&mut self) -> Option<Box<Parcel>> {
        (self.waiting.len() < PARCELS).then(|| self.empty.pop().unwrap_or_default())
    }

    fn push(&mut self, parcel: Box<Parcel>) {
        match parcel.len() {
            0 => self.empty.push(parcel),
            _ => self.waiting.push_back(parcel),
        }
    }
}

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
        !self.looped.waiting.is_empty()
    }

    /// Lends a connection a parcel for the frames of its turn. Returns whether there was one.
    #[cold]
    pub(super) fn begin_looping(&mut self, index: usize) -> bool {
        let parcel = self.looped.take_empty();
        let lent = parcel.map(|parcel| self.connections[index].path().lend(parcel));
        lent.is_some()
    }

    /// Takes the parcel back, with what the connection has sent.
    #[cold]
    pub(super) fn end_looping(&mut self, index: usize) {
        if let Some(parcel) = self.connections[index].path().take_back() {
            self.looped.push(parcel);
        }
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
        for _ in 0..self.looped.waiting.len() {
            let Some(mut parcel) = self.looped.waiting.pop_front() else {
                return;
            };
            self.handle_frames(now, guard, &mut parcel.frames(), tx);
            parcel.clear();
            self.looped.empty.push(parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_parcels_wait_and_those_that_nothing_was_put_in_do_not() {
        let mut looped = Looped::default();
        for _ in 0..3 {
            let parcel = looped.take_empty().unwrap();
            looped.push(parcel);
        }
        assert!(looped.waiting.is_empty() && looped.empty.len() == 1);
        for _ in 0..PARCELS {
            let mut parcel = looped.take_empty().unwrap();
            parcel.add(b"frame", Checksums::Unnecessary);
            looped.push(parcel);
        }
        assert!(looped.take_empty().is_none());
        assert!(looped.waiting.pop_front().is_some());
        assert!(looped.take_empty().is_some());
    }
}
