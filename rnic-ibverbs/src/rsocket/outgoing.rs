//! The accounts of the sending side: where the peer wants the next data, how many messages it
//! takes, and what is left of our own send buffer and send queue.

use super::layout::{LONGEST_DATA, Sge, TARGETS};

/// Requests of the send queue that are kept for messages without data.
pub(super) const CONTROLS: u16 = 4;
/// Data are sent only when so much of the send buffer is free, so that a slow peer does not cut
/// them into crumbs.
pub(super) const LOW_WATER: u32 = 2048;
/// Requests of a message of data: a Write, and the Send behind it.
const REQUESTS: u16 = 2;

/// The accounts.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The requests that are left for data, and for control messages.
    requests: u16,
    controls: u16,
    /// The former, when all are left.
    most_requests: u16,
    /// Octets that are free in the send buffer.
    free: u32,
    /// Messages that were sent, and the number up to which the peer takes them.
    seq: u16,
    limit: u16,
    /// Credits that are not used. iWARP has no RNR NAK, and control messages use up the peer's
    /// receives as well.
    reserve: u16,
    /// The peer's buffers, as it has written them into our list.
    targets: [Sge; TARGETS],
    /// The one that data go to, and the one that the peer writes next.
    current: usize,
    awaited: usize,
    /// The entry of the peer's list that is written next, and how many there are.
    peer_entry: u32,
    peer_entries: u32,
}

impl Outgoing {
    /// Returns the accounts of a send queue of `requests` and a buffer of `free` octets, towards a
    /// peer that nothing is known of.
    pub(super) fn new(requests: u16, free: u32) -> Self {
        Self {
            requests: requests.saturating_sub(CONTROLS),
            controls: CONTROLS,
            most_requests: requests.saturating_sub(CONTROLS),
            free,
            seq: 0,
            limit: 0,
            reserve: 0,
            targets: [Sge::default(); TARGETS],
            current: 0,
            awaited: 1,
            peer_entry: 0,
            peer_entries: 1,
        }
    }

    /// Applies what the private data of the peer say: its credits, its first buffer, and the number
    /// of its targets.
    pub(super) fn begin(&mut self, credits: u16, buffer: Sge, entries: u32) {
        self.limit = credits;
        self.reserve = CONTROLS.min(credits / 4);
        self.targets[0] = buffer;
        self.peer_entries = entries.max(1);
        self.peer_entry = 1 % self.peer_entries;
    }

    /// Sets the number of the last message that the peer accepts.
    pub(super) fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Returns which entry of our list the peer writes next.
    pub(super) fn awaited(&self) -> usize {
        self.awaited
    }

    /// Records the entry that was awaited, and awaits the next.
    pub(super) fn set_target(&mut self, target: Sge) {
        self.targets[self.awaited] = target;
        self.awaited = (self.awaited + 1) % TARGETS;
    }

    /// Returns the entry of the peer's list that is written next, and counts it as written.
    pub(super) fn next_peer_entry(&mut self) -> u32 {
        let entry = self.peer_entry;
        self.peer_entry = (entry + 1) % self.peer_entries;
        entry
    }

    fn has_credit(&self) -> bool {
        let credits = self.limit.wrapping_sub(self.seq);
        credits > self.reserve && credits < 0x8000
    }

    /// Returns how many octets the next message may carry; 0 if none can be sent now.
    pub(super) fn room(&self) -> u32 {
        if !self.has_credit() {
            return 0;
        }
        self.room_unannounced()
            .min(self.targets[self.current].length)
    }

    /// Returns the same for octets that go to a mapped buffer, of which the peer is not told.
    pub(super) fn room_unannounced(&self) -> u32 {
        if self.requests < REQUESTS || self.free < LOW_WATER {
            0
        } else {
            self.free.min(LONGEST_DATA)
        }
    }

    /// Returns whether an entry of the peer's list of mapped buffers can be written.
    pub(super) fn room_for_iomap(&self) -> bool {
        self.has_credit() && self.room_unannounced() > 0
    }

    /// Counts a message with `octets` of data, no more than there is [room](Self::room) for, and
    /// returns where they go.
    pub(super) fn send(&mut self, octets: u32) -> Sge {
        let target = &mut self.targets[self.current];
        let place = Sge {
            length: octets,
            ..*target
        };
        target.addr = target.addr.wrapping_add(octets.into());
        // A peer that writes its entries out of turn may have made it shorter than it was when
        // `room` was asked for.
        target.length = target.length.saturating_sub(octets);
        if target.length == 0 {
            self.current = (self.current + 1) % TARGETS;
        }
        self.seq = self.seq.wrapping_add(1);
        self.requests -= REQUESTS;
        self.free -= octets;
        place
    }

    /// Counts a Write of `octets` that the peer is not told of.
    pub(super) fn send_unannounced(&mut self, octets: u32) {
        self.requests -= 1;
        self.free -= octets;
    }

