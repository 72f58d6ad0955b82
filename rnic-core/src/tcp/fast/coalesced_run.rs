//! TCP's part of a coalesced run: segments with the next data of the stream, whose headers
//! otherwise repeat those of the segment before.

use crate::tcp::Tcp;
use crate::time::Instant;
use crate::wire::tcp::DataHeader;

/// The proof that segments with the next data may follow, and the record that TCP needs of those
/// that did.
#[derive(Clone, Copy, Debug)]
pub struct CoalescedSegments {
    /// Octets that the receive window has room for.
    room: u64,
    count: u32,
    octets: u64,
    /// Octets of the last segment.
    last_len: usize,
    /// Whether any segment was pushed, and whether the last one was.
    pushed: bool,
    last_pushed: bool,
}

impl CoalescedSegments {
    /// Returns the proof behind a segment that was the [next data](super::NextData), and whose
    /// octets were [marked as received](Tcp::mark_next_received). Further segments must lie inside
    /// the window, with nothing received beyond them.
    pub fn eligible(tcp: &Tcp) -> Option<Self> {
        let room = tcp.recv.room_for_next();
        (room > 0).then_some(Self {
            room,
            count: 0,
            octets: 0,
            last_len: 0,
            pushed: false,
            last_pushed: false,
        })
    }

    /// Adds `count` segments of `len` octets each, which came next and for which the window has
    /// [room](Self::room).
    pub fn add(&mut self, count: u32, len: usize, pushed: bool) {
        let octets = u64::from(count) * len as u64;
        if count > 0 {
            self.count += count;
            self.octets += octets;
            self.room = self.room.saturating_sub(octets);
            self.last_len = len;
            self.pushed |= pushed;
            self.last_pushed = pushed;
        }
    }

    /// Returns how many octets the receive window has room for behind them.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns the number of segments.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Handles the segments, all of whose octets the owner has placed. They came behind one with
    /// this header, and had the same acknowledgment, window, options and flags, apart from PSH.
    ///
    /// Compared with [next data](super::NextData), only this is left to do: their headers have
    /// nothing else that is new.
    pub fn commit(self, tcp: &mut Tcp, now: Instant, header: &DataHeader) {
        tcp.counters.segments_received += u64::from(self.count);
        let last = tcp.recv.data_nxt() + self.octets.saturating_sub(self.last_len as u64);
        let una = tcp.send.una();
        tcp.send
            .window
            .update(last.cast_signed(), una, header.window);
        if self.pushed {
            tcp.recv.expect_ack(now, 0, true);
        }
        tcp.recv.expect_ack(now, self.count, self.last_pushed);
        tcp.mark_next_received(now, self.octets as usize);
    }
}
