//! Sending: data go into the send buffer, and from there by RDMA Write into the peer's receive
//! buffer, or into one that it has mapped.

use super::endpoint::{Endpoint, MAX_INLINE, Octets, Work};
use super::layout::{Iomap, Message, Sge};
use super::pieces::{Pieces, ToRead};
use super::socket::{Flow, Phase, SendSide, Socket};
use crate::errno::{Errno, lock};

/// The first message of a call, so that the wire has something to do while the rest is copied. Each
/// further one is twice as long.
const FIRST: u32 = 2048;
const LONGEST: u32 = 1 << 16;

impl Socket {
    /// Sends data, and returns how many octets of them: all, unless a call that must not wait would
    /// have to.
    pub(super) fn send(
        &self,
        mut pieces: Pieces<'_, ToRead>,
        nonblocking: bool,
    ) -> Result<usize, Errno> {
        let length = pieces.left();
        let mut side = lock(&self.send);
        let done = self.announce(nonblocking).and_then(|()| {
            let mut longest = FIRST;
            while pieces.left() > 0 {
                let room = self.wait_for(nonblocking, |flow| {
                    flow.may_send(|flow| flow.outgoing.room())
                })?;
                let octets = clamp(pieces.left(), room.min(longest));
                longest = (longest * 2).min(LONGEST);
                self.send_message(&mut side, &mut pieces, octets)?;
            }
            Ok(())
        });
        finish(done, length - pieces.left())
    }

    /// Sends data to the buffers that the peer has mapped at this offset and behind it. Returns how
    /// many octets found one.
    pub(super) fn send_to_mapped(
        &self,
        mut pieces: Pieces<'_, ToRead>,
        mut offset: u64,
        nonblocking: bool,
    ) -> Result<usize, Errno> {
        let length = pieces.left();
        let mut side = lock(&self.send);
        let done = self.announce(nonblocking).and_then(|()| {
            let mut longest = FIRST;
            while pieces.left() > 0 {
                let ready = |flow: &mut Flow| {
                    let iomap = flow.iomap_at(offset);
                    flow.may_send(|flow| flow.outgoing.room_unannounced())
                        .map(|room| Ok((room?, iomap)))
                };
                let (room, Some(iomap)) = self.wait_for(nonblocking, ready)? else {
                    break;
                };
                let left = iomap.left(offset).try_into().unwrap_or(u32::MAX);
                let octets = clamp(pieces.left(), room.min(longest).min(left));
                longest = (longest * 2).min(LONGEST);
                let addr = iomap.sge.addr.wrapping_add(offset - iomap.offset);
                self.send_unannounced(&mut side, &mut pieces, octets, Sge { addr, ..iomap.sge })?;
                offset += u64::from(octets);
            }
            Ok(())
        });
        finish(done, length - pieces.left())
    }

    fn send_message(
        &self,
        side: &mut SendSide,
        pieces: &mut Pieces<'_, ToRead>,
        octets: u32,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint.get().ok_or(Errno::ENOTCONN)?;
        with_octets(endpoint, side, pieces, octets, |data| {
            let mut flow = lock(&self.flow);
            let to = flow.outgoing.send(octets);
            let work = [Work::Data(octets), Work::Data(0)];
            let posted = endpoint.post_write_and_message(data, work, to, Message::Data(octets));
            flow.posted(posted)
        })
    }

    fn send_unannounced(
        &self,
        side: &mut SendSide,
        pieces: &mut Pieces<'_, ToRead>,
        octets: u32,
        to: Sge,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint.get().ok_or(Errno::ENOTCONN)?;
        with_octets(endpoint, side, pieces, octets, |data| {
            let mut flow = lock(&self.flow);
            flow.outgoing.send_unannounced(octets);
            let posted = endpoint.post_write(data, Work::Data(octets), to);
            flow.posted(posted)
        })
    }

    /// Tells the peer of buffers that were mapped since. What is sent afterwards finds them known.
    fn announce(&self, nonblocking: bool) -> Result<(), Errno> {
        loop {
            let Some((index, iomap)) = lock(&self.mappings).next_unannounced() else {
                return Ok(());
            };
            let ready =
                |flow: &mut Flow| flow.may_send(|flow| flow.outgoing.room_for_iomap().into());
            self.wait_for(nonblocking, ready)?;
            let endpoint = self.endpoint.get().ok_or(Errno::ENOTCONN)?;
            let mut flow = lock(&self.flow);
            flow.outgoing.send_iomap();
            let (octets, to) = (iomap.to_octets(), flow.peer.iomap(index));
            let octets = Octets::Inline(&octets);
            let posted = endpoint.post_write_and_message(
                octets,
                [Work::Data(0); 2],
                to,
                Message::Iomap(index),
            );
            flow.posted(posted)?;
            drop(flow);
            lock(&self.mappings).set_announced(index);
        }
    }
}

impl Flow {
    /// Returns the room for data if there is any, or why there will be none.
    fn may_send(&mut self, room: impl FnOnce(&Self) -> u32) -> Option<Result<u32, Errno>> {
        match self.phase {
            Phase::Opened | Phase::Listening | Phase::Failed => Some(Err(Errno::ENOTCONN)),
            Phase::Connecting => None,
            Phase::Connected if self.writable => Some(room(self)).filter(|&room| room > 0).map(Ok),
            Phase::Connected | Phase::Disconnected => Some(Err(Errno::ECONNRESET)),
        }
    }

    fn posted(&mut self, posted: Result<(), Errno>) -> Result<(), Errno> {
        posted.inspect_err(|_| self.lose())
    }

    fn iomap_at(&self, offset: u64) -> Option<Iomap> {
        self.iomaps
            .iter()
            .find(|iomap| iomap.left(offset) > 0)
            .copied()
    }
}

/// Posts octets of the application. Short ones go with the request; others are copied into the send
/// buffer.
fn with_octets(
    endpoint: &Endpoint,
    side: &mut SendSide,
    pieces: &mut Pieces<'_, ToRead>,
    octets: u32,
    post: impl FnOnce(Octets<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if octets <= endpoint.sizes.inline.into() {
        let mut short = [0; MAX_INLINE];
        let mut at = 0;
        pieces.advance(octets, |from| {
            from.copy_to(&mut short[at..][..from.length()]);
            at += from.length();
        });
        return post(Octets::Inline(&short[..octets as usize]));
    }
    let size = endpoint.sizes.send_buffer;
    let first = octets.min(size - side.offset);
    let places = [(side.offset, first), (0, octets - first)];
    for (mut offset, length) in places {
        pieces.advance(length, |from| {
            let length = from.length() as u32;
            endpoint.send.copy_in(offset, from);
            offset += length;
        });
    }
    side.offset = (side.offset + octets) % size;
    post(Octets::Pieces(
        places.map(|(offset, length)| endpoint.send.piece(offset, length)),
    ))
}

fn clamp(left: usize, most: u32) -> u32 {
    left.try_into().unwrap_or(u32::MAX).min(most)
}

/// Returns what a call returns that has sent so much.
fn finish(done: Result<(), Errno>, sent: usize) -> Result<usize, Errno> {
    match done {
        Err(why) if sent == 0 => Err(why),
        _ => Ok(sent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_counts_more_than_what_failed() {
        assert_eq!(finish(Err(Errno::EAGAIN), 5), Ok(5));
        assert_eq!(finish(Err(Errno::EAGAIN), 0), Err(Errno::EAGAIN));
        assert_eq!(finish(Ok(()), 0), Ok(0));
    }
}
