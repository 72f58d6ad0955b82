//! A socket: its state, and what it is made of.
//!
//! | lock | what for | taken before |
//! |---|---|---|
//! | `send`, `receive` | one thread at a time sends, and one receives | all others |
//! | `mappings` | the buffers that the application has mapped | `flow` |
//! | `identifier` | calls of rdma_cm | `flow` |
//! | `flow` | what messages and completions change; held for short times | |

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::config::{Config, Sizes};
use super::endpoint::Endpoint;
use super::identifier::Identifier;
use super::incoming::Incoming;
use super::layout::{ConnectData, Iomap, Sge};
use super::mapping::Mappings;
use super::outgoing::Outgoing;
use super::waiter::Watchers;
use crate::errno::{Errno, lock};
use crate::process::Process;
use crate::system::duplicate;

/// The most connections that wait to be accepted, as the kernel has it by default.
const MAX_WAITING: usize = 1024;

/// The places of a listener for connections that are not accepted yet, whether they are established
/// or not: each costs descriptors and buffers.
#[derive(Debug, Default)]
pub(super) struct Backlog(Arc<Places>);

#[derive(Debug, Default)]
struct Places {
    taken: AtomicUsize,
    most: AtomicUsize,
}

/// A place that a connection has until this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

impl Backlog {
    /// Sets how many places there are. 0 and less stand for the most, as in rdma_cm.
    pub(super) fn set(&self, backlog: i32) {
        let most = match usize::try_from(backlog) {
            Ok(most @ 1..MAX_WAITING) => most,
            _ => MAX_WAITING,
        };
        self.0.most.store(most, Ordering::Relaxed);
    }

    /// Reserves a place, if there is one.
    pub(super) fn take(&self) -> Option<Place> {
        let most = self.0.most.load(Ordering::Relaxed);
        let one_more = |taken| (taken < most).then_some(taken + 1);
        let taken = &self.0.taken;
        let was = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        was.ok().map(|_| Place(self.0.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Neither connected nor listening. It may have an address.
    Opened,
    Listening,
    /// On the way to a connection, on either side.
    Connecting,
    Connected,
    /// No connection came about.
    Failed,
    /// The connection has ended.
    Disconnected,
}

/// What messages and completions change.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) phase: Phase,
    /// The peer has not said that it sends nothing more, nor has the application shut that
    /// direction down.
    pub(super) readable: bool,
    /// The application has not shut this direction down.
    pub(super) writable: bool,
    /// The peer has said that it sends nothing more.
    pub(super) peer_has_ended: bool,
    /// Last words of this side that are decided on, and not posted yet.
    pub(super) to_say: u16,
    /// The connection ended without a word of the peer.
    pub(super) lost: bool,
    /// The application has closed the socket.
    pub(super) closed: bool,
    /// The completion queue will report its next completion, or has and nobody has taken that.
    pub(super) armed: bool,
    /// What SO_ERROR says.
    pub(super) error: Option<Errno>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// The buffers that the peer has mapped.
    pub(super) iomaps: Vec<Iomap>,
    /// The peer's lists: of its targets, and of the buffers that we have mapped.
    pub(super) peer: PeerLists,
    /// Connections that wait to be accepted.
    pub(super) accepted: VecDeque<Arc<Socket>>,
}

/// Where the peer's lists are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerLists {
    targets: u64,
    iomaps: u64,
    key: u32,
    /// Entries of the second.
    pub(super) mappable: u16,
}

impl PeerLists {
    /// Returns where an entry of the peer's targets is.
    pub(super) fn target(&self, index: u32) -> Sge {
        self.entry(self.targets, index, Sge::OCTETS)
    }

    /// Returns where an entry of its mapped buffers is.
    pub(super) fn iomap(&self, index: u16) -> Sge {
        self.entry(self.iomaps, index.into(), Iomap::OCTETS)
    }

    fn entry(&self, list: u64, index: u32, octets: usize) -> Sge {
        let octets = octets as u32;
        let addr = list.wrapping_add(u64::from(index) * u64::from(octets));
        Sge {
            addr,
            key: self.key,
            length: octets,
        }
    }
}

/// The options that are not [`Sizes`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) reuse_address: bool,
    pub(super) keep_alive: bool,
    pub(super) oob_inline: bool,
    pub(super) no_delay: bool,
    pub(super) v6_only: bool,
    pub(super) type_of_service: i32,
    /// Seconds without traffic until the connection is probed; 0 for the system's default.
    pub(super) keep_idle: u32,
    /// Seconds that closing waits for what was sent, if the application has said.
    pub(super) linger: Option<u32>,
    /// FD_CLOEXEC.
    pub(super) descriptor_flags: i32,
}

/// The socket. Dropping it destroys its objects.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) process: Process,
    /// The descriptor of its event channel, and its number unless it was accepted.
    pub(super) fd: RawFd,
    /// The number of one that was accepted.
    accepted_as: OnceLock<OwnedFd>,
    /// AF_INET or AF_INET6.
    pub(super) domain: i32,
    pub(super) send: Mutex<SendSide>,
    pub(super) receive: Mutex<()>,
    pub(super) mappings: Mutex<Mappings>,
    pub(super) flow: Mutex<Flow>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) nonblocking: AtomicBool,
    pub(super) sizes: Mutex<Sizes>,
    pub(super) options: Mutex<Options>,
    /// How many connections that came in may wait to be accepted.
    pub(super) backlog: Backlog,
    /// Its own place among those, until it is accepted.
    pub(super) place: Mutex<Option<Place>>,
    /// Where the connection came in, if it did.
    pub(super) listener: Option<Weak<Socket>>,
    /// Made when connecting begins. Destroyed before the identifier.
    pub(super) endpoint: OnceLock<Endpoint>,
    pub(super) identifier: Mutex<Identifier>,
}

