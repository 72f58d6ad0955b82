//! When a new connection may take the place of one that only waits out its TIME-WAIT.

use super::seq::Seq;
use super::{State, Tcp};
use crate::wire::tcp::TcpSegment;

/// How far beyond the last sequence number of the old connection the new one begins: more than an unscaled window, so that an old segment does
/// not fall into the new stream.
const DISTANCE: u32 = 0x1_0002;

impl Tcp {
    /// Whether a SYN may begin a new connection in place of this one, and with which initial sequence number at least
    /// (RFC 9293 section 3.10.7.4).
    ///
    /// It may if it is surely later than all that the peer sent on this one: by its timestamp (RFC 6191), or by its
    /// sequence number where the timestamp does not say the contrary. A delayed SYN of the past would otherwise end
    /// the TIME-WAIT that is there to catch it.
    pub fn yields_to(&self, syn: &TcpSegment<'_>) -> Option<Seq> {
        if self.state != State::TimeWait {
            return None;
        }
        let beyond = self.recv.offset_of(syn.header.seq) >= self.recv.nxt().cast_signed();
        let age = self.options.age_of(&syn.header.options);
        let later = age.is_gt() || (age.is_eq() && beyond);
        later.then(|| self.send.seq(self.send.nxt()) + DISTANCE)
    }
}
