//! Requests whose message stands in the request itself: from the ring to the frame in one step.

use zerocopy::FromZeros;

use super::super::message::{tagged, untagged};
use super::super::{Ending, Rdmap};
use super::{PostedRequest, Progress, Requester, Target, advance};
use crate::verbs::cq::CqTable;
use crate::verbs::wr::{MAX_INLINE, SHORT_INLINE, send_flags};
use crate::verbs::{QueuePair, SendWr, WcOpcode, WrOpcode};
use crate::wire::ddp::{
    DdpHeader, QueueNumber, Stag, TaggedHeader, TaggedOffset, UNTAGGED_LEN, UntaggedHeader,
};
use crate::wire::rdmap::Opcode;

/// The proof that the next message stands in its request, and may begin now.
#[derive(Clone, Copy, Debug)]
pub struct InlineMessage {
    /// The header of its only segment, as far as RDMAP decides it.
    pub header: DdpHeader,
    /// Octets of the message.
    pub len: u32,
    wr_id: u64,
    signaled: bool,
    /// How far behind the oldest request its entry stands in the ring.
    ahead: u32,
}

impl InlineMessage {
    /// Octets that the only segment of a short one may have, header included.
    pub const MAX_SHORT: usize = UNTAGGED_LEN + SHORT_INLINE;

    /// Returns the proof if the next message is an inline one that may begin.
    #[inline(always)]
    pub fn eligible(rdmap: &Rdmap, qp: &QueuePair, cqs: &CqTable) -> Option<Self> {
        let in_turn = matches!(rdmap.ending, Ending::Open)
            && rdmap.urgent.is_none()
            && !(rdmap.response_next && rdmap.responder.is_due());
        if !in_turn {
            return None;
        }
        rdmap.requester.inline_message(qp, cqs)
    }

    /// Returns whether it has few octets: the segment fits every MULPDU.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.len as usize <= SHORT_INLINE
    }

    /// Returns the proof if the next message is an inline one that may begin, and this side has
    /// nothing else to send.
    #[inline(always)]
    pub fn eligible_alone(rdmap: &Rdmap, qp: &QueuePair, cqs: &CqTable) -> Option<Self> {
        let alone = matches!(rdmap.ending, Ending::Open)
            && rdmap.urgent.is_none()
            && !rdmap.responder.is_due()
            && rdmap.requester.has_one_to_begin(qp);
        if !alone {
            return None;
        }
        rdmap.requester.inline_message(qp, cqs)
    }

    /// Copies the octets of the message to the front of `to`. What is behind them in `to` is
    /// undefined afterwards.
    #[inline(always)]
    pub fn copy(&self, qp: &QueuePair, to: &mut [u8]) {
        qp.sq.peek_octets(self.ahead, SendWr::FRONT_WORDS, to);
    }

    /// Records that the message was handed to the layers below, and ends at `end` of the stream.
    #[inline(always)]
    pub fn commit(self, rdmap: &mut Rdmap, end: u64) {
        rdmap.requester.begin_inline(&self, end);
        rdmap.response_next = true;
    }
}

impl Requester {
    /// Returns the next request, if all of its message is in the request and it may begin now.
    #[inline(always)]
    fn inline_message(&self, qp: &QueuePair, cqs: &CqTable) -> Option<InlineMessage> {
        let ahead = self.requests.len() as u32;
        let waits = self.failed || self.immediate_next.is_some() || self.reading.is_some();
        if waits || !self.is_before_finish() || cqs.has_backlog(qp.send_cq) {
            return None;
        }
        let mut wr = SendWr::new_zeroed();
        if !qp.sq.peek_front(ahead, SendWr::FRONT_WORDS, &mut wr) {
            return None;
        }
        let header = inline_header(&wr)?;
        // rfc: 5040-72 a fence waits for the Reads before it
        if wr.flags & send_flags::FENCE != 0 && !self.outstanding.is_empty() {
            return None;
        }
        Some(InlineMessage {
            header,
            len: wr.length,
            wr_id: wr.wr_id,
            signaled: qp.signal_all || wr.flags & send_flags::SIGNALED != 0,
            ahead,
        })
    }

    /// Returns whether there is one request to begin, and no other yet.
    #[inline(always)]
    fn has_one_to_begin(&self, qp: &QueuePair) -> bool {
        qp.sq.len() == self.requests.len() as u32 + 1
    }

    #[inline(always)]
    fn begin_inline(&mut self, message: &InlineMessage, end: u64) {
        let (opcode, target) = match message.header {
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
                (
                    WcOpcode::Send,
                    Target::Untagged {
                        queue,
                        msn,
                        count: 1,
                    },
                )
            }
        };
        self.track_inline(PostedRequest {
            wr_id: message.wr_id,
            opcode,
            signaled: message.signaled,
            length: message.len,
            target,
            progress: Progress::Sent(end),
        });
    }
}

/// Returns the header of a Write or Send whose data stand in the request, as
/// [`prepare`](super::super::prepare::prepare) would make it.
#[inline(always)]
fn inline_header(wr: &SendWr) -> Option<DdpHeader> {
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
