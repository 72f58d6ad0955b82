//! A message that answers ours: one frame that holds all of it, and acknowledges all that was on its way. Where each side
//! waits for the other every message is one of these, so it goes through the layers in one step, in which nothing is looked
//! at twice. All that can be wrong is looked for first, before anything is changed: any other goes the ordinary way.

use crate::counters::RdmaCounters;
use crate::fast_paths::{FastPath, taken};
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::memory::place::Placement;
use crate::mpa::frame;
use crate::rdmap::Rdmap;
use crate::time::Instant;
use crate::verbs::cq::CqTable;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use crate::wire::prediction::Expected;

use super::stream::Stream;
use super::upper::{RdmapUser, User};
use super::{Connection, Phase};

/// A message that was found to be good.
struct Message<'a, 'g> {
    payload: &'a [u8],
    place: Placement<'g>,
    /// The receive that it fills, if it is a Send.
    receive: Option<u64>,
}

impl Connection {
    /// Handles the segment of a frame that was expected, if it is one of these: it is placed, delivered and completed, and so
    /// is what it acknowledges. Says whether the connection has nothing to send then but an ACK, which it owes with the next
    /// turn. `None` if it is another; then nothing is changed.
    #[inline(always)]
    pub(crate) fn handle_answer<F: TxFrames>(
        &mut self,
        expected: &Expected<'_>,
        now: Instant,
        guard: &Guard<'_>,
        cqs: &mut CqTable,
        counters: &mut RdmaCounters,
        tx: &mut F,
    ) -> Option<bool> {
        let (header, len) = (&expected.header, expected.payload.len());
        let Phase::Streaming(stream) = &mut self.phase else {
            return None;
        };
        // No octet is placed before the CRC of its FPDU holds. rfc: 5044-37
        let good = expected.payload_crc.is_some_and(frame::crc_is_good);
        if !good || !self.tcp.is_answer(now, header, len) || self.fin_asked {
            return None;
        }
        let message = stream.whole_message(expected.payload, cqs, guard)?;
        taken::count(FastPath::WholeMessage);
        let acked = self.tcp.take_answer(now, header, len, tx);
        stream.take_message(&message, acked, cqs, counters);
        Some(stream.rests_behind_message() && self.tcp.rests_behind_answer(now))
    }
}

impl Stream {
    /// The message that an FPDU with a good CRC is, if it is a Write or Send as our own are, and may be placed.
    #[inline(always)]
    fn whole_message<'a, 'g>(
        &self,
        fpdu: &'a [u8],
        cqs: &CqTable,
        guard: &'g Guard<'_>,
    ) -> Option<Message<'a, 'g>> {
        debug_assert!(!self.steady || self.is_steady());
        let User::Rdmap(RdmapUser { qp, .. }) = &self.user else {
            return None;
        };
        if !self.steady {
            return None;
        }
        let DdpSegment {
            header, payload, ..
        } = DdpSegment::parse(frame::ulpdu(fpdu)?).ok()?;
        // A message goes on behind a segment that is not its last. rfc: 5041-57, 5041-58, 5041-63
        if payload.is_empty() || !header.last() {
            return None;
        }
        let (place, receive) = match &header {
            DdpHeader::Tagged(header) => {
                let right = Rdmap::admit_write(header)?;
                let place = self
                    .ddp
                    .place_for_tagged(header, payload.len(), right, guard)?;
                (place, None)
            }
            DdpHeader::Untagged(header) if Rdmap::admit_send(header) => {
                let (wr_id, buffer) = Rdmap::next_receive(qp, cqs)?;
                let place = self
                    .ddp
                    .place_for_whole(header, payload.len(), &buffer, guard)?;
                (place, Some(wr_id))
            }
            DdpHeader::Untagged(_) => return None,
        };
        Some(Message {
            payload,
            place,
            receive,
        })
    }

    /// [`is_at_rest`](Self::is_at_rest) behind a [message](Self::take_message).
    #[inline(always)]
    fn rests_behind_message(&self) -> bool {
        let User::Rdmap(RdmapUser { rdmap, qp, .. }) = &self.user else {
            return false;
        };
        self.steady && !self.ddp.is_sending() && !rdmap.has_request(qp)
    }

    /// Places and delivers a message that was found to be good, and completes what the peer has acknowledged with it.
    #[inline(always)]
    fn take_message(
        &mut self,
        message: &Message<'_, '_>,
        acked: u64,
        cqs: &mut CqTable,
        counters: &mut RdmaCounters,
    ) {
        let User::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user else {
            return;
        };
        // It came in a frame: its length fits.
        let length = message.payload.len() as u32;
        message.place.write(message.payload);
        counters.fpdus_received += 1;
        counters.octets_placed += u64::from(length);
        if let Some(wr_id) = message.receive {
            self.ddp.delivered_whole(QueueNumber::SEND);
            Rdmap::receive(wr_id, length, qp, cqs);
        }
        self.acked = acked;
        rdmap.answered(acked, qp, cqs);
    }
}
