//! One connection of the kernel: its TCP, and the octets on their way from and to a socket.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;

use crate::connection::{FlowKey, Ready, Received};
use crate::ids::ListenerId;
use crate::memory::frames::{TxFrames, frames_for_others};
use crate::tcp::{State, StreamData, Tcp, TcpFailure};
use crate::time::Instant;
use crate::wire::tcp::TcpSegment;

/// Octets of our stream that a socket takes until some of them are acknowledged.
const SEND_BUFFER: u64 = 96 * 1024;

/// What a socket with no room for octets must have room for until it is told.
const ROOM_TO_TELL: u64 = SEND_BUFFER / 3;

/// Who has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener: its handshake is not over.
    Handshake(ListenerId),
    /// A listener: it waits to be accepted.
    Queue,
    /// A socket of the application.
    Socket,
    /// Nobody any more: the kernel sends what is left.
    Nobody,
}

/// What a socket can do since it was asked last.
#[derive(Clone, Copy, Debug, Default)]
struct Edges {
    readable: bool,
    ended: bool,
    writable: bool,
}

#[derive(Debug)]
pub(super) struct KernelConnection {
    pub(super) key: FlowKey,
    pub(super) tcp: Tcp,
    pub(super) traffic_class: u8,
    pub(super) owner: Owner,
    /// The number by which its socket is watched.
    watched: Option<usize>,
    edges: Edges,
    /// It was connected when it was looked at last, and it had failed.
    was_connected: bool,
    was_failed: bool,
    /// Octets in order that were not received from the socket. So many are there already; the
    /// others come in a later turn.
    received: VecDeque<u8>,
    visible: usize,
    /// The end of the peer's stream is there.
    end_visible: bool,
    /// Octets with a hole in front of them, by their offsets.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// Octets that TCP does not have yet.
    to_send: VecDeque<u8>,
    /// The socket did not take everything when it was used last. Perhaps that was not for want of
    /// room.
    is_full: bool,
    was_unwilling: bool,
    close_asked: bool,
}

impl KernelConnection {
    pub(super) fn new(key: FlowKey, tcp: Tcp, owner: Owner) -> Self {
        Self {
            key,
            tcp,
            traffic_class: 0,
            owner,
            watched: None,
            edges: Edges::default(),
            was_connected: false,
            was_failed: false,
            received: VecDeque::new(),
            visible: 0,
            end_visible: false,
            ahead: BTreeMap::new(),
            to_send: VecDeque::new(),
            is_full: false,
            was_unwilling: false,
            close_asked: false,
        }
    }

    /// Returns whether the handshake is over.
    pub(super) fn is_connected(&self) -> bool {
        !matches!(
            self.tcp.state(),
            State::SynSent | State::SynReceived | State::Closed
        )
    }

    /// Returns how the connection has failed.
    pub(super) fn failure(&self) -> Option<TcpFailure> {
        self.tcp.failure()
    }

    /// Returns whether nothing is left of it.
    pub(super) fn is_over(&self) -> bool {
        self.owner == Owner::Nobody && self.tcp.is_finished()
    }

    /// Handles a segment.
    pub(super) fn handle_segment<F: TxFrames>(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        congested: bool,
        tx: &mut F,
    ) {
        if let Ok(Some(data)) = self.tcp.receive(now, segment, congested, tx) {
            if self.owner == Owner::Nobody {
                // Nobody will ever receive them.
                return self.reset();
            }
            self.keep(now, data);
        }
    }

    /// Keeps octets that have come.
    fn keep(&mut self, now: Instant, data: StreamData<'_>) {
        let end = data.offset + data.bytes.len() as u64;
        if data.offset > self.tcp.receive_offset() {
            self.ahead.insert(data.offset, data.bytes.to_vec());
            return self.tcp.mark_received(now, data.offset..end);
        }
        self.received.extend(data.bytes);
        let mut at = end;
        while let Some(octets) = self.ahead.remove(&at) {
            at += octets.len() as u64;
            self.received.extend(octets);
        }
        self.tcp.mark_received(now, data.offset..at);
        self.follow_received();
    }

    /// Tells TCP how many octets wait to be received.
    fn follow_received(&mut self) {
        self.tcp.set_buffered(self.received.len() as u32, 0);
    }

    /// Lets the application see more of what has come, and notes what is new to it. At times it is
    /// not all: then the rest comes with the next turn, as from a kernel that works meanwhile.
    pub(super) fn reveal(&mut self, rng: &mut Rng) {
        let hidden = self.received.len() - self.visible;
        if hidden > 0 {
            let all = self.failure().is_some() || rng.u8(0..4) > 0;
            self.visible += if all { hidden } else { rng.usize(1..=hidden) };
            self.edges.readable = true;
        }
        let is_all = self.visible == self.received.len();
        if self.tcp.peer_closed() && !self.end_visible && is_all {
            self.end_visible = hidden == 0 || rng.bool();
            self.edges.ended |= self.end_visible;
        }
        if self.is_connected() && !self.was_connected {
            self.was_connected = true;
            self.edges.writable = true;
        }
        if self.failure().is_some() && !self.was_failed {
            self.was_failed = true;
            self.edges = Edges {
                readable: true,
                ended: true,
                writable: true,
            };
        }
        let has_room = self.room() >= ROOM_TO_TELL || self.was_unwilling;
        if self.is_full && has_room {
            (self.is_full, self.was_unwilling) = (false, false);
            self.edges.writable = true;
        }
    }

