//! The associations and listeners of the kernel, their frames and their timers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slab::Slab;

use crate::connection::{OutgoingChunk, PortReservation, Ready};
use crate::ids::ListenerId;
use crate::tcp::TcpFailure;
use crate::time::Instant;
use crate::wire::session::INDICATION;

use super::frame::{Frame, Message, SetUp};

/// When what was not answered is sent again, and how often at least until the association fails.
const AGAIN: Duration = Duration::from_millis(20);
const TRIES: u32 = 200;

/// The most chunks that are not acknowledged.
const ROOM: usize = 48;

/// A local port, as associations know it.
pub(super) struct Reserved {
    pub(super) local: SocketAddr,
    _counted: PortReservation,
}

/// Returns a reservation that says which port it is.
pub(in crate::testing) fn reserve(local: SocketAddr, counted: PortReservation) -> PortReservation {
    let _counted = counted;
    Arc::new(Reserved { local, _counted })
}

/// What there is to receive.
#[derive(Debug)]
pub(super) enum Arrival {
    Up(u16),
    Restarted(u16),
    Indication(u32),
    Chunk(u16, u32, Vec<u8>),
    Closed,
    Failed(TcpFailure),
}

/// How far an association is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Opening,
    Up,
    Closing,
    Over,
}

/// Something that is sent until it is answered.
struct Outstanding {
    message: Message,
    sent: Option<Instant>,
    tries: u32,
}

pub(super) struct VirtualState {
    local: SocketAddr,
    remote: SocketAddr,
    standing: Standing,
    /// Of the set-up that it is of.
    tag: u32,
    /// The peer is never answered that it is up.
    is_unheard: bool,
    has_owner: bool,
    pub(super) watched: Option<usize>,
    pub(super) arrived: VecDeque<Arrival>,
    is_told: usize,
    is_full: bool,
    tell_writable: bool,
    /// INIT or SHUTDOWN.
    control: Option<Outstanding>,
    chunks: BTreeMap<u32, Outstanding>,
    next_tsn: u32,
    /// All of ours before it were acknowledged.
    pub(super) acked: u32,
    /// All of the peer's before it have come, and of those behind it these.
    expected: u32,
    ahead: BTreeSet<u32>,
    owes_sack: bool,
    /// How many frames have come from the peer.
    pub(super) heard: u64,
    /// How often a chunk is sent without an answer before it fails.
    pub(super) tries: u32,
}

impl VirtualState {
    pub(super) fn is_over(&self) -> bool {
        self.standing == Standing::Over
    }

    fn fail(&mut self, failure: TcpFailure) {
        if self.standing != Standing::Over {
            self.standing = Standing::Over;
            self.arrived.push_back(Arrival::Failed(failure));
        }
        self.chunks.clear();
        self.control = None;
    }

    fn come_up(&mut self, indication: Option<u32>, streams: u16) {
        if self.standing == Standing::Opening {
            self.standing = Standing::Up;
            self.control = None;
            self.arrived.push_back(Arrival::Up(streams));
            self.arrived.extend(indication.map(Arrival::Indication));
        }
    }

    /// Is set up anew by its peer.
    fn restart(&mut self, streams: u16) {
        self.arrived.push_back(Arrival::Restarted(streams));
        self.chunks.clear();
        self.ahead.clear();
        (self.next_tsn, self.acked, self.expected) = (0, 0, 0);
        self.is_unheard = false;
    }

    fn take_data(&mut self, tsn: u32, arrival: Arrival) {
        self.owes_sack = true;
        if tsn < self.expected || !self.ahead.insert(tsn) {
            return;
        }
        self.arrived.push_back(arrival);
        while self.ahead.remove(&self.expected) {
            self.expected += 1;
        }
    }

    fn take_sack(&mut self, next: u32, others: &[u32]) {
        self.acked = self.acked.max(next);
        self.chunks
            .retain(|tsn, _| *tsn >= next && !others.contains(tsn));
        if self.is_full && self.chunks.len() < ROOM {
            (self.is_full, self.tell_writable) = (false, true);
        }
    }
}

