//! The connections and listeners of the kernel, their frames and their timers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use slab::Slab;

use crate::connection::{EndReason, FlowKey, PortReservation};
use crate::ids::ListenerId;
use crate::memory::frames::TxFrames;
use crate::tcp::{Outgoing, Payload, Seq, Tcp, TcpConfig};
use crate::time::Instant;
use crate::wire::checksum::sum;
use crate::wire::ethernet::MacAddr;
use crate::wire::icmp::TooBig;
use crate::wire::packet::{self, Checksums, Packet, ecn_field, parse};
use crate::wire::tcp::TcpHeader;
use crate::wire::template::NetHeader;

use super::connection::{KernelConnection, Owner};

/// Octets of a peer's stream that wait for the application at most.
const RECEIVE_BUFFER: u32 = 256 * 1024;

/// A local port, as the sockets know it.
pub(super) struct Reserved {
    pub(super) local: SocketAddr,
    _counted: PortReservation,
}

/// Returns a reservation that says which port it is.
pub(in crate::testing) fn reserve(local: SocketAddr, counted: PortReservation) -> PortReservation {
    let _counted = counted;
    Arc::new(Reserved { local, _counted })
}

/// A port on which peers may connect.
pub(super) struct Listening {
    pub(super) local: SocketAddr,
    /// Connections that wait to be accepted.
    pub(super) queue: VecDeque<usize>,
    /// One has come since it was told last.
    pub(super) is_ready: bool,
}

/// The kernel of one host.
pub(in crate::testing) struct Kernel {
    pub(super) now: Instant,
    mtu: u16,
    tcp: TcpConfig,
    /// Its own addresses: what is sent there comes back.
    own: Vec<IpAddr>,
    pub(super) connections: Slab<KernelConnection>,
    flows: HashMap<FlowKey, usize>,
    pub(super) listeners: BTreeMap<ListenerId, Listening>,
    /// MTUs of routes, and of all others.
    routes: HashMap<IpAddr, u16>,
    default_route: u16,
    /// Frames to itself.
    looped: Vec<Vec<u8>>,
    pub(super) rng: Rng,
}

/// A kernel with its sockets.
pub(in crate::testing) type SharedKernel = Arc<Mutex<Kernel>>;

