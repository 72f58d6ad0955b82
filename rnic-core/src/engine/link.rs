//! What an application and a worker share: commands one way, events the other, and the seams of a network.
//!
//! Work requests and completions do not pass through here: they have rings of their own.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::ddp::Endpoint;
use crate::memory::doorbell::Doorbells;
use crate::memory::ring::{Consumer, Producer};
use crate::memory::table::StagTable;
use crate::tcp::Keepalive;
use crate::verbs::cq::{Arming, CqError};
use crate::verbs::qp::{CqId, QpNumber, QueuePair, StreamId};
use crate::verbs::srq::{SrqId, SrqLimit, SrqNews};
use crate::verbs::wr::{Completion, RecvWr};
use crate::wire::rdmap::TerminateControl;

use super::commands::Adoption;
use super::events::Events;
use super::owners::{Place, places};
use super::peers::Peers;
use super::refusals::Refusals;
use super::snapshot::Snapshot;

/// Names a listener; chosen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// Names a connection request that waits for an answer; chosen by the engine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The bits below those that name the engine.
    const COUNT_BITS: u32 = 48;

    /// The first one of an engine.
    pub(super) fn first_of(engine: u16) -> Self {
        Self(u64::from(engine) << Self::COUNT_BITS | 1)
    }

    /// The engine that chose it, of several of a device.
    pub fn engine(self) -> usize {
        (self.0 >> Self::COUNT_BITS) as usize
    }
}

/// Keeps a local port reserved and steered to the engine. The engine drops it with the last connection
/// (TIME-WAIT included) or listener that uses the port.
pub type PortLease = Arc<dyn Any + Send + Sync>;

/// How a connection is to be set up.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// MPA revision to ask for, 1 (RFC 5044) or 2 (RFC 6581). A responder answers what was asked.
    pub mpa_revision: u8,
    /// Ask for CRC32c in every FPDU. It is used if either side asks.
    pub crc: bool,
    /// Require markers in what the peer sends (RFC 5044 section 4.3): with CRCs, FPDUs that arrive ahead of order are then
    /// found and placed at once, however the stream was cut into segments; without markers they wait in the out-of-order queue until what is
    /// missing has come. Markers cost the receiver a copy, and not every peer can send them.
    pub markers: bool,
    /// Reads and atomics that this side accepts at once.
    pub ird: u16,
    /// Reads and atomics that this side wants to have outstanding.
    pub ord: u16,
    /// How far an initiator raises its `ird` where the responder wants more: beyond that, it refuses.
    pub max_ird: u16,
    /// Whether the exchange settles these depths. If not, they are not stated (RFC 6581 section 9.1), they stay as they
    /// are, and the applications see to it that neither side has more outstanding than the other accepts. What a peer
    /// states all the same holds.
    pub negotiate_reads: bool,
    /// Initiator: ask for a peer-to-peer connection (RFC 6581), on which either application may send first. MPA then
    /// begins with a message of its own, which neither application sees. Takes revision 2. A responder does what it is
    /// asked.
    pub peer_to_peer: bool,
    /// Handed to the peer during MPA start-up: 512 octets at most, 508 with revision 2.
    pub private_data: Vec<u8>,
    /// How long an initiator waits between the MPA Reply and its first FPDU. The Linux siw driver can
    /// overlook octets that reach it within about 3 ms of its Reply.
    pub first_fpdu_delay: Duration,
    /// How long the TCP and MPA start-up may take altogether.
    pub connect_timeout: Duration,
    /// Ask a peer that has been silent for long whether it is there: a Read would else wait for ever for one that has
    /// gone. `None`: as the engine's TCP settings say, which is not to ask by default.
    pub keepalive: Option<Keepalive>,
    /// How long the peer may leave what it is owed without acknowledgment before the connection fails, as
    /// `TCP_USER_TIMEOUT` sets it for the kernel's TCP. `None`: as the engine's TCP settings say, where by default the
    /// number of retransmissions decides.
    pub user_timeout: Option<Duration>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            mpa_revision: 2,
            crc: true,
            markers: false,
            ird: 16,
            ord: 16,
            max_ird: 128,
            negotiate_reads: true,
            peer_to_peer: false,
            private_data: Vec::new(),
            first_fpdu_delay: Duration::ZERO,
            connect_timeout: Duration::from_secs(10),
            keepalive: None,
            user_timeout: None,
        }
    }
}

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
    /// Arms the limit of a shared receive queue: told as [`Event::SharedReceives`].
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

