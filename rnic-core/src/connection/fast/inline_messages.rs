//! Inline messages: Writes and Sends whose octets stand in their work requests go from the ring
//! into the frame. Each is one FPDU, and as many as wait and fit share a segment.

use crate::connection::Context;
use crate::connection::stream::Stream;
use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::fast_paths::{FastPath, taken};
use crate::mpa::frame;
use crate::rdmap::InlineMessage;
use crate::verbs::wr::SHORT_INLINE;
use crate::wire::mpa::LENGTH_LEN;

/// The proof that the next message to send is an inline one, which fits into one FPDU.
pub(super) struct InlineFpdu {
    message: InlineMessage,
}

impl InlineFpdu {
    /// Octets of the longest FPDU of a short message.
    const MAX_SHORT: usize = frame::fpdu_len(InlineMessage::MAX_SHORT);

    /// Returns the proof if the next message is an inline one of at most `most` octets with its DDP
    /// header.
    #[inline(always)]
    fn eligible(stream: &Stream, most: usize, context: &Context<'_, '_>) -> Option<Self> {
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &stream.user else {
            return None;
        };
        if !stream.ddp.may_begin() {
            return None;
        }
        let message = InlineMessage::eligible(rdmap, qp, context.cqs)?;
        let fits = message.header.len() + message.len as usize <= most;
        fits.then_some(Self { message })
    }

    /// Returns the proof if there is a short inline message and nothing else to send, and FPDUs may
    /// be sent. It fits into any segment.
    #[inline(always)]
    pub(super) fn eligible_alone(stream: &Stream, context: &Context<'_, '_>) -> Option<Self> {
        let may_begin = stream.may_send() && stream.ddp.may_begin() && !stream.has_markers();
        match &stream.user {
            LocalUlp::Rdmap(user) if may_begin => {
                let message = InlineMessage::eligible_alone(&user.rdmap, &user.qp, context.cqs)?;
                message.is_short().then_some(Self { message })
            }
            _ => None,
        }
    }

    /// Builds the FPDU at the front of `room`, at offset `start` of the stream. Returns its length.
    #[inline(always)]
    fn commit(self, stream: &mut Stream, room: &mut [u8], start: u64) -> usize {
        let (message, crc) = (self.message, stream.has_crcs());
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut stream.user else {
            return 0;
        };
        let ulpdu = &mut room[LENGTH_LEN..];
        let header_len = stream.ddp.whole(message.header, message.len).emit(ulpdu);
        let ulpdu_len = header_len + message.len as usize;
        message.copy(qp, &mut ulpdu[header_len..ulpdu_len]);
        let len = frame::seal(room, ulpdu_len, crc);
        message.commit(rdmap, start + len as u64);
        len
    }

    /// Builds the FPDU of a short message in a `room` that has at least as many octets as
    /// [every such one](Self::MAX_SHORT). Returns its length and checksum.
    #[inline(always)]
    pub(super) fn commit_and_sum_up(
        self,
        stream: &mut Stream,
        room: &mut [u8],
        start: u64,
    ) -> (u16, u16) {
        let (message, crc) = (self.message, stream.has_crcs());
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut stream.user else {
            return (0, 0);
        };
        // A copy of known length is cheap.
        let fpdu = &mut room[..Self::MAX_SHORT];
        let ulpdu = &mut fpdu[LENGTH_LEN..];
        let header_len = stream.ddp.whole(message.header, message.len).emit(ulpdu);
        message.copy(qp, &mut ulpdu[header_len..header_len + SHORT_INLINE]);
        let ulpdu_len = header_len + message.len as usize;
        let (len, sum) = frame::seal_and_sum_up(fpdu, ulpdu_len, crc);
        message.commit(rdmap, start + len as u64);
        (len as u16, sum)
    }
}

// A short inline message fits into every MULPDU, and so into every segment.
const _: () = assert!(InlineMessage::MAX_SHORT <= frame::MIN_MULPDU);

impl Stream {
    /// Builds FPDUs of the inline messages that wait, each whole, while they fit. The first octet
    /// stands at `start` of the stream. Returns the number of octets, and whether there surely is
    /// nothing more to send.
    pub(in crate::connection) fn build_inline(
        &mut self,
        room: &mut [u8],
        mulpdu: usize,
        start: u64,
        context: &mut Context<'_, '_>,
    ) -> (usize, bool) {
        let mut len = 0;
        if self.has_markers() || !context.fast_paths.inline_messages {
            return (len, false);
        }
        let mut fpdus = 0;
        let at_rest = loop {
            let fpdu = &mut room[len..];
            let most = frame::ulpdu_room(fpdu.len()).min(mulpdu);
            let Some(inline) = InlineFpdu::eligible(self, most, context) else {
                break self.user.is_at_rest();
            };
            len += inline.commit(self, fpdu, start + len as u64);
            fpdus += 1;
            taken::count(FastPath::InlineMessages);
            if self.user.is_at_rest() {
                break true;
            }
        };
        context.counters.rdma.fpdus_sent += fpdus;
        (len, at_rest)
    }
}
