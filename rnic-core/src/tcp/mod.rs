//! TCP (RFC 9293) as pure logic: segments, the application's wishes and time go in, segments come
//! out.
//!
//! A [`Tcp`] is one connection. It does not know what the stream carries, and copies none of it. It
//! offers received octets to its owner, who places them and reports that with
//! [`Tcp::mark_received`]. The owner builds the frames to send; a frame is the retransmission
//! buffer until the peer has acknowledged it.
//!
//! Positions in either stream are offsets of 64 bits, 0 being the first octet after the SYN.
//! Sequence numbers stay inside.
//!
//! `arrival` is what a received segment does, `output` what is sent, `timers` what time does;
//! `fast` has what goes by without them where little is to be done. `recv` and `send` are the two
//! directions' state, `scoreboard` what has become of the segments sent; `recovery` and
//! `congestion` decide what and how much may be in flight.

mod ack_schedule;
mod arrival;
mod challenge;
mod config;
mod congestion;
mod cookie;
mod due;
mod ecn;
mod facts;
mod fast;
mod keepalive;
mod liveness;
mod options;
mod output;
mod pacing;
mod path_mtu;
mod ranges;
mod recovery;
mod recv;
mod reuse;
mod rtt;
mod scoreboard;
mod send;
mod sent_segment;
mod seq;
mod spilled_octets;
mod state;
#[cfg(test)]
mod tests;
mod timers;

use core::mem::offset_of;
use core::ops::Range;
use core::time::Duration;

pub use self::config::{Keepalive, TcpConfig};
pub use self::congestion::{CongestionAlgorithm, DeliveryRate};
pub use self::due::Due;
pub use self::ecn::EcnMode;
pub use self::facts::TcpFacts;
pub use self::fast::{
    Acknowledged, BurstSegments, CoalescedSegments, DataWithSoleAck, IdleSegment, NextData,
};
pub use self::reuse::Succession;
pub use self::seq::Seq;
pub use self::spilled_octets::SpilledOctets;
pub use self::state::State;

use self::challenge::ChallengeLimit;
use self::ecn::Ecn;
pub(crate) use self::liveness::Liveness;
use self::options::Negotiated;
use self::pacing::Pacer;
use self::recovery::Recovery;
use self::recv::Receiver;
use self::rtt::RttEstimator;
use self::send::Sender;
use self::sent_segment::Fin;
use crate::counters::TcpCounters;
use crate::memory::frames::{FrameId, TxFrames};
use crate::memory::prefetch::prefetch_ends;
use crate::time::Instant;
use crate::wire::tcp::{Flags, TcpHeader, TcpSegment};

/// Why a connection ended before both ends had closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TcpFailure {
    /// The peer answered our SYN with RST.
    #[error("the peer refused the connection: nothing listens on that port")]
    Refused,
    /// The peer sent RST.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer stopped acknowledging.
    #[error("the peer does not answer: check that it is up and that the path to it works")]
    TimedOut,
    /// [`Tcp::abort`] was called.
    #[error("the connection was aborted on this side")]
    Aborted,
}

/// Octets of the peer's stream that have not been taken yet, and are inside the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamData<'a> {
    /// Stream offset of the first octet; beyond [`Tcp::receive_offset`] if something before it is
    /// missing.
    pub offset: u64,
    /// The octets. None of them has been taken before.
    pub bytes: &'a [u8],
}

/// A segment to send: the caller writes the headers in front of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The TCP header, complete but for its checksum.
    pub header: TcpHeader,
    /// What follows it.
    pub payload: Payload,
    /// Routers may mark it instead of dropping it (ECT(0), RFC 3168).
    pub ecn_capable: bool,
}

impl Outgoing {
    /// Returns a segment without payload.
    fn bare(header: TcpHeader) -> Self {
        Self {
            header,
            payload: Payload::None,
            ecn_capable: false,
        }
    }
}

/// The payload of an [`Outgoing`] segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload: the segment goes into a fresh frame, which the caller releases once it is
    /// queued.
    None,
    /// The payload of a queued frame as it is.
    Whole {
        /// The frame.
        frame: FrameId,
        /// Where its payload starts.
        payload_at: u16,
        /// Octets of payload.
        len: u16,
        /// Their ones-complement sum.
        sum: u16,
    },
    /// A piece of a queued frame, where the window has no room for the whole: to be copied to a
    /// fresh frame, which the caller releases once it is queued.
    Part {
        /// The frame.
        frame: FrameId,
        /// These octets of it.
        range: Range<usize>,
    },
    /// Octets of the stream that are in no frame any more ([`Tcp::spilled`]): to be copied as a
    /// part is.
    Spilled(Range<u64>),
}