/// Locks a kernel.
pub(in crate::testing) fn lock(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel {
    /// Makes the kernel of a host with an address, and settings of TCP.
    pub(in crate::testing) fn new(
        address: IpAddr,
        mtu: u16,
        tcp: TcpConfig,
        seed: u64,
    ) -> SharedKernel {
        let window = tcp.receive_window.min(RECEIVE_BUFFER);
        Arc::new(Mutex::new(Self {
            now: Instant::ZERO,
            mtu,
            tcp: TcpConfig {
                receive_window: window,
                receive_window_limit: window,
                ..tcp
            },
            own: vec![address],
            connections: Slab::new(),
            flows: HashMap::new(),
            listeners: BTreeMap::new(),
            routes: HashMap::new(),
            default_route: mtu,
            looped: Vec::new(),
            rng: Rng::with_seed(seed),
        }))
    }

    /// Begins a turn at this time.
    pub(in crate::testing) fn begin(&mut self, now: Instant) {
        self.now = now;
    }

    /// Sets the MTU of the route to a destination.
    pub(in crate::testing) fn set_route(&mut self, destination: IpAddr, mtu: u16) {
        self.routes.insert(destination, mtu);
        for (_, connection) in &mut self.connections {
            if connection.key.remote.ip() == destination {
                connection.tcp.limit_mss(connection.key.mss(mtu));
            }
        }
    }

    /// Sets the MTU of all routes that have no other.
    pub(in crate::testing) fn set_default_route(&mut self, mtu: u16) {
        if std::mem::replace(&mut self.default_route, mtu) == mtu {
            return;
        }
        for (_, connection) in &mut self.connections {
            if !self.routes.contains_key(&connection.key.remote.ip()) {
                connection.tcp.limit_mss(connection.key.mss(mtu));
            }
        }
    }

    /// Handles frames and timers, and notes what is new to the application. Returns whether there
    /// was anything.
    pub(in crate::testing) fn handle<'a, F: TxFrames>(
        &mut self,
        frames: impl Iterator<Item = (&'a [u8], Checksums)>,
        tx: &mut F,
    ) -> bool {
        let mut any = false;
        for frame in std::mem::take(&mut self.looped) {
            any = true;
            self.handle_frame(&frame, Checksums::None, tx);
        }
        for (frame, checksums) in frames {
            any = true;
            self.handle_frame(frame, checksums, tx);
        }
        any |= self.handle_timers();
        for (_, connection) in &mut self.connections {
            connection.reveal(&mut self.rng);
        }
        any
    }

    /// Handles an ICMP message that a packet was too big.
    pub(in crate::testing) fn handle_too_big(&mut self, too_big: &TooBig) {
        let key = FlowKey::new(too_big.local, too_big.remote);
        if let Some(index) = self.flows.get(&key) {
            let tcp = &mut self.connections[*index].tcp;
            tcp.handle_too_big(too_big.seq, key.mss(too_big.mtu));
        }
    }

    fn handle_timers(&mut self) -> bool {
        let mut any = false;
        for (_, connection) in &mut self.connections {
            let tcp = &mut connection.tcp;
            if tcp.next_timeout().is_some_and(|at| at <= self.now) {
                any = true;
                tcp.handle_timeout(self.now);
            }
        }
        any
    }

    /// Returns when its next timer expires.
    pub(in crate::testing) fn next_timeout(&self) -> Option<Instant> {
        let all = self.connections.iter();
        all.filter_map(|(_, connection)| connection.tcp.next_timeout())
            .min()
    }

    fn handle_frame<F: TxFrames>(&mut self, frame: &[u8], checksums: Checksums, tx: &mut F) {
        let Ok(packet) = parse(frame, checksums) else {
            return;
        };
        let key = FlowKey::new(packet.destination, packet.source);
        let Some(index) = self.find_or_open(&key, &packet) else {
            if let Some(reset) = Tcp::reset_reply(&packet.segment) {
                let outgoing = Outgoing {
                    header: reset,
                    payload: Payload::None,
                    ecn_capable: false,
                };
                self.emit(&key, &outgoing.header, 0, &[], tx);
            }
            return;
        };
        let congested = packet.ecn == packet::CONGESTION_EXPERIENCED;
        let connection = &mut self.connections[index];
        connection.handle_segment(self.now, &packet.segment, congested, tx);
        self.follow_handshake(index);
    }

    /// Returns the connection of a packet, an existing one or a new one.
    fn find_or_open(&mut self, key: &FlowKey, packet: &Packet<'_>) -> Option<usize> {
        let flags = packet.segment.header.flags;
        let may_open = flags.syn() && !flags.ack() && !flags.rst() && !flags.fin();
        let known = self.flows.get(key).copied();
        let least = match known {
            None => None,
            Some(index) => match self.connections[index].tcp.yields_to(&packet.segment) {
                Some(least) if may_open => Some(least),
                _ => return known,
            },
        };
        let listener = self.find_listener(key.local);
        let Some(listener) = listener.filter(|_| may_open) else {
            return known;
        };
        if let Some(index) = known {
            self.forget(index);
        }
        let isn = self.sequence_number(least);
        let mut tcp = Tcp::accept(self.now, &self.config_for(key), isn, &packet.segment);
        self.limit(key, &mut tcp);
        Some(self.insert(KernelConnection::new(*key, tcp, Owner::Handshake(listener))))
    }

    /// Puts a connection into its listener's queue once the handshake is over.
    fn follow_handshake(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let Owner::Handshake(listener) = connection.owner else {
            return;
        };
        if connection.is_connected() {
            let listening = self.listeners.get_mut(&listener);
            match listening {
                Some(listening) => {
                    connection.owner = Owner::Queue;
                    listening.queue.push_back(index);
                    listening.is_ready = true;
                }
                None => connection.leave(),
            }
        } else if connection.tcp.is_closed() {
            connection.owner = Owner::Nobody;
        }
    }

    fn find_listener(&self, local: SocketAddr) -> Option<ListenerId> {
        let find = |exact: bool| {
            let is_it = move |at: SocketAddr| {
                let any = at.ip().is_unspecified() && at.is_ipv4() == local.is_ipv4();
                at.port() == local.port() && if exact { at.ip() == local.ip() } else { any }
            };
            let mut all = self.listeners.iter();
            all.find_map(|(id, listening)| is_it(listening.local).then_some(*id))
        };
        find(true).or_else(|| find(false))
    }

    fn sequence_number(&mut self, least: Option<Seq>) -> Seq {
        let isn = Seq(self.rng.u32(..));
        match least {
            Some(least) if !isn.after(least) => least,
            _ => isn,
        }
    }

    fn config_for(&self, key: &FlowKey) -> TcpConfig {
        TcpConfig {
            mss: key.mss(self.mtu),
            ..self.tcp.clone()
        }
    }

    /// Limits the segments of a connection to what its route takes.
    fn limit(&self, key: &FlowKey, tcp: &mut Tcp) {
        let mtu = self.routes.get(&key.remote.ip());
        tcp.limit_mss(key.mss(*mtu.unwrap_or(&self.default_route)));
    }

    fn insert(&mut self, connection: KernelConnection) -> usize {
        let key = connection.key;
        let index = self.connections.insert(connection);
        self.flows.insert(key, index);
        index
    }

    fn forget(&mut self, index: usize) {
        let connection = self.connections.remove(index);
        self.flows.remove(&connection.key);
    }

    /// Begins to connect.
    pub(super) fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<usize, EndReason> {
        let key = FlowKey::new(local, remote);
        let config = self.config_for(&key);
        let former = self.flows.get(&key).copied();
        let succession = former.map(|index| self.connections[index].tcp.succession(&config));
        if key.local == key.remote || succession == Some(None) {
            return Err(EndReason::InUse);
        }
        let succession = succession.flatten();
        if let Some(index) = former {
            self.forget(index);
        }
        let isn = self.sequence_number(succession.map(|after| after.least));
        let mut tcp = Tcp::connect(self.now, &config, local.port(), remote.port(), isn);
        if let Some(succession) = succession {
            tcp.hold_syn(succession.from);
        }
        self.limit(&key, &mut tcp);
        Ok(self.insert(KernelConnection::new(key, tcp, Owner::Socket)))
    }

    /// Lets no more peers connect to a listener, and resets those that wait.
    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        let listening = self.listeners.remove(&listener);
        for index in listening.into_iter().flat_map(|ended| ended.queue) {
            self.connections[index].reset();
            self.connections[index].leave();
        }
        for (_, connection) in &mut self.connections {
            if connection.owner == Owner::Handshake(listener) {
                connection.reset();
                connection.leave();
            }
        }
    }

    /// Sends what there is to send. Returns whether anything was sent, or is to be done in another
    /// turn at this time.
    pub(in crate::testing) fn transmit<F: TxFrames>(&mut self, tx: &mut F) -> bool {
        let mut any = false;
        let all: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in all {
            self.connections[index].fill(self.now, tx);
            while tx.can_transmit() && tx.available() > 0 {
                let connection = &mut self.connections[index];
                let Some(outgoing) = connection.tcp.poll_transmit(self.now, tx) else {
                    break;
                };
                any = true;
                self.emit_segment(index, &outgoing, tx);
                self.connections[index].fill(self.now, tx);
            }
            if self.connections[index].is_over() {
                self.connections[index].tcp.release_frames(tx);
                self.forget(index);
            }
        }
        let hides = |(_, connection): (usize, &KernelConnection)| connection.hides_something();
        any | !self.looped.is_empty() | self.connections.iter().any(hides)
    }

    fn emit_segment<F: TxFrames>(&mut self, index: usize, outgoing: &Outgoing, tx: &mut F) {
        let connection = &self.connections[index];
        let octets = match &outgoing.payload {
            Payload::None => Vec::new(),
            Payload::Whole { frame, len, .. } => tx.bytes(*frame)[..usize::from(*len)].to_vec(),
            Payload::Part { frame, range } => tx.bytes(*frame)[range.clone()].to_vec(),
            Payload::Spilled(range) => connection.tcp.spilled(range.clone()).to_vec(),
        };
        let (key, class) = (connection.key, connection.traffic_class);
        let class = class | ecn_field(outgoing.ecn_capable);
        self.emit(&key, &outgoing.header, class, &octets, tx);
    }

    /// Sends a segment in a frame of its own, or back to this host.
    fn emit<F: TxFrames>(
        &mut self,
        key: &FlowKey,
        header: &TcpHeader,
        traffic_class: u8,
        payload: &[u8],
        tx: &mut F,
    ) {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let net = NetHeader {
            source_mac: mac,
            destination_mac: mac,
            vlan: None,
            source: key.local.ip(),
            destination: key.remote.ip(),
            hop_limit: 64,
            traffic_class,
        };
        let Some(frame) = tx.can_transmit().then(|| tx.allocate()).flatten() else {
            return;
        };
        let at = net.len() + header.len();
        let octets = tx.bytes_mut(frame);
        octets[at..at + payload.len()].copy_from_slice(payload);
        let len = net.write(octets, header, payload.len(), sum(payload));
        if self.own.contains(&key.remote.ip()) {
            self.looped.push(tx.bytes(frame)[..len].to_vec());
        } else {
            tx.transmit(frame, len);
        }
        tx.release(frame);
    }
}