    /// Counts a message that costs a credit and whose data are inline.
    pub(super) fn send_iomap(&mut self) {
        self.seq = self.seq.wrapping_add(1);
        self.requests -= REQUESTS;
    }

    /// Counts control requests; `false` if there are not so many.
    pub(super) fn send_controls(&mut self, requests: u16) -> bool {
        let enough = self.controls >= requests;
        if enough {
            self.controls -= requests;
        }
        enough
    }

    /// Returns whether the peer's host has all that was sent.
    pub(super) fn is_done(&self) -> bool {
        self.requests == self.most_requests && self.controls == CONTROLS
    }

    /// Records that a request with `octets` of the send buffer is done.
    pub(super) fn done(&mut self, octets: u32) {
        self.requests += 1;
        self.free += octets;
    }

    /// Records that a control request is done.
    pub(super) fn control_done(&mut self) {
        self.controls += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64, length: u32) -> Sge {
        Sge {
            addr,
            key: 7,
            length,
        }
    }

    fn outgoing(credits: u16) -> Outgoing {
        let mut outgoing = Outgoing::new(16, 1 << 16);
        outgoing.begin(credits, sge(1000, 5000), 2);
        outgoing
    }

    #[test]
    fn targets_are_filled_to_the_end_in_turn() {
        let mut outgoing = outgoing(100);
        assert_eq!(outgoing.room(), 5000);
        assert_eq!(outgoing.send(4000), sge(1000, 4000));
        assert_eq!(outgoing.room(), 1000);
        assert_eq!(outgoing.send(1000), sge(5000, 1000));
        assert_eq!(outgoing.room(), 0);
        assert_eq!(outgoing.awaited(), 1);
        outgoing.set_target(sge(9000, 10));
        assert_eq!(outgoing.awaited(), 0);
        outgoing.set_target(sge(8000, 20));
        assert_eq!(outgoing.send(10), sge(9000, 10));
        assert_eq!(outgoing.send(20), sge(8000, 20));
        assert_eq!(outgoing.room(), 0);
    }

    #[test]
    fn a_buffer_that_the_peer_makes_shorter_meanwhile_is_full() {
        let mut outgoing = outgoing(100);
        assert_eq!(outgoing.room(), 5000);
        // Two entries at once, the second of them out of turn.
        outgoing.set_target(sge(9000, 10));
        outgoing.set_target(sge(8000, 20));
        assert_eq!(outgoing.send(5000), sge(8000, 5000));
        assert_eq!(outgoing.room(), 10);
    }

    #[test]
    fn some_credits_are_kept() {
        let mut outgoing = outgoing(6);
        // A quarter of them, 4 at most.
        for _ in 0..5 {
            assert!(outgoing.room() > 0);
            outgoing.send(1);
        }
        assert_eq!(outgoing.room(), 0);
        assert!(!outgoing.room_for_iomap());
        outgoing.set_limit(8);
        assert!(outgoing.room() > 0);
        // The peer's number wraps, and one from the past grants nothing.
        outgoing.set_limit(4);
        assert_eq!(outgoing.room(), 0);
    }

    #[test]
    fn requests_and_buffer_come_back() {
        let mut outgoing = outgoing(100);
        for _ in 0..6 {
            outgoing.send(100);
        }
        assert_eq!(outgoing.room(), 0);
        outgoing.done(100);
        assert_eq!(outgoing.room(), 0);
        outgoing.done(0);
        assert_eq!(outgoing.room(), 5000 - 600);
        for _ in 0..5 {
            outgoing.done(100);
            outgoing.done(0);
        }
        assert_eq!(outgoing.free, 1 << 16);
    }

    #[test]
    fn little_room_is_no_room() {
        let mut outgoing = Outgoing::new(16, LOW_WATER + 10);
        outgoing.begin(100, sge(0, 5000), 2);
        outgoing.send(10);
        assert_eq!(outgoing.room(), LOW_WATER);
        outgoing.send(1);
        assert_eq!(outgoing.room(), 0);
        outgoing.done(10);
        assert_eq!(outgoing.room(), LOW_WATER + 9);
    }

    #[test]
    fn control_messages_have_requests_of_their_own() {
        let mut outgoing = outgoing(0);
        assert!(outgoing.send_controls(2));
        assert!(outgoing.send_controls(2));
        assert!(!outgoing.send_controls(1));
        outgoing.control_done();
        assert!(!outgoing.send_controls(2));
        assert!(outgoing.send_controls(1));
    }

    #[test]
    fn the_peers_entries_are_written_in_turn() {
        let mut outgoing = outgoing(0);
        assert_eq!([(); 3].map(|()| outgoing.next_peer_entry()), [1, 0, 1]);
        outgoing.begin(0, sge(0, 0), 1);
        assert_eq!([(); 2].map(|()| outgoing.next_peer_entry()), [0, 0]);
    }
}
