//! Direct Data Placement (RFC 5041): cuts messages into segments, and places the payload of
//! received segments.
//!
//! Placement and delivery are separate. [`Ddp::place`] checks a segment and copies its payload, in
//! any order and as often as the segment arrives. [`Ddp::deliver`] takes placed segments in the
//! order of the stream, checks that each continues what was delivered before, and delivers messages
//! to the ULP. DDP does not interpret the octets that it carries for the ULP.
//!
//! A [`DdpStream`] stands between a [`Ulp`] and an [`Llp`], and knows neither. RDMAP on its queue
//! pair is one ULP; any other ULP has an [`Endpoint`]. The LLP is MPA on TCP; RFC 5043 describes
//! another.

mod deliver;
mod endpoint;
mod error;
mod llp;
mod partial_message;
mod place;
mod queue;
mod segment;
mod stream;
mod ulp;

pub use endpoint::{Endpoint, EndpointUlp};
pub use error::{DdpError, DdpStreamError, ErrorReport};
pub use llp::Llp;
pub use partial_message::MessageInProgress;
pub use place::Placed;
pub use queue::BufferSupply;
pub use segment::{FullSegments, LINE, OutgoingSegment, Segmenter};
pub use stream::{BuiltSegment, DdpStream};
pub use ulp::{Buffers, Delivery, HalfCloseAction, Teardown, Ulp, UlpMessage};

