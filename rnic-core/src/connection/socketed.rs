//! A connection over a TCP socket of the kernel: octets in order come from it and go to it, and MPA
//! and all above it are the same as over frames.

mod connection;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::counters::TcpCounters;
use crate::memory::frames::FrameId;
use crate::tcp::{Due, Keepalive, State, TcpFacts, TcpFailure};
use crate::time::Instant;

use super::Transport;
use super::socket::{Ready, Received, Socket, Sockets};

/// What the connections of an engine share: their sockets, and memory on the way to and from them.
pub struct Socketed<L> {
    pub(crate) sockets: L,
    /// Octets that were received last. They are used before more are received.
    pub(crate) received: Box<[u8]>,
    /// FPDUs on their way to a socket.
    pub(crate) staging: Box<[u8]>,
    /// What has become ready.
    pub(crate) ready: Vec<Ready>,
    /// Connections with more octets than one turn takes.
    pub(crate) readable: VecDeque<usize>,
    /// Connections whose peers have not acknowledged everything.
    pub(crate) unacknowledged: VecDeque<usize>,
    /// Of these, those that were asked many times in vain.
    pub(crate) stalled: VecDeque<usize>,
    /// Connections that have received octets, and perhaps sent nothing since.
    pub(crate) owed: VecDeque<usize>,
    /// The connection that has received octets last, unless it has received none for long. It is
    /// tried without asking what is ready.
    pub(crate) hot: Option<usize>,
    /// How often that was in vain since.
    pub(crate) misses: u16,
    /// A socket had no room for all that was to be sent.
    pub(crate) lacks_room: bool,
}

/// Octets that are received by one call.
const RECEIVED: usize = 256 * 1024;

/// Octets that are sent by one call.
const STAGING: usize = 128 * 1024;

impl<L: Sockets> Socketed<L> {
    /// Makes it for an engine.
    pub fn new(sockets: L) -> Self {
        Self {
            sockets,
            received: vec![0; RECEIVED].into(),
            staging: vec![0; STAGING].into(),
            ready: Vec::new(),
            readable: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            stalled: VecDeque::new(),
            owed: VecDeque::new(),
            hot: None,
            misses: 0,
            lacks_room: false,
        }
    }
}

/// The kernel's TCP of one connection, as far as it can be seen from outside.
pub struct KernelTcp<L: Sockets> {
    pub(super) socket: L::Socket,
    state: State,
    failure: Option<TcpFailure>,
    /// Offsets: of what was handed over to be sent, of what the kernel has taken of it, and of what
    /// the peer has acknowledged.
    queued: u64,
    taken: u64,
    acked: u64,
    /// Where the next octet of the peer stands.
    received: u64,
    /// What the kernel had no room for: the octets between `taken` and `queued`.
    pending: Vec<u8>,
    /// The most octets of a segment, as of the last time that octets were sent.
    max_payload: usize,
    /// The socket had room for octets when it was used last.
    is_writable: bool,
    /// Our stream is to be closed behind what is pending.
    close_asked: bool,
    /// There may be octets to receive.
    is_readable: bool,
    /// The end of the peer's stream is there, or is behind those octets.
    is_ending: bool,
    /// So many octets are kept above that no more are received.
    is_paused: bool,
    /// In the lists of [`Socketed`].
    pub(crate) is_listed: Listed,
    counters: TcpCounters,
}

/// In which lists of [`Socketed`] a connection stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) readable: bool,
    pub(crate) unacknowledged: bool,
    /// How often in a row it was asked in vain for acknowledgments.
    pub(crate) misses: u8,
    /// It stands among those that may owe an acknowledgment, which `owed` says.
    pub(crate) owing: bool,
    pub(crate) owed: Owed,
}

/// Whether octets were received behind which nothing was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owed {
    #[default]
    Nothing,
    /// Since the last look.
    Now,
    /// Before it.
    Before,
}

/// With so many octets kept above, no more are received. The peer's window closes.
const MOST_KEPT: u32 = 256 * 1024;

