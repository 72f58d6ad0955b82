//! The events that the application gets about its connections.

use std::net::SocketAddr;

use crate::adaptation::AdaptationError;
use crate::ids::{CqId, ListenerId, QpNumber, RequestId, StreamId};
use crate::rdmap::QuotedSegment;
use crate::verbs::{qp::Departure, srq::SrqEvent};
use crate::wire::rdmap::TerminateControl;

/// Why a connection ended or was not established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The application asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer closed in order.
    #[error("closed by the peer")]
    Peer,
    /// The peer closed inside a message: its last segments have not arrived.
    #[error("the peer closed the connection inside a message: what it sent last is not whole")]
    CutOff,
    /// The peer answered the SYN with RST: nobody listens there.
    #[error("connection refused: nobody listens at that address and port")]
    Refused,
    /// The peer sent RST.
    #[error("connection reset by the peer")]
    Reset,
    /// The peer did not answer in time, or its window stayed closed for the user timeout.
    #[error("timed out: the peer does not answer, or takes no data for long")]
    TimedOut,
    /// The peer had no receive posted for as long as `rnr_retry` and its `min_rnr_timer` say, on a
    /// connection with the semantics of RC.
    #[error("the peer has had no receive posted for too long")]
    ReceiverNotReady,
    /// No route or no neighbour.
    #[error("no route to the peer's address, or its neighbour does not answer")]
    Unreachable,
    /// The peer's MPA start-up was not acceptable.
    #[error("MPA start-up failed: {0}")]
    Startup(String),
    /// The peer does not answer an enhanced Request as RFC 6581 says: in the form of RFC 5044, or
    /// by the end of the connection (section 10). It may be one that knows RFC 5044 alone: ask it
    /// again with MPA revision 1.
    #[error("MPA start-up failed: {0}")]
    NotEnhanced(String),
    /// The peer broke the rules of RFC 5043 for sessions on SCTP.
    #[error("the session was ended: {0}")]
    Session(AdaptationError),
    /// The peer does not speak DDP on SCTP: it has not said so when the association was set up.
    #[error(
        "the peer's SCTP does not speak DDP (no adaptation indication 1): nobody listens there for \
         RDMA over SCTP"
    )]
    NoAdaptation,
    /// The network device is gone for good.
    #[error(
        "the network device is gone: it was removed, moved to another network namespace, or taken away by rnicd"
    )]
    DeviceGone,
    /// An administrator has taken the local address and port away.
    #[error("the lease of {lease} was revoked by an administrator")]
    Revoked {
        /// The address and port as they were leased; of a listener the address can be unspecified.
        lease: SocketAddr,
    },
    /// The queue pair does not exist or is in use.
    #[error("the queue pair is not idle")]
    QpNotIdle,
    /// The local address is used by another connection to the same peer.
    #[error("a connection with these addresses and ports exists")]
    InUse,
    /// This side found an error and told the peer with a Terminate message.
    #[error("this side found an error and sent Terminate ({control}): {error}")]
    TerminateSent {
        /// What the Terminate said.
        control: TerminateControl,
        /// The error in words.
        error: String,
    },
    /// The peer sent a Terminate message.
    #[error("the peer sent Terminate ({control})")]
    TerminateReceived {
        /// What it said (a Linux siw peer's bit order is read as meant).
        control: TerminateControl,
        /// The segment that it is about, if it quotes one.
        quoted: Option<Box<QuotedSegment>>,
    },
}

impl EndReason {
    /// Returns how the peer has left, if that is the reason and it has said no more.
    pub(super) fn departure(&self) -> Option<Departure> {
        Some(match self {
            Self::Peer => Departure::Closed,
            Self::CutOff => Departure::CutOff,
            Self::Reset => Departure::Reset,
            Self::TimedOut => Departure::Silent,
            _ => return None,
        })
    }
}

impl From<Departure> for EndReason {
    fn from(departure: Departure) -> Self {
        match departure {
            Departure::Closed => Self::Peer,
            Departure::CutOff => Self::CutOff,
            Departure::Reset => Self::Reset,
            Departure::Silent => Self::TimedOut,
        }
    }
}

/// Read depths as a peer states them, from MPA revision 2 on; 16383 where it leaves them to the
/// applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDepths {
    /// Reads it accepts at once.
    pub ird: u16,
    /// Reads it wants to have outstanding.
    pub ord: u16,
}

