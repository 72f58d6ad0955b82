//! Delivery: hands placed segments to the ULP, in the order of the stream.

use crate::wire::ddp::{DdpHeader, UntaggedHeader};

use super::{Ddp, DdpError, Delivery, MAX_DELIVERED_OCTETS, Placed};

impl Ddp {
    /// Delivers a message without payload that uses up no buffer.
    pub fn deliver_without_buffer(&mut self, header: &UntaggedHeader) -> Result<(), DdpError> {
        let queue = self
            .queues
            .get_mut(header.queue)
            .ok_or(DdpError::InvalidQn(header.queue))?;
        queue.order.deliver(header, 0).map(|_| ())
    }

    /// Delivers a placed segment. Segments are delivered in the order of the stream, each once.
    /// Returns `Some` for a tagged segment that the ULP has to see, and for the last segment of an
    /// untagged message.
    ///
    /// Where the message filled a posted buffer, the caller takes the first buffer off its queue
    /// before anything else is placed or delivered.
    // rfc: 5041-21, 5041-63 delivered once placed, and after all messages before it
    // rfc: 5041-61, 5041-62 delivered at most once, in the order sent
    pub fn deliver(&mut self, placed: Placed) -> Result<Option<Delivery<'_>>, DdpError> {
        let begins = !self.is_amid_message();
        self.begin_or_continue(&placed.header, placed.len as usize)?;
        self.deliver_next(placed, begins)
    }

    /// Delivers a segment that [`begin_or_continue`](Self::begin_or_continue) has accepted.
    /// `begins`: its message begins with it.
    pub(super) fn deliver_next(
        &mut self,
        placed: Placed,
        begins: bool,
    ) -> Result<Option<Delivery<'_>>, DdpError> {
        let len = placed.len;
        let header = match placed.header {
            DdpHeader::Tagged(_) if placed.place_only => {
                self.count_placed(len, begins);
                return Ok(None);
            }
            // rfc: 5041-27, 5041-32 RsvdULP and STag are delivered with a tagged message
            DdpHeader::Tagged(header) => return Ok(Some(Delivery::Tagged { header, len })),
            DdpHeader::Untagged(header) => header,
        };
        let Self {
            queues,
            octets_to_deliver,
            placed_only,
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
            let placed_before = match queue.kept {
                None => std::mem::take(placed_only),
                Some(_) => 0,
            };
            let octets = match (&mut queue.kept, placed.octets_to_deliver) {
                (Some(kept), _) => kept.take(length),
                (None, Some(_)) => &octets_to_deliver[..MAX_DELIVERED_OCTETS.min(length as usize)],
                (None, None) => &[],
            };
            // rfc: 5041-37, 5041-65 RsvdULP is delivered with an untagged message
            Delivery::Untagged {
                header,
                info: placed.info(),
                length,
                placed_before,
                octets,
            }
        }))
    }
}

/// Stores octets of the next message to be delivered, from octet `start` of the message on.
fn store_octets(octets_to_deliver: &mut [u8; MAX_DELIVERED_OCTETS], start: usize, octets: &[u8]) {
    if start == 0 {
        *octets_to_deliver = [0; MAX_DELIVERED_OCTETS];
    }
    for (to, from) in octets_to_deliver.iter_mut().skip(start).zip(octets) {
        *to = *from;
    }
}
