//! Placement: every check of RFC 5041 section 7.1, then one copy of the payload.

use super::queue::{Queue, check_extent};
use super::{Buffers, Ddp, DdpError, MAX_DELIVERED_OCTETS};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Writer};
use crate::memory::table::{Access, Origin};
use crate::verbs::{RecvWr, ScatterError, Sge, scatter, total_length};
use crate::wire::ddp::{DdpHeader, DdpSegment, SegmentInfo, TaggedHeader, UntaggedHeader};

/// A segment whose payload is placed: what is kept of it until it is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub(super) header: DdpHeader,
    /// The first octet of the header as received.
    control: u8,
    pub(super) len: u32,
    /// The segment is not delivered to the ULP.
    pub(super) place_only: bool,
    /// Its first octets, where they go to the ULP with the delivery.
    pub(super) octets_to_deliver: Option<[u8; MAX_DELIVERED_OCTETS]>,
}

impl Placed {
    /// Returns the header of the segment.
    pub fn header(&self) -> &DdpHeader {
        &self.header
    }

    /// Returns what the header does not say about the segment.
    pub fn info(&self) -> SegmentInfo {
        let len = self.header.len() + self.len as usize;
        SegmentInfo {
            control: self.control,
            len: u16::try_from(len).unwrap_or(u16::MAX),
        }
    }

    /// Returns the length of the payload in octets.
    pub fn payload_len(&self) -> u32 {
        self.len
    }

    /// Makes the record of an empty segment.
    #[cfg(test)]
    pub(crate) fn nothing(header: TaggedHeader) -> Self {
        Self {
            header: DdpHeader::Tagged(header),
            control: 0,
            len: 0,
            place_only: true,
            octets_to_deliver: None,
        }
    }
}

impl Ddp {
    /// Checks a segment and copies its payload to where `destination` says.
    ///
    /// Only memory changes. A segment may therefore be placed ahead of order, and more than once. A
    /// segment that is refused ahead of order is placed again when the stream has reached it.
    // rfc: 5041-52 the payload of every valid segment is placed
    // rfc: 5041-74 after a failed check nothing is placed, and the error is reported
    // rfc: 7306-56 DDP checks every field of the segment
    pub fn place(
        &mut self,
        segment: &DdpSegment<'_>,
        destination: Destination,
        buffers: &mut impl Buffers,
        guard: &Guard<'_>,
    ) -> Result<Placed, DdpError> {
        let (mut octets_to_deliver, mut place_only) = (None, false);
        match (&segment.header, destination) {
            (DdpHeader::Untagged(header), Destination::Delivery) => {
                posted(self.queue_mut(header)?, header, buffers)?;
                octets_to_deliver = Some(first_octets(segment.payload));
            }
            // rfc: 5041-16 with T clear the payload goes to an untagged buffer
            (DdpHeader::Untagged(header), Destination::Buffer(_) | Destination::PlaceOnly(_)) => {
                self.place_untagged(header, segment.payload, buffers, guard)?
            }
            // rfc: 5041-15 with T set the payload goes to a tagged buffer
            (
                DdpHeader::Tagged(header),
                Destination::Buffer(right) | Destination::PlaceOnly(right),
            ) => {
                place_only = matches!(destination, Destination::PlaceOnly(_));
                self.place_tagged(header, segment.payload, right, guard)?
            }
            // The ULP gave no right to write: nothing is placed.
            (DdpHeader::Tagged(_), Destination::Delivery) => {}
        }
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        Ok(Placed {
            header: segment.header,
            control: segment.info().control,
            len,
            place_only,
            octets_to_deliver,
        })
    }

    /// Copies the payload of a tagged segment to its buffer, if the peer has the access right
    /// `right` there.
    // rfc: 5040-90 DDP checks every field of a segment
    // rfc: 5041-73a, 5041-73b, 5041-83 the STag is valid on the stream and allows this placement
    // rfc: 5041-73c, 5041-73d, 5041-88 the whole payload lies inside the range of the STag
    // rfc: 5041-73e the sum of TO and length does not wrap
    // rfc: 5041-77, 5041-78 an STag of another protection domain or stream is an error
    #[inline(always)]
    pub(super) fn place_tagged(
        &self,
        header: &TaggedHeader,
        payload: &[u8],
        right: Access,
        guard: &Guard<'_>,
    ) -> Result<(), DdpError> {
        // rfc: 5041-57, 5041-58 without payload STag and TO are not checked
        if payload.is_empty() {
            return Ok(());
        }
        let placement = guard
            .for_placement(
                header.stag,
                header.offset,
                payload.len(),
                self.origin,
                right,
            )
            .map_err(DdpError::Tagged)?;
        match placement.write(payload) {
            Ok(()) => Ok(()),
            Err(fault) => Err(DdpError::Tagged(fault.by(header.stag, right))),
        }
    }

    /// Returns a writer for the payload of tagged messages, with the access right `right`.
    pub(super) fn writer<'g>(&self, right: Access, guard: &'g Guard<'_>) -> Writer<'g> {
        Writer::new(guard, self.origin, right)
    }

    // rfc: 5040-95 DDP checks every field of a Read Request's segment
    fn place_untagged(
        &mut self,
        header: &UntaggedHeader,
        payload: &[u8],
        buffers: &mut impl Buffers,
        guard: &Guard<'_>,
    ) -> Result<(), DdpError> {
        let queue = self.queue_mut(header)?;
        if let Some(kept) = &mut queue.kept {
            return kept.place(&queue.order, header, payload);
        }
        let buffer = posted(queue, header, buffers)?;
        check_extent(header, payload.len(), total_length(buffer.sges()))?;
        receive_into(buffer.sges(), header, payload, self.origin, guard)
    }

    // rfc: 5041-72a the queue number is valid on the stream
    fn queue_mut(&mut self, header: &UntaggedHeader) -> Result<&mut Queue, DdpError> {
        self.queues
            .get_mut(header.queue)
            .ok_or(DdpError::InvalidQn(header.queue))
    }
}

/// Returns the buffer that is posted for a message.
// rfc: 5041-72b queue and MSN have a buffer
fn posted(
    queue: &Queue,
    header: &UntaggedHeader,
    buffers: &mut impl Buffers,
) -> Result<RecvWr, DdpError> {
    buffers
        .buffer(header.queue, queue.order.messages_before(header))
        .ok_or_else(|| queue.order.no_buffer(header))
}

/// Returns the first octets of a payload.
fn first_octets(payload: &[u8]) -> [u8; MAX_DELIVERED_OCTETS] {
    let mut octets = [0; MAX_DELIVERED_OCTETS];
    let len = payload.len().min(MAX_DELIVERED_OCTETS);
    octets[..len].copy_from_slice(&payload[..len]);
    octets
}

fn receive_into(
    sges: &[Sge],
    header: &UntaggedHeader,
    payload: &[u8],
    origin: Origin,
    guard: &Guard<'_>,
) -> Result<(), DdpError> {
    let offset = u64::from(header.offset.0);
    scatter(guard, origin, sges, offset, payload).map_err(|error| match error {
        ScatterError::TooLong { end, room } => DdpError::TooLong {
            queue: header.queue,
            length: end,
            room,
        },
        ScatterError::Tag(error) => DdpError::Receive(error),
    })
}