/// One TCP connection. With many connections, each record is outside the cache when its turn comes.
/// So the fields, and those of the records in it, stand in the order of use: first what every
/// segment needs, then what sending and ACKs need, and last what is rarely used.
#[derive(Debug)]
#[repr(C)]
pub struct Tcp {
    state: State,
    failure: Option<TcpFailure>,
    /// Our SYN has to be sent (again).
    syn_due: bool,
    /// One SYN was sent: its round-trip time can be told.
    syn_sent_once: bool,
    /// The persist timer has expired: send one probe.
    probe_due: bool,
    /// A probe was sent into a closed window, and the window has not opened since.
    probing: bool,
    /// Expirations since the peer last answered.
    retries: u8,
    max_retries: u8,
    syn_retries: u8,
    /// Whether to take that fast path.
    sole_ack: bool,
    ecn: Ecn,
    local_port: u16,
    remote_port: u16,
    /// The MSS option of our SYN.
    mss_to_offer: u16,
    /// Octets that a segment may lack to be taken as full.
    slack: u16,
    /// The retransmission timer, or the persist timer while the peer's window keeps all from being
    /// sent.
    retransmit_at: Option<Instant>,
    /// A frame to send again was still in the device: look again then.
    device_retry_at: Option<Instant>,
    time_wait_ends: Option<Instant>,
    /// A RST to send.
    reset: Option<Box<TcpHeader>>,
    options: Negotiated,
    pacer: Pacer,
    liveness: Liveness,
    recv: Receiver,
    send: Sender,
    recovery: Recovery,
    rtt: RttEstimator,
    /// When data was last sent.
    sent_at: Option<Instant>,
    /// When a segment arrived that is larger than those to be tried on a suspicious path.
    large_arrived_at: Option<Instant>,
    counters: TcpCounters,
    challenges: ChallengeLimit,
    syn_sent_at: Option<Instant>,
    time_wait: Duration,
}

impl Tcp {
    /// Octets of it that are looked at when data of the peer's come, up to the timers of recovery.
    pub const TO_RECEIVE: usize = offset_of!(Self, recovery) + Recovery::TIMERS;
    /// Octets of it that are looked at when data are sent or acknowledged, with the counters that
    /// all segments have.
    pub const TO_SEND: usize = offset_of!(Self, counters) + 4 * size_of::<u64>();

    /// Opens a connection actively: a SYN waits to be sent.
    ///
    /// `isn` must be unpredictable to others (RFC 6528).
    pub fn connect(
        now: Instant,
        config: &TcpConfig,
        local_port: u16,
        remote_port: u16,
        isn: Seq,
    ) -> Self {
        Self::new(now, config, State::SynSent, (local_port, remote_port), isn)
    }

    /// Opens a connection passively, for a SYN that reached a listener: a SYN-ACK waits to be sent.
    pub fn accept(now: Instant, config: &TcpConfig, isn: Seq, syn: &TcpSegment<'_>) -> Self {
        let header = &syn.header;
        let ports = (header.destination_port, header.source_port);
        let mut tcp = Self::new(now, config, State::SynReceived, ports, isn);
        tcp.process_syn(now, header);
        tcp
    }

    fn new(now: Instant, config: &TcpConfig, state: State, ports: (u16, u16), isn: Seq) -> Self {
        let options = Negotiated::offer(config);
        Self {
            state,
            failure: None,
            local_port: ports.0,
            remote_port: ports.1,
            max_retries: config.max_retries,
            syn_retries: config.syn_retries,
            time_wait: config.time_wait,
            sole_ack: config.fast_paths.sole_ack,
            ecn: Ecn::new(config.ecn),
            large_arrived_at: None,
            pacer: Pacer::default(),
            recv: Receiver::new(
                config.receive_window,
                config.receive_window_limit,
                options.mss,
                config.delayed_ack,
            ),
            send: Sender::new(isn),
            recovery: Recovery::new(
                config.congestion,
                u64::from(options.max_payload()),
                options.sack,
            ),
            mss_to_offer: options.mss,
            slack: 0,
            options,
            rtt: RttEstimator::new(config.initial_rto, config.min_rto, config.max_rto),
            syn_due: true,
            syn_sent_at: None,
            syn_sent_once: false,
            retransmit_at: None,
            probe_due: false,
            probing: false,
            retries: 0,
            device_retry_at: None,
            time_wait_ends: None,
            reset: None,
            challenges: ChallengeLimit::new(now),
            liveness: Liveness::new(now, config),
            sent_at: None,
            counters: TcpCounters::default(),
        }
    }

    /// Marks octets of the peer's stream as received: the owner has placed or buffered them. They
    /// are acknowledged, and never offered again. Octets that were offered and are not marked count
    /// as lost, and the peer sends them again.
    pub fn mark_received(&mut self, now: Instant, range: Range<u64>) {
        let before = self.recv.data_nxt();
        self.recv.mark_received(range);
        self.counters.octets_received += self.recv.data_nxt() - before;
        self.recv.grow(now, &self.rtt);
        self.take_fin(now);
    }

