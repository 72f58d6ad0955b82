//! Direct segments: where both ends of a connection are one engine's, segments of DDP go from the
//! one to the other without MPA, TCP and frames, if nothing is on its way in front of them. DDP and
//! RDMAP treat them like all others: with the same checks, errors, completions and rules of RC.

use crate::ddp::Ulp;
use crate::tcp::State;

use super::stream::Stream;
use super::{Connection, Context, Phase};

impl Connection {
    /// Returns whether the next segment of this end may go directly: all before it is delivered.
    pub(crate) fn sends_directly(&self) -> bool {
        let is_delivered = self.tcp.acked_offset() == self.tcp.queued_offset();
        is_delivered
            && self.loose_octets.is_empty()
            && self.is_open()
            && matches!(&self.phase, Phase::Streaming(stream) if stream.sends_directly())
    }

    /// Returns whether this end takes segments directly.
    pub(crate) fn receives_directly(&self) -> bool {
        self.is_open()
            && matches!(&self.phase, Phase::Streaming(stream) if stream.receives_directly())
    }

    fn is_open(&self) -> bool {
        self.tcp.state() == State::Established && !self.fin_asked
    }

    /// Builds the next segment at the front of `room`, if there is one. Returns its length.
    /// [`sent_directly`](Self::sent_directly) must follow.
    pub(crate) fn build_directly(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_, '_>,
    ) -> Option<usize> {
        self.stream()?.build_unposted(room, context)
    }

    /// Returns up to where this end has received the stream of the other one.
    pub(crate) fn received(&self) -> u64 {
        self.tcp.receive_offset()
    }

    /// Receives a segment of the other end, which has [received](Self::received) so much of this
    /// one's stream: its acknowledgment may still be on its way, and the segment may be the answer
    /// to what it acknowledges. Returns whether the stream goes on.
    pub(crate) fn receive_directly(
        &mut self,
        segment: &[u8],
        received: u64,
        context: &mut Context<'_, '_>,
    ) -> bool {
        self.stream().is_some_and(|stream| {
            stream.note_acked(received);
            stream.receive_segment(segment, context);
            !stream.has_ended() && !stream.ddp.has_failed()
        })
    }

    /// Notes that the other end has received the segment that was built last. Where it refused it,
    /// its Terminate says what becomes of the request.
    pub(crate) fn sent_directly(&mut self, was_taken: bool, context: &mut Context<'_, '_>) {
        let acked = self.tcp.acked_offset();
        if let Some(stream) = self.stream() {
            let end = if was_taken { acked } else { u64::MAX };
            stream.posted(end, context);
            stream.user.with(context).transferred(acked);
        }
    }

    /// Acts on what was received directly.
    pub(crate) fn settle_directly(&mut self, context: &mut Context<'_, '_>) {
        self.update_buffered(context);
        self.settle(context);
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Streaming(stream) => Some(stream),
            _ => None,
        }
    }
}
