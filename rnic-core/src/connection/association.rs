//! Connections over SCTP associations of the host's kernel: what the kernel's side must offer.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::adaptation::StreamIds;
use crate::ids::ListenerId;
use crate::tcp::TcpFailure;
use crate::time::Instant;
use crate::wire::session::{INDICATION, MAX_CONTROL};

use super::socket::{Accepted, Ready};
use super::{EndReason, PortReservation};

/// An SCTP association of the kernel. No call waits. When it is dropped, it is shut down in order:
/// the kernel still sends what it has taken.
pub trait AssociationSocket: fmt::Debug + Send {
    /// Receives what is next, if there is anything. The user data of a chunk go to `into`, whole.
    fn receive(&mut self, into: &mut [u8]) -> Result<Arrived, TcpFailure>;

    /// Hands the user data of an unordered chunk to the kernel. Returns whether it took them: not
    /// if it has no room now.
    fn send(&mut self, chunk: &OutgoingChunk<'_>) -> Result<bool, TcpFailure>;

    /// Returns how many chunks, in the order in which the kernel took them, the peer has
    /// acknowledged so that it cannot take it back (RFC 9260 section 6.2.1).
    fn acknowledged(&mut self) -> u64;

    /// Returns the most octets of user data that a chunk may have without being cut.
    fn max_chunk(&self) -> usize;

    /// Returns how many packets have come from the peer.
    fn heard(&mut self) -> u64;

    /// Asks the peer for a packet. That it does not answer does not make the association fail.
    fn probe(&mut self);

    /// Has the association not fail before the peer has acknowledged nothing for this long, and no
    /// longer than the kernel has it by itself without one.
    fn outlast(&mut self, patience: Option<Duration>);

    /// Returns what is known of the way to the peer, for an administrator.
    fn path(&self) -> Option<PathFacts> {
        None
    }

    /// Ends the association with an ABORT.
    fn abort(&mut self);
}

/// The way of an association to its peer, which all its sessions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathFacts {
    /// The smoothed round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// The retransmission timeout.
    pub rto: Duration,
    /// The congestion window, in octets.
    pub cwnd: u64,
    /// What the peer's window has room for.
    pub send_window: u64,
}

/// What receiving yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// The user data of a chunk.
    Chunk {
        /// The stream.
        stream: u16,
        /// The payload protocol identifier.
        protocol: u32,
        /// How many octets.
        len: usize,
    },
    /// The association is up, with so many streams.
    Up {
        /// Ours.
        outbound: u16,
        /// The peer's.
        inbound: u16,
    },
    /// The peer has set it up anew, with so many streams: what was outstanding is gone.
    Restarted {
        /// Ours.
        outbound: u16,
        /// The peer's.
        inbound: u16,
    },
    /// The peer's adaptation indication. It comes right behind [`Up`](Self::Up), or never.
    Indication(u32),
    /// Something that concerns nobody here.
    Other,
    /// There is nothing now.
    Nothing,
    /// The peer shuts the association down, and there is nothing more.
    Closed,
}

/// The user data of a chunk that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingChunk<'a> {
    /// The stream.
    pub stream: u16,
    /// The payload protocol identifier.
    pub protocol: u32,
    /// The octets.
    pub octets: &'a [u8],
    /// The peer is asked to acknowledge it at once (RFC 7053).
    pub urgent: bool,
}

/// The associations of an engine.
pub trait Associations: Send + 'static {
    /// An association.
    type Socket: AssociationSocket;

    /// Begins to set up an association from a reserved port, whose packets are of this traffic class
    /// (RFC 2474). It asks for as many streams each way.
    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
        traffic_class: u8,
    ) -> Result<Self::Socket, EndReason>;

    /// Reports from now on when an association becomes [`Ready`], by this number, each time once.
    fn watch(&mut self, socket: &Self::Socket, index: usize) -> Result<(), EndReason>;

    /// Lets peers set up associations with a reserved port.
    fn listen(
        &mut self,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason>;

    /// Lets no more peers do so.
    fn unlisten(&mut self, listener: ListenerId);

    /// Has a listener wait a moment until it is reported again.
    fn pause(&mut self, listener: ListenerId);

    /// Returns the next association that a peer has set up with a listener, if there is one.
    fn accept(&mut self, listener: ListenerId) -> Option<Accepted<Self::Socket>>;

    /// Adds what has become ready to `ready`, without waiting.
    fn poll(&mut self, ready: &mut Vec<Ready>);
}

