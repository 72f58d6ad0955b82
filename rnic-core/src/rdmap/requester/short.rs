//! Requests whose message is short and stands in the request itself: from the ring to the frame in one step.

use zerocopy::FromZeros;

use super::super::message::{tagged, untagged};
use super::super::{Ending, Rdmap};
use super::{PostedRequest, Progress, Requester, Target, advance};
use crate::verbs::cq::CqTable;
use crate::verbs::wr::{MAX_INLINE, send_flags};
use crate::verbs::{QueuePair, SendWr, WcOpcode, WrOpcode};
use crate::wire::ddp::{
    DdpHeader, QueueNumber, Stag, TaggedHeader, TaggedOffset, UNTAGGED_LEN, UntaggedHeader,
};
use crate::wire::rdmap::Opcode;

/// Octets that the only segment of a short message may have, header included.
pub const SHORT_ROOM: usize = UNTAGGED_LEN + MAX_INLINE;

/// A request with a short message that may begin now.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    /// The header of its only segment, as far as RDMAP decides it.
    pub header: DdpHeader,
    /// Octets of the message.
    pub len: u32,
    wr_id: u64,
    signaled: bool,
    /// How far behind the oldest request its entry stands in the ring.
    ahead: u32,
}

impl Rdmap {
    /// The next message, if it is short and in the request itself: as [`Ulp::next_short`](crate::ddp::Ulp::next_short)
    /// has it. `None` where there is another, or none.
    #[inline(always)]
    pub fn next_short(
        &mut self,
        room: &mut [u8],
        end: impl FnOnce(usize) -> u64,
        qp: &QueuePair,
        cqs: &CqTable,
    ) -> Option<(DdpHeader, usize)> {
        let in_turn = matches!(self.ending, Ending::Open)
            && self.rtr.is_none()
            && !(self.response_next && self.responder.is_due());
        if !in_turn {
            return None;
        }
        let short = self.requester.next_short(qp, cqs)?;
        let (header_len, len) = (short.header.len(), short.len as usize);
        let octets = room.get_mut(header_len..header_len + len)?;
        short.copy(qp, octets);
        self.begin_short(&short, end(header_len + len));
        Some((short.header, len))
    }

    /// The next message, if it is short and alone: of all that this side has to say nothing else waits.
    #[inline(always)]
    pub fn lone_short(&self, qp: &QueuePair, cqs: &CqTable) -> Option<Short> {
        let alone = matches!(self.ending, Ending::Open)
            && self.rtr.is_none()
            && !self.responder.is_due()
            && self.requester.has_one_to_begin(qp);
        if !alone {
            return None;
        }
        self.requester.next_short(qp, cqs)
    }

    /// A short message was handed to the layers below, and ends at `end` of the stream.
    #[inline(always)]
    pub fn begin_short(&mut self, short: &Short, end: u64) {
        self.requester.begin_short(short, end);
        self.response_next = true;
    }
}

impl Short {
    /// Copies the octets of the message to the front of `to`. Behind them, anything may stand then.
    #[inline(always)]
    pub fn copy(&self, qp: &QueuePair, to: &mut [u8]) {
        qp.sq.peek_octets(self.ahead, SendWr::FRONT_WORDS, to);
    }
}

impl Requester {
    /// The next request, if all of its message is in the request and it may begin now.
    #[inline(always)]
    fn next_short(&self, qp: &QueuePair, cqs: &CqTable) -> Option<Short> {
        let ahead = self.requests.len() as u32;
        let waits = self.failed || self.immediate_next.is_some();
        if waits || !self.is_before_finish() || cqs.has_backlog(qp.send_cq) {
            return None;
        }
        let mut wr = SendWr::new_zeroed();
        if !qp.sq.peek_front(ahead, SendWr::FRONT_WORDS, &mut wr) {
            return None;
        }
        let header = short_header(&wr)?;
        // rfc: 5040-72
        if wr.flags & send_flags::FENCE != 0 && !self.outstanding.is_empty() {
            return None;
        }
        Some(Short {
            header,
            len: wr.length,
            wr_id: wr.wr_id,
            signaled: qp.signal_all || wr.flags & send_flags::SIGNALED != 0,
            ahead,
        })
    }

    /// Whether there is one request to begin, and no other yet.
    #[inline(always)]
    fn has_one_to_begin(&self, qp: &QueuePair) -> bool {
        qp.sq.len() == self.requests.len() as u32 + 1
    }

    #[inline(always)]
    fn begin_short(&mut self, short: &Short, end: u64) {
        let (opcode, target) = match short.header {
            DdpHeader::Tagged(TaggedHeader { stag, offset, .. }) => {
                let target = Target::Tagged {
                    stag,
                    offset,
                    immediate: None,
                };
                (WcOpcode::Write, target)
            }
            DdpHeader::Untagged(UntaggedHeader { queue, .. }) => {
                let msn = advance(&mut self.next_send);
                (WcOpcode::Send, Target::Untagged { queue, msn })
            }
        };
        self.track(PostedRequest {
            wr_id: short.wr_id,
            opcode,
            signaled: short.signaled,
            length: short.len,
            target,
            progress: Progress::Sent(end),
        });
    }
}

/// The header of a Write or Send whose data stand in the request, as [`prepare`](super::super::prepare::prepare) would make
/// it.
#[inline(always)]
fn short_header(wr: &SendWr) -> Option<DdpHeader> {
    if wr.flags & (send_flags::INLINE | send_flags::SOLICITED) != send_flags::INLINE
        || wr.length as usize > MAX_INLINE
    {
        return None;
    }
    if wr.opcode == WrOpcode::Write as u8 {
        let at = TaggedOffset(wr.remote_offset);
        Some(tagged(Opcode::Write, Stag(wr.remote_stag), at))
    } else if wr.opcode == WrOpcode::Send as u8 {
        Some(untagged(Opcode::Send, QueueNumber::SEND, 0))
    } else {
        None
    }
}