/// What the sender alone needs.
#[derive(Debug, Default)]
pub(super) struct SendSide {
    /// Where the next data go in the send buffer.
    pub(super) offset: u32,
}

impl Socket {
    /// Returns a new socket.
    pub(super) fn new(identifier: Identifier, domain: i32) -> Self {
        Self::with(
            identifier,
            domain,
            Config::get().sizes,
            Options::default(),
            None,
        )
    }

    /// Returns the socket of a connection that came in.
    pub(super) fn accepting(identifier: Identifier, listener: &Arc<Self>) -> Self {
        let options = Options {
            descriptor_flags: 0,
            ..*lock(&listener.options)
        };
        let socket = Self::with(
            identifier,
            listener.domain,
            *lock(&listener.sizes),
            options,
            Some(Arc::downgrade(listener)),
        );
        lock(&socket.flow).phase = Phase::Connecting;
        socket
    }

    fn with(
        identifier: Identifier,
        domain: i32,
        sizes: Sizes,
        options: Options,
        listener: Option<Weak<Self>>,
    ) -> Self {
        let flow = Flow {
            phase: Phase::Opened,
            readable: true,
            writable: true,
            peer_has_ended: false,
            to_say: 0,
            lost: false,
            closed: false,
            armed: false,
            error: None,
            incoming: Incoming::new(0, 0),
            outgoing: Outgoing::new(0, 0),
            iomaps: Vec::new(),
            peer: PeerLists::default(),
            accepted: VecDeque::new(),
        };
        Self {
            process: Process::this(),
            fd: identifier.as_fd().as_raw_fd(),
            accepted_as: OnceLock::new(),
            domain,
            send: Mutex::default(),
            receive: Mutex::default(),
            mappings: Mutex::default(),
            flow: Mutex::new(flow),
            watchers: Arc::default(),
            backlog: Backlog::default(),
            place: Mutex::default(),
            nonblocking: AtomicBool::new(false),
            sizes: Mutex::new(sizes),
            options: Mutex::new(options),
            listener,
            endpoint: OnceLock::new(),
            identifier: Mutex::new(identifier),
        }
    }

    /// Returns whether calls return at once.
    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Assigns a number to a connection that the application accepts: a duplicate of the
    /// descriptor, which the application's thread makes now. librspreload.so has opened a
    /// descriptor of its own before, and its `select` would treat a smaller number of ours as one
    /// of the kernel's.
    pub(super) fn number_accepted(&self) -> Result<RawFd, Errno> {
        let number = duplicate(lock(&self.identifier).as_fd())?;
        let number = self.accepted_as.get_or_init(|| number);
        Ok(number.as_raw_fd())
    }

    /// Returns all numbers by which it is found.
    pub(super) fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let accepted_as = self.accepted_as.get().map(AsRawFd::as_raw_fd);
        [self.fd].into_iter().chain(accepted_as)
    }

    /// Makes the endpoint, and returns what the peer must know of it.
    pub(super) fn make_endpoint(&self, identifier: &Identifier) -> Result<ConnectData, Errno> {
        let endpoint = Endpoint::new(identifier, *lock(&self.sizes), self.watchers.clone())?;
        *lock(&self.sizes) = endpoint.sizes;
        let endpoint = self.endpoint.get_or_init(|| endpoint);
        let sizes = &endpoint.sizes;
        let mut flow = lock(&self.flow);
        flow.incoming = Incoming::new(sizes.receive_buffer, sizes.receive_queue);
        flow.outgoing = Outgoing::new(sizes.send_queue, sizes.send_buffer);
        flow.iomaps = vec![Iomap::default(); sizes.iomaps.into()];
        Ok(endpoint.connect_data())
    }

    /// Records what the peer says of its endpoint.
    pub(super) fn learn(&self, peer: ConnectData) {
        let mut flow = lock(&self.flow);
        flow.outgoing
            .begin(peer.credits, peer.buffer, peer.targets.length);
        let targets = u64::from(peer.targets.length) * Sge::OCTETS as u64;
        flow.peer = PeerLists {
            targets: peer.targets.addr,
            iomaps: peer.targets.addr.wrapping_add(targets),
            key: peer.targets.key,
            mappable: peer.iomaps,
        };
    }

    /// Changes the phase, and wakes whoever waits for that.
    pub(super) fn enter(&self, phase: Phase) {
        lock(&self.flow).phase = phase;
        self.watchers.wake();
    }

    /// Notes that connecting has failed. The first reason counts.
    pub(super) fn fail(&self, why: Errno) {
        let mut flow = lock(&self.flow);
        if flow.phase == Phase::Failed {
            return;
        }
        flow.phase = Phase::Failed;
        flow.error = Some(why);
        drop(flow);
        self.watchers.wake();
    }
}

impl Flow {
    /// Notes that the connection has ended without a word of the peer. Where both directions were
    /// shut down before, none is missing: the peer may end the connection before the last word of
    /// this side completes.
    pub(super) fn lose(&mut self) {
        if self.phase != Phase::Connected {
            return;
        }
        self.phase = Phase::Disconnected;
        if self.readable || self.writable {
            self.lost = true;
            self.error = Some(Errno::ECONNRESET);
        }
    }
}
