//! The upper layer protocol (ULP), as DDP sees it.

use crate::memory::epoch::Guard;
use crate::memory::place::Destination;
use crate::verbs::{QueuePair, RecvWr};
use crate::wire::ddp::{
    DdpHeader, DdpSegment, DdpWireError, QueueNumber, SegmentInfo, TaggedHeader, UntaggedHeader,
};

use super::{BufferSupply, DdpError};

/// What DDP delivers to the ULP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A segment of a tagged message. DDP does not know where a tagged message begins (RFC 5041
    /// section 5.2).
    // rfc: 5041-27, 5041-32 the ULP learns RsvdULP and STag of a tagged message
    Tagged {
        /// Its header, with RsvdULP.
        header: TaggedHeader,
        /// Octets of payload.
        len: u32,
    },
    /// A whole untagged message.
    // rfc: 5041-37, 5041-64, 5041-65 the ULP learns RsvdULP and length of an untagged message
    Untagged {
        /// The header of its last segment, with RsvdULP.
        header: UntaggedHeader,
        /// What the header does not say about the last segment.
        info: SegmentInfo,
        /// Octets of the message.
        length: u32,
        /// Octets of the last message that was placed without a delivery, if no other of a queue
        /// with posted buffers came since.
        placed_before: u32,
        /// All octets of the message where DDP keeps the buffers of the queue. The first octets
        /// where the ULP wants them with the delivery. Otherwise empty: the octets are in the
        /// buffer that was posted first.
        octets: &'a [u8],
    },
}

/// The buffers that the ULP has posted to untagged queues.
pub trait Buffers {
    /// Returns the buffer for the message `ahead` messages behind the next one, in a queue whose
    /// [`BufferSupply`] is `Posted`. It stays the same until that message is delivered. `None` if
    /// no buffer is posted, or it was withdrawn.
    fn buffer(&mut self, queue: QueueNumber, ahead: u32) -> Option<RecvWr>;
}

/// The receives of a queue pair are for queue 0.
impl Buffers for QueuePair {
    fn buffer(&mut self, queue: QueueNumber, ahead: u32) -> Option<RecvWr> {
        match queue {
            QueueNumber::SEND => self.rq.peek(ahead),
            _ => None,
        }
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UlpMessage {
    /// What the ULP decides of its header: RsvdULP, and the STag and TO of the first octet, or the
    /// queue. DDP sets L, MSN and MO.
    pub header: DdpHeader,
    /// Octets of the message.
    pub length: u32,
}

/// What the ULP does when the peer has closed its half of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfCloseAction {
    /// It goes on sending, and closes its half later.
    Continue,
    /// It has nothing more to send: this half is closed in order too.
    Close,
}

/// How a stream ended (RFC 5041 section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Both sides closed it in order, after everything was sent.
    Graceful,
    /// It was aborted: data may be lost.
    Abortive,
}

/// The upper layer protocol: RDMAP, or another.
///
/// DDP calls it and never waits. A ULP that has something to send while nothing arrives rings the
/// doorbell of its stream.
pub trait Ulp: Buffers {
    /// The errors of the ULP, and of DDP on its behalf.
    type Error: From<DdpError> + From<DdpWireError>;

    /// Returns how it receives in a queue that is not open yet; `None` if it does not. Queue
    /// numbers may be any. The peer chooses the number, and an open queue costs some octets for as
    /// long as the stream lives.
    // rfc: 5041-72a the queue number is valid on the stream
    fn supply(&self, queue: QueueNumber) -> Option<BufferSupply>;

    /// Checks a segment before it is placed. Returns where its payload goes and, for a tagged one,
    /// which access right the peer needs. Changes nothing: it is called ahead of order, and again
    /// in order.
    fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, Self::Error>;

    /// Decides whether the peer abandons the partial message `begun`: a segment in order, which was
    /// admitted, has a header that differs in more than the offset. `Ok(false)`: the segment must
    /// continue the message. An error if the two cannot be of one message. DDP itself compares
    /// STag, queue and MSN, but not RsvdULP (RFC 5041 section 4.3).
    // rfc: 5041-28, 5041-38 RsvdULP is the same in all segments of a message
    fn abandons_message(&self, begun: &DdpHeader, header: &DdpHeader) -> Result<bool, Self::Error> {
        let _ = (begun, header);
        Ok(false)
    }

    /// Receives a message in order, or a segment if the message is tagged. If the message filled a
    /// posted buffer, the ULP removes the first buffer from that queue now.
    fn deliver(&mut self, delivery: Delivery<'_>, guard: &Guard<'_>) -> Result<(), Self::Error>;

    /// Begins the next message, if there is one. The message before it was posted in full.
    fn next_message(&mut self, guard: &Guard<'_>) -> Result<Option<UlpMessage>, Self::Error>;

    /// Copies octets `offset..offset + to.len()` of the message begun last.
    fn read(&mut self, offset: u32, to: &mut [u8], guard: &Guard<'_>) -> Result<(), Self::Error>;

    /// Notes that the LLP has taken all of the message begun last, up to `end` of its stream.
    fn posted(&mut self, end: u64);

    /// Notes that messages which end at or before `end` will reach the peer (RFC 5041 section 5.4).
    fn transferred(&mut self, end: u64);

    /// Returns whether the layer is drained: it has nothing to send, and every request of either
    /// side was carried out.
    fn is_drained(&self) -> bool;

    /// Handles the peer's half-close: nothing more arrives.
    fn handle_half_close(&mut self) -> HalfCloseAction;
}
