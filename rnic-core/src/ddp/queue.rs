//! Untagged queues: the next message of each, and the buffers that DDP keeps itself.

use super::DdpError;
use crate::wire::ddp::{Msn, QueueNumber, UntaggedHeader};

/// How far the messages of one untagged queue were delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryOrder {
    /// The next message to be delivered.
    next: Msn,
    /// Octets of it that were delivered.
    delivered: u32,
}

impl DeliveryOrder {
    pub(super) fn at(next: Msn) -> Self {
        Self { next, delivered: 0 }
    }

    /// Returns how many messages must still be delivered before this one. A message that was
    /// delivered already is almost 2^32 messages away, because MSNs wrap: beyond every buffer.
    pub(super) fn messages_before(&self, header: &UntaggedHeader) -> u32 {
        header.msn.distance_from(self.next)
    }

    /// Returns whether a segment begins the next message.
    // rfc: 5041-61 a message is delivered at most once
    #[inline]
    pub(super) fn begins(&self, header: &UntaggedHeader) -> bool {
        header.msn == self.next && header.offset.0 == 0 && self.delivered == 0
    }

    /// Returns whether a segment continues the next message.
    #[inline]
    pub(super) fn continues(&self, header: &UntaggedHeader) -> bool {
        header.msn == self.next && header.offset.0 == self.delivered
    }

    /// Adds octets of the next message, which came in order and are not its last.
    #[inline]
    pub(super) fn add(&mut self, octets: u32) {
        self.delivered = self.delivered.saturating_add(octets);
    }

    /// Advances to the next message: this one was delivered.
    #[inline]
    pub(super) fn advance(&mut self) {
        *self = Self::at(self.next.next());
    }

    /// Returns the error for a message that has no buffer. For the next message the buffer is
    /// missing; for any other the MSN is out of range.
    // rfc: 5041-72e the MSN lies in the range of the available buffers
    pub(super) fn no_buffer(&self, header: &UntaggedHeader) -> DdpError {
        if header.msn == self.next {
            DdpError::NoBuffer {
                queue: header.queue,
                msn: header.msn,
            }
        } else {
            self.out_of_range(header)
        }
    }

    /// Checks that a segment belongs to the next message.
    // rfc: 5041-61 a message is delivered at most once
    #[inline]
    pub(super) fn check_next(&self, header: &UntaggedHeader) -> Result<(), DdpError> {
        // rfc: 5041-62 messages are delivered in the order sent
        // rfc: 5041-72e the MSN lies in the range of the available buffers
        if header.msn != self.next {
            return Err(self.out_of_range(header));
        }
        Ok(())
    }

    /// Delivers a segment. Returns the length of the message if this was its last segment.
    // rfc: 5041-61, 5041-62 at most once, in the order sent
    // rfc: 5041-63 not before its last segment, and not before the messages ahead of it
    // rfc: 5041-64 the length of the message is told with it
    pub(super) fn deliver(
        &mut self,
        header: &UntaggedHeader,
        len: u32,
    ) -> Result<Option<u32>, DdpError> {
        self.check_next(header)?;
        // rfc: 5041-20 the segment with L has the highest MO
        // rfc: 5041-47 the MO of a message's first octet is 0
        if header.offset.0 != self.delivered {
            let expected = self.delivered.into();
            return Err(DdpError::InvalidMo {
                offset: header.offset,
                expected,
            });
        }
        // rfc: 5041-50 messages are shorter than 2^32 octets
        let end = self.delivered.checked_add(len).ok_or(DdpError::TooLong {
            queue: header.queue,
            length: u64::from(self.delivered) + u64::from(len),
            room: u32::MAX.into(),
        })?;
        // rfc: 5040-71, 7306-41 a request begins only when DDP has delivered it
        // rfc: 5040-76, 7306-42 its response is made only then
        // rfc: 5040-75 a Send completes only when DDP has delivered it
        if !header.last {
            self.delivered = end;
            return Ok(None);
        }
        // rfc: 5041-42, 5041-44 MSNs count the messages to a queue and wrap to 0
        // rfc: 5041-64 the length of the message is told when it is delivered
        self.advance();
        Ok(Some(end))
    }

    // rfc: 5041-72e an MSN outside the range of the available buffers is an error
    fn out_of_range(&self, header: &UntaggedHeader) -> DdpError {
        DdpError::MsnRange {
            queue: header.queue,
            msn: header.msn,
            next: self.next,
        }
    }
}

/// How an untagged queue gets its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferSupply {
    /// The ULP posts them. DDP asks for each ([`Buffers`](super::Buffers)).
    Posted,
    /// DDP keeps them itself, for short messages whose octets go to the ULP with the delivery. A
    /// buffer is free again as soon as its message was delivered.
    Internal {
        /// The most messages that may wait for delivery.
        count: usize,
        /// The most octets of each.
        size: usize,
    },
}

/// A queue that is open for receiving.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) order: DeliveryOrder,
    pub(super) kept: Option<InternalBuffers>,
}

impl Queue {
    pub(super) fn new(order: DeliveryOrder, supply: BufferSupply) -> Self {
        let kept = match supply {
            BufferSupply::Posted => None,
            BufferSupply::Internal { count, size } => Some(InternalBuffers::new(count, size)),
        };
        Self { order, kept }
    }
}

