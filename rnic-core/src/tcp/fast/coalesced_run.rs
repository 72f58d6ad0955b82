//! TCP's part of a coalesced run: segments that each say the same as the one before, and have the next data of the stream.

use crate::tcp::Tcp;
use crate::time::Instant;
use crate::wire::tcp::DataHeader;

/// The proof that segments with the next data may follow, and what is known of those that did: as much as TCP has to know of
/// them.
#[derive(Clone, Copy, Debug)]
pub struct CoalescedSegments {
    /// Octets that the window has room for.
    room: u64,
    count: u32,
    octets: u64,
    /// Octets of the last one.
    last_len: usize,
    /// Whether any was pushed, and the last one.
    pushed: bool,
    last_pushed: bool,
}

impl CoalescedSegments {
    /// Behind a segment that was the [next data](super::NextData), and whose octets were [taken](Tcp::took_next): inside the
    /// window, with nothing received beyond them.
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

    /// Adds segments that came next, with `len` octets each, which the window has [room](Self::room) for.
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

    /// Octets that the window has room for behind them.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// How many segments there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes the segments, all of whose octets the owner has taken. They came behind one with this header, and had the same
    /// acknowledgment, window and options as that, and the same flags but for PSH.
    ///
    /// Of what the [next data](super::NextData) means to TCP only this is left to do: they say nothing else that is new.
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
        tcp.took_next(now, self.octets as usize);
    }
}
