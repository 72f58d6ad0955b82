//! What is in flight, for an administrator.

use crate::tcp::sent_segment::Fate;

use super::Sender;

/// Octets in flight, by what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct Flight {
    pub(in crate::tcp) sacked: u64,
    pub(in crate::tcp) lost: u64,
    pub(in crate::tcp) retransmitted: u64,
}

impl Sender {
    /// Looks at every segment: nothing for each packet.
    pub(in crate::tcp) fn flight_facts(&self) -> Flight {
        let mut facts = Flight::default();
        for segment in &self.segments {
            let octets = u64::from(segment.sent);
            match segment.fate {
                Fate::Sacked => facts.sacked += octets,
                Fate::Lost => facts.lost += octets,
                Fate::InFlight if segment.retransmitted => facts.retransmitted += octets,
                Fate::InFlight => {}
            }
        }
        facts
    }
}
