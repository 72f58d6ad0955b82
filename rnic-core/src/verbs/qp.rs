//! The engine's side of a queue pair.

use std::fmt;

use super::srq::ReceiveQueue;
use super::wr::SendWr;
use crate::memory::ring::Consumer;
use crate::memory::table::Origin;

/// Names a queue pair of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNumber(pub u32);

/// Names the stream of a queue pair, as long as there is one: never used again, unlike the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Names a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Names a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}", self.0)
    }
}

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {}", self.0)
    }
}

impl fmt::Display for CqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CQ {}", self.0)
    }
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Requests may be posted and wait.
    #[default]
    Idle,
    /// Connected: requests flow.
    Rts,
    /// Over: every request completes with `WrFlushed`.
    Error,
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
}

impl QueuePair {
    /// On whose behalf memory is used: this stream of this protection domain.
    pub fn origin(&self) -> Origin {
        Origin {
            pd: self.pd,
            stream: Some(self.stream),
        }
    }
}
