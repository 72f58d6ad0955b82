//! What the host asks of an engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use crossbeam_channel::Sender;

use crate::connection::{ConnectionOptions, PortLease, Refusals};
use crate::ddp::Endpoint;
use crate::ids::{CqId, ListenerId, QpNumber, RequestId, SrqId};
use crate::memory::ring::{Consumer, Producer};
use crate::verbs::{
    cq::{Arming, CqError},
    qp::QueuePair,
    srq::SrqLimit,
    wr::{Completion, RecvWr},
};

use super::adoption::Adoption;
use super::peers::Peers;
use super::snapshot::Snapshot;

/// What the host asks of the engine.
pub enum Command {
    /// Adds a completion queue.
    CreateCq {
        /// Its name.
        cq: CqId,
        /// Where completions are written.
        producer: Producer<Completion>,
        /// Whether the application wants to be told.
        arming: Arc<Arming>,
        /// Told when a completion arrives that the application armed for.
        notify: Waker,
    },
    /// Has a completion queue go on in another ring, once what stands in the present one was polled.
    ResizeCq {
        /// The queue.
        cq: CqId,
        /// Where completions are written from now on.
        producer: Producer<Completion>,
        /// Completions that stand in rings before the present one.
        older: usize,
        /// Told whether it was done. If so, nothing more comes in the present ring.
        reply: Sender<Result<(), CqError>>,
    },
    /// Removes a completion queue. Its queue pairs must be gone.
    DestroyCq(CqId),
    /// Adds a shared receive queue.
    CreateSrq {
        /// Its name.
        srq: SrqId,
        /// Where receives are posted.
        ring: Consumer<RecvWr>,
    },
    /// Arms the limit of a shared receive queue: told as [`Event::SharedReceives`](crate::connection::Event::SharedReceives).
    ArmSrq {
        /// The queue.
        srq: SrqId,
        /// The limit.
        limit: SrqLimit,
    },
    /// Removes a shared receive queue. Its queue pairs must be gone.
    DestroySrq(SrqId),
    /// Adds a queue pair, in state Idle.
    CreateQp(Box<QueuePair>),
    /// Gives an idle queue pair back, so that another engine of the device can have it.
    TakeQp {
        /// The queue pair.
        qp: QpNumber,
        /// It, or nothing if it is not idle.
        reply: Sender<Option<Box<QueuePair>>>,
    },
    /// Adds an endpoint, in state Idle: a DDP stream for a layer that is not RDMAP. Commands and events name it by its
    /// number, as they name queue pairs, and a doorbell makes the engine ask its layer for messages.
    CreateEndpoint(Box<Endpoint>),
    /// Removes a queue pair; a connection it still has is aborted. Nothing more is heard of either: requests that
    /// were posted make no completion, and the number may be used again. Only what was taken from a shared receive
    /// queue completes as flushed.
    DestroyQp(QpNumber),
    /// Accepts TCP connections on a local address.
    Listen {
        /// Its name.
        listener: ListenerId,
        /// The address; an unspecified IP address accepts on all.
        local: SocketAddr,
        /// From whom. Of others' SYNs nothing is known here.
        peers: Peers,
        /// The lease of the port.
        lease: PortLease,
        /// Where the failures of peers are told that have not asked yet.
        refusals: Arc<Refusals>,
    },
    /// Stops listening; requests that wait for an answer are dropped.
    Unlisten(ListenerId),
    /// Connects a queue pair.
    Connect {
        /// The queue pair, Idle.
        qp: QpNumber,
        /// The local address and reserved port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// How.
        options: ConnectionOptions,
        /// The lease of the local port.
        lease: PortLease,
    },
    /// Accepts a connection request with a queue pair.
    Accept {
        /// The request.
        request: RequestId,
        /// The queue pair, Idle.
        qp: QpNumber,
        /// `crc`, `ird`, `ord`, `private_data`, `keepalive` and `user_timeout` count; the rest was the initiator's to choose.
        options: ConnectionOptions,
    },
    /// Has another engine of the device accept a connection request of this one, with a queue pair that it has. The
    /// connection goes there, although its segments come here.
    AcceptElsewhere {
        /// The number of the other engine.
        engine: u16,
        /// The request.
        request: RequestId,
        /// The queue pair there, Idle.
        qp: QpNumber,
        /// As for `Accept`.
        options: ConnectionOptions,
    },
    /// From one engine to another.
    Adopt(Box<Adoption>),
    /// Refuses a connection request.
    Reject {
        /// The request.
        request: RequestId,
        /// Handed to the initiator.
        private_data: Vec<u8>,
    },
    /// Ends a connection after everything posted so far was sent.
    Disconnect(QpNumber),
    /// Ends a connection at once, with a TCP RST.
    Abort(QpNumber),
    /// Moves a queue pair to Error, whatever its state; a connection that it has is aborted.
    Fail(QpNumber),
    /// Asks for the state of everything.
    Snapshot(Sender<Snapshot>),
}
