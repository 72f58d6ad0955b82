//! What the program has set of a queue pair by `ibv_modify_qp`, and how far a queue pair that it
//! connects itself has come with that.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::abi::{IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPS_SQD, ibv_qp_attr};

/// The most Reads and atomics that a connection may have outstanding, in either direction.
pub(crate) const MAX_READS: u16 = 128;

/// The settings of a queue pair.
#[derive(Default)]
pub(crate) struct Settings {
    /// The attributes, as the program has set them.
    pub(crate) attr: ibv_qp_attr,
    /// The state to which the program has moved it. rdma_cm moves its queue pairs further.
    pub(crate) state: u32,
    /// The other side, once the program has named it.
    pub(crate) meeting: Option<Meeting>,
}

impl Settings {
    /// Returns whether the program may still name the other side.
    pub(crate) fn has_no_peer(&self) -> bool {
        self.meeting.is_none() && matches!(self.state, IBV_QPS_RESET | IBV_QPS_INIT)
    }

    /// Returns whether the program has set what it sends by.
    pub(crate) fn may_send(&self) -> bool {
        matches!(self.state, IBV_QPS_RTS | IBV_QPS_SQD)
    }

    /// Forgets whether a former change to SQD has asked for an event.
    pub(crate) fn forget_notification(&mut self) {
        self.attr.en_sqd_async_notify = 0;
    }
}

/// The other side of a queue pair, and how far the two have come.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// The number of the queue pair.
    pub(crate) own: u32,
    /// That of the other side.
    pub(crate) peer: u32,
    /// The address that the program has chosen, with port 0.
    pub(crate) local: SocketAddr,
    /// Where the other side listens.
    pub(crate) remote: SocketAddr,
    /// The PSN that the other side expects first, once it has said so.
    pub(crate) expected: u32,
    /// This side connects. The other one waits for it.
    pub(crate) connects: bool,
    /// The other end of the connection of a queue pair that is its own peer: it receives what that
    /// sends.
    pub(crate) mirror: Option<rnic_verbs::Qp>,
    pub(crate) stage: Stage,
    /// How long this side waits before it tries again, and until when it does.
    pub(crate) pause: Duration,
    pub(crate) not_before: Instant,
    /// Since when requests wait for the connection.
    pub(crate) waits_since: Option<Instant>,
}

/// How far a queue pair has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is no connection.
    Apart,
    /// It connects, or has accepted.
    Meeting,
    /// It is connected.
    Met,
    /// The other side has left. Requests wait as if it could answer.
    Left,
    /// Its connection is over, and it gets no other.
    Over,
}
