//! Prefetches the state of connections whose turn comes soon: see [`Prefetched`].

use crate::connection::{FlowKey, Transport, Upcoming};
use crate::wire::packet;

use super::Engine;
use super::prefetched::{Awaited, Prefetched, Steps};

/// With fewer connections than this, their state stays in cache, and prefetching gains nothing.
const MANY: usize = 64;

/// A frame is compared with this many of the next entries. The entries of frames that are handled
/// as predicted are never asked for, and are passed over.
const PASSED_OVER: usize = 4;

/// A frame of at most so many octets may be a mere ACK: then the send state is needed.
const LONGEST_ACK: usize = 256;

impl<T: Transport> Engine<T> {
    #[inline]
    pub(super) fn has_many(&self) -> bool {
        self.connections.len() >= MANY
    }
}

impl Engine {
    /// Prefetches for the frames of a batch, of which these are the heads.
    pub(super) fn prefetch_for_frames<'a>(&mut self, heads: impl Iterator<Item = &'a [u8]>) {
        let prefetched = &mut self.prefetched;
        prefetched.awaited.clear();
        prefetched.had = 0;
        prefetched.frames = Steps::default();
        if self.connections.len() < MANY {
            return;
        }
        let mut before: &[u8] = &[];
        for head in heads {
            if !is_same_flow(before, head)
                && let Some((remote, local)) = packet::addresses(head)
            {
                let hash = self.flows.hash(&FlowKey { local, remote });
                self.flows.prefetch(hash);
                let turn = match head.len() > LONGEST_ACK {
                    true => Upcoming::Data,
                    false => Upcoming::Any,
                };
                prefetched.awaited.push(Awaited {
                    hash,
                    index: None,
                    turn,
                });
            }
            before = head;
        }
    }

    /// Returns the connection that was prefetched for this frame, if it has these addresses. It was
    /// looked up earlier, so that the wait for memory overlapped with other work.
    #[inline]
    pub(super) fn find_prefetched(&mut self, key: &FlowKey) -> Option<usize> {
        if self.prefetched.awaited.is_empty() {
            return None;
        }
        self.prefetch_next_frame();
        let Prefetched {
            awaited,
            had,
            frames,
            ..
        } = &mut self.prefetched;
        let is_it = |awaited: &Awaited| {
            let connection = self.connections.get(awaited.index?)?;
            (connection.key() == key).then_some(awaited.index?)
        };
        let next = awaited[*had..].iter().take(PASSED_OVER).map(is_it);
        let (place, index) = next
            .enumerate()
            .find_map(|(place, index)| Some((place, index?)))?;
        *had += place + 1;
        frames.pass(place + 1);
        Some(index)
    }

    fn prefetch_next_frame(&mut self) {
        let Prefetched {
            awaited,
            had,
            frames,
            ..
        } = &mut self.prefetched;
        let (flows, connections) = (&self.flows, &self.connections);
        let awaited = &mut awaited[*had..];
        frames.go_on(awaited.len(), |place, step| {
            let awaited = &mut awaited[place];
            match step.checked_sub(1) {
                None => awaited.index = flows.guess(awaited.hash),
                Some(depth) => {
                    let index = awaited.index;
                    if let Some(connection) = index.and_then(|index| connections.get(index)) {
                        connection.prefetch(awaited.turn, depth);
                    }
                }
            }
        });
    }

    /// Prefetches for the timer behind the one that goes off: where many connections are busy, it
    /// soon follows.
    #[inline]
    pub(super) fn prefetch_timer(&self) {
        if self.has_many()
            && let Some(index) = self.schedule.second_timer()
            && let Some(connection) = self.connections.get(index)
        {
            connection.prefetch(Upcoming::Any, 0);
        }
    }

    /// Prefetches the connections that wait to send behind the one whose turn it is.
    #[inline]
    pub(super) fn prefetch_ready(&mut self) {
        if self.has_many() {
            self.prefetch_next_ready();
        }
    }

    fn prefetch_next_ready(&mut self) {
        let (ready, connections) = (self.schedule.ready(), &self.connections);
        let steps = &mut self.prefetched.ready;
        steps.go_on(ready.len(), |place, step| {
            if let Some(depth) = step.checked_sub(1)
                && let Some(connection) = connections.get(ready[place])
            {
                connection.prefetch(Upcoming::Any, depth);
            }
        });
        steps.pass(1);
    }
}

/// Returns whether two frames are of the same connection. `false` may be wrong, `true` is not.
fn is_same_flow(one: &[u8], other: &[u8]) -> bool {
    // IPv4 without VLAN tags and options: EtherType, version and header length. Addresses and ports
    // follow.
    const USUAL: [u8; 3] = [0x08, 0x00, 0x45];
    let usual = one.get(12..15) == Some(&USUAL[..]) && other.get(12..15) == Some(&USUAL[..]);
    usual && one.get(26..38) == other.get(26..38)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_connection_are_told_from_others() {
        let mut frame = [0; 60];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        // Different addresses or ports.
        for at in 26..38 {
            let mut other = frame;
            other[at] = 1;
            assert!(!is_same_flow(&frame, &other));
        }
        // Any difference behind them does not count.
        let mut other = frame;
        other[38..].fill(1);
        assert!(is_same_flow(&frame, &other));
        // Frames with other headers are never taken for the same connection.
        for (at, octet) in [(12, 0x86), (12, 0x81), (14, 0x46)] {
            let mut other = frame;
            other[at] = octet;
            assert!(!is_same_flow(&other, &other));
        }
        assert!(!is_same_flow(&[], &frame));
    }
}
