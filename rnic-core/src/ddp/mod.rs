//! Direct Data Placement (RFC 5041): cuts messages into segments, and puts the payload of received segments where
//! it belongs.
//!
//! Placement and delivery are apart. [`Ddp::place`] checks a segment and copies its payload, in any order and as
//! often as the segment comes; [`Ddp::deliver`] takes what was placed in the order of the stream, checks that it
//! continues what came before, and hands messages upward. DDP knows no meaning of the octets that it carries for
//! the layer above.
//!
//! A [`DdpStream`] stands between a [`Ulp`] and an [`Llp`], and knows neither. RDMAP on its queue pair is one of the
//! layers above; any other has an [`Endpoint`]. MPA on TCP is the layer below; RFC 5043 describes another.

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

pub use deliver::Delivery;
pub use endpoint::{Endpoint, EndpointUlp};
pub use error::{DdpError, DdpStreamError, ErrorReport};
pub use llp::Llp;
pub use place::Placed;
pub use queue::BufferSupply;
pub use segment::{OutgoingSegment, Segmenter, Series};
pub use stream::{Built, DdpStream};
pub use ulp::{Buffers, HalfCloseAction, Message, Teardown, Ulp};

use crate::memory::table::Origin;
use crate::wire::ddp::{DdpHeader, Msn, QueueNumber, UntaggedHeader};
use partial_message::PartialMessage;
use queue::{ByQueue, DeliveryOrder, Queue};

/// Octets of a message that the layer above may want with its delivery instead of in a buffer.
const MAX_DELIVERED_OCTETS: usize = 8;

/// DDP's state of one stream.
#[derive(Debug)]
pub struct Ddp {
    /// On whose behalf memory is used: the stream, in its protection domain.
    origin: Origin,
    /// The queues that this side receives in.
    queues: ByQueue<Queue>,
    /// The message of which the next segment is to be.
    partial: Option<PartialMessage>,
    /// The octets of the message whose turn it is that go upward with its delivery instead of to its buffer.
    octets_to_deliver: [u8; MAX_DELIVERED_OCTETS],
    /// The number of the next message sent to each queue of the peer.
    next_msn: ByQueue<Msn>,
}

impl Ddp {
    /// A stream without queues, on whose behalf memory is used as `origin` says.
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            queues: ByQueue::default(),
            partial: None,
            octets_to_deliver: [0; MAX_DELIVERED_OCTETS],
            next_msn: ByQueue::default(),
        }
    }

    /// Begins to receive in a queue. One that is open already stays as it is.
    // rfc: 5041-43
    pub fn open(&mut self, queue: QueueNumber, supply: BufferSupply) {
        self.open_at(queue, supply, Msn::FIRST);
    }

    /// Opens a queue that has come to message `msn` in both directions: for tests of the wrap.
    #[doc(hidden)]
    pub fn open_at(&mut self, queue: QueueNumber, supply: BufferSupply, msn: Msn) {
        let new = || Queue::new(DeliveryOrder::at(msn), supply);
        self.queues.get_or_insert_with(queue, new);
        self.next_msn.get_or_insert_with(queue, || msn);
    }

    /// Whether this side receives in a queue.
    pub fn is_open(&self, queue: QueueNumber) -> bool {
        self.queues.get(queue).is_some()
    }

    /// Which buffer of its queue a segment is for, counted from the one whose turn is next, if there is such a queue.
    pub fn ahead(&self, header: &UntaggedHeader) -> Option<u32> {
        let queue = self.queues.get(header.queue)?;
        Some(queue.order.messages_before(header))
    }

    /// Whether a segment begins the message whose turn it is in a queue whose buffers are posted.
    #[inline]
    fn begins_next(&self, header: &UntaggedHeader) -> bool {
        let queue = self.queues.get(header.queue);
        queue.is_some_and(|queue| queue.kept.is_none() && queue.order.begins(header))
    }

    /// The next message of a queue was delivered.
    // rfc: 5041-42
    #[inline]
    fn pass_next(&mut self, queue: QueueNumber) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.order.advance();
        }
    }

    /// Begins to send a message of `length` octets, in the order of the calls. `header` is what the layer above
    /// decided: its own octets, and the STag and TO of the first octet, or the queue. DDP sets the rest.
    // rfc: 5041-26, 5041-31, 5041-36, 5041-42, 5041-44, 5041-54, 5041-60
    #[inline]
    pub fn start_message(&mut self, mut header: DdpHeader, length: u32) -> Segmenter {
        if let DdpHeader::Untagged(untagged) = &mut header {
            // rfc: 5041-43
            let msn = self
                .next_msn
                .get_or_insert_with(untagged.queue, || Msn::FIRST);
            untagged.msn = *msn;
            *msn = msn.next();
        }
        Segmenter::new(header, length)
    }
}