/// What the engine tells the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks to connect. The host decides with
    /// [`Command::Accept`](crate::engine::Command::Accept) or
    /// [`Command::Reject`](crate::engine::Command::Reject).
    ConnectRequest {
        /// The listener.
        listener: ListenerId,
        /// The number of the request.
        request: RequestId,
        /// The peer's address.
        peer: SocketAddr,
        /// The local address that it connected to.
        local: SocketAddr,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// Reads it accepts at once (0 with revision 1: not told).
        ird: u16,
        /// Reads it wants to have outstanding (0 with revision 1: not told).
        ord: u16,
        /// The MPA revision it speaks.
        mpa_revision: u8,
    },
    /// The request ended before the host decided on it.
    RequestGone {
        /// The number of the request.
        request: RequestId,
    },
    /// A connection is established: requests posted to the queue pair are carried out.
    Established {
        /// The queue pair.
        qp: QpNumber,
        /// The local address.
        local: SocketAddr,
        /// The peer's address.
        peer: SocketAddr,
        /// The peer's private data (empty on the responder, which got them with the request).
        private_data: Vec<u8>,
        /// Reads this side accepts at once.
        ird: u16,
        /// Reads this side may have outstanding.
        ord: u16,
        /// The depths that the peer stated, whatever was agreed on.
        peer_depths: Option<ReadDepths>,
    },
    /// The peer rejected the connection.
    Rejected {
        /// The queue pair; it is Idle again.
        qp: QpNumber,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// The depths that it stated.
        peer_depths: Option<ReadDepths>,
    },
    /// The connection was not established.
    Failed {
        /// The queue pair; it is Idle again.
        qp: QpNumber,
        /// Why.
        reason: EndReason,
    },
    /// An established connection ended. Every request posted was or will be completed.
    Disconnected {
        /// The queue pair, now in Error.
        qp: QpNumber,
        /// Why.
        reason: EndReason,
    },
    /// The peer of a connection [with the semantics of RC](super::ConnectionOptions::rc) has left
    /// it. Requests that are unfinished, and those that are posted from now on, wait until the
    /// application fails the queue pair. `Disconnected` follows then.
    PeerLeft {
        /// The queue pair.
        qp: QpNumber,
        /// How.
        reason: EndReason,
    },
    /// A connection ends because too many completions of received messages wait for room in a
    /// completion queue.
    CompletionOverrun {
        /// The queue.
        cq: CqId,
        /// The queue pair of the connection.
        qp: QpNumber,
    },
    /// A send queue was [stopped](crate::engine::Command::StopSends), and all requests that had
    /// begun have completed.
    SendsDrained {
        /// The queue pair.
        qp: QpNumber,
        /// The number of the stop.
        stop: u32,
    },
    /// A queue pair that is over has completed the last receive that it had taken from a shared
    /// queue.
    LastReceive {
        /// The queue pair, in Error.
        qp: QpNumber,
    },
    /// The device has lost its link, or has it back.
    Port {
        /// Whether the link is up.
        active: bool,
    },
    /// A listener has ended. No more connection requests come from it.
    ListenerEnded {
        /// The listener.
        listener: ListenerId,
        /// Why.
        reason: EndReason,
    },
    /// The device is gone for good. All connections have ended, and no other can be made.
    DeviceGone,
    /// A shared receive queue runs low, or a stream uses more of it than it should.
    SharedReceives(SrqEvent),
    /// The worker that drives an engine has ended. No more events come from it.
    WorkerEnded,
}

impl Event {
    /// Returns the queue pair that the event is about.
    pub fn qp(&self) -> Option<QpNumber> {
        match self {
            Self::ConnectRequest { .. }
            | Self::RequestGone { .. }
            | Self::Port { .. }
            | Self::ListenerEnded { .. }
            | Self::DeviceGone
            | Self::WorkerEnded
            | Self::SharedReceives(SrqEvent::LimitReached { .. }) => None,
            Self::Established { qp, .. }
            | Self::Rejected { qp, .. }
            | Self::Failed { qp, .. }
            | Self::Disconnected { qp, .. }
            | Self::PeerLeft { qp, .. }
            | Self::SendsDrained { qp, .. }
            | Self::LastReceive { qp }
            | Self::CompletionOverrun { qp, .. }
            | Self::SharedReceives(
                SrqEvent::ShareExceeded { qp, .. } | SrqEvent::HighWater { qp, .. },
            ) => Some(*qp),
        }
    }
}

/// An event on its way to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The stream of the queue pair that it is about: when the host reads it, another queue pair
    /// may have the number.
    pub stream: Option<StreamId>,
    /// The event.
    pub event: Event,
}
