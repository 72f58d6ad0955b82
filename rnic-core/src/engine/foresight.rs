//! Connections that have their turn soon are fetched into the cache meanwhile, several at once: where there are many,
//! nothing of one is left in the cache since its last turn, and to wait for each line when it is needed takes longer than
//! the work itself.

use super::{Engine, FlowKey};
use crate::connection::Upcoming;
use crate::wire::packet;

/// With fewer connections than these their state stays in cache, and there is nothing to fetch.
const MANY: usize = 64;
/// Connections that are fetched at once: enough to keep memory busy, and few enough to find room in the cache.
const AT_ONCE: usize = 16;

/// Octets of a frame that may be no more than an ACK: what it acknowledges was sent here.
const LONGEST_ACK: usize = 256;

/// Which connections have been fetched.
#[derive(Default)]
pub(super) struct Foresight {
    /// Those of the frames that are to be handled next, and what for.
    upcoming: Vec<(usize, Upcoming)>,
    /// How many of those at the front of the line that wait to send.
    ready: usize,
}

impl Engine {
    fn has_many(&self) -> bool {
        self.connections.len() >= MANY
    }

    /// Prepares for frames, of which these are the fronts.
    pub(super) fn foresee_frames<'a>(&mut self, heads: impl Iterator<Item = &'a [u8]>) {
        if !self.has_many() {
            return;
        }
        let upcoming = &mut self.foresight.upcoming;
        upcoming.clear();
        let mut before: &[u8] = &[];
        for head in heads {
            if !is_same_flow(before, head)
                && let Some((remote, local)) = packet::addresses(head)
                && let Some(index) = self.flows.guess(&FlowKey { local, remote })
            {
                let turn = match head.len() > LONGEST_ACK {
                    true => Upcoming::Data,
                    false => Upcoming::Any,
                };
                upcoming.push((index, turn));
            }
            before = head;
        }
        self.fetch(self.foresight.upcoming.iter().copied());
    }

    /// Others may have come to wait since something was sent last.
    #[inline]
    pub(super) fn begin_to_transmit(&mut self) {
        self.foresight.ready = 0;
    }

    /// Prepares for the next of those that wait to send.
    #[inline]
    pub(super) fn foresee_ready(&mut self) {
        if self.has_many() {
            self.foresee_next_ready();
        }
    }

    fn foresee_next_ready(&mut self) {
        if self.foresight.ready == 0 {
            let next = self.ready.iter().take(AT_ONCE);
            self.fetch(next.map(|index| (*index, Upcoming::Any)));
            self.foresight.ready = AT_ONCE;
        }
        self.foresight.ready -= 1;
    }

    /// Step by step, each for all of them: the memory that one step waits for comes while the others are asked for.
    fn fetch(&self, turns: impl Iterator<Item = (usize, Upcoming)> + Clone) {
        for depth in 0..super::Connection::DEPTHS {
            for (index, turn) in turns.clone() {
                if let Some(connection) = self.connections.get(index) {
                    connection.prefetch(turn, depth);
                }
            }
        }
    }
}

/// Whether two frames are of the same connection. May say no though they are.
fn is_same_flow(one: &[u8], other: &[u8]) -> bool {
    // IPv4 without VLAN tags and options: type, version and length of the header; the addresses and ports.
    const PLAIN: [u8; 3] = [0x08, 0x00, 0x45];
    let plain = one.get(12..15) == Some(&PLAIN[..]) && other.get(12..15) == Some(&PLAIN[..]);
    plain && one.get(26..38) == other.get(26..38)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_connection_are_told_from_others() {
        let mut frame = [0; 60];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        // Addresses and ports.
        for at in 26..38 {
            let mut other = frame;
            other[at] = 1;
            assert!(!is_same_flow(&frame, &other));
        }
        // Anything behind them.
        let mut other = frame;
        other[38..].fill(1);
        assert!(is_same_flow(&frame, &other));
        // Where other headers have addresses is not looked at.
        for (at, octet) in [(12, 0x86), (12, 0x81), (14, 0x46)] {
            let mut other = frame;
            other[at] = octet;
            assert!(!is_same_flow(&other, &other));
        }
        assert!(!is_same_flow(&[], &frame));
    }
}
