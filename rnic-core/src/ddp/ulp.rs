//! The layer above, as DDP sees it.

use super::{BufferSupply, DdpError, Delivery};
use crate::memory::epoch::Guard;
use crate::memory::place::Destination;
use crate::verbs::{QueuePair, RecvWr};
use crate::wire::ddp::{DdpHeader, DdpSegment, DdpWireError, QueueNumber};

/// The buffers that the layer above has posted to untagged queues.
pub trait Buffers {
    /// The buffer for the message that comes `ahead` messages after the next one to be delivered in a queue whose
    /// [`BufferSupply`] is `Posted`. It stays the same until that message is delivered, unless it is withdrawn: then there is
    /// none.
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
pub struct Message {
    /// What the layer above decides of its header: the octets that are its own (RsvdULP), and the STag and TO of the
    /// first octet, or the queue. DDP sets the L bit, MSN and MO.
    pub header: DdpHeader,
    /// Octets of the message.
    pub length: u32,
}

/// Whether the layer above goes on with a stream on which the peer sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfCloseAction {
    /// It goes on sending, and ends the stream itself some time.
    Continue,
    /// It has nothing more to say either: this half is closed in order too.
    Close,
}

/// How a stream ended (RFC 5041 section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Both sides closed it, after all that they had to say.
    Graceful,
    /// It was cut off: what was not transferred may never be.
    Abortive,
}

/// The layer above DDP: RDMAP, or another that speaks through it.
///
/// DDP asks for what it needs and hands up what it has; it never waits. A layer that has something new to send when
/// nothing arrives rings the doorbell of its stream.
pub trait Ulp: Buffers {
    /// What it finds wrong, and what DDP finds wrong on its behalf.
    type Error: From<DdpError> + From<DdpWireError>;

    /// How it receives in a queue that is not open yet; `None` if it does not. Any number may be a queue. An open queue
    /// costs some octets for as long as the stream lives, and it is the peer that names them.
    // rfc: 5041-72a
    fn supply(&self, queue: QueueNumber) -> Option<BufferSupply>;

    /// Looks at a segment before it is placed, and says where its payload goes and, for a tagged one, which right the
    /// peer needs. Changes nothing: a segment may come before its turn, and again in its turn.
    fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, Self::Error>;

    /// A segment has come in its turn, and was admitted. It differs from one of a message that was `begun` and is not
    /// whole in more than its place. Whether the peer gives that message up with it; if not, it must be a part of it. An
    /// error if the two are not of one message. DDP itself compares where they go, but not what they have in RsvdULP (RFC
    /// 5041 section 4.3).
    // rfc: 5041-28, 5041-38
    fn abandons_message(&self, begun: &DdpHeader, header: &DdpHeader) -> Result<bool, Self::Error> {
        let _ = (begun, header);
        Ok(false)
    }

    /// A message has come in its turn; of a tagged one, a segment. For a message whose buffer it posted, it takes the
    /// first buffer off the queue now.
    fn deliver(&mut self, delivery: Delivery<'_>, guard: &Guard<'_>) -> Result<(), Self::Error>;

    /// Begins the next message, if there is one. The one before it was posted in full.
    fn next_message(&mut self, guard: &Guard<'_>) -> Result<Option<Message>, Self::Error>;

    /// Begins the next message and gives it out, if it is a short one whose octets are at hand: they stand in `room` then,
    /// behind as many octets as the header takes that this returns with their number. One for which there is no room, or
    /// that takes more than that, is left to [`next_message`](Self::next_message). It is [posted](Self::posted) with that:
    /// `end` says where a segment of so many octets, header included, ends in the hands of the layer below.
    fn next_short(
        &mut self,
        room: &mut [u8],
        end: impl FnOnce(usize) -> u64,
    ) -> Option<(DdpHeader, usize)>
    where
        Self: Sized,
    {
        let _ = (room, end);
        None
    }

    /// Copies octets `offset..offset + to.len()` of the message that was begun last.
    fn read(&mut self, offset: u32, to: &mut [u8], guard: &Guard<'_>) -> Result<(), Self::Error>;

    /// The last octet of the message that was begun last is in the hands of the layer below, where it ends at `end`.
    fn posted(&mut self, end: u64);

    /// Messages that end up to `end` will reach the peer for certain: RFC 5041 section 5.4.
    fn transferred(&mut self, end: u64);

    /// Whether it has nothing to send and waits for nothing.
    fn is_idle(&self) -> bool;

    /// The peer sends no more.
    fn handle_half_close(&mut self) -> HalfCloseAction;
}