    /// Returns whether there will be more to [see](Self::reveal) in the next turn.
    pub(super) fn hides_something(&self) -> bool {
        let hides_end = self.tcp.peer_closed() && !self.end_visible;
        let hides = self.visible < self.received.len() || hides_end || self.was_unwilling;
        hides && self.owner == Owner::Socket && self.failure().is_none()
    }

    /// Has its socket be watched by this number. What is ready already is new.
    pub(super) fn watch(&mut self, index: usize) {
        self.watched = Some(index);
        self.edges = Edges {
            readable: self.visible > 0,
            ended: self.end_visible,
            writable: self.is_connected(),
        };
    }

    /// Has it be watched no more.
    pub(super) fn unwatch(&mut self) {
        self.watched = None;
    }

    /// Returns what the socket can do that it could not do before. As Linux does, it may tell of
    /// more that it can do.
    pub(super) fn take_ready(&mut self, rng: &mut Rng) -> Option<Ready> {
        let index = self.watched?;
        let edges = std::mem::take(&mut self.edges);
        if !(edges.readable || edges.ended || edges.writable) {
            return None;
        }
        let all = rng.bool();
        Some(Ready::Connection {
            index,
            readable: edges.readable || all && self.visible > 0,
            ended: edges.ended || all && self.end_visible,
            writable: edges.writable || all && self.is_connected() && !self.is_full,
        })
    }

    pub(super) fn receive(
        &mut self,
        into: &mut [u8],
        rng: &mut Rng,
    ) -> Result<Received, TcpFailure> {
        if rng.u8(0..8) == 0 {
            // More has come since.
            self.reveal(rng);
        }
        let octets = self.visible.min(into.len());
        if octets > 0 {
            let taken = self.received.drain(..octets);
            into.iter_mut().zip(taken).for_each(|(to, from)| *to = from);
            self.visible -= octets;
            self.follow_received();
            return Ok(Received::Octets(octets));
        }
        match self.failure() {
            Some(failure) if self.received.is_empty() => Err(failure),
            None if self.end_visible => Ok(Received::Closed),
            _ => Ok(Received::Nothing),
        }
    }

    /// Returns what the socket has room for.
    fn room(&self) -> u64 {
        SEND_BUFFER.saturating_sub(self.unacknowledged())
    }

    pub(super) fn unacknowledged(&self) -> u64 {
        let in_tcp = self.tcp.queued_offset() - self.tcp.acked_offset();
        self.to_send.len() as u64 + in_tcp
    }

    pub(super) fn send(&mut self, octets: &[u8], rng: &mut Rng) -> Result<usize, TcpFailure> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let is_open = matches!(self.tcp.state(), State::Established | State::CloseWait);
        if !is_open || self.close_asked {
            return Ok(0);
        }
        let room = octets.len().min(self.room() as usize);
        self.was_unwilling = rng.u8(0..8) == 0;
        let taken = if self.was_unwilling {
            rng.usize(0..=room)
        } else {
            room
        };
        self.is_full = taken < octets.len();
        self.was_unwilling &= self.is_full;
        self.to_send.extend(&octets[..taken]);
        Ok(taken)
    }

    /// Closes our stream behind all that was sent.
    pub(super) fn close(&mut self) {
        self.close_asked = true;
    }

    /// Ends the connection with a RST.
    pub(super) fn reset(&mut self) {
        self.tcp.abort();
        self.to_send.clear();
        self.received.clear();
        self.ahead.clear();
        self.visible = 0;
        self.close_asked = false;
    }

    /// Handles that the application has no socket for it any more. If octets were not received, the
    /// peer gets a RST (RFC 2525 section 2.17).
    pub(super) fn leave(&mut self) {
        self.owner = Owner::Nobody;
        self.watched = None;
        match self.received.is_empty() {
            true => self.close_asked = true,
            false => self.reset(),
        }
    }

    /// Hands octets to TCP while it wants them, and closes behind them.
    pub(super) fn fill<F: TxFrames>(&mut self, now: Instant, tx: &mut F) {
        while !self.to_send.is_empty() && self.tcp.wants_data(now) {
            if tx.available() <= frames_for_others(self.tcp.held()) {
                break;
            }
            let Some(frame) = tx.allocate() else { break };
            let len = self.tcp.max_payload().min(self.to_send.len());
            let octets = self.to_send.drain(..len);
            let to = &mut tx.bytes_mut(frame)[..len];
            to.iter_mut().zip(octets).for_each(|(to, from)| *to = from);
            self.tcp.queue(frame, 0, len as u16, 0);
            if self.to_send.is_empty() {
                self.tcp.push();
            }
        }
        if self.close_asked && self.to_send.is_empty() {
            self.close_asked = false;
            self.tcp.close(now);
        }
        if self.tcp.is_closed() {
            self.tcp.release_frames(tx);
        }
    }
}
