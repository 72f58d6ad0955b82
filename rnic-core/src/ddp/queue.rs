//! Untagged queues: which message is next, and the buffers of those queues that RDMAP keeps for itself.

use super::DdpError;
use super::place::check_extent;
use crate::wire::ddp::{Msn, UntaggedHeader};

/// How far the messages of one untagged queue were delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// The message whose turn it is.
    next: Msn,
    /// Octets of it that were delivered.
    delivered: u32,
}

impl Order {
    // rfc: 5041-43
    pub(super) fn new() -> Self {
        Self::at(Msn::FIRST)
    }

    pub(super) fn at(next: Msn) -> Self {
        Self { next, delivered: 0 }
    }

    /// How many messages come before this one: 0 if its turn has come. A message that was delivered already is as
    /// far ahead as the numbers go round: beyond every buffer.
    pub(super) fn ahead(&self, header: &UntaggedHeader) -> u32 {
        header.msn.distance_from(self.next)
    }

    /// The error for a message beyond the last buffer: where it is next in turn, the buffer is what is missing.
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

    /// Takes a segment in its turn. The length of the message if this was its last segment.
    // rfc: 5041-61, 5041-62, 5041-63, 5041-64
    pub(super) fn deliver(
        &mut self,
        header: &UntaggedHeader,
        len: u32,
    ) -> Result<Option<u32>, DdpError> {
        if header.msn != self.next {
            return Err(self.out_of_range(header));
        }
        // rfc: 5041-20, 5041-47
        if header.offset.0 != self.delivered {
            let expected = self.delivered.into();
            return Err(DdpError::InvalidMo {
                offset: header.offset,
                expected,
            });
        }
        // rfc: 5041-50
        let end = self.delivered.checked_add(len).ok_or(DdpError::TooLong {
            length: u64::from(self.delivered) + u64::from(len),
            room: u32::MAX.into(),
        })?;
        if !header.last {
            self.delivered = end;
            return Ok(None);
        }
        // rfc: 5041-42, 5041-44
        *self = Self {
            next: self.next.next(),
            delivered: 0,
        };
        Ok(Some(end))
    }

    fn out_of_range(&self, header: &UntaggedHeader) -> DdpError {
        DdpError::MsnRange {
            queue: header.queue,
            msn: header.msn,
            next: self.next,
        }
    }
}

/// A queue whose messages RDMAP handles itself, with the buffers for them. A buffer is free again as soon as its
/// message was delivered.
#[derive(Debug)]
pub(super) struct Buffers<const SIZE: usize> {
    order: Order,
    buffers: Box<[[u8; SIZE]]>,
    /// The buffer of the message whose turn it is.
    first: usize,
}

impl<const SIZE: usize> Buffers<SIZE> {
    pub(super) fn new(order: Order, count: usize) -> Self {
        Self {
            order,
            buffers: vec![[0; SIZE]; count].into(),
            first: 0,
        }
    }

    pub(super) fn place(
        &mut self,
        header: &UntaggedHeader,
        payload: &[u8],
    ) -> Result<(), DdpError> {
        let ahead = self.order.ahead(header) as usize;
        if ahead >= self.buffers.len() {
            return Err(self.order.no_buffer(header));
        }
        check_extent(header, payload.len(), SIZE as u64)?;
        if !payload.is_empty() {
            let buffer = &mut self.buffers[(self.first + ahead) % self.buffers.len()];
            let at = header.offset.0 as usize;
            buffer[at..at + payload.len()].copy_from_slice(payload);
        }
        Ok(())
    }

    /// Takes a segment in its turn. The octets of the message if this was its last segment.
    pub(super) fn deliver(
        &mut self,
        header: &UntaggedHeader,
        len: u32,
    ) -> Result<Option<&[u8]>, DdpError> {
        let Some(length) = self.order.deliver(header, len)? else {
            return Ok(None);
        };
        let buffer = self.first;
        // rfc: 5040-32
        self.first = (self.first + 1) % self.buffers.len();
        Ok(self.buffers[buffer].get(..length as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ddp::{MessageOffset, QueueNumber};

    #[test]
    fn a_message_of_2_to_the_32_octets_is_too_long() {
        // rfc: 5041-50
        let mut header = UntaggedHeader {
            last: false,
            ulp: 0,
            ulp32: 0,
            queue: QueueNumber::SEND,
            msn: Msn::FIRST,
            offset: MessageOffset(0),
        };
        let mut order = Order::new();
        assert_eq!(order.deliver(&header, u32::MAX - 9), Ok(None));
        header.offset = MessageOffset(u32::MAX - 9);
        let mut longest = order;
        header.last = true;
        assert_eq!(longest.deliver(&header, 9), Ok(Some(u32::MAX)));
        let too_long = order.deliver(&header, 10);
        assert!(matches!(too_long, Err(DdpError::TooLong { .. })));
    }
}
