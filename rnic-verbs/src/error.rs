//! The errors of this crate, and what to do about them.

use std::fmt;
use std::io;
use std::time::Duration;

use rnic_core::connection::{EndReason, ReadDepths};
use rnic_core::engine::{NetError, WorkerGone};
use rnic_core::memory::region::RegionError;
use rnic_core::memory::ring::RingError;
use rnic_core::memory::table::TableError;
use rnic_core::verbs::status::WcStatus;
use rnic_core::verbs::wr::WcOpcode;

use crate::state::QpState;

/// Why an object was not made, or an operation on it not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The worker that drives the device has ended.
    #[error(transparent)]
    WorkerGone(#[from] WorkerGone),
    /// The network device is gone for good.
    #[error(
        "the network device is gone: it was removed, moved to another network namespace, or taken away by rnicd; open the device again where it is"
    )]
    DeviceGone,
    /// The listener gets no more connection requests.
    #[error("nothing listens there any more: {0}")]
    ListenerEnded(EndReason),
    /// A queue could not be made.
    #[error("cannot make a queue: {0}")]
    Queue(#[from] RingError),
    /// Memory could not be allocated or accessed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Memory could not be registered or deregistered.
    #[error(transparent)]
    Registration(#[from] TableError),
    /// A local address or port could not be reserved.
    #[error(transparent)]
    Net(#[from] NetError),
    /// All queue pairs are in use.
    #[error("all {0} queue pairs of the device are in use; drop some or open the device with more")]
    NoQueuePair(u32),
    /// All completion queues are in use.
    #[error("all {0} completion queues of the device are in use; drop some or share them")]
    NoCompletionQueue(u32),
    /// Objects of two devices were used together.
    #[error("the {0} belongs to another device; use objects of one device together")]
    OtherDevice(&'static str),
    /// All shared receive queues are in use.
    #[error("all {0} shared receive queues of the device are in use; drop some or share them more")]
    NoSharedReceiveQueue(u32),
    /// The shared receive queue has users.
    #[error("{0} queue pairs use the shared receive queue; drop them first")]
    SrqInUse(usize),
    /// Objects of two protection domains were used together.
    #[error("the {0} belongs to another protection domain; use objects of one domain together")]
    OtherDomain(&'static str),
    /// The asynchronous events of the device have a reader already.
    #[error("the asynchronous events of the device have a reader already; drop that first")]
    AsyncEventsTaken,
    /// The events of the device wake somebody already.
    #[error("the events of the device have a waker already; a device has one for its life")]
    EventsWatched,
    /// The completion queue has no channel of its own.
    #[error("the completion queue notifies a waker and has no channel; wait for what that wakes")]
    NoChannel,
    /// The completion queue holds more completions than the new capacity.
    #[error(
        "the completion queue holds {held} completions, which do not fit {capacity} entries; poll them first or ask for more"
    )]
    CqHolds {
        /// Completions that were not polled yet.
        held: usize,
        /// Entries asked for.
        capacity: u32,
    },
    /// The queue pair is connected, connecting, or was connected.
    #[error("the queue pair is in state {0}, not INIT; make another one for another connection")]
    NotIdle(QpState),
    /// The queue pair has no connection.
    #[error("the queue pair is not connected; there is nothing to disconnect")]
    NotConnected,
    /// The completion channel could not be made or waited for.
    #[error("completion channel: {0}")]
    Channel(io::Error),
    /// The thread that was to drive the device could not be started.
    #[error(
        "cannot start the thread that drives the device: {0}; raise the limit of processes or drive it inline"
    )]
    Thread(io::Error),
    /// A thread could not be pinned to the CPU that is its own.
    #[error(
        "cannot pin a thread of the device to CPU {cpu}: {source}; open it without pinning, or allow that CPU (`taskset`, cpuset)"
    )]
    Pin {
        /// The CPU.
        cpu: usize,
        /// Why not.
        source: io::Error,
    },
    /// The private data is too long.
    #[error("{len} octets of private data do not fit the {max} that MPA start-up carries")]
    PrivateData {
        /// Octets given.
        len: usize,
        /// Octets that fit.
        max: usize,
    },
}

/// Why not all of several work requests were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} requests were posted, the next was not: {error}")]
pub struct PostSendsError {
    /// Requests before the refused one.
    pub posted: usize,
    /// Why it was refused.
    pub error: PostError,
}

/// Why a work request was not posted. It was not queued and does not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error(
        "all {0} entries of the send queue are in use; poll completions first or ask for more with max_send_wr"
    )]
    SendQueueFull(u32),
    /// The receive queue is full.
    #[error(
        "all {0} entries of the receive queue are in use; poll completions first or ask for more with max_recv_wr"
    )]
    ReceiveQueueFull(u32),
    /// The shared receive queue is full.
    #[error(
        "all {0} entries of the shared receive queue are in use; poll completions first or ask for more with max_wr"
    )]
    SharedQueueFull(u32),
    /// The queue pair has no receive queue of its own.
    #[error("the queue pair takes its receives from a shared queue; post them there")]
    SharedQueue,
    /// Nothing can be sent yet.
    #[error(
        "the queue pair is in state {0}; wait until its connection is established before you post to its send queue"
    )]
    NotConnected(QpState),
    /// Too much inline data.
    #[error("{len} octets do not fit inline, {max} do; send them from registered memory")]
    InlineTooLong {
        /// Octets given.
        len: usize,
        /// Octets that fit.
        max: usize,
    },
    /// Too many pieces of memory.
    #[error("{count} scatter/gather elements were given, {max} fit a request")]
    TooManyElements {
        /// Elements given.
        count: usize,
        /// Elements that fit.
        max: usize,
    },
    /// More than a message can carry.
    #[error("{0} octets do not fit one message, 4294967295 do; send several")]
    TooLong(u64),
    /// A Read places its data in registered memory, and has none in the request.
    #[error("an RDMA Read needs registered memory to read into, and has no inline data")]
    ReadSink,
    /// An atomic brings the 8 octets that it found to one piece of registered memory.
    #[error(
        "an atomic needs one piece of registered memory of 8 octets, to bring there what the peer's memory held"
    )]
    AtomicSink,
    /// Immediate Data are 8 octets and nothing else.
    #[error(
        "Immediate Data go without other data; use a Write with Immediate Data, or a Send before them"
    )]
    Immediate,
    /// Binding, registering and invalidating send nothing.
    #[error(
        "a request that binds, registers or invalidates sends nothing: give its data to a Send behind it"
    )]
    NoData,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// What was asked for.
    pub opcode: WcOpcode,
    /// The status of its completion.
    pub status: WcStatus,
    /// Why the connection ended, if that is known.
    pub reason: Option<EndReason>,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, self.status) {
            // The request had no part in it.
            (Some(reason), WcStatus::WrFlushed) => reason.fmt(f),
            (Some(reason), status) => write!(f, "{:?} failed with {status}: {reason}", self.opcode),
            (None, status) => write!(f, "{:?} failed with {status}", self.opcode),
        }
    }
}

impl std::error::Error for RequestError {}

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The peer rejected the connection.
    #[error("the peer rejected the connection ({} octets of private data)", private_data.len())]
    Rejected {
        /// The private data of its MPA Reply.
        private_data: Vec<u8>,
        /// The read depths that it stated.
        peer_depths: Option<ReadDepths>,
    },
    /// It failed.
    #[error(transparent)]
    Failed(#[from] EndReason),
    /// The outcome did not come in time. The attempt goes on.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] Error),
}