use crate::memory::table::Origin;
use crate::wire::ddp::{DdpHeader, Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use partial_message::PartialMessage;
use queue::{ByQueue, DeliveryOrder, Queue};

/// The most octets of a message that the ULP can have with the delivery instead of in a buffer.
const MAX_DELIVERED_OCTETS: usize = 8;

/// DDP's state of one stream.
#[derive(Debug)]
pub struct Ddp {
    /// Whose memory the stream may use: the stream itself, in its protection domain.
    origin: Origin,
    /// The queues that this side receives in.
    queues: ByQueue<Queue>,
    /// The message that has begun and not ended: the next segment belongs to it.
    partial: Option<PartialMessage>,
    /// Octets of the last message that was placed and not delivered, as far as it has come. None
    /// once a message that was delivered has told of them.
    placed_only: u32,
    /// Octets of the next message to be delivered that go to the ULP with the delivery instead of
    /// to its buffer.
    octets_to_deliver: [u8; MAX_DELIVERED_OCTETS],
    /// The MSN of the next message to each queue of the peer.
    next_msn: ByQueue<Msn>,
}

impl Ddp {
    /// Sets whose memory it may use from now on.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Makes a stream without queues. `origin` says whose memory it may use.
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            queues: ByQueue::default(),
            partial: None,
            placed_only: 0,
            octets_to_deliver: [0; MAX_DELIVERED_OCTETS],
            next_msn: ByQueue::default(),
        }
    }

    /// Opens a queue for receiving. A queue that is open stays as it is.
    // rfc: 5041-43 the first MSN is 1
    pub fn open(&mut self, queue: QueueNumber, supply: BufferSupply) {
        self.open_at(queue, supply, Msn::FIRST);
    }

    /// Opens a queue whose next MSN is `msn` in both directions: for tests of the wrap.
    #[doc(hidden)]
    pub fn open_at(&mut self, queue: QueueNumber, supply: BufferSupply, msn: Msn) {
        let new = || Queue::new(DeliveryOrder::at(msn), supply);
        self.queues.get_or_insert_with(queue, new);
        self.next_msn.get_or_insert_with(queue, || msn);
    }

    /// Returns whether a queue is open for receiving.
    pub fn is_open(&self, queue: QueueNumber) -> bool {
        self.queues.get(queue).is_some()
    }

    /// Counts the messages between the next one to be delivered and the message of this segment.
    /// `None` if the queue is not open.
    pub fn ahead(&self, header: &UntaggedHeader) -> Option<u32> {
        let queue = self.queues.get(header.queue)?;
        Some(queue.order.messages_before(header))
    }

    /// Returns whether a segment begins the next message of a queue whose buffers the ULP posts.
    #[inline]
    fn begins_next(&self, header: &UntaggedHeader) -> bool {
        let queue = self.queues.get(header.queue);
        queue.is_some_and(|queue| queue.kept.is_none() && queue.order.begins(header))
    }

    /// Returns whether a segment continues the next message of a queue whose buffers the ULP posts.
    fn continues_next(&self, header: &UntaggedHeader) -> bool {
        let queue = self.queues.get(header.queue);
        queue.is_some_and(|queue| queue.kept.is_none() && queue.order.continues(header))
    }

    /// Records that segments of the partial message, which is untagged, were placed in order: so
    /// many octets, and not the last of the message.
    fn pass_untagged(&mut self, queue: QueueNumber, octets: u32) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.order.add(octets);
        }
    }

    /// Advances a queue past its next message, which was delivered.
    // rfc: 5041-42 MSNs count the messages to each queue
    #[inline]
    fn pass_next(&mut self, queue: QueueNumber) {
        self.placed_only = 0;
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.order.advance();
        }
    }

    /// Begins to send a message of `length` octets. Messages are sent in the order of the calls.
    /// `header` has what the ULP decides: RsvdULP, and the STag and TO of the first octet, or the
    /// queue. DDP sets the rest.
    // rfc: 5041-26, 5041-36 RsvdULP is what the ULP says
    // rfc: 5041-31, 5041-54 STag and first TO are those that the ULP gives
    // rfc: 5041-42, 5041-44 MSNs count the messages to each queue and wrap to 0
    // rfc: 5041-60 messages are sent in the order in which they were submitted
    #[inline]
    pub fn start_message(&mut self, mut header: DdpHeader, length: u32) -> Segmenter {
        if let DdpHeader::Untagged(untagged) = &mut header {
            // rfc: 5041-43 the first MSN is 1
            let msn = self
                .next_msn
                .get_or_insert_with(untagged.queue, || Msn::FIRST);
            untagged.msn = *msn;
            *msn = msn.next();
        }
        Segmenter::new(header, length)
    }

    /// Returns whether a message has begun whose last segment was not delivered.
    #[inline]
    fn is_amid_message(&self) -> bool {
        self.partial.is_some()
    }

    /// Returns the header of the partial message if this segment differs from it in more than the
    /// offset.
    #[inline]
    fn interrupted_message(&self, header: &DdpHeader) -> Option<&DdpHeader> {
        let begun = self.partial.as_ref()?;
        (!begun.is_continued_by(header)).then_some(&begun.header)
    }

    /// Drops the partial message: the peer does not finish it.
    fn abandon_message(&mut self) {
        self.partial = None;
    }

    /// Counts the octets of a segment that is placed and not delivered. `begins`: its message
    /// begins with it.
    #[inline(always)]
    fn count_placed(&mut self, octets: u32, begins: bool) {
        let before = if begins { 0 } else { self.placed_only };
        self.placed_only = before.saturating_add(octets);
    }

    /// Records that tagged segments with payload were placed in order, of the partial message or of
    /// whole ones. `last` is the header of the last of them, of whose message they are `octets`;
    /// all, if it `begins` with one of them.
    fn pass_tagged(&mut self, last: &TaggedHeader, octets: u32, begins: bool) {
        self.count_placed(octets, begins);
        self.partial = (!last.last).then_some(PartialMessage {
            header: DdpHeader::Tagged(*last),
            empty: false,
        });
    }

    /// Checks a segment that comes in order, and records it. It must continue the partial message,
    /// or begin a message if there is none. An untagged segment must belong to the next message of
    /// its queue.
    // rfc: 5041-21, 5041-62, 5041-63 a message is delivered after all that were sent before it
    #[inline]
    fn begin_or_continue(&mut self, header: &DdpHeader, len: usize) -> Result<(), DdpError> {
        self.check_next(header)?;
        match &self.partial {
            None if header.last() => return Ok(()),
            Some(begun) if begun.is_continued_by(header) => {}
            begun => return self.update_partial(*begun, header, len == 0),
        }
        if header.last() {
            self.partial = None;
        }
        Ok(())
    }

    /// Checks and records a segment that begins a message of several segments, or whose header
    /// differs from those before it.
    fn update_partial(
        &mut self,
        begun: Option<PartialMessage>,
        header: &DdpHeader,
        empty: bool,
    ) -> Result<(), DdpError> {
        let known = match begun {
            // rfc: 5041-62 messages are delivered in the order sent: none interrupts another
            Some(begun) if !begun.may_contain(header, empty) => {
                let tagged = matches!(header, DdpHeader::Tagged(_));
                return Err(DdpError::Interrupts { tagged });
            }
            // The STag that is known stays known.
            Some(begun) if empty => begun,
            _ => PartialMessage {
                header: *header,
                empty,
            },
        };
        // rfc: 5041-21 a message is delivered with its last segment
        self.partial = (!header.last()).then_some(known);
        Ok(())
    }

    /// Checks that an untagged segment belongs to the next message of its queue.
    // rfc: 5041-61 a message is delivered at most once
    #[inline]
    fn check_next(&self, header: &DdpHeader) -> Result<(), DdpError> {
        let DdpHeader::Untagged(header) = header else {
            return Ok(());
        };
        let queue = self.queues.get(header.queue);
        let queue = queue.ok_or(DdpError::InvalidQn(header.queue))?;
        queue.order.check_next(header)
    }
}