/// How long an association may take to come up at first, and how often sessions look. Each try has
/// twice the time of the one before, so that far peers answer in time at last.
pub(crate) const FIRST_TRY: Duration = Duration::from_secs(1);

/// Where a session has its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) connection: usize,
    /// Tells it from earlier sessions on the stream.
    pub(crate) serial: u64,
}

/// How far an association is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is being set up.
    Opening,
    /// It is up, and the peer's indication is not known yet.
    Unverified,
    /// Both sides speak DDP on it.
    Up,
    /// It is over.
    Over,
}

/// An association with its sessions.
pub(crate) struct Association<S> {
    pub(crate) socket: S,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The listener with which a peer has set it up; else it is ours.
    pub(crate) listener: Option<ListenerId>,
    /// Keeps the port of one that is ours.
    pub(crate) reservation: Option<PortReservation>,
    pub(crate) standing: Standing,
    /// When its set-up began last, how long that may take, and its traffic class.
    pub(crate) set_up_at: Instant,
    pub(crate) try_time: Duration,
    pub(crate) traffic_class: u8,
    /// Whether other queue pairs may have sessions on it.
    pub(crate) is_shared: bool,
    pub(crate) streams: StreamIds,
    /// Connections that wait for it to be up.
    pub(crate) waiting: Vec<usize>,
    pub(crate) seats: HashMap<u16, Seat>,
    /// The user timeouts of connections that have one.
    patience: HashMap<usize, Duration>,
    /// Streams that had a session.
    pub(crate) used: BTreeSet<u16>,
    next_serial: u64,
    /// Terminates for peers that have no session here.
    pub(crate) refusals: VecDeque<(u16, Vec<u8>)>,
    /// Chunks that the kernel took and the peer has not acknowledged: stream and serial.
    pub(crate) sent: VecDeque<(u16, u64)>,
    /// How many chunks before those the peer has acknowledged.
    pub(crate) acked: u64,
    pub(crate) is_writable: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_ending: bool,
    /// When it ends unless it has a session then.
    pub(crate) idle_until: Option<Instant>,
    /// In the lists of [`Associated`].
    pub(crate) is_listed_readable: bool,
    pub(crate) is_listed_unacknowledged: bool,
    pub(crate) misses: u8,
    /// When a chunk has come, or an acknowledgment.
    pub(crate) heard_at: Instant,
}

/// The serial number of what belongs to no session.
pub(crate) const NO_SESSION: u64 = u64::MAX;

impl<S: AssociationSocket> Association<S> {
    pub(crate) fn new(
        socket: S,
        local: SocketAddr,
        remote: SocketAddr,
        listener: Option<ListenerId>,
        reservation: Option<PortReservation>,
    ) -> Self {
        Self {
            socket,
            local,
            remote,
            listener,
            reservation,
            standing: Standing::Opening,
            set_up_at: Instant::ZERO,
            try_time: FIRST_TRY,
            traffic_class: 0,
            is_shared: true,
            streams: StreamIds::default(),
            waiting: Vec::new(),
            seats: HashMap::new(),
            patience: HashMap::new(),
            used: BTreeSet::new(),
            next_serial: 0,
            refusals: VecDeque::new(),
            sent: VecDeque::new(),
            acked: 0,
            is_writable: true,
            is_readable: true,
            is_ending: false,
            idle_until: None,
            is_listed_readable: false,
            is_listed_unacknowledged: false,
            misses: 0,
            heard_at: Instant::ZERO,
        }
    }

    /// Notes the peer's indication: its absence too. Returns whether both sides speak DDP.
    // rfc: 5043-29, 5043-30, 5043-31, 5043-s3 without the indication of DDP there is no DDP
    pub(crate) fn verify(&mut self, indication: Option<u32>) -> bool {
        let is_ddp = indication == Some(INDICATION);
        if is_ddp {
            self.standing = Standing::Up;
        }
        is_ddp
    }

    /// Gives a stream to the session of a connection.
    pub(crate) fn seat(&mut self, stream: u16, connection: usize) -> Seat {
        let serial = self.next_serial;
        self.next_serial += 1;
        let seat = Seat { connection, serial };
        self.seats.insert(stream, seat);
        self.used.insert(stream);
        self.idle_until = None;
        seat
    }

