//! The engine: flow table, timers and the order of work; listeners and SYN cookies, next hops, and
//! the hand-over of frames between workers. What a connection does with a segment is not its
//! business.

mod adoption;
mod arrival;
mod associated;
mod carrier;
mod command;
mod commands;
mod cookies;
mod driver;
mod drops;
mod due;
mod embryonic;
mod events;
mod facts;
mod flows;
mod framed;
mod handover;
mod listener;
mod look;
mod loopback;
mod looped;
mod mailbox;
mod moving;
mod net;
mod next_hops;
mod owners;
mod passive;
mod peers;
mod prefetch;
mod prefetched;
mod queue_pairs;
mod receiver_not_ready;
mod schedule;
mod snapshot;
mod socketed;
mod stopping;
mod timers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crossbeam_channel::Sender;

use crate::connection::{
    AddressPair, Connection, Context, EndReason, Event, FlowKey, LocalEnd, NextHop, Notice, Stage,
    Transport, Wants,
};
use crate::counters::Counters;
use crate::fast_paths::FastPaths;
use crate::ids::{ListenerId, RequestId};
use crate::memory::epoch::Guard;
use crate::memory::frames::FrameId;
use crate::tcp::{SpilledOctets, Tcp, TcpConfig};
use crate::time::Instant;
use crate::verbs::cq::CqTable;
use crate::verbs::srq::SrqTable;
use crate::wire::icmp::TooBig;
use crate::wire::prediction::Prediction;

pub use self::adoption::Adoption;
pub use self::carrier::{Carrier, KernelCarrier};
pub use self::command::Command;
pub use self::driver::{Batch, Driver};
pub use self::events::Events;
pub use self::flows::{Flows, Keyed};
pub use self::look::Look;
pub use self::mailbox::{
    EngineEnd, HostEnd, Sleeper, SplitTurn, Turn, WorkerGone, mailbox, mailboxes,
};
pub use self::net::{Found, InUse, Known, Net, NetError, ProtectedPort};
pub use self::next_hops::NextHopRequest;
pub use self::owners::EnginePlace;
pub use self::peers::{NoPrefix, Peers, Prefix};
pub use self::snapshot::Snapshot;

use self::cookies::Cookies;
use self::embryonic::Embryonic;
use self::listener::Listener;
use self::looped::Looped;
use self::next_hops::NextHops;
use self::prefetched::Prefetched;
use self::queue_pairs::QueuePairs;
use self::schedule::{Connections, Schedule};

/// What an engine needs to know of its device and how much it may hold.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Largest IP packet that the device sends and receives, in octets.
    pub mtu: u16,
    /// Whether the peers' kernels may run on this host, and hand packets over with TCP checksums
    /// that are only [partial](crate::wire::packet::parse_with_partial).
    pub partial_checksums: bool,
    /// Whether connections may have a [class](crate::connection::ConnectionOptions::traffic_class)
    /// of their own. If not, all that is sent is of class 0: who manages a shared device does not
    /// let others through.
    pub marks: bool,
    /// Whether every connection asks for CRCs, whatever the application says: the administrator has
    /// not said that it may do without (RFC 5044 section 4.4).
    pub needs_crcs: bool,
    /// The most connections at once. Further ones are refused.
    pub max_connections: usize,
    /// The most half-open connections (handshake not over) to listeners at once. Further SYNs are
    /// answered with a cookie and forgotten. Eight times as many may be in MPA start-up; beyond
    /// that, SYNs are dropped, and their peers try again. Once half of these places are taken, a
    /// source (an IPv4 address, an IPv6 /64) that has a 16th of them gets no more.
    pub max_half_open: usize,
    /// The most requests of one listener that may wait for the application's decision. SYNs of more
    /// peers are dropped; they try again.
    pub backlog: usize,
    /// TCP's settings; `mss` is derived from the MTU of each path, and `fast_paths` are those of
    /// the engine.
    pub tcp: TcpConfig,
    /// The fast paths to take: all of them, except in tests and measurements.
    pub fast_paths: FastPaths,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            partial_checksums: false,
            marks: true,
            needs_crcs: false,
            max_connections: 65_536,
            max_half_open: 1024,
            backlog: 1024,
            tcp: TcpConfig::default(),
            fast_paths: FastPaths::ALL,
        }
    }
}

