//! TCP's part of header prediction: the next data of an established connection, with nothing else to say but that some of
//! ours has arrived.

use super::SoleAck;
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::TxFrames;
use crate::tcp::{State, Tcp};
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags, TcpHeader};

/// The proof that a segment is the next data of the stream, and says nothing else but, perhaps, that data of ours has
/// arrived.
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
    /// All of ours that was in flight, and it was pushed. Nothing is left for TCP to send but an ACK with the next turn, and
    /// none of its timers is due earlier than before.
    All,
}

impl<'a> NextData<'a> {
    /// `len` are the octets of data.
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

    /// Takes the segment. All of its octets are the owner's, who calls [`took_next`](Tcp::took_next) for them.
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

    /// Whether a segment, by all but its flags and its acknowledgment, is the next data of an established connection.
    #[inline(always)]
    pub(super) fn is_next(tcp: &Tcp, now: Instant, header: &DataHeader, len: usize) -> bool {
        tcp.state == State::Established
            && !tcp.probing
            && tcp.recv.is_next(header.seq, len as u64)
            && !tcp.options.is_old(now, header.timestamps)
    }

    /// The next data has come: what is the same whatever it acknowledges. Returns where it begins in the peer's stream.
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

    /// The next data, from offset `start`, acknowledges data of ours.
    // A function of its own: without it those that do not are handled faster.
    #[inline(never)]
    fn hear_ack<F: TxFrames>(
        tcp: &mut Tcp,
        now: Instant,
        header: &DataHeader,
        start: i64,
        frames: &mut F,
    ) -> Acknowledged {
        // Not behind what was sent, as was seen, and therefore not negative.
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