    /// Returns whether a queue pair may have a new session on it.
    pub(crate) fn has_room(&self) -> bool {
        match self.standing {
            Standing::Opening | Standing::Unverified => true,
            Standing::Up => !self.streams.is_empty(),
            Standing::Over => false,
        }
    }

    /// Returns whether it has no session.
    pub(crate) fn is_idle(&self) -> bool {
        self.seats.is_empty() && self.waiting.is_empty()
    }

    /// Has it live as long as the most patient of its connections, of which this one has another
    /// user timeout now.
    pub(crate) fn outlast(&mut self, connection: usize, user_timeout: Option<Duration>) {
        let before = match user_timeout {
            Some(timeout) => self.patience.insert(connection, timeout),
            None => self.patience.remove(&connection),
        };
        if before != user_timeout {
            self.outlast_all();
        }
    }

    /// Takes another socket, which knows nothing of what connections want.
    pub(crate) fn replace(&mut self, socket: S) {
        self.socket = socket;
        if !self.patience.is_empty() {
            self.outlast_all();
        }
    }

    fn outlast_all(&mut self) {
        self.socket.outlast(self.patience.values().copied().max());
    }

    /// Removes a connection from it. `is_free`: nothing of its session is outstanding.
    pub(crate) fn leave(&mut self, stream: Option<u16>, seat: Seat, is_free: bool) {
        self.outlast(seat.connection, None);
        self.waiting.retain(|index| *index != seat.connection);
        if let Some(stream) = stream
            && self.seats.get(&stream) == Some(&seat)
        {
            self.seats.remove(&stream);
            // Those of a peer's association are for the peer to choose.
            if is_free && self.listener.is_none() {
                self.streams.give_back(stream);
            }
        }
    }

    /// Hands chunks to the kernel that refuse sessions, while it takes them.
    pub(crate) fn send_refusals(&mut self) {
        while let Some((stream, octets)) = self.refusals.front() {
            let (stream, protocol) = (*stream, crate::wire::session::CONTROL);
            let chunk = OutgoingChunk {
                stream,
                protocol,
                octets,
                urgent: true,
            };
            match self.socket.send(&chunk) {
                Ok(true) => {
                    self.refusals.pop_front();
                    self.sent.push_back((stream, NO_SESSION));
                }
                Ok(false) => {
                    self.is_writable = false;
                    return;
                }
                Err(_) => return self.refusals.clear(),
            }
        }
    }
}

/// What the connections of an engine share: their associations, and memory on the way to and from
/// them.
pub struct Associated<L: Associations> {
    pub(crate) sockets: L,
    pub(crate) associations: slab::Slab<Box<Association<L::Socket>>>,
    /// A chunk that was received, and one to be sent.
    pub(crate) received: Box<[u8]>,
    pub(crate) staging: Box<[u8]>,
    /// What has become ready.
    pub(crate) ready: Vec<Ready>,
    /// Associations with more chunks than one turn takes.
    pub(crate) readable: VecDeque<usize>,
    /// Associations whose peers have not acknowledged everything.
    pub(crate) unacknowledged: VecDeque<usize>,
    /// Of these, those that were asked many times in vain.
    pub(crate) stalled: VecDeque<usize>,
    /// Associations that may have lost their last session.
    pub(crate) left: Vec<usize>,
    /// Associations of peers without a session, and until when they may stay so.
    pub(crate) idle: VecDeque<(Instant, usize)>,
    /// The association that has received a chunk last, unless it has received none for long.
    pub(crate) hot: Option<usize>,
    /// How often that was in vain since.
    pub(crate) misses: u16,
}

/// Octets of the longest chunk that is received or sent: as long as an IP packet.
pub const LONGEST_CHUNK: usize = 65_536;

/// Octets of user data that each chunk may have, whatever the path takes.
pub(crate) const LEAST_CHUNK: usize = MAX_CONTROL;

impl<L: Associations> Associated<L> {
    /// Makes it for an engine.
    pub fn new(sockets: L) -> Self {
        Self {
            sockets,
            associations: slab::Slab::new(),
            received: vec![0; LONGEST_CHUNK].into(),
            staging: vec![0; LONGEST_CHUNK].into(),
            ready: Vec::new(),
            readable: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            stalled: VecDeque::new(),
            left: Vec::new(),
            idle: VecDeque::new(),
            hot: None,
            misses: 0,
        }
    }
}
