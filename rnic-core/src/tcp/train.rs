//! Segments of a train: each says the same as the one before, and has the next data of the stream.

use super::Tcp;
use crate::time::Instant;
use crate::wire::tcp::TcpHeader;

impl Tcp {
    /// Octets that may follow as a train, behind a segment that was [the next](Self::receive_next), and whose octets
    /// were [taken](Self::took_next).
    pub fn room_for_train(&self) -> u64 {
        self.recv.room_for_next()
    }

    /// A train has come: `count` segments behind one with this header, all with the same acknowledgment, window, flags
    /// and options as that, with `len` octets each, which the owner has taken.
    ///
    /// Of what [`receive_next`](Self::receive_next) does for each segment, only this is not done yet: the others say
    /// nothing that is new.
    pub fn receive_train(&mut self, now: Instant, header: &TcpHeader, count: u32, len: usize) {
        self.counters.segments_received += u64::from(count);
        let octets = count as usize * len;
        let last = self.recv.next() + octets.saturating_sub(len) as u64;
        let una = self.send.una();
        let window = &mut self.send.window;
        window.update(last.cast_signed(), una, header.window);
        self.recv.expect_ack(now, count, header.flags.psh());
        self.took_next(now, octets);
    }
}
