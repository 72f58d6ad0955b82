//! TCP's part of a whole message: a segment with the next data and PSH, which acknowledges the only
//! segment in flight.

use super::{NextData, SoleAck};
use crate::memory::frames::TxFrames;
use crate::tcp::{Due, Tcp};
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

/// The proof that a segment holds the next data of the stream, has PSH, and acknowledges all that
/// is in flight, which is one segment.
#[derive(Debug)]
pub struct DataWithSoleAck<'a> {
    header: &'a DataHeader,
    len: usize,
    sole: SoleAck,
}

impl<'a> DataWithSoleAck<'a> {
    /// Returns the proof if a segment with this header and `len` octets of data may take this path.
    #[inline(always)]
    pub fn eligible(tcp: &Tcp, now: Instant, header: &'a DataHeader, len: usize) -> Option<Self> {
        let (flags, ack) = (Flags::ACK | Flags::PSH, tcp.send.nxt);
        if header.flags != flags || header.ack != tcp.send.seq(ack) {
            return None;
        }
        let sole = SoleAck::eligible(tcp, ack)?;
        let next = NextData::is_next(tcp, now, header, len);
        next.then_some(Self { header, len, sole })
    }

    /// Handles the segment. The owner receives all of its octets and buffers none. An ACK is due
    /// with the next turn, and no timer of TCP is due earlier than before. Returns up to where the
    /// peer has acknowledged our stream, and what is [due](Tcp::due) now.
    // Not inlined: it needs all registers.
    #[inline(never)]
    pub fn commit<F: TxFrames>(self, tcp: &mut Tcp, now: Instant, frames: &mut F) -> (u64, Due) {
        let Self { header, len, sole } = self;
        let offset = NextData::hear(tcp, now, header, true);
        let ack = tcp.send.nxt;
        tcp.send.window.advance(offset, ack, header.window);
        sole.commit(tcp, now, frames);
        tcp.mark_next_received(now, len);
        tcp.recv.set_buffered(0, 0);
        // Nothing else can be: all that was queued has been sent, and is acknowledged.
        let due = tcp.recv.due(now);
        debug_assert_eq!(due, tcp.due(now));
        (ack, due)
    }
}
