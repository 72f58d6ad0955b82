//! Delivery: in the order of the stream, what was placed is handed upward.

use super::{Ddp, DdpError, MAX_DELIVERED_OCTETS, Placed};
use crate::wire::ddp::{Came, DdpHeader, TaggedHeader, UntaggedHeader};

/// What DDP tells the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A segment of a tagged message. Where tagged messages begin is not for DDP to know (RFC 5041 section 5.2).
    // rfc: 5041-27, 5041-32
    Tagged {
        /// Its header, with the ULP's octet.
        header: TaggedHeader,
        /// Octets of payload.
        len: u32,
    },
    /// A whole untagged message.
    // rfc: 5041-37, 5041-64, 5041-65
    Untagged {
        /// The header of its last segment, with the ULP's octets.
        header: UntaggedHeader,
        /// What that does not tell of this segment.
        came: Came,
        /// Octets of the message.
        length: u32,
        /// The message itself, if DDP keeps the buffers of the queue, or its first octets, if the layer above
        /// wanted them with the delivery; else it is in the buffer that was posted first.
        octets: &'a [u8],
    },
}

impl Ddp {
    /// Takes a message without octets in its turn, as one that meets no buffer.
    pub fn deliver_without_buffer(&mut self, header: &UntaggedHeader) -> Result<(), DdpError> {
        let queue = self
            .queues
            .get_mut(header.queue)
            .ok_or(DdpError::InvalidQn(header.queue))?;
        queue.order.deliver(header, 0).map(|_| ())
    }

    /// Takes a placed segment in its turn: segments are delivered in the order of the stream, each once.
    /// `Some` for each tagged segment of which the layer above is to hear, and for the last one of an untagged message.
    ///
    /// For a message whose buffer was posted the owner takes the first buffer off its queue, before anything else
    /// is placed or delivered.
    // rfc: 5041-21, 5041-61, 5041-62, 5041-63
    pub fn deliver(&mut self, placed: Placed) -> Result<Option<Delivery<'_>>, DdpError> {
        self.begin_or_continue(&placed.header, placed.len as usize)?;
        self.deliver_next(placed)
    }

    /// The same of a segment of which it is known that it [follows](Self::begin_or_continue).
    pub(super) fn deliver_next(
        &mut self,
        placed: Placed,
    ) -> Result<Option<Delivery<'_>>, DdpError> {
        let len = placed.len;
        let header = match placed.header {
            DdpHeader::Tagged(_) if placed.silent => return Ok(None),
            // rfc: 5041-27, 5041-32
            DdpHeader::Tagged(header) => return Ok(Some(Delivery::Tagged { header, len })),
            DdpHeader::Untagged(header) => header,
        };
        let Self {
            queues,
            octets_to_deliver,
            ..
        } = self;
        let queue = queues
            .get_mut(header.queue)
            .ok_or(DdpError::InvalidQn(header.queue))?;
        let start = header.offset.0 as usize;
        let length = queue.order.deliver(&header, len)?;
        if let Some(octets) = placed.octets_to_deliver {
            store_octets(
                octets_to_deliver,
                start,
                &octets[..MAX_DELIVERED_OCTETS.min(len as usize)],
            );
        }
        Ok(length.map(|length| {
            let octets = match (&mut queue.kept, placed.octets_to_deliver) {
                (Some(kept), _) => kept.take(length),
                (None, Some(_)) => &octets_to_deliver[..MAX_DELIVERED_OCTETS.min(length as usize)],
                (None, None) => &[],
            };
            // rfc: 5041-37, 5041-65
            Delivery::Untagged {
                header,
                came: placed.came(),
                length,
                octets,
            }
        }))
    }
}

/// Keeps octets of the message whose turn it is, which start at octet `start` of it.
fn store_octets(octets_to_deliver: &mut [u8; MAX_DELIVERED_OCTETS], start: usize, octets: &[u8]) {
    if start == 0 {
        *octets_to_deliver = [0; MAX_DELIVERED_OCTETS];
    }
    for (to, from) in octets_to_deliver.iter_mut().skip(start).zip(octets) {
        *to = *from;
    }
}