/// Why a connection ended or never came to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The application asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer closed in order.
    #[error("closed by the peer")]
    Peer,
    /// The peer closed where a message had begun to come and was not whole.
    #[error("the peer closed the connection inside a message: what it sent last is not whole")]
    CutOff,
    /// The peer answered the SYN with RST: nobody listens there.
    #[error("connection refused: nobody listens at that address and port")]
    Refused,
    /// The peer sent RST.
    #[error("connection reset by the peer")]
    Reset,
    /// The peer did not answer in time.
    #[error("timed out: the peer does not answer")]
    TimedOut,
    /// No route or no neighbour.
    #[error("no route to the peer's address, or its neighbour does not answer")]
    Unreachable,
    /// The peer's MPA start-up was not acceptable.
    #[error("MPA start-up failed: {0}")]
    Startup(String),
    /// The network device is gone for good.
    #[error("the network device is gone: it was removed, or moved to another network namespace")]
    DeviceGone,
    /// The queue pair named was not there or was in use.
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
    },
}

/// Read depths as a peer states them, from MPA revision 2 on; 16383 where it leaves them to the applications.
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
    /// A peer asks to connect: answer with [`Command::Accept`] or [`Command::Reject`].
    ConnectRequest {
        /// Where it asks.
        listener: ListenerId,
        /// The name of the request.
        request: RequestId,
        /// Its address.
        peer: SocketAddr,
        /// The local address that it chose.
        local: SocketAddr,
        /// What it handed over.
        private_data: Vec<u8>,
        /// Reads it accepts at once (0 with revision 1: not told).
        ird: u16,
        /// Reads it wants to have outstanding (0 with revision 1: not told).
        ord: u16,
        /// The MPA revision it speaks.
        mpa_revision: u8,
    },
    /// The request ended before it was answered.
    RequestGone {
        /// The name of the request.
        request: RequestId,
    },
    /// A connection stands: requests posted to the queue pair flow.
    Established {
        /// The queue pair.
        qp: QpNumber,
        /// The local address.
        local: SocketAddr,
        /// The peer's address.
        peer: SocketAddr,
        /// What the peer handed over (empty on the responder, which saw it in the request).
        private_data: Vec<u8>,
        /// Reads this side accepts at once.
        ird: u16,
        /// Reads this side may have outstanding.
        ord: u16,
        /// What the peer stated, whatever came of it.
        peer_depths: Option<ReadDepths>,
    },
    /// The peer rejected the connection.
    Rejected {
        /// The queue pair; it is Idle again.
        qp: QpNumber,
        /// What the peer handed over.
        private_data: Vec<u8>,
        /// The depths that it stated.
        peer_depths: Option<ReadDepths>,
    },
    /// The connection did not come to be.
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
    /// So many completions of received messages wait for room in a queue that a connection ends for it.
    CompletionOverrun {
        /// The queue.
        cq: CqId,
        /// The queue pair of the connection.
        qp: QpNumber,
    },
    /// A queue pair that is over has completed the last receive that it had taken from a shared queue.
    LastReceive {
        /// The queue pair, in Error.
        qp: QpNumber,
    },
    /// The device has lost its link, or has it again.
    Port {
        /// Whether it has.
        active: bool,
    },
    /// The device is gone for good. All connections have ended, and no other can come to be.
    DeviceGone,
    /// A shared receive queue runs low, or a stream uses more of it than it should.
    SharedReceives(SrqNews),
    /// The worker that drives an engine has ended. Nothing more comes from it.
    WorkerEnded,
}

impl Event {
    /// The queue pair that it is about.
    pub fn qp(&self) -> Option<QpNumber> {
        match self {
            Self::ConnectRequest { .. }
            | Self::RequestGone { .. }
            | Self::Port { .. }
            | Self::DeviceGone
            | Self::WorkerEnded
            | Self::SharedReceives(SrqNews::LimitReached { .. }) => None,
            Self::Established { qp, .. }
            | Self::Rejected { qp, .. }
            | Self::Failed { qp, .. }
            | Self::Disconnected { qp, .. }
            | Self::LastReceive { qp }
            | Self::CompletionOverrun { qp, .. }
            | Self::SharedReceives(
                SrqNews::ShareExceeded { qp, .. } | SrqNews::HighWater { qp, .. },
            ) => Some(*qp),
        }
    }
}

