//! Direct Data Placement (RFC 5041): cuts messages into segments, and puts the payload of received segments where
//! it belongs.
//!
//! Placement and delivery are apart. [`Ddp::place`] checks a segment and copies its payload, in any order and as
//! often as the segment comes; [`Ddp::deliver`] takes what was placed in the order of the stream, checks that it
//! continues what came before, and hands messages upward. DDP knows no meaning of the octets that it carries for
//! the layer above.

mod deliver;
mod error;
mod place;
mod queue;
mod segment;

pub use deliver::Delivery;
pub use error::DdpError;
pub use place::Placed;
pub use segment::{Cut, Segmenter};

use crate::wire::ddp::{DdpHeader, Msn};
use crate::wire::rdmap::{IMMEDIATE_LEN, ReadRequest, Terminate};
use queue::{Buffers, Order};

/// Untagged queues: Sends, Read Requests, Terminate (RFC 5040 section 3.1).
const QUEUES: usize = 3;

/// Octets of a message that the layer above may want with its delivery instead of in a buffer.
const MAX_ASIDE: usize = IMMEDIATE_LEN;

/// DDP's state of one stream.
#[derive(Debug)]
// rfc: 5041-66
pub struct Ddp {
    /// Queue 0, whose buffers are the queue pair's receives.
    sends: Order,
    /// The octets of the message of queue 0 whose turn it is that go upward with its delivery.
    aside: [u8; MAX_ASIDE],
    /// Queue 1.
    read_requests: Buffers<{ ReadRequest::LEN }>,
    /// Queue 2.
    terminates: Buffers<{ Terminate::MAX_LEN }>,
    /// The number of the next message sent to each queue of the peer.
    next_msn: [Msn; QUEUES],
}

impl Ddp {
    /// A stream on which the peer may have `ird` Read Requests outstanding. There is a buffer for one more, so
    /// that RDMAP sees the one that is too many.
    // rfc: 5041-43
    pub fn new(ird: u16) -> Self {
        Self::with_order(ird, Order::new(), Msn::FIRST)
    }

    /// A stream whose queues have come to message `msn` in both directions: for tests of the wrap.
    #[doc(hidden)]
    pub fn at(ird: u16, msn: Msn) -> Self {
        Self::with_order(ird, Order::at(msn), msn)
    }

    fn with_order(ird: u16, order: Order, msn: Msn) -> Self {
        Self {
            sends: order,
            aside: [0; MAX_ASIDE],
            // rfc: 5040-47
            read_requests: Buffers::new(order, usize::from(ird) + 1),
            // rfc: 5040-64, 5040-65
            terminates: Buffers::new(order, 1),
            next_msn: [msn; QUEUES],
        }
    }

    /// Begins to send a message of `length` octets, in the order of the calls. `header` is what the layer above
    /// decided: its own octets, and the STag and TO of the first octet, or the queue. DDP sets the rest.
    // rfc: 5041-26, 5041-31, 5041-36, 5041-42, 5041-44, 5041-54, 5041-60
    pub fn start_message(&mut self, mut header: DdpHeader, length: u32) -> Segmenter {
        if let DdpHeader::Untagged(untagged) = &mut header
            && let Some(msn) = self.next_msn.get_mut(untagged.queue.0 as usize)
        {
            untagged.msn = *msn;
            *msn = msn.next();
        }
        Segmenter::new(header, length)
    }
}
