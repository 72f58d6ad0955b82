//! Direct Writes: a Write of a connection between two queue pairs of one engine is one copy, from
//! the memory of the one to that of the other, where nothing is on its way in front of it. The
//! checks are those of the ordinary way. What they refuse is left to that, which makes the error.

use super::stream::Stream;
use super::upper::{LocalUlp, RdmapUser};
use super::{Connection, Context, Phase};
use crate::memory::table::{Access, Origin};
use crate::rdmap::DirectWrite;
use crate::tcp::State;
use crate::wire::ddp::TaggedOffset;

/// What is copied at a time, by way of the stack: it stays in the first-level cache.
const PIECE: usize = 4096;

/// No two pieces have octets of one of these: programs poll words, which are not to be torn.
const LINE: u64 = 64;

impl Connection {
    /// Returns the rights of Writes that come without a message, if the stream is between messages.
    pub(crate) fn takes_direct_writes(&self) -> Option<Origin> {
        let Phase::Streaming(stream) = &self.phase else {
            return None;
        };
        let LocalUlp::Rdmap(user) = &stream.user else {
            return None;
        };
        stream.is_between_messages().then(|| user.qp.origin())
    }

    /// Carries out the next request, if it is a Write of at most `most` octets and all that was
    /// sent has been delivered. `sink` has the rights at the other end. Returns how many octets it
    /// had.
    pub(crate) fn write_directly(
        &mut self,
        sink: Origin,
        most: u32,
        context: &mut Context<'_, '_>,
    ) -> Option<u32> {
        let is_open = self.tcp.state() == State::Established && !self.fin_asked;
        let is_delivered = self.tcp.acked_offset() == self.tcp.queued_offset();
        let Phase::Streaming(stream) = &mut self.phase else {
            return None;
        };
        if !is_open || !is_delivered || !self.loose_octets.is_empty() || !may_begin(stream) {
            return None;
        }
        let LocalUlp::Rdmap(user) = &mut stream.user else {
            return None;
        };
        let RdmapUser { rdmap, qp, .. } = user;
        let write = rdmap.next_direct_write(most, qp, context.cqs, context.guard)?;
        copy(user, &write, sink, context)?;
        let RdmapUser { rdmap, qp, .. } = user;
        rdmap.complete_direct_write(&write, qp, context.cqs);
        Some(write.length())
    }
}

/// Returns whether a message may begin, and none has.
fn may_begin(stream: &Stream) -> bool {
    let is_usual = stream.is_between_messages() && !stream.takes_no_fast_path();
    is_usual && stream.may_send() && !stream.ddp.is_sending()
}

/// Copies the octets of a Write. Without success some of them may be there, as some segments of the
/// message may have been.
fn copy(
    user: &RdmapUser,
    write: &DirectWrite,
    sink: Origin,
    context: &Context<'_, '_>,
) -> Option<()> {
    let to = write.sink()?;
    let (guard, len) = (context.guard, write.length() as usize);
    let TaggedOffset(start) = to.offset;
    let mut place = guard.placement(to.stag, to.offset, len, sink, Access::REMOTE_WRITE)?;
    let mut octets = [0; PIECE];
    let mut done = 0;
    while done < len {
        let at_line = (start.wrapping_add(done as u64) % LINE) as usize;
        let piece = &mut octets[..(PIECE - at_line).min(len - done)];
        let from = done as u32;
        let read = user.rdmap.read_direct(write, &user.qp, guard, from, piece);
        read.ok()?;
        place.split_front(piece.len())?.write(piece).ok()?;
        done += piece.len();
    }
    Some(())
}