    /// Marks the octets of a segment that was the [next data](NextData) as received.
    #[inline]
    pub fn mark_next_received(&mut self, now: Instant, len: usize) {
        self.counters.octets_received += len as u64;
        self.recv.mark_next_received(len as u64);
        self.recv.grow(now, &self.rtt);
    }

    /// Accepts the peer's FIN if it is the next in order.
    fn take_fin(&mut self, now: Instant) {
        if self.recv.take_fin() {
            self.enter(now, self.state.after_peer_fin());
        }
    }

    /// Returns the next in-order offset of the peer's stream that has not been taken.
    pub fn receive_offset(&self) -> u64 {
        self.recv.data_nxt()
    }

    /// Returns the ranges taken beyond [`receive_offset`](Self::receive_offset), in ascending
    /// order.
    #[cfg(test)]
    fn taken_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.recv.out_of_order().iter()
    }

    /// Sets how many octets in front of [`receive_offset`](Self::receive_offset) the owner buffers.
    /// The receive window is smaller by them, but never smaller than the `missing` octets that the
    /// owner needs to make use of them. What it buffers beyond that offset lies inside the window.
    /// The right edge of the window never moves back.
    #[inline]
    pub fn set_buffered(&mut self, octets: u32, missing: u32) {
        self.recv.set_buffered(octets, missing);
    }

    /// Returns whether the peer has closed its stream and all of it has been taken.
    pub fn peer_closed(&self) -> bool {
        self.recv.finished()
    }

    /// Returns whether to build and [`queue`](Self::queue) one more segment of at most
    /// [`max_payload`](Self::max_payload) octets: it could be sent now, or is needed to probe a
    /// closed window.
    pub fn wants_data(&self, now: Instant) -> bool {
        if !self.state.may_queue() || !self.send.all_sent() || self.must_retransmit() {
            return false;
        }
        if self.paces(now) {
            return false;
        }
        if self.send.is_empty() {
            return true;
        }
        let len = u64::from(self.options.max_payload());
        self.recovery.allows(&self.send, len) && self.send.window_suffices(len)
    }

    /// Returns whether new data has to wait for its time, though not for nothing that is on its
    /// way.
    fn paces(&self, now: Instant) -> bool {
        self.pacer.is_paused(now) && self.send.flight() > 0
    }

    /// Returns the octets of payload that are [queued](Self::queue) at a time: as many as fit into
    /// a segment, unless the peer takes very small ones. They are final once the connection is
    /// established.
    pub fn max_payload(&self) -> usize {
        usize::from(self.options.built_payload())
    }

    /// Limits segments to `mss` octets, as the path takes no larger ones. What is queued in larger
    /// ones is cut when it is sent (again).
    // rfc: 5041-4 what was handed down is not cut again by DDP
    pub fn limit_mss(&mut self, mss: u16) {
        let limit = self.options.limit_mss(mss);
        if self.syn_sent_at.is_none() {
            // What the peer takes, which is in the options once its SYN has come, is no limit of
            // what we take.
            self.mss_to_offer = self.mss_to_offer.min(limit);
            self.recovery
                .agree(u64::from(self.options.max_payload()), self.options.sack);
        } else {
            self.recovery.set_mss(u64::from(self.options.max_payload()));
        }
    }

    /// Limits the segments that the peer is asked for. Behind our SYN it is too late.
    pub fn limit_offered_mss(&mut self, mss: u16) {
        self.mss_to_offer = self.mss_to_offer.min(mss.max(options::MIN_MSS));
    }

    /// Returns the number of octets of the TCP header in front of a payload: the same for each data
    /// segment of an established connection.
    pub fn data_header_len(&self) -> usize {
        usize::from(self.options.data_header_len())
    }

    /// Queues a frame, and takes it over. Its payload is `len` octets (at least 1, at most
    /// [`max_payload`](Self::max_payload)) from `payload_at`, with their ones-complement sum.
    /// Returns the stream offset past them. The frame is released when it is acknowledged, or by
    /// [`release_frames`](Self::release_frames).
    pub fn queue(&mut self, frame: FrameId, payload_at: u16, len: u16, payload_sum: u16) -> u64 {
        let end = self.send.queue(frame, payload_at, len, payload_sum);
        if len < self.options.max_payload().saturating_sub(self.slack) {
            self.push();
        }
        end
    }

    /// Takes segments as full from now on that lack at most so many octets: the owner cuts its
    /// messages there. A segment that is not full has PSH.
    pub fn take_as_full(&mut self, slack: u16) {
        self.slack = slack;
    }

    /// Returns the stream offset past all that was queued or sent.
    pub fn queued_offset(&self) -> u64 {
        self.send.end()
    }

    /// Sets PSH on the segment queued last, as nothing follows for now: the peer shall not wait for
    /// more before it acknowledges (PSH). A segment that is not full has this anyway. Call it
    /// before the segment is polled.
    pub fn push(&mut self) {
        if let Some(last) = self.send.last_mut() {
            last.push = true;
        }
    }

    /// Returns the offset up to which the peer has acknowledged our stream.
    pub fn acked_offset(&self) -> u64 {
        self.send.acked()
    }

    /// Closes our stream: a FIN follows what is queued. The peer's stream stays open.
    pub fn close(&mut self, now: Instant) {
        match self.state {
            State::SynSent => self.finish(None),
            // SYN-RECEIVED becomes FIN-WAIT-1 when the handshake is done.
            State::SynReceived | State::Established | State::CloseWait => {
                self.send.fin = Fin::Queued;
                self.enter(now, self.state.after_close());
            }
            _ => {}
        }
    }

    /// Aborts the connection: a RST waits to be sent if the peer knows of the connection.
    pub fn abort(&mut self) {
        if !matches!(self.state, State::Closed | State::SynSent | State::TimeWait) {
            self.reset = Some(Box::new(TcpHeader {
                seq: self.send.seq(self.send.nxt()),
                ack: self.recv.ack(),
                flags: Flags::RST | Flags::ACK,
                ..self.bare_header()
            }));
        }
        if self.state != State::Closed {
            self.finish(Some(TcpFailure::Aborted));
        }
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns why the connection ended, if not by both ends closing it.
    pub fn failure(&self) -> Option<TcpFailure> {
        self.failure
    }

    /// Returns whether the connection is closed and has nothing more to send: after
    /// [`release_frames`](Self::release_frames) it may be forgotten.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed && self.reset.is_none()
    }

    /// Returns the number of segments that are held until they are acknowledged, nearly all in a
    /// frame each.
    #[inline]
    pub fn held(&self) -> usize {
        self.send.held()
    }

    /// Returns whether the connection is closed, even if its RST has not been sent.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Drops the RST that waits to be sent.
    pub fn drop_reset(&mut self) {
        self.reset = None;
    }

    /// Releases every frame that is still held. Only for a connection that is closed: what the
    /// frames hold cannot be sent any more.
    pub fn release_frames<F: TxFrames>(&mut self, frames: &mut F) {
        for frame in self.take_frames() {
            frames.release(frame);
        }
    }

    /// Returns every frame that is still held, to be released by the caller. Only for a connection
    /// that is closed.
    pub fn take_frames(&mut self) -> impl Iterator<Item = FrameId> + '_ {
        self.send.take_frames()
    }

    /// Prefetches the segment records that are used next: the one to be acknowledged, and the place
    /// of the next to be sent.
    pub fn prefetch(&self) {
        prefetch_ends(&self.send.segments);
    }

    /// Returns what this connection has counted.
    pub fn counters(&self) -> &TcpCounters {
        &self.counters
    }

    /// Returns the answer to a segment that belongs to no connection (RFC 9293 section 3.5.2): a
    /// RST, unless the segment is one itself.
    pub fn reset_reply(segment: &TcpSegment<'_>) -> Option<TcpHeader> {
        let header = &segment.header;
        if header.flags.rst() {
            return None;
        }
        let (seq, ack, flags) = if header.flags.ack() {
            (header.ack, Seq(0), Flags::RST)
        } else {
            (
                Seq(0),
                header.seq + segment.sequence_len(),
                Flags::RST | Flags::ACK,
            )
        };
        Some(TcpHeader {
            source_port: header.destination_port,
            destination_port: header.source_port,
            seq,
            ack,
            flags,
            ..TcpHeader::default()
        })
    }

    /// Enters a state.
    fn enter(&mut self, now: Instant, state: State) {
        if state == self.state {
            return;
        }
        self.state = state;
        match state {
            State::TimeWait => {
                self.retransmit_at = None;
                self.time_wait_ends = Some(now + self.time_wait);
            }
            State::Closed => self.finish(None),
            _ => {}
        }
    }

    /// Closes the connection: no timer runs, and nothing but a RST is sent.
    fn finish(&mut self, failure: Option<TcpFailure>) {
        self.state = State::Closed;
        self.failure = failure;
        self.syn_due = false;
        self.probe_due = false;
        self.retransmit_at = None;
        self.recovery.stop();
        self.device_retry_at = None;
        self.time_wait_ends = None;
        self.recv.cancel_acks();
    }

    /// Returns a header with nothing but the ports.
    fn bare_header(&self) -> TcpHeader {
        TcpHeader {
            source_port: self.local_port,
            destination_port: self.remote_port,
            ..TcpHeader::default()
        }
    }
}
