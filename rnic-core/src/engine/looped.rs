//! Frames of connections of this device with itself, which do not go to the network. What a
//! connection sends in its turn is copied to a parcel, which is received again in the next turn of
//! the engine, like a batch of the device.

use std::collections::VecDeque;

use crate::memory::parcel::Parcel;

/// The most parcels that wait, each with a burst. While there are so many, connections wait as for
/// a device whose ring is full.
const PARCELS: usize = 8;

/// Octets of segments that need no frame in a turn, or a segment more: others are to have theirs.
const OF_A_TURN: usize = 1 << 18;

/// A segment takes as long as so many octets, beside its own.
const OF_EACH: usize = 1 << 10;

/// Frames that wait to be received again.
#[derive(Default)]
pub(super) struct Looped {
    waiting: VecDeque<Parcel>,
    /// Empty parcels, which keep their memory.
    empty: Vec<Parcel>,
    /// Room for a segment that needs no frame.
    room: Box<[u8]>,
    /// Octets that went without frames in this turn, of all connections: others may follow.
    direct: usize,
}

impl Looped {
    /// Returns whether the next turn has nothing to do with them.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.direct == 0
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&mut self) {
        self.direct = 0;
    }

    /// Counts a segment that goes without a frame.
    pub(super) fn count_direct(&mut self, octets: usize) {
        self.direct += octets + OF_EACH;
    }

    /// Returns whether enough went without frames for a turn.
    pub(super) fn is_spent(&self) -> bool {
        self.direct >= OF_A_TURN
    }

    /// Returns how many parcels wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns an empty parcel, unless too many wait.
    #[cold]
    pub(super) fn take_empty(&mut self) -> Option<Parcel> {
        (self.waiting.len() < PARCELS).then(|| self.empty.pop().unwrap_or_default())
    }

    /// Lets a parcel wait, or keeps it for later if it is empty.
    #[cold]
    pub(super) fn push(&mut self, parcel: Parcel) {
        match parcel.len() {
            0 => self.empty.push(parcel),
            _ => self.waiting.push_back(parcel),
        }
    }

    /// Returns room for a segment of so many octets.
    pub(super) fn take_room(&mut self, octets: usize) -> Box<[u8]> {
        match self.room.len() == octets {
            true => std::mem::take(&mut self.room),
            false => vec![0; octets].into(),
        }
    }

    /// Keeps the room for later.
    pub(super) fn put_room(&mut self, room: Box<[u8]>) {
        self.room = room;
    }

    /// Removes and returns the parcel that waits longest.
    pub(super) fn pop(&mut self) -> Option<Parcel> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::Checksums;

    #[test]
    fn so_many_parcels_wait_and_those_that_nothing_was_put_in_do_not() {
        let mut looped = Looped::default();
        for _ in 0..3 {
            let parcel = looped.take_empty().unwrap();
            looped.push(parcel);
        }
        assert!(looped.is_empty() && looped.empty.len() == 1);
        for _ in 0..PARCELS {
            let mut parcel = looped.take_empty().unwrap();
            parcel.add(b"frame", Checksums::Unnecessary);
            looped.push(parcel);
        }
        assert!(looped.take_empty().is_none());
        assert!(looped.pop().is_some());
        assert!(looped.take_empty().is_some());
    }
}
