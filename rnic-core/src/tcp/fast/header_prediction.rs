//! TCP's part of header prediction: the next data of an established connection, and nothing else
//! except perhaps an acknowledgment of ours.

use super::SoleAck;
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, Tcp};
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags, TcpHeader};

/// The proof that a segment holds the next data of the stream, and nothing else except perhaps an
/// acknowledgment of data of ours.
#[derive(Debug)]
pub struct NextData<'a> {
    header: &'a DataHeader,
    /// It acknowledges data of ours.
    acks: bool,
}

/// What the [next data](NextData) acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Nothing new.
    Nothing,
    /// Data of ours.
    Data,
    /// All data of ours that was in flight; also, the segment has PSH. TCP has nothing to send but
    /// an ACK with the next turn, and none of its timers is due earlier than before.
    All,
}

impl<'a> NextData<'a> {
    /// Returns the proof if a segment with this header and `len` octets of data may take this path.
    #[inline]
    pub fn eligible(tcp: &Tcp, now: Instant, header: &'a DataHeader, len: usize) -> Option<Self> {
        let acks = header.ack != tcp.send.seq(tcp.send.una());
        let next = header.flags | Flags::PSH == Flags::ACK | Flags::PSH
            && match acks {
                false => tcp.send.keeps_window(header.window),
                true => tcp.send.awaits(header.ack),
            }
            && Self::is_next(tcp, now, header, len);
        next.then_some(Self { header, acks })
    }

    /// Handles the segment. The owner receives all of its octets, and calls
    /// [`mark_next_received`](Tcp::mark_next_received) for them.
    #[inline]
    pub fn commit<F: TxFrames>(self, tcp: &mut Tcp, now: Instant, frames: &mut F) -> Acknowledged {
        let Self { header, acks } = self;
        let offset = Self::hear(tcp, now, header, header.flags.psh());
        if acks {
            return Self::hear_ack(tcp, now, header, offset, frames);
        }
        let una = tcp.send.una();
        tcp.send.window.update(offset, una, header.window);
        Acknowledged::Nothing
    }

    /// Returns whether a segment is the next data of an established connection, by all but its
    /// flags and its acknowledgment.
    #[inline(always)]
    pub(super) fn is_next(tcp: &Tcp, now: Instant, header: &DataHeader, len: usize) -> bool {
        tcp.state == State::Established
            && !tcp.probing
            && tcp.recv.is_next(header.seq, len as u64)
            && !tcp.options.is_old(now, header.timestamps)
    }

    /// Handles a segment with the next data, apart from its acknowledgment. Returns its offset in
    /// the peer's stream.
    #[inline]
    pub(super) fn hear(tcp: &mut Tcp, now: Instant, header: &DataHeader, push: bool) -> i64 {
        let offset = tcp.recv.data_nxt().cast_signed();
        tcp.pacer.advance(now);
        tcp.counters.segments_received += 1;
        tcp.liveness.on_segment(now);
        if tcp.recv.reaches_last_ack(offset) {
            tcp.options.remember(now, header.timestamps);
        }
        tcp.recv.expect_ack(now, 1, push);
        offset
    }

    /// Handles the acknowledgment of a segment with the next data, which begins at offset `start`.
    // Not inlined: segments that acknowledge nothing are then handled faster.
    #[inline(never)]
    fn hear_ack<F: TxFrames>(
        tcp: &mut Tcp,
        now: Instant,
        header: &DataHeader,
        start: i64,
        frames: &mut F,
    ) -> Acknowledged {
        // `eligible` has checked that it is not behind what was sent, and so it is not negative.
        let ack = tcp.send.offset_of(header.ack).cast_unsigned();
        tcp.send.window.update(start, ack, header.window);
        let sole = match tcp.sole_ack {
            true => SoleAck::eligible(tcp, ack),
            false => None,
        };
        if let Some(sole) = sole {
            taken::count(FastPath::SoleAck);
            sole.commit(tcp, now, frames);
            if header.flags.psh() {
                return Acknowledged::All;
            }
        } else {
            tcp.process_ack(now, &TcpHeader::from(*header), ack, false, frames);
        }
        tcp.update_persist(now);
        Acknowledged::Data
    }
}
