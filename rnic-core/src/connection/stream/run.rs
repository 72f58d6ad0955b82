//! Where the segments of a run belong, which are placed before the layers learn of them.

use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Placement, Writer};
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use crate::wire::mpa::Fpdu;

use super::Stream;

/// The messages that the segments of a run are of.
#[derive(Debug)]
pub(in crate::connection) enum Messages<'g> {
    /// Writes, one or several, and what may write them.
    Writes(Writer<'g>),
    /// One Send.
    Send,
    /// The response to one Read.
    ReadResponse,
}

impl Stream {
    /// Returns where the segments belong that follow `fpdu` in a run, and what they are of. `fpdu`
    /// was received last, and whole; the others have the same opcode, and the first of them the
    /// header `next`. `None` if more than placing is to be done for such a segment.
    // rfc: 5041-73a, 5041-73b, 5041-73c, 5041-73d, 5041-73e STag, range, wrapping are checked first
    // rfc: 5041-77, 5041-78, 5041-83 the STag is valid on this stream
    // rfc: 5041-72b, 5041-72e queue and MSN have a buffer: that of the next message
    pub(in crate::connection) fn place_behind<'g>(
        &self,
        fpdu: &[u8],
        next: &DdpHeader,
        guard: &'g Guard<'_>,
    ) -> Option<(Placement<'g>, Messages<'g>)> {
        // A layer other than RDMAP may want the payload elsewhere each time.
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &self.user else {
            return None;
        };
        if self.ordinary_only || self.ended || !self.deframer.is_between_fpdus() {
            return None;
        }
        let segment = DdpSegment::parse(Fpdu::parse(fpdu)?.0.ulpdu).ok()?;
        match (rdmap.admit(&segment).ok()?, next) {
            (Destination::PlaceOnly(right), DdpHeader::Tagged(next)) => {
                let writer = self.ddp.writer(right, guard)?;
                let place = writer.rest(next.stag, next.offset).ok()?;
                Some((place, Messages::Writes(writer)))
            }
            (Destination::Buffer(right), DdpHeader::Tagged(next)) => {
                let rest = rdmap.rest_of_read(next)?;
                let writer = self.ddp.writer(right, guard)?;
                let mut place = writer.rest(next.stag, next.offset).ok()?;
                place.shorten(rest as usize);
                Some((place, Messages::ReadResponse))
            }
            (Destination::Buffer(_), DdpHeader::Untagged(next))
                if next.queue == QueueNumber::SEND =>
            {
                let buffer = qp.rq.peek(0)?;
                let place = self.ddp.place_for_rest(next, buffer.sges(), guard)?;
                Some((place, Messages::Send))
            }
            _ => None,
        }
    }

    /// Records the segments of a run, which were [placed](Self::place_behind). `last` is the header
    /// of the last of them, of whose message they are `octets`; all, if it `begins` with one of
    /// them.
    pub(in crate::connection) fn pass(
        &mut self,
        messages: &Messages<'_>,
        last: &DdpHeader,
        octets: u32,
        begins: bool,
    ) {
        match (messages, &mut self.user) {
            // DDP knows that the message has begun, and RDMAP counts the octets.
            (Messages::ReadResponse, LocalUlp::Rdmap(user)) => user.rdmap.pass_read(octets),
            _ => self.ddp.passed(last, octets, begins),
        }
    }
}
