//! Whole message: one frame holds all of a Write or Send, and acknowledges all that we had in
//! flight.
//!
//! Where each side waits for the other's message before it sends its next, every message is one of
//! these. It passes all layers in one step.

use crate::connection::stream::Stream;
use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::connection::{Connection, Phase};
use crate::counters::RdmaCounters;
use crate::fast_paths::{FastPath, taken};
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::memory::place::Placement;
use crate::mpa::frame;
use crate::rdmap::Rdmap;
use crate::tcp::{DataWithSoleAck, Due};
use crate::time::Instant;
use crate::verbs::cq::CqTable;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use crate::wire::prediction::Expected;

/// The proof that a segment is a whole message, and may be placed.
pub(crate) struct WholeMessage<'a, 'g> {
    segment: DataWithSoleAck<'a>,
    message: Message<'a, 'g>,
}

/// The part of the layers above TCP.
struct Message<'a, 'g> {
    payload: &'a [u8],
    place: Placement<'g>,
    /// The receive that it fills, if it is a Send.
    receive: Option<u64>,
}

impl<'a, 'g> WholeMessage<'a, 'g> {
    /// Returns the proof if the segment may take this path. It was read from a frame with predicted
    /// headers.
    #[inline(always)]
    pub(crate) fn eligible(
        connection: &Connection,
        expected: &'a Expected<'_>,
        now: Instant,
        guard: &'g Guard<'_>,
        cqs: &CqTable,
    ) -> Option<Self> {
        let (header, len) = (&expected.header, expected.payload.len());
        let Phase::Streaming(stream) = &connection.phase else {
            return None;
        };
        // rfc: 5044-37 the CRC of an FPDU is compared before anything else is done
        let good = expected.payload_crc.is_some_and(frame::crc_is_good);
        if !good || connection.fin_asked {
            return None;
        }
        let segment = DataWithSoleAck::eligible(&connection.tcp, now, header, len)?;
        let message = Message::eligible(stream, expected.payload, guard, cqs)?;
        Some(Self { segment, message })
    }

    /// Places, delivers and completes the message, behind what it acknowledges. Returns whether the
    /// connection surely has nothing to send now but an ACK, which is due with the next turn.
    /// `None`, and no change but of memory, where the memory of the message is gone: the ordinary
    /// way finds the error.
    #[inline(always)]
    pub(crate) fn commit<F: TxFrames>(
        self,
        connection: &mut Connection,
        now: Instant,
        cqs: &mut CqTable,
        counters: &mut RdmaCounters,
        tx: &mut F,
    ) -> Option<bool> {
        let Phase::Streaming(stream) = &mut connection.phase else {
            return None;
        };
        self.message.place.write(self.message.payload).ok()?;
        taken::count(FastPath::WholeMessage);
        let (acked, due) = self.segment.commit(&mut connection.tcp, now, tx);
        self.message.commit(stream, acked, cqs, counters);
        Some(stream.is_at_rest() && due == Due::Nothing)
    }
}

impl<'a, 'g> Message<'a, 'g> {
    /// Returns the message in an FPDU whose CRC is good, if it is a whole Write or Send as we send
    /// them.
    #[inline(always)]
    fn eligible(
        stream: &Stream,
        fpdu: &'a [u8],
        guard: &'g Guard<'_>,
        cqs: &CqTable,
    ) -> Option<Self> {
        let LocalUlp::Rdmap(RdmapUser { qp, .. }) = &stream.user else {
            return None;
        };
        if !stream.between_messages {
            return None;
        }
        debug_assert!(stream.is_between_messages());
        let DdpSegment {
            header, payload, ..
        } = DdpSegment::parse(frame::ulpdu(fpdu)?).ok()?;
        // rfc: 5041-57, 5041-58 without payload neither STag nor TO need be valid
        // rfc: 5041-63 a message is delivered only once its last segment has come
        if payload.is_empty() || !header.last() {
            return None;
        }
        let (place, receive) = match &header {
            DdpHeader::Tagged(header) => {
                let right = Rdmap::admit_write(header)?;
                let place = stream
                    .ddp
                    .place_for_tagged(header, payload.len(), right, guard)?;
                (place, None)
            }
            DdpHeader::Untagged(header) if Rdmap::admit_send(header) => {
                let (wr_id, buffer) = Rdmap::next_receive(qp, cqs)?;
                let place = stream
                    .ddp
                    .place_for_whole(header, payload.len(), &buffer, guard)?;
                (place, Some(wr_id))
            }
            DdpHeader::Untagged(_) => return None,
        };
        Some(Self {
            payload,
            place,
            receive,
        })
    }

    /// Completes the message, which was placed. `acked`: up to where the peer has acknowledged our
    /// stream.
    #[inline(always)]
    fn commit(
        self,
        stream: &mut Stream,
        acked: u64,
        cqs: &mut CqTable,
        counters: &mut RdmaCounters,
    ) {
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut stream.user else {
            return;
        };
        // It came in one frame, so its length fits.
        let length = self.payload.len() as u32;
        counters.fpdus_received += 1;
        counters.octets_placed += u64::from(length);
        // First: the message may be the answer to what it acknowledges.
        stream.acked = acked;
        rdmap.acked_all(acked, qp, cqs);
        if let Some(wr_id) = self.receive {
            stream.ddp.delivered_whole(QueueNumber::SEND);
            Rdmap::receive(wr_id, length, qp, cqs);
        } else {
            stream.ddp.passed_whole(length);
        }
    }
}
