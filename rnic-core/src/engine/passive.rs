//! Passive opens: SYNs to listeners, and the ACKs of peers whose SYN was answered with a cookie.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use crate::connection::{Arrival, Connection, FlowKey, Path, Transport, is_within_device};
use crate::counters::DropReason;
use crate::ids::ListenerId;
use crate::memory::frames::TxFrames;
use crate::tcp::{Seq, Tcp, TcpConfig};
use crate::time::Instant;
use crate::wire::{packet::Packet, tcp::TcpHeader, template::NetHeader};

use super::Engine;
use super::listener::Listener;
use super::owners::Handler;

/// So many connections may be in MPA start-up for each that may be half-open. Their peers'
/// addresses are not forged, but nothing else is known of them.
const STARTING_PER_HALF_OPEN: usize = 8;

/// What happens to a segment that belongs to no connection.
pub(super) enum Stranger {
    /// It is answered with this SYN-ACK, for which no state is kept.
    Cookie(TcpHeader),
    /// It is dropped and answered with RST, unless it is one.
    Refused(DropReason),
    /// It is dropped and not answered: its sender tries again.
    Ignored(DropReason),
    /// Another engine of this device has its connection.
    Elsewhere(u16),
}

impl Handler {
    /// Returns what happens to a segment that another engine handles, or none.
    fn or_stranger(self) -> Result<(), Stranger> {
        match self {
            Self::This => Ok(()),
            Self::Other(owner) => Err(Stranger::Elsewhere(owner)),
            Self::Nobody => Err(Stranger::Ignored(DropReason::Moving)),
        }
    }
}

