//! What the host asks of an engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::connection::{AddressPair, ConnectionOptions, PortReservation, Refusals};
use crate::ddp::Endpoint;
use crate::ids::{CqId, ListenerId, QpNumber, RequestId, SrqId, StreamId};
use crate::memory::ring::{Consumer, Producer};
use crate::memory::table::Access;
use crate::verbs::{
    WcStatus,
    cq::{Arming, CqError},
    qp::QueuePair,
    srq::{SrqBell, SrqLimit},
    wr::{Completion, RecvWr},
};

use super::adoption::Adoption;
use super::peers::Peers;
use super::snapshot::Snapshot;

/// What the host asks of the engine.
pub enum Command {
    /// Adds a completion queue.
    CreateCq {
        /// Its number.
        cq: CqId,
        /// Where completions are written.
        producer: Producer<Completion>,
        /// Whether the application wants to be notified.
        arming: Arc<Arming>,
        /// Woken when a completion arrives that the application armed for.
        notify: Waker,
    },
    /// Moves a completion queue to another ring. The application polls what stands in the present
    /// one first.
    ResizeCq {
        /// The queue.
        cq: CqId,
        /// Where completions are written from now on.
        producer: Producer<Completion>,
        /// The number of completions that stand in rings before the present one.
        older: usize,
        /// Receives whether it was done. If so, nothing more comes in the present ring.
        reply: Sender<Result<(), CqError>>,
    },
    /// Removes a completion queue. Its queue pairs must be gone.
    DestroyCq(CqId),
    /// Adds a shared receive queue.
    CreateSrq {
        /// Its number.
        srq: SrqId,
        /// Where receives are posted.
        ring: Consumer<RecvWr>,
        /// What says whether to send [`ReceivesPosted`](Self::ReceivesPosted) behind a post.
        bell: Arc<SrqBell>,
    },
    /// Looks at a shared receive queue for which streams wait: receives were posted.
    ReceivesPosted(SrqId),
    /// Sets for how many of the peer's min_rnr_timers requests wait for a receive of the peer, on a
    /// connection with the semantics of RC: 0 to 6, where 0 is once, or 7 for ever.
    SetRnrRetry {
        /// The queue pair, in any state.
        qp: QpNumber,
        /// How often.
        rnr_retry: u8,
    },
    /// Has a queue pair send what was posted to it before others send, as far as its connection has
    /// room.
    SendFirst {
        /// The queue pair.
        qp: QpNumber,
        /// Receives an answer at the end of the turn in which it had its turn.
        reply: Sender<()>,
    },
    /// Stops the send queue of a queue pair, as `IBV_QPS_SQD` does: requests that have begun are
    /// finished, and no other begins, also not on a later connection. Behind the last of them comes
    /// [`Event::SendsDrained`](crate::connection::Event::SendsDrained), at once if none has begun.
    StopSends {
        /// The queue pair, in any state.
        qp: QpNumber,
        /// The number of this stop, which the event has.
        stop: u32,
        /// Receives an answer when no request begins any more.
        reply: Sender<()>,
    },
    /// Lets the requests of a send queue that was stopped begin again.
    ResumeSends(QpNumber),
    /// Sets what the peer of a queue pair may do to memory at all: see
    /// [`ConnectionOptions::remote_access`](crate::connection::ConnectionOptions::remote_access).
    SetRemoteAccess {
        /// The queue pair. Without a connection nothing is set.
        qp: QpNumber,
        /// Rights of peers.
        remote_access: Access,
        /// Receives an answer when it holds.
        reply: Sender<()>,
    },
    /// Sets for how long the peer may leave what it is owed without acknowledgment: see
    /// [`ConnectionOptions::user_timeout`](crate::connection::ConnectionOptions::user_timeout).
    SetUserTimeout {
        /// The queue pair. Without a connection nothing is set.
        qp: QpNumber,
        /// How long.
        user_timeout: Option<Duration>,
    },
    /// Arms the limit of a shared receive queue. That it was reached is told by
    /// [`Event::SharedReceives`](crate::connection::Event::SharedReceives).
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
    /// Removes an idle queue pair from this engine, so that another engine of the device can have
    /// it.
    TakeQp {
        /// The queue pair.
        qp: QpNumber,
        /// Receives the queue pair, or nothing if it is not idle.
        reply: Sender<Option<Box<QueuePair>>>,
    },
    /// Adds an endpoint, in state Idle: a DDP stream for a layer that is not RDMAP. Commands and
    /// events name it by its number, as they name queue pairs, and a doorbell makes the engine ask
    /// its layer for messages.
    CreateEndpoint(Box<Endpoint>),
    /// Removes a queue pair and aborts a connection that it still has, unless that is [ending in
    /// order](Self::Disconnect) and everything was sent. No event or completion of either follows,
    /// and the number may be used again. Only receives that were taken from a shared receive queue
    /// complete, as flushed.
    DestroyQp(QpNumber),
    /// Asks for the next hop of a path, as a connection on it does.
    Resolve {
        /// The local address and the peer's.
        path: AddressPair,
        /// Receives whether the next hop is known already.
        reply: Sender<bool>,
    },
    /// Accepts TCP connections on a local address.
    Listen {
        /// Its number.
        listener: ListenerId,
        /// The address; an unspecified IP address accepts on all.
        local: SocketAddr,
        /// The peers that may connect. SYNs of others are refused as if nobody listened.
        peers: Peers,
        /// The reservation of the port.
        reservation: PortReservation,
        /// Where it is recorded why peers failed before they sent an MPA Request.
        refusals: Arc<Refusals>,
    },
    /// Lets other peers connect to a listener than before.
    Limit {
        /// The listener.
        listener: ListenerId,
        /// The peers that may connect from now on.
        peers: Peers,
    },
    /// Stops listening; requests that wait for a decision are dropped.
    Unlisten(ListenerId),
    /// Connects a queue pair.
    Connect {
        /// The queue pair, Idle.
        qp: QpNumber,
        /// The local address and reserved port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// How to set up the connection.
        options: ConnectionOptions,
        /// The reservation of the local port.
        reservation: PortReservation,
    },
    /// Accepts a connection request with a queue pair.
    Accept {
        /// The request.
        request: RequestId,
        /// The queue pair, Idle.
        qp: QpNumber,
        /// Of these `crc`, `ird`, `ord`, `private_data`, `keepalive`, `user_timeout`, `rc` and
        /// `min_rnr_timer` count; the initiator chose the others.
        options: ConnectionOptions,
    },
    /// Moves a connection with its request to another engine of the device, which accepts it with a
    /// queue pair of its own. Its segments still come here, and are handed over.
    AcceptElsewhere {
        /// The number of the other engine.
        engine: u16,
        /// The request.
        request: RequestId,
        /// The queue pair there, Idle.
        qp: QpNumber,
        /// Its stream: another queue pair may have its number by then.
        stream: StreamId,
        /// As for `Accept`.
        options: ConnectionOptions,
    },
    /// Takes over a connection; sent by another engine.
    Adopt(Box<Adoption>),
    /// Refuses a connection request.
    Reject {
        /// The request.
        request: RequestId,
        /// Private data for the initiator.
        private_data: Vec<u8>,
    },
    /// Ends a connection in order, after everything posted so far was sent.
    Disconnect(QpNumber),
    /// Ends a connection at once, with a TCP RST; with the semantics of RC with a FIN.
    Abort(QpNumber),
    /// Moves a queue pair to Error, whatever its state; a connection that it has is aborted.
    Fail(QpNumber),
    /// Does as `Fail`, and the oldest unfinished request completes with a status of the host's
    /// choice.
    FailAs {
        /// The queue pair.
        qp: QpNumber,
        /// The status, which tells of a failure.
        status: WcStatus,
    },
    /// Is answered when all commands before it were carried out, and tells nothing else: it takes
    /// no longer where there are many connections.
    Barrier(Sender<()>),
    /// Asks whether connections with RC that the application has left wait for their peers to
    /// acknowledge that.
    IsLeaving(Sender<bool>),
    /// Asks for a snapshot of the engine.
    Snapshot(Sender<Snapshot>),
}