/// The buffers of a queue that DDP keeps itself.
#[derive(Debug)]
pub(super) struct InternalBuffers {
    /// Empty until the first message: most connections never have one in most queues.
    octets: Vec<u8>,
    count: usize,
    size: usize,
    /// The buffer of the next message to be delivered.
    first: usize,
}

impl InternalBuffers {
    fn new(count: usize, size: usize) -> Self {
        Self {
            octets: Vec::new(),
            count,
            size,
            first: 0,
        }
    }

    pub(super) fn place(
        &mut self,
        order: &DeliveryOrder,
        header: &UntaggedHeader,
        payload: &[u8],
    ) -> Result<(), DdpError> {
        let ahead = order.messages_before(header) as usize;
        if ahead >= self.count {
            return Err(order.no_buffer(header));
        }
        check_extent(header, payload.len(), self.size as u64)?;
        if !payload.is_empty() {
            if self.octets.is_empty() {
                self.octets = vec![0; self.count * self.size];
            }
            let buffer = (self.first + ahead) % self.count;
            let at = buffer * self.size + header.offset.0 as usize;
            self.octets[at..at + payload.len()].copy_from_slice(payload);
        }
        Ok(())
    }

    /// Returns the octets of the message just delivered, and frees its buffer.
    pub(super) fn take(&mut self, length: u32) -> &[u8] {
        let at = self.first * self.size;
        // rfc: 5040-32, 7306-30 a message takes up one buffer
        self.first = (self.first + 1) % self.count.max(1);
        let end = at + (length as usize).min(self.size);
        self.octets.get(at..end).unwrap_or_default()
    }
}

/// A map from queue numbers. Queues that are numbered from 0 on without a gap, as RDMAP's are, are
/// found by index, others by binary search.
#[derive(Debug)]
pub(super) struct ByQueue<T>(Vec<(QueueNumber, T)>);

impl<T> Default for ByQueue<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByQueue<T> {
    #[inline]
    fn position(&self, queue: QueueNumber) -> Result<usize, usize> {
        let at = queue.0 as usize;
        match self.0.get(at) {
            Some((number, _)) if *number == queue => Ok(at),
            _ => self
                .0
                .binary_search_by_key(&queue.0, |(number, _)| number.0),
        }
    }

    #[inline]
    pub(super) fn get(&self, queue: QueueNumber) -> Option<&T> {
        let at = self.position(queue).ok()?;
        Some(&self.0[at].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, queue: QueueNumber) -> Option<&mut T> {
        let at = self.position(queue).ok()?;
        Some(&mut self.0[at].1)
    }

    pub(super) fn get_or_insert_with(
        &mut self,
        queue: QueueNumber,
        new: impl FnOnce() -> T,
    ) -> &mut T {
        let at = self.position(queue).unwrap_or_else(|at| {
            self.0.insert(at, (queue, new()));
            at
        });
        &mut self.0[at].1
    }
}

/// Makes checks 3 and 4 of RFC 5041 section 7.1 for untagged segments, against a buffer of `room`
/// octets.
// rfc: 5041-72c the MO lies inside the buffer
// rfc: 5041-72d the whole payload lies inside the buffer
pub(super) fn check_extent(header: &UntaggedHeader, len: usize, room: u64) -> Result<(), DdpError> {
    let (queue, offset) = (header.queue, u64::from(header.offset.0));
    // A segment without payload is not placed: it may stand where its buffer ends.
    if offset > room || (offset == room && len > 0) {
        return Err(DdpError::BeyondBuffer {
            queue,
            offset: header.offset,
            room,
        });
    }
    let length = offset + len as u64;
    // rfc: 5040-95, 5041-72d the whole payload lies inside the buffer
    if length > room {
        return Err(DdpError::TooLong {
            queue,
            length,
            room,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ddp::MessageOffset;

    #[test]
    fn queues_are_found_by_any_number() {
        let mut table = ByQueue::default();
        let numbers = [0, u32::MAX, 1, 7, 2, 4, 0x8000_0000];
        for number in numbers {
            assert_eq!(
                *table.get_or_insert_with(QueueNumber(number), || number),
                number
            );
        }
        for number in numbers {
            assert_eq!(table.get(QueueNumber(number)), Some(&number));
            assert_eq!(
                table.get_mut(QueueNumber(number)),
                Some(&mut number.clone())
            );
        }
        assert_eq!(table.get(QueueNumber(3)), None);
        assert_eq!(table.get_mut(QueueNumber(u32::MAX - 1)), None);
        assert_eq!(*table.get_or_insert_with(QueueNumber(7), || 9), 7);
    }

    #[test]
    fn a_message_of_2_to_the_32_octets_is_too_long() {
        // rfc: 5041-50 messages are shorter than 2^32 octets
        let mut header = UntaggedHeader {
            last: false,
            ulp: 0,
            ulp32: 0,
            queue: QueueNumber::SEND,
            msn: Msn::FIRST,
            offset: MessageOffset(0),
        };
        let mut order = DeliveryOrder::at(Msn::FIRST);
        assert_eq!(order.deliver(&header, u32::MAX - 9), Ok(None));
        header.offset = MessageOffset(u32::MAX - 9);
        let mut longest = order;
        header.last = true;
        assert_eq!(longest.deliver(&header, 9), Ok(Some(u32::MAX)));
        let too_long = order.deliver(&header, 10);
        assert!(matches!(too_long, Err(DdpError::TooLong { .. })));
    }
}