/// The protocol engine of one worker.
///
/// It makes no system call, reads no clock and never waits: time, frames and the secret are
/// arguments. Its methods form four groups:
///
/// - Getters: [`counters`](Self::counters), [`snapshot`](Self::snapshot), [`is_due`](Self::is_due),
///   [`has_backlog`](Self::has_backlog), [`next_timeout`](Self::next_timeout),
///   [`is_settled`](Self::is_settled).
/// - Commands, what the host asks for: [`handle_command`](Self::handle_command),
///   [`handle_doorbell`](Self::handle_doorbell), [`set_next_hop`](Self::set_next_hop),
///   [`set_unreachable`](Self::set_unreachable), [`set_untagged`](Self::set_untagged),
///   [`set_port`](Self::set_port), [`lose_device`](Self::lose_device).
/// - `handle_*`, what comes from the network and with time: [`handle_frames`](Self::handle_frames),
///   [`handle_too_big`](Self::handle_too_big), [`handle_timeouts`](Self::handle_timeouts).
/// - `poll_*`, what the engine has for others: [`poll_transmit`](Self::poll_transmit),
///   [`poll_event`](Self::poll_event), [`poll_next_hop_request`](Self::poll_next_hop_request).
///
/// One turn calls them in this order, all with the same `now` and under one [`Guard`]; [`Driver`]
/// does so:
///
/// 1. `handle_command` for each command that waits;
/// 2. `handle_frames` for each batch of received frames;
/// 3. `handle_doorbell` for each queue pair with new requests;
/// 4. `handle_timeouts`, once;
/// 5. [`flush_completions`](Self::flush_completions), once: completion queues may have room again;
/// 6. `poll_transmit` until it returns 0, or enough was sent for a turn;
/// 7. `poll_event` until it returns `None`, then [`notify_completions`](Self::notify_completions),
///    once.
///
/// After that `poll_next_hop_request` is called, and `set_next_hop` whenever a next hop is known.
///
/// Either a worker thread takes turns one after the other, or the application takes one inline
/// whenever it polls a completion queue. The engine works the same way in both cases. Without turns
/// nothing happens: no frame is acknowledged, and no timer expires.
pub struct Engine<T: Transport = Tcp> {
    config: EngineConfig,
    /// What all connections share below them.
    below: T::Below,
    connections: Connections<T>,
    flows: Flows,
    /// The connection of the last frame that was not as predicted.
    latest: Option<usize>,
    /// What the next frame is expected to be like, and its connection.
    expected: Option<(Prediction, usize)>,
    schedule: Schedule,
    prefetched: Prefetched,
    embryonic: Embryonic,
    listeners: HashMap<ListenerId, Listener>,
    /// The connection and the listener of each request that waits for the application's decision.
    requests: HashMap<RequestId, (usize, ListenerId)>,
    next_request: u64,
    qps: QueuePairs,
    cqs: CqTable,
    srqs: SrqTable,
    next_hops: NextHops,
    /// The VLANs of local addresses whose frames arrive without their tag.
    untagged: BTreeMap<IpAddr, u16>,
    events: VecDeque<Event>,
    /// Who is to be answered at the end of the turn.
    answers: Vec<Sender<()>>,
    /// The device is gone for good.
    device_gone: bool,
    /// Frames of connections that are over, to be released.
    returned: Vec<FrameId>,
    /// Octets that connections have spilled because their peers are silent.
    spilled: SpilledOctets,
    counters: Counters,
    isn_secret: Keyed,
    cookies: Cookies,
    /// Frames of connections with this device itself.
    looped: Looped,
    /// Its place among the engines of its device, if there are several.
    place: Option<Box<EnginePlace>>,
}

impl Engine {
    /// Makes an engine without connections. `secret` must be unpredictable.
    pub fn new(config: EngineConfig, secret: [u8; 32]) -> Self {
        Self::over((), config, secret)
    }

    /// Handles an ICMP "packet too big" from a router about a packet of ours.
    pub fn handle_too_big(&mut self, now: Instant, guard: &Guard<'_>, too_big: &TooBig) {
        let key = FlowKey::new(too_big.local, too_big.remote);
        let Some(index) = self.find(&key) else {
            return;
        };
        let believed = self.with_connection(index, now, guard, |connection, _| {
            connection.handle_too_big(too_big)
        });
        if let Some(mtu) = believed {
            self.next_hops.narrow(now, key.addresses(), mtu);
        }
    }

    /// Handles that a path takes packets of at most `mtu` octets. The caller has made sure that this
    /// is true.
    pub fn narrow(&mut self, now: Instant, guard: &Guard<'_>, path: AddressPair, mtu: u16) {
        let concerned = self.next_hops.narrow(now, path, mtu).to_vec();
        for index in concerned {
            self.with_connection(index, now, guard, |connection, _| connection.narrow(mtu));
        }
    }

    /// Sets the next hop of a path, or changes it.
    pub fn set_next_hop(&mut self, path: AddressPair, hop: NextHop) {
        let Some((hop, concerned)) = self.next_hops.set(path, hop) else {
            return;
        };
        let concerned = concerned.to_vec();
        for index in concerned {
            self.connections[index].set_next_hop(&hop);
            self.schedule(index, Wants::SEND);
        }
    }