impl<L: Sockets> fmt::Debug for KernelTcp<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelTcp")
            .field("socket", &self.socket)
            .field("state", &self.state)
            .field("queued", &self.queued)
            .field("acked", &self.acked)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl<L: Sockets> KernelTcp<L> {
    fn new(socket: L::Socket, state: State) -> Self {
        Self {
            state,
            failure: None,
            queued: 0,
            taken: 0,
            acked: 0,
            received: 0,
            pending: Vec::new(),
            max_payload: socket.max_payload(),
            is_writable: state == State::Established,
            close_asked: false,
            is_readable: false,
            is_ending: false,
            is_paused: false,
            is_listed: Listed::default(),
            counters: TcpCounters::default(),
            socket,
        }
    }

    fn fail(&mut self, failure: TcpFailure) {
        if self.state != State::Closed {
            // What the peer has acknowledged is done.
            self.follow_acks();
            self.failure = Some(failure);
            self.state = State::Closed;
            self.pending = Vec::new();
            self.socket.reset();
        }
    }

    /// Returns whether FPDUs may be handed over to be sent.
    fn takes_octets(&self) -> bool {
        let is_open = matches!(self.state, State::Established | State::CloseWait);
        is_open && !self.close_asked && self.pending.is_empty()
    }

    /// Notes that the socket has become writable: it is connected, or has room again.
    fn handle_writable(&mut self) {
        self.is_writable = true;
        if self.state == State::SynSent {
            match self.socket.is_connected() {
                Ok(true) => self.state = State::Established,
                Ok(false) => {}
                Err(failure) => self.fail(failure),
            }
        }
    }

    /// Hands octets to the kernel. It takes what there is room for; the rest is kept.
    fn send(&mut self, octets: &[u8]) {
        self.queued += octets.len() as u64;
        let taken = self.offer(octets);
        if self.state != State::Closed {
            self.pending.extend_from_slice(&octets[taken..]);
        }
    }

    /// Offers octets to the kernel. Returns how many it took.
    fn offer(&mut self, octets: &[u8]) -> usize {
        match self.socket.send(octets) {
            Ok(taken) => {
                self.taken += taken as u64;
                self.is_writable = taken == octets.len();
                taken
            }
            // What came before the failure is received first, and then the failure.
            Err(_) if self.is_readable && !self.is_paused => {
                self.is_writable = false;
                0
            }
            Err(failure) => {
                self.fail(failure);
                0
            }
        }
    }

    /// Hands over what is pending, and closes the stream behind it if that was asked for. Returns
    /// whether nothing is pending any more.
    fn flush(&mut self) -> bool {
        if !matches!(self.state, State::Established | State::CloseWait) {
            return false;
        }
        if !self.pending.is_empty() && self.is_writable {
            let pending = std::mem::take(&mut self.pending);
            let taken = self.offer(&pending);
            self.pending = pending;
            match self.state {
                State::Closed => self.pending = Vec::new(),
                _ => drop(self.pending.drain(..taken)),
            }
        }
        if self.pending.is_empty() && self.close_asked {
            self.close_asked = false;
            self.socket.close();
            self.enter(self.state.after_close());
            self.follow_acks();
        }
        self.pending.is_empty()
    }

    /// Asks the kernel how much the peer has acknowledged. Our FIN counts as acknowledged with the
    /// last octet: the kernel does not tell of it.
    fn follow_acks(&mut self) {
        if self.acked < self.taken && self.state != State::Closed {
            let acked = self.taken.saturating_sub(self.socket.unacknowledged());
            self.acked = self.acked.max(acked);
        }
        if self.acked >= self.taken {
            self.enter(self.state.after_fin_acked());
        }
    }

    /// Enters a state. The kernel waits out the TIME-WAIT.
    fn enter(&mut self, state: State) {
        self.state = match state {
            State::TimeWait => State::Closed,
            other => other,
        };
    }

    /// Returns whether there may be anything to receive. Behind the end of the peer's stream, that
    /// is a failure.
    fn may_receive(&self) -> bool {
        !matches!(self.state, State::SynSent | State::Closed)
    }

    /// Receives octets, if no more are kept above than may be.
    fn receive(&mut self, into: &mut [u8]) -> Received {
        if !self.may_receive() || self.is_paused {
            return Received::Nothing;
        }
        match self.socket.receive(into) {
            Ok(Received::Octets(octets)) => {
                // Who gets fewer than there is room for has got all.
                self.is_readable = self.is_ending || octets == into.len();
                Received::Octets(octets)
            }
            Ok(Received::Nothing) => {
                self.is_readable = false;
                Received::Nothing
            }
            Ok(Received::Closed) => {
                self.is_readable = false;
                self.enter(self.state.after_peer_fin());
                self.follow_acks();
                Received::Closed
            }
            Err(failure) => {
                self.fail(failure);
                Received::Closed
            }
        }
    }
}

impl<L: Sockets> Transport for KernelTcp<L> {
    type Below = Socketed<L>;

    const ACKNOWLEDGES_EARLY: bool = true;

    fn state(&self) -> State {
        self.state
    }

    fn failure(&self) -> Option<TcpFailure> {
        self.failure
    }

    fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn is_finished(&self) -> bool {
        self.state == State::Closed
    }

    fn peer_closed(&self) -> bool {
        // The kernel tells it behind the last octet.
        let has_ended = matches!(
            self.state,
            State::CloseWait | State::Closing | State::LastAck | State::Closed
        );
        self.failure.is_none() && has_ended
    }

    fn queued_offset(&self) -> u64 {
        self.queued
    }

    fn acked_offset(&self) -> u64 {
        self.acked
    }

    fn receive_offset(&self) -> u64 {
        self.received
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn due(&self, _: Instant) -> Due {
        let waits_for_kernel = !self.pending.is_empty() && self.is_writable;
        match waits_for_kernel || self.close_asked {
            true => Due::Segment,
            false => Due::Nothing,
        }
    }

    fn set_buffered(&mut self, octets: u32, _: u32) {
        self.is_paused = octets >= MOST_KEPT;
    }

    /// The kernel's window is its own.
    fn take_as_full(&mut self, _: u16) {}

    fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.socket.set_keepalive(keepalive);
    }

    fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.socket.set_user_timeout(timeout);
    }

    fn set_traffic_class(&mut self, class: u8) {
        self.socket.set_traffic_class(class);
    }

    fn close(&mut self, _: Instant) {
        if matches!(self.state, State::Established | State::CloseWait) {
            self.close_asked = true;
            self.flush();
        } else if self.state == State::SynSent {
            self.state = State::Closed;
            self.socket.reset();
        }
    }

    fn abort(&mut self) {
        self.fail(TcpFailure::Aborted);
    }

    /// The kernel sends it at once.
    fn drop_reset(&mut self) {}

    fn timeout_but_next_turn(&self) -> Option<Instant> {
        None
    }

    fn times_out_after(&self, _: Option<Instant>) -> bool {
        true
    }

    fn acks_next_turn(&self) -> bool {
        false
    }

    fn give_back_frames(&mut self, _: &mut Vec<FrameId>) {}

    fn facts(&self, _: Instant) -> TcpFacts {
        TcpFacts {
            state: self.state,
            acked: self.acked,
            received: self.received,
            ..self.socket.facts()
        }
    }

    fn counters(&self) -> &TcpCounters {
        &self.counters
    }
}