impl Engine {
    /// Returns the connection of a packet, an existing one or a new one.
    pub(super) fn find_or_open(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Result<usize, Stranger> {
        let key = FlowKey {
            local: packet.destination,
            remote: packet.source,
        };
        match self.find_prefetched(&key).or_else(|| self.find(&key)) {
            Some(index) => Ok(self.replace(now, index, &key, packet).unwrap_or(index)),
            None => self.open_passive(now, &key, packet),
        }
    }

    /// Replaces a connection in TIME-WAIT by a new one, if this is a SYN to a listener that may.
    fn replace(
        &mut self,
        now: Instant,
        index: usize,
        key: &FlowKey,
        packet: &Packet<'_>,
    ) -> Option<usize> {
        if !Connection::may_open(&packet.segment) || self.is_crowded() {
            return None;
        }
        let least = self.connections[index].yields_to(&packet.segment)?;
        let listener = self.find_listener(key).ok()?;
        if !self.has_backlog_for(listener.0) {
            return None;
        }
        let isn = self.initial_sequence_number(now, key);
        let isn = if isn.after(least) { isn } else { least };
        // The addresses stay this engine's, so that no other engine can take them meanwhile: the
        // same SYN may have come there too.
        self.forget_here(index);
        Some(self.open(now, key, packet, listener, Arrival::Syn(isn)))
    }

    /// Makes a connection for a segment that belongs to none.
    fn open_passive(
        &mut self,
        now: Instant,
        key: &FlowKey,
        packet: &Packet<'_>,
    ) -> Result<usize, Stranger> {
        if let Some(place) = &mut self.place {
            place.handler(key).or_stranger()?;
        }
        let segment = &packet.segment;
        let cookie = self.find_cookie(now, key, packet);
        if cookie.is_none() && !Connection::may_open(segment) {
            return Err(Stranger::Refused(DropReason::NoConnection));
        }
        let listener = self.admit(key)?;
        let crowded = cookie.is_none() && self.is_crowded();
        // The same SYN may have come to another engine at this very moment.
        if !crowded {
            self.claim(key).or_stranger()?;
        }
        if let Some((cookie, mss)) = cookie {
            self.counters.engine.syn_cookies_received += 1;
            return Ok(self.open(now, key, packet, listener, Arrival::Cookie(cookie, mss)));
        }
        if crowded {
            return Err(self.make_cookie(now, key, packet));
        }
        let isn = self.initial_sequence_number(now, key);
        Ok(self.open(now, key, packet, listener, Arrival::Syn(isn)))
    }

    /// Makes this engine the owner of a connection among those of its device, unless another is.
    /// Returns which engine handles the frame.
    pub(super) fn claim(&self, key: &FlowKey) -> Handler {
        let place = self.place.as_ref();
        place.map_or(Handler::This, |place| place.claim(key))
    }

    /// Returns whether there is no room for more half-open connections.
    fn is_crowded(&self) -> bool {
        self.embryonic.half_open >= self.config.max_half_open
    }

    fn open(
        &mut self,
        now: Instant,
        key: &FlowKey,
        packet: &Packet<'_>,
        (id, listener): (ListenerId, Listener),
        arrival: Arrival,
    ) -> usize {
        let path = Path::back(&self.way_back(packet));
        let config = self.tcp_config(key);
        let segment = &packet.segment;
        let mut connection = Connection::accept_syn(
            now,
            *key,
            listener.reservation,
            id,
            listener.refusals,
            path,
            &config,
            arrival,
            segment,
        );
        // Only looked up: forged addresses must not make us ask the kernel for each of them.
        if let Some(hop) = self.next_hops.peek(now, key.addresses()) {
            connection.set_next_hop(&hop);
        }
        self.insert(connection)
    }

    /// Returns the cookie that a segment acknowledges, and the segment size in it.
    fn find_cookie(&self, now: Instant, key: &FlowKey, packet: &Packet<'_>) -> Option<(Seq, u16)> {
        let header = &packet.segment.header;
        let flags = header.flags;
        let may_be = flags.ack() && !flags.syn() && !flags.rst();
        may_be
            .then(|| self.cookies.check(now, key, header))
            .flatten()
    }

    /// Makes the SYN-ACK with a cookie for a SYN for which there is no room. The connection is made
    /// when the peer's ACK proves its address.
    fn make_cookie(&mut self, now: Instant, key: &FlowKey, packet: &Packet<'_>) -> Stranger {
        let syn = &packet.segment;
        let mut config = self.tcp_config(key);
        if let Some(hop) = self.next_hops.peek(now, key.addresses()) {
            let asked = hop.advertised_mss.map_or(u16::MAX, NonZeroU16::get);
            config.mss = config.mss.min(key.mss(hop.mtu)).min(asked);
        }
        let cookie = self.cookies.make(now, key, &syn.header);
        self.counters.engine.syn_cookies_sent += 1;
        Stranger::Cookie(Tcp::cookie_syn_ack(now, &config, cookie, syn))
    }

    /// Answers a segment of no connection with RST, unless it is one (RFC 9293 section 3.5.2).
    pub(super) fn refuse<F: TxFrames>(&mut self, packet: &Packet<'_>, tx: &mut F) {
        if let Some(reset) = Tcp::reset_reply(&packet.segment) {
            self.counters.tcp.resets_sent += 1;
            self.reply(packet, &reset, tx);
        }
    }

    /// Sends a segment of no connection, back over the link that a packet came from.
    pub(super) fn reply<F: TxFrames>(
        &mut self,
        packet: &Packet<'_>,
        header: &TcpHeader,
        tx: &mut F,
    ) {
        if !tx.can_transmit() {
            return;
        }
        let Some(id) = tx.allocate() else { return };
        let net = self.way_back(packet);
        let len = net.write(tx.bytes_mut(id), header, 0, 0);
        if is_within_device(&net) {
            self.loop_reply(&tx.bytes(id)[..len]);
        } else {
            tx.transmit(id, len);
        }
        tx.release(id);
        self.counters.engine.frames_sent += 1;
    }

    /// Returns the headers of what goes back over the link that a packet came from: in the VLAN of
    /// the packet, also if the device has removed its tag.
    fn way_back(&self, packet: &Packet<'_>) -> NetHeader {
        let removed = || self.untagged.get(&packet.destination.ip()).copied();
        NetHeader {
            vlan: packet.vlan.or_else(removed),
            ..NetHeader::reply_to(packet)
        }
    }

    /// Returns an initial sequence number as RFC 6528 has it: a clock of 4 microseconds plus a
    /// keyed hash of the addresses.
    pub(super) fn initial_sequence_number(&self, now: Instant, key: &FlowKey) -> Seq {
        let clock = now.as_nanos() / 4_000;
        Seq(clock.wrapping_add(self.isn_secret.hash_one(key)) as u32)
    }

    /// Returns TCP's settings for a connection. The MSS is the device's; a narrower path is learnt
    /// with the next hop.
    pub(super) fn tcp_config(&self, key: &FlowKey) -> TcpConfig {
        // RFC 7323 section 5.4: the offset is the same for all connections between two hosts, and
        // hides our clock.
        let hosts = (key.local.ip(), key.remote.ip());
        TcpConfig {
            mss: key.mss(self.config.mtu),
            fast_paths: self.config.fast_paths,
            timestamp_offset: self.isn_secret.hash_one(hosts) as u32,
            ..self.config.tcp.clone()
        }
    }
}

impl<T: Transport> Engine<T> {
    /// Returns the listener for a connection that a peer opens, or why there is none.
    pub(super) fn admit(&self, key: &FlowKey) -> Result<(ListenerId, Listener), Stranger> {
        let listener = self.find_listener(key).map_err(Stranger::Refused)?;
        if self.connections.len() >= self.config.max_connections {
            return Err(Stranger::Refused(DropReason::TooManyConnections));
        }
        if !self.has_backlog_for(listener.0) {
            return Err(Stranger::Ignored(DropReason::ListenOverflow));
        }
        let places = STARTING_PER_HALF_OPEN * self.config.max_half_open;
        if !self.embryonic.has_place_for(key.remote.ip(), places) {
            return Err(Stranger::Ignored(DropReason::StartupOverflow));
        }
        Ok(listener)
    }

    /// Returns whether a listener may have one more request wait for a decision.
    // rfc: 5043-13 only so many requests wait for a decision
    pub(super) fn has_backlog_for(&self, listener: ListenerId) -> bool {
        let listener = self.listeners.get(&listener);
        listener.is_some_and(|listener| listener.waiting < self.config.backlog)
    }

    /// Returns the listener that a peer's SYN is for, or why there is none.
    fn find_listener(&self, key: &FlowKey) -> Result<(ListenerId, Listener), DropReason> {
        let local = key.local;
        let any: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (id, listener) = [local, SocketAddr::new(any, local.port())]
            .iter()
            .find_map(|address| self.listeners.iter().find(|(_, l)| l.local == *address))
            .ok_or(DropReason::NoConnection)?;
        if !listener.peers.contains(key.remote.ip()) {
            return Err(DropReason::PeerNotAllowed);
        }
        Ok((*id, listener.clone()))
    }
}