    /// Marks the peer as unreachable by a path.
    pub fn set_unreachable(&mut self, path: AddressPair) {
        let concerned = self.next_hops.set_unreachable(path).to_vec();
        for index in concerned {
            self.connections[index].set_unreachable();
            self.schedule(index, Wants::TIMER);
        }
    }
}

impl<T: Transport> Engine<T> {
    /// Makes an engine without connections, over what they share below them. `secret` must be unpredictable.
    pub fn over(below: T::Below, config: EngineConfig, secret: [u8; 32]) -> Self {
        let (mut flow_key, mut isn_key) = ([0; 16], [0; 16]);
        flow_key.copy_from_slice(&secret[..16]);
        isn_key.copy_from_slice(&secret[16..]);
        let isn_secret = Keyed::new(&isn_key);
        Self {
            config,
            below,
            connections: Connections::new(),
            flows: Flows::new(Keyed::new(&flow_key)),
            latest: None,
            expected: None,
            schedule: Schedule::default(),
            prefetched: Prefetched::default(),
            embryonic: Embryonic::default(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            next_request: 1,
            qps: QueuePairs::default(),
            cqs: CqTable::default(),
            srqs: SrqTable::default(),
            next_hops: NextHops::default(),
            untagged: BTreeMap::new(),
            events: VecDeque::new(),
            answers: Vec::new(),
            device_gone: false,
            returned: Vec::new(),
            spilled: SpilledOctets::default(),
            counters: Counters::default(),
            cookies: Cookies::new(isn_secret.derive("SYN cookies")),
            isn_secret,
            looped: Looped::default(),
            place: None,
        }
    }

    /// Returns all counters but those of the connections' own TCP, which
    /// [`snapshot`](Self::snapshot) adds.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of the connection with these addresses.
    fn find(&self, key: &FlowKey) -> Option<usize> {
        self.flows
            .find(key, |index| self.connections[index].key() == key)
    }

    fn insert(&mut self, connection: Connection<T>) -> usize {
        let key = *connection.key();
        self.embryonic.add(connection.stage(), key.remote.ip());
        let index = self.connections.insert(Box::new(connection));
        self.flows.insert(&key, index);
        self.next_hops.join(index, key.addresses());
        index
    }

    /// Returns a connection, and what it needs for one call.
    fn lend<'a, 'g>(
        &'a mut self,
        index: usize,
        now: Instant,
        guard: &'a Guard<'g>,
    ) -> (&'a mut Connection<T>, Context<'a, 'g>) {
        let context = Context {
            now,
            fast_paths: self.config.fast_paths,
            guard,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            events: &mut self.events,
            counters: &mut self.counters,
            next_request: &mut self.next_request,
        };
        (&mut self.connections[index], context)
    }

    /// Runs a step of a connection, and acts on what it wants.
    fn with_connection<R>(
        &mut self,
        index: usize,
        now: Instant,
        guard: &Guard<'_>,
        step: impl FnOnce(&mut Connection<T>, &mut Context<'_, '_>) -> R,
    ) -> R {
        let (connection, mut context) = self.lend(index, now, guard);
        let before = connection.stage();
        let result = step(connection, &mut context);
        self.connections[index].give_back_useless_frames(&mut self.returned);
        self.follow(index, before, now, guard);
        let wants = self.connections[index].wants(now, self.has_many());
        self.schedule(index, wants);
        result
    }

    /// Acts on what a connection wants.
    #[inline(always)]
    fn schedule(&mut self, index: usize, wants: Wants) {
        self.schedule.update(index, &mut self.connections, wants);
        if wants.ended {
            self.forget(index);
        }
    }

    /// Updates the engine after a change of a connection: for a new stage, a request, its queue
    /// pair. `before` is the stage that the connection had.
    #[inline]
    fn follow(&mut self, index: usize, before: Stage, now: Instant, guard: &Guard<'_>) {
        if before != Stage::Established || !self.connections[index].is_streaming() {
            self.follow_change(index, before, now, guard);
        }
    }

    fn follow_change(&mut self, index: usize, before: Stage, now: Instant, guard: &Guard<'_>) {
        let connection = &mut self.connections[index];
        let (new, gone) = (
            connection.take_new_request(),
            connection.take_gone_request(),
        );
        if let Some(end) = connection.take_returned_end() {
            self.put_back(index, end);
        }
        match (new, gone) {
            // It was made and withdrawn in one step.
            (Some(_), Some(_)) | (None, None) => {}
            (Some(request), None) => self.add_request_or_refuse(now, guard, request, index),
            (None, Some(request)) => {
                self.take_request(request);
            }
        }
        // Last: a request for which there is no room has ended the start-up.
        let connection = &self.connections[index];
        let after = connection.stage();
        if before != after {
            let peer = connection.key().remote.ip();
            self.embryonic.remove(before, peer);
            self.embryonic.add(after, peer);
        }
    }

    /// Removes a connection from every table and queue of the engine.
    fn detach(&mut self, index: usize) -> Connection<T> {
        let mut connection = *self.connections.remove(index);
        connection.leave(&mut self.below);
        self.flows.remove(connection.key(), index);
        self.next_hops.leave(index, connection.key().addresses());
        self.latest = None;
        self.expected = None;
        self.embryonic
            .remove(connection.stage(), connection.key().remote.ip());
        self.schedule.remove(index, &mut connection);
        connection
    }

    /// Removes a connection that is over; its queue pair, if it still has one, goes back to the
    /// table.
    #[cold]
    fn forget(&mut self, index: usize) {
        let key = *self.connections[index].key();
        self.forget_here(index);
        if let Some(place) = &self.place {
            place.release(&key);
        }
    }

    /// Removes a connection whose addresses stay this engine's among those of its device.
    fn forget_here(&mut self, index: usize) {
        let mut connection = self.detach(index);
        if let Some(request) = connection.request() {
            self.take_request(request);
            self.events.push_back(Event::RequestGone { request });
        }
        connection.give_back_frames(&mut self.returned);
        self.counters.tcp.add(connection.tcp_counters());
        if let Some(end) = connection.into_end() {
            self.put_back(index, end);
        }
    }

    /// Takes back the queue pair of a connection that is over. What was posted to it since it failed
    /// has rung for the connection.
    fn put_back(&mut self, connection: usize, end: LocalEnd) {
        let number = end.number();
        self.qps.put_back(connection, end);
        self.flush_unconnected(number);
    }

    /// Returns whether there are events for the host.
    #[inline]
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event for the host.
    pub fn poll_event(&mut self) -> Option<Notice> {
        let event = self.events.pop_front()?;
        // Events of an earlier queue pair with this number were removed with it.
        let stream = event.qp().and_then(|qp| self.qps.stream(qp));
        Some(Notice { stream, event })
    }

    /// Moves completions into rings in which the application has made room. Returns whether there
    /// were any: then queue pairs that waited for room may go on.
    #[inline]
    pub fn flush_completions(&mut self) -> bool {
        self.cqs.has_backlogs() && self.flush_backlogs()
    }

    fn flush_backlogs(&mut self) -> bool {
        let moved = self.cqs.flush();
        if moved {
            self.flush_queue_pairs();
            let all: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
            for index in all {
                self.schedule(index, Wants::SEND);
            }
        }
        moved
    }

    /// Notifies applications of the completions that they armed for. Called once a batch.
    #[inline]
    pub fn notify_completions(&mut self) {
        self.cqs.notify_all();
    }

    /// Returns whether the engine has requests about next hops.
    #[inline]
    pub(super) fn asks_for_next_hop(&self) -> bool {
        self.next_hops.has_request()
    }

    /// Returns the next request about next hops.
    pub fn poll_next_hop_request(&mut self) -> Option<NextHopRequest> {
        self.next_hops.poll_request()
    }

    /// Sets the VLANs of local addresses whose frames arrive without their tag, because the device
    /// removes it. Who sends a frame for such an address is answered in its VLAN.
    pub fn set_untagged(&mut self, vlans: BTreeMap<IpAddr, u16>) {
        self.untagged = vlans;
    }

    /// Records that the device has lost its link, or has it again.
    pub fn set_port(&mut self, active: bool) {
        self.events.push_back(Event::Port { active });
    }

    /// Ends all connections at once, because the device is gone for good. No other can begin.
    pub fn lose_device(&mut self, now: Instant, guard: &Guard<'_>) {
        self.device_gone = true;
        self.cut_off(now, guard, &EndReason::DeviceGone, |_| true);
        self.events.push_back(Event::DeviceGone);
    }

    /// Ends the connections from some local addresses. What they would still send cannot leave.
    pub(super) fn cut_off(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        reason: &EndReason,
        which: impl Fn(SocketAddr) -> bool,
    ) {
        let connections = self.connections.iter();
        let ending = connections.filter(|(_, connection)| which(connection.key().local));
        let ending: Vec<usize> = ending.map(|(index, _)| index).collect();
        for index in ending {
            self.with_connection(index, now, guard, |connection, context| {
                connection.fail(reason.clone(), context);
            });
            if self.connections.contains(index) {
                self.forget(index);
            }
        }
    }

    /// Returns whether no connection owes its peer anything: each is over, or only waits out its
    /// TIME-WAIT.
    pub fn is_settled(&self) -> bool {
        self.connections
            .iter()
            .all(|(_, connection)| connection.is_settled())
    }

    /// Writes the state of each layer of each connection, for tests that compare engines.
    pub fn write_state(&self, to: &mut impl fmt::Write) -> fmt::Result {
        for (_, connection) in &self.connections {
            connection.write_state(to)?;
        }
        Ok(())
    }
}
