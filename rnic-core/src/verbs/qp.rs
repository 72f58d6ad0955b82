//! The engine's side of a queue pair.

use crate::ids::{CqId, PdId, QpNumber, StreamId};
use crate::memory::ring::Consumer;
use crate::memory::table::{Access, Origin};

use super::srq::ReceiveQueue;
use super::wr::SendWr;

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Requests may be posted and wait.
    #[default]
    Idle,
    /// Connected: requests flow.
    Rts,
    /// Left by its peer, with the semantics of RC: its receives stay posted, and its requests wait,
    /// until the application fails it.
    Orphaned(Departure),
    /// Over: every request completes with `WrFlushed`.
    Error,
}

/// How the peer of a connection has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// With FIN, between messages.
    Closed,
    /// With FIN inside a message.
    CutOff,
    /// With RST.
    Reset,
    /// It does not answer.
    Silent,
}

/// A queue pair as the engine sees it.
#[derive(Debug)]
pub struct QueuePair {
    /// Its name.
    pub number: QpNumber,
    /// What memory meant for it alone, and its events, go by.
    pub stream: StreamId,
    /// Its protection domain.
    pub pd: PdId,
    /// Work requests to send.
    pub sq: Consumer<SendWr>,
    /// Buffers to receive into; each is released when its message is delivered.
    pub rq: ReceiveQueue,
    /// Where requests of `sq` complete.
    pub send_cq: CqId,
    /// Where requests of `rq` complete.
    pub recv_cq: CqId,
    /// Its state.
    pub state: QpState,
    /// Whether every request of `sq` makes a completion, signalled or not.
    pub signal_all: bool,
    /// How often a request that finds no receive at the peer would be tried again on a connection
    /// with the semantics of RC, 0 to 7; 7: for ever. That many times the peer's min_rnr_timer, and
    /// a second at least, its requests wait for a receive.
    pub rnr_retry: u8,
    /// The application has stopped `sq`: requests that have begun are finished, and no other
    /// begins.
    pub is_stopped: bool,
    /// What its peer may do to memory at all: rights of peers. Regions say where.
    pub remote_access: Access,
}

/// The `rnr_retry` by which requests wait for ever.
pub const RNR_RETRY_FOR_EVER: u8 = 7;

impl QueuePair {
    /// Returns the origin of memory accesses: this stream of this protection domain.
    pub fn origin(&self) -> Origin {
        Origin {
            pd: self.pd,
            stream: Some(self.stream),
            rights: self.remote_access.with_local(),
        }
    }
}