/// An event on its way to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The stream of the queue pair that it is about: by the time the host reads it, another may have the number.
    pub stream: Option<StreamId>,
    /// The event.
    pub event: Event,
}

/// The application's end of a link.
#[derive(Clone)]
pub struct HostEnd {
    /// The memory that peers may reach; shared by all workers.
    pub table: Arc<StagTable>,
    /// Rung after posting to a queue pair.
    pub doorbells: Arc<Doorbells>,
    /// Events of the engine.
    pub events: Arc<Events>,
    commands: Sender<Command>,
    wake: Waker,
}

impl HostEnd {
    /// Sends a command and wakes the worker if it sleeps. Says whether a worker is there to receive it.
    pub fn send(&self, command: Command) -> Result<(), WorkerGone> {
        self.commands.send(command).map_err(|_| WorkerGone)?;
        if self.doorbells.ring_commands() {
            self.wake.wake_by_ref();
        }
        Ok(())
    }

    /// Tells the worker that requests were posted to a queue pair.
    pub fn ring(&self, qp: QpNumber) {
        if self.doorbells.ring(qp.0) {
            self.wake.wake_by_ref();
        }
    }
}

/// The worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker that drives this device has ended; open the device again")]
pub struct WorkerGone;

/// The worker's end of a link.
pub struct EngineEnd {
    /// The same table as the host's.
    pub table: Arc<StagTable>,
    /// Which queue pairs have new requests.
    pub doorbells: Arc<Doorbells>,
    /// Commands of the host.
    pub commands: Receiver<Command>,
    /// Where events go.
    pub events: Arc<Events>,
    number: u16,
    /// The engine's place among several of the device.
    pub(super) place: Option<Place>,
}

impl EngineEnd {
    /// The number of the engine among those of the device.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for EngineEnd {
    /// Nobody else would say so.
    fn drop(&mut self) {
        self.events.tell(Notice {
            stream: None,
            event: Event::WorkerEnded,
        });
    }
}

/// Makes a link. `wake` wakes the worker out of its sleep.
pub fn link(table: Arc<StagTable>, max_qps: u32, wake: Waker) -> (HostEnd, EngineEnd) {
    one_link(table, max_qps, wake, Arc::default(), 0)
}

/// Makes the links of several engines of one device, one for each waker. They share the table of STags; the events of all
/// come out of any of the hosts' ends.
pub fn links(table: &Arc<StagTable>, max_qps: u32, wakes: Vec<Waker>) -> Vec<(HostEnd, EngineEnd)> {
    let events: Arc<Events> = Arc::default();
    let mut links: Vec<_> = (0..)
        .zip(wakes)
        .map(|(number, wake)| one_link(table.clone(), max_qps, wake, events.clone(), number))
        .collect();
    if links.len() > 1 {
        let ways = links.iter().map(|(host, _)| {
            let (commands, doorbells) = (host.commands.clone(), host.doorbells.clone());
            (commands, doorbells, host.wake.clone())
        });
        let places = places(ways);
        for ((_, engine), place) in links.iter_mut().zip(places) {
            engine.place = Some(place);
        }
    }
    links
}

fn one_link(
    table: Arc<StagTable>,
    max_qps: u32,
    wake: Waker,
    events: Arc<Events>,
    number: u16,
) -> (HostEnd, EngineEnd) {
    let (commands, commands_end) = unbounded();
    let doorbells = Arc::new(Doorbells::new(max_qps));
    (
        HostEnd {
            table: table.clone(),
            doorbells: doorbells.clone(),
            events: events.clone(),
            commands,
            wake,
        },
        EngineEnd {
            table,
            doorbells,
            commands: commands_end,
            events,
            number,
            place: None,
        },
    )
}

/// Anything that drives an engine by one turn of its loop.
pub trait Turn: Send {
    /// Handles everything that waits, without blocking. Says whether there was anything.
    fn turn(&mut self) -> bool;

    /// Whether no connection owes its peer anything: each is over, or only waits out its TIME-WAIT.
    fn is_settled(&self) -> bool;

    /// Blocks until there may be something to do, for `at_most` at most.
    fn wait(&mut self, at_most: Duration);
}
