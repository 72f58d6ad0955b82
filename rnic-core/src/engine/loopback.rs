//! Connections of this device with itself: which these are, and how their frames are received.

use super::Engine;
use crate::connection::FlowKey;
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::time::Instant;
use crate::wire::packet::Checksums;

/// Octets of a segment that goes directly: half of what a first-level cache has.
const SEGMENT: usize = 16 << 10;

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

    /// Hands what a connection has to send to its other end, if that is one of this engine, as far
    /// as it needs no frames. Returns whether that was enough for the turn of the engine.
    #[cold]
    pub(super) fn send_directly(&mut self, index: usize, now: Instant, guard: &Guard<'_>) -> bool {
        let there = self.connections[index].key().reversed();
        let is_there = |index| *self.connections[index].key() == there;
        let Some(other) = self.flows.find(&there, is_there) else {
            return false;
        };
        let mut room = self.looped.take_room(SEGMENT);
        let mut any = false;
        while !self.looped.is_spent()
            && self.connections[index].sends_directly()
            && self.connections[other].receives_directly()
        {
            let (connection, mut context) = self.lend(index, now, guard);
            let Some(len) = connection.build_directly(&mut room, &mut context) else {
                break;
            };
            let received = connection.received();
            let (peer, mut context) = self.lend(other, now, guard);
            let was_taken = peer.receive_directly(&room[..len], received, &mut context);
            let (connection, mut context) = self.lend(index, now, guard);
            connection.sent_directly(was_taken, &mut context);
            self.looped.count_direct(len);
            any = true;
        }
        self.looped.put_room(room);
        if any {
            self.with_connection(other, now, guard, |peer, context| {
                peer.settle_directly(context);
            });
        }
        self.looped.is_spent()
    }

    /// Returns whether frames wait to be received again, or more may go without frames.
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
        self.looped.begin_turn();
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
