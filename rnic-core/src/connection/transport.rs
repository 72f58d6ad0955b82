//! What a connection needs of the TCP below its MPA. That TCP is this crate's own, in frames, or that
//! of the host's kernel, behind a socket.

use std::fmt;
use std::time::Duration;

use crate::counters::TcpCounters;
use crate::memory::frames::FrameId;
use crate::tcp::{Due, Keepalive, State, Tcp, TcpFacts, TcpFailure};
use crate::time::Instant;

/// The TCP of one connection. Offsets count the octets of a stream from its first.
pub trait Transport: fmt::Debug {
    /// What all connections of an engine share below them.
    type Below;

    /// Whether the peer's octets are acknowledged before they are placed.
    const ACKNOWLEDGES_EARLY: bool;

    /// Whether what is handed over keeps its bounds: segments go without MPA, and start-up frames in
    /// [another form](Self::begin).
    const KEEPS_BOUNDS: bool = false;

    /// Takes a start-up frame that is to be sent, if it has a form of its own for it. Returns the
    /// octets to be sent as they are.
    fn begin(&mut self, frame: Vec<u8>) -> Vec<u8> {
        frame
    }

    /// Returns whether the connection may be over without another word of the peer.
    fn may_end_alone(&self) -> bool {
        false
    }

    /// Is told that the connection is no more.
    fn leave(&mut self, below: &mut Self::Below) {
        let _ = below;
    }

    /// Returns the state.
    fn state(&self) -> State;

    /// Returns why the connection ended, if not by both ends closing it.
    fn failure(&self) -> Option<TcpFailure>;

    /// Returns whether the connection is closed, even if its RST has not been sent.
    fn is_closed(&self) -> bool;

    /// Returns whether the connection is closed and has nothing more to send.
    fn is_finished(&self) -> bool;

    /// Returns whether the peer has closed its stream and all of it has been taken.
    fn peer_closed(&self) -> bool;

    /// Returns the offset past all that was handed over to be sent.
    fn queued_offset(&self) -> u64;

    /// Returns the offset up to which the peer has acknowledged our stream.
    fn acked_offset(&self) -> u64;

    /// Returns the offset of the next octet of the peer's stream.
    fn receive_offset(&self) -> u64;

    /// Returns the most octets of a segment.
    fn max_payload(&self) -> usize;

    /// Returns what there is to send now, as far as the transport itself knows.
    fn due(&self, now: Instant) -> Due;

    /// Tells how many octets in order are kept above, and how many the unfinished FPDU among them
    /// lacks.
    fn set_buffered(&mut self, octets: u32, missing: u32);

    /// Has a window count as full with this number of octets less.
    fn take_as_full(&mut self, slack: u16);

    /// Sets when a silent peer is probed.
    fn set_keepalive(&mut self, keepalive: Option<Keepalive>);

    /// Sets how long the peer may leave what it is owed without acknowledgment.
    fn set_user_timeout(&mut self, timeout: Option<Duration>);

    /// Sets the traffic class of what is sent, where the transport writes the IP headers.
    fn set_traffic_class(&mut self, class: u8);

    /// Closes our stream: a FIN follows what is queued. The peer's stream stays open.
    fn close(&mut self, now: Instant);

    /// Ends the connection with a RST.
    fn abort(&mut self);

    /// Drops the RST that waits to be sent.
    fn drop_reset(&mut self);

    /// Returns when its next timer is due, but for an ACK that the next turn sends.
    fn timeout_but_next_turn(&self) -> Option<Instant>;

    /// Handles its timers that are due, where the engine has no other way to do so.
    fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Returns whether no timer of it is due earlier than this time. `false` may be wrong.
    fn times_out_after(&self, at: Option<Instant>) -> bool;

    /// Returns whether an ACK is to be sent in the next turn, unless data carry it before.
    fn acks_next_turn(&self) -> bool;

    /// Moves the frames that it holds to `into`.
    fn give_back_frames(&mut self, into: &mut Vec<FrameId>);

    /// Returns what an administrator may want to know.
    fn facts(&self, now: Instant) -> TcpFacts;

    /// Returns what it has counted.
    fn counters(&self) -> &TcpCounters;
}

/// In frames.
impl Transport for Tcp {
    type Below = ();

    const ACKNOWLEDGES_EARLY: bool = false;

    #[inline(always)]
    fn state(&self) -> State {
        Self::state(self)
    }

    #[inline(always)]
    fn failure(&self) -> Option<TcpFailure> {
        Self::failure(self)
    }

    #[inline(always)]
    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    #[inline(always)]
    fn is_finished(&self) -> bool {
        Self::is_finished(self)
    }

    #[inline(always)]
    fn peer_closed(&self) -> bool {
        Self::peer_closed(self)
    }

    #[inline(always)]
    fn queued_offset(&self) -> u64 {
        Self::queued_offset(self)
    }

    #[inline(always)]
    fn acked_offset(&self) -> u64 {
        Self::acked_offset(self)
    }

    #[inline(always)]
    fn receive_offset(&self) -> u64 {
        Self::receive_offset(self)
    }

    #[inline(always)]
    fn max_payload(&self) -> usize {
        Self::max_payload(self)
    }

    #[inline(always)]
    fn due(&self, now: Instant) -> Due {
        Self::due(self, now)
    }

    #[inline(always)]
    fn set_buffered(&mut self, octets: u32, missing: u32) {
        Self::set_buffered(self, octets, missing);
    }

    fn take_as_full(&mut self, slack: u16) {
        Self::take_as_full(self, slack);
    }

    fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        Self::set_keepalive(self, keepalive);
    }

    fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        Self::set_user_timeout(self, timeout);
    }

    /// The path of the frames has it.
    fn set_traffic_class(&mut self, _: u8) {}

    fn close(&mut self, now: Instant) {
        Self::close(self, now);
    }

    fn abort(&mut self) {
        Self::abort(self);
    }

    fn drop_reset(&mut self) {
        Self::drop_reset(self);
    }

    #[inline(always)]
    fn timeout_but_next_turn(&self) -> Option<Instant> {
        Self::timeout_but_next_turn(self)
    }

    #[inline(always)]
    fn times_out_after(&self, at: Option<Instant>) -> bool {
        Self::times_out_after(self, at)
    }

    #[inline(always)]
    fn acks_next_turn(&self) -> bool {
        Self::acks_next_turn(self)
    }

    fn give_back_frames(&mut self, into: &mut Vec<FrameId>) {
        into.extend(self.take_frames());
    }

    fn facts(&self, now: Instant) -> TcpFacts {
        Self::facts(self, now)
    }

    fn counters(&self) -> &TcpCounters {
        Self::counters(self)
    }
}
