//! Segments of a train: each says the same as the one before, and has the next data of the stream.

use super::Tcp;
use crate::time::Instant;
use crate::wire::tcp::DataHeader;

/// What TCP has to know of segments that came as a train.
#[derive(Clone, Copy, Debug, Default)]
pub struct Followers {
    count: u32,
    octets: u64,
    /// Octets of the last one.
    last_len: usize,
    /// Whether any was pushed, and the last one.
    pushed: bool,
    last_pushed: bool,
}

impl Followers {
    /// More came, with so many octets each. Returns how many octets that makes.
    pub fn add(&mut self, count: u32, len: usize, pushed: bool) -> u64 {
        let octets = u64::from(count) * len as u64;
        if count > 0 {
            self.count += count;
            self.octets += octets;
            self.last_len = len;
            self.pushed |= pushed;
            self.last_pushed = pushed;
        }
        octets
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl Tcp {
    /// Octets that may follow as a train, behind a segment that was [the next](Self::receive_next), and whose octets
    /// were [taken](Self::took_next).
    pub fn room_for_train(&self) -> u64 {
        self.recv.room_for_next()
    }

    /// A train has come: segments behind one with this header, all with the same acknowledgment, window, flags but for PSH,
    /// and options as that, whose octets the owner has taken.
    ///
    /// Of what [`receive_next`](Self::receive_next) does for each segment, only this is not done yet: the others say
    /// nothing that is new.
    pub fn receive_train(&mut self, now: Instant, header: &DataHeader, followers: &Followers) {
        let Followers {
            count,
            octets,
            last_len,
            pushed,
            last_pushed,
        } = *followers;
        self.counters.segments_received += u64::from(count);
        let last = self.recv.next() + octets.saturating_sub(last_len as u64);
        let una = self.send.una();
        let window = &mut self.send.window;
        window.update(last.cast_signed(), una, header.window);
        if pushed {
            self.recv.expect_ack(now, 0, true);
        }
        self.recv.expect_ack(now, count, last_pushed);
        self.took_next(now, octets as usize);
    }
}
