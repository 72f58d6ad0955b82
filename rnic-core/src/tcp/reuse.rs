//! When a new connection may take the place of one that only waits out its TIME-WAIT.

use std::time::Duration;

use super::config::TcpConfig;
use super::seq::Seq;
use super::{State, Tcp};
use crate::time::Instant;
use crate::wire::tcp::TcpSegment;

/// How far beyond the last sequence number of the old connection the new one begins: more than an
/// unscaled window, so that an old segment does not fall into the new stream.
const DISTANCE: u32 = 0x1_0002;

/// How long after the peer's last timestamp this host may open a new connection: longer than a tick
/// of the slowest clock that RFC 7323 allows, so that every segment of the old connection has an
/// older timestamp than the new one's.
const TICK: Duration = Duration::from_secs(1);

/// How this host opens a connection in place of one that waits out its TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succession {
    /// The least initial sequence number.
    pub least: Seq,
    /// When the SYN may be sent.
    pub from: Instant,
}

impl Tcp {
    /// Returns how this host may open a connection in place of this one: if this one only waits out
    /// its TIME-WAIT, and timestamps tell its segments from those of the new one (RFC 6191, RFC
    /// 7323 appendix B.2).
    pub fn succession(&self, config: &TcpConfig) -> Option<Succession> {
        let heard = self.options.heard_at().filter(|_| config.timestamps)?;
        (self.state == State::TimeWait).then(|| Succession {
            least: self.send.seq(self.send.nxt()) + DISTANCE,
            from: heard + TICK,
        })
    }

    /// Holds the first SYN back until this time.
    pub fn hold_syn(&mut self, until: Instant) {
        self.syn_due = false;
        self.retransmit_at = Some(until);
    }

    /// Returns the least initial sequence number of a new connection if a SYN may begin one in
    /// place of this one, else `None` (RFC 9293 section 3.10.7.4).
    ///
    /// It may if it is surely later than all that the peer sent on this one: by its timestamp (RFC
    /// 6191), or by its sequence number where the timestamp does not say the contrary. A delayed
    /// SYN of the past would otherwise end the TIME-WAIT that is there to catch it.
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