/// A port on which peers may set up associations.
struct Listening {
    local: SocketAddr,
    queue: VecDeque<usize>,
    is_ready: bool,
}

/// The kernel of one host.
pub(in crate::testing) struct SctpKernel {
    now: Instant,
    address: IpAddr,
    pub(super) indication: Option<u32>,
    pub(super) streams: u16,
    pub(super) max_chunk: usize,
    pub(super) held_stream: Option<u16>,
    pub(super) probes: usize,
    /// So many associations come up next without their peers learning of it.
    pub(super) unheard: usize,
    next_tag: u32,
    pub(super) associations: Slab<VirtualState>,
    listeners: BTreeMap<Option<ListenerId>, Listening>,
    outgoing: Vec<Frame>,
}

/// A kernel with its associations.
pub(in crate::testing) type SharedSctp = Arc<Mutex<SctpKernel>>;

/// Locks a kernel.
pub(in crate::testing) fn lock(kernel: &Mutex<SctpKernel>) -> MutexGuard<'_, SctpKernel> {
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SctpKernel {
    /// Makes the kernel of a host.
    pub(in crate::testing) fn new(address: IpAddr) -> SharedSctp {
        Arc::new(Mutex::new(Self {
            now: Instant::ZERO,
            address,
            indication: Some(INDICATION),
            streams: 16,
            max_chunk: 1432,
            held_stream: None,
            probes: 0,
            unheard: 0,
            next_tag: 0,
            associations: Slab::new(),
            listeners: BTreeMap::new(),
            outgoing: Vec::new(),
        }))
    }

    fn add(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        tag: u32,
        control: Option<Message>,
    ) -> usize {
        self.associations.insert(VirtualState {
            local,
            remote,
            standing: Standing::Opening,
            tag,
            is_unheard: false,
            has_owner: true,
            watched: None,
            arrived: VecDeque::new(),
            is_told: 0,
            is_full: false,
            tell_writable: false,
            control: control.map(|message| Outstanding {
                message,
                sent: None,
                tries: 0,
            }),
            chunks: BTreeMap::new(),
            next_tsn: 0,
            acked: 0,
            expected: 0,
            ahead: BTreeSet::new(),
            owes_sack: false,
            heard: 0,
            tries: TRIES,
        })
    }

    pub(super) fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> usize {
        self.next_tag += 1;
        let init = self.set_up(self.next_tag);
        self.add(local, remote, init.tag, Some(Message::Init(init)))
    }

    fn set_up(&self, tag: u32) -> SetUp {
        SetUp {
            indication: self.indication,
            streams: self.streams,
            tag,
        }
    }

    pub(super) fn listen(&mut self, listener: Option<ListenerId>, local: SocketAddr) {
        let listening = Listening {
            local,
            queue: VecDeque::new(),
            is_ready: false,
        };
        self.listeners.insert(listener, listening);
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        let ended = self.listeners.remove(&Some(listener));
        for number in ended.into_iter().flat_map(|ended| ended.queue) {
            self.abort(number);
            self.leave(number);
        }
    }

    pub(super) fn accept(
        &mut self,
        listener: Option<ListenerId>,
    ) -> Option<(usize, SocketAddr, SocketAddr)> {
        let number = self.listeners.get_mut(&listener)?.queue.pop_front()?;
        let accepted = &self.associations[number];
        Some((number, accepted.local, accepted.remote))
    }

    pub(super) fn submit(
        &mut self,
        number: usize,
        chunk: &OutgoingChunk<'_>,
    ) -> Result<bool, TcpFailure> {
        let association = &mut self.associations[number];
        if association.standing != Standing::Up {
            return Err(TcpFailure::Reset);
        }
        if association.chunks.len() >= ROOM {
            association.is_full = true;
            return Ok(false);
        }
        let tsn = association.next_tsn;
        association.next_tsn += 1;
        let message = Message::Data {
            tsn,
            stream: chunk.stream,
            protocol: chunk.protocol,
            octets: chunk.octets.to_vec(),
        };
        let outstanding = Outstanding {
            message,
            sent: None,
            tries: 0,
        };
        association.chunks.insert(tsn, outstanding);
        Ok(true)
    }

    fn send(&mut self, number: usize, message: Message) {
        let association = &self.associations[number];
        self.outgoing.push(Frame {
            source: association.local.port(),
            destination: association.remote.port(),
            message,
        });
    }

    pub(super) fn abort(&mut self, number: usize) {
        if self.associations[number].standing != Standing::Over {
            self.send(number, Message::Abort);
            self.associations[number].fail(TcpFailure::Aborted);
        }
    }

    /// Handles that nobody has the association any more.
    pub(super) fn leave(&mut self, number: usize) {
        let association = &mut self.associations[number];
        (association.has_owner, association.watched) = (false, None);
        match association.standing {
            Standing::Opening => self.abort(number),
            Standing::Up => association.standing = Standing::Closing,
            Standing::Closing | Standing::Over => {}
        }
    }

    /// Tells what is new.
    pub(super) fn poll(&mut self, ready: &mut Vec<Ready>) {
        for (_, association) in &mut self.associations {
            let Some(index) = association.watched else {
                continue;
            };
            let readable = association.arrived.len() > association.is_told;
            let writable = std::mem::take(&mut association.tell_writable);
            association.is_told = association.arrived.len();
            if readable || writable {
                ready.push(Ready::Connection {
                    index,
                    readable,
                    ended: false,
                    writable,
                });
            }
        }
        for (listener, listening) in &mut self.listeners {
            if let Some(listener) = listener
                && std::mem::take(&mut listening.is_ready)
            {
                ready.push(Ready::Listener(*listener));
            }
        }
    }

    /// Handles frames. Returns whether there were any.
    pub(in crate::testing) fn handle<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        self.now = now;
        let mut any = false;
        for frame in frames {
            any = true;
            // One that is damaged is lost.
            if let Some(frame) = Frame::parse(frame) {
                self.handle_frame(frame);
            }
        }
        for (_, association) in &mut self.associations {
            association.is_told = association.is_told.min(association.arrived.len());
        }
        any
    }

    fn handle_frame(&mut self, frame: Frame) {
        let (local, remote) = (frame.destination, frame.source);
        let mut all = self.associations.iter();
        let known = all.find(|(_, one)| {
            one.local.port() == local && one.remote.port() == remote && !one.is_over()
        });
        let known = known.map(|(number, _)| number);
        if let Message::Init(set_up) = frame.message {
            return self.handle_init(known, local, remote, set_up);
        }
        let Some(number) = known else {
            let answer = match frame.message {
                Message::Shutdown => Message::ShutdownAck,
                Message::Data { .. } | Message::InitAck(..) => Message::Abort,
                _ => return,
            };
            return self.outgoing.push(Frame {
                source: local,
                destination: remote,
                message: answer,
            });
        };
        let streams = self.streams;
        let association = &mut self.associations[number];
        association.heard += 1;
        match frame.message {
            Message::InitAck(peers) if peers.tag == association.tag => {
                association.come_up(peers.indication, streams.min(peers.streams));
            }
            Message::Data {
                tsn,
                stream,
                protocol,
                octets,
            } => association.take_data(tsn, Arrival::Chunk(stream, protocol, octets)),
            Message::Sack(next, others) => association.take_sack(next, &others),
            Message::Shutdown => {
                association.arrived.push_back(Arrival::Closed);
                association.standing = Standing::Over;
                association.chunks.clear();
                self.send(number, Message::ShutdownAck);
            }
            Message::ShutdownAck => association.standing = Standing::Over,
            Message::Abort if association.standing == Standing::Opening => {
                association.fail(TcpFailure::Refused);
            }
            Message::Abort => association.fail(TcpFailure::Reset),
            Message::Heartbeat => self.send(number, Message::HeartbeatAck),
            Message::HeartbeatAck | Message::Init(_) | Message::InitAck(_) => {}
        }
    }

    pub(super) fn probe(&mut self, number: usize) {
        self.probes += 1;
        self.send(number, Message::Heartbeat);
    }

    /// Has an association try for this long at least.
    pub(super) fn outlast(&mut self, number: usize, patience: Option<Duration>) {
        let tries = patience.map_or(0, |patience| {
            let tries = patience.as_nanos().div_ceil(AGAIN.as_nanos()) + 2;
            u32::try_from(tries).unwrap_or(u32::MAX)
        });
        self.associations[number].tries = tries.max(TRIES);
    }

    fn handle_init(&mut self, known: Option<usize>, local: u16, remote: u16, peers: SetUp) {
        let listening = self
            .listeners
            .values()
            .find(|one| one.local.port() == local);
        if known.is_none() && listening.is_none() {
            return self.outgoing.push(Frame {
                source: local,
                destination: remote,
                message: Message::Abort,
            });
        }
        let number = known.unwrap_or_else(|| {
            // The other of the two hosts.
            let peer = match self.address {
                IpAddr::V4(own) => own.to_bits() ^ 3,
                IpAddr::V6(_) => 0,
            };
            let remote = SocketAddr::new(IpAddr::V4(peer.into()), remote);
            let local_address = SocketAddr::new(self.address, local);
            let number = self.add(local_address, remote, peers.tag, None);
            let both = self.streams.min(peers.streams);
            let new = &mut self.associations[number];
            new.come_up(peers.indication, both);
            new.is_unheard = self.unheard > 0;
            self.unheard = self.unheard.saturating_sub(1);
            let mut all = self.listeners.values_mut();
            if let Some(listening) = all.find(|one| one.local.port() == local) {
                listening.queue.push_back(number);
                listening.is_ready = true;
            }
            number
        });
        let both = self.streams.min(peers.streams);
        let association = &mut self.associations[number];
        if std::mem::replace(&mut association.tag, peers.tag) != peers.tag {
            association.restart(both);
        }
        if !association.is_unheard {
            let answer = Message::InitAck(self.set_up(peers.tag));
            self.send(number, answer);
        }
    }

    /// Returns what there is to send.
    pub(in crate::testing) fn transmit(&mut self) -> Vec<Vec<u8>> {
        let (now, held) = (self.now, self.held_stream);
        let mut frames = std::mem::take(&mut self.outgoing);
        for (_, association) in &mut self.associations {
            association.transmit(now, held, &mut frames);
        }
        self.associations
            .retain(|_, one| one.has_owner || !one.is_over());
        frames.iter().map(Frame::octets).collect()
    }

    /// Returns when something is sent again.
    pub(in crate::testing) fn next_timeout(&self) -> Option<Instant> {
        let all = self.associations.iter();
        let sent = all.flat_map(|(_, one)| one.chunks.values().chain(&one.control));
        sent.filter_map(|one| Some(one.sent? + AGAIN)).min()
    }
}

impl VirtualState {
    fn transmit(&mut self, now: Instant, held: Option<u16>, frames: &mut Vec<Frame>) {
        let (source, destination) = (self.local.port(), self.remote.port());
        let mut put = |message| {
            frames.push(Frame {
                source,
                destination,
                message,
            });
        };
        if std::mem::take(&mut self.owes_sack) {
            put(Message::Sack(
                self.expected,
                self.ahead.iter().copied().collect(),
            ));
        }
        if self.standing == Standing::Closing && self.chunks.is_empty() && self.control.is_none() {
            self.control = Some(Outstanding {
                message: Message::Shutdown,
                sent: None,
                tries: 0,
            });
        }
        let mut gives_up = false;
        for one in self.chunks.values_mut().chain(&mut self.control) {
            if one.sent.is_some_and(|sent| now < sent + AGAIN) {
                continue;
            }
            one.sent = Some(now);
            one.tries += 1;
            gives_up |= one.tries > self.tries;
            let is_held =
                matches!(&one.message, Message::Data { stream, .. } if held == Some(*stream));
            if !is_held {
                put(one.message.clone());
            }
        }
        if gives_up || self.is_over() {
            self.fail(TcpFailure::TimedOut);
        }
    }
}
