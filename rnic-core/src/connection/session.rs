//! A connection over a session of an SCTP association (RFC 5043): segments come in any order and are
//! placed as they come, and DDP and all above it are the same as over MPA.
//!
//! The connection's offsets count chunks. Start-up is MPA's: RFC 6581 section 7 has Initiate and
//! Accept equivalent to MPA's Request and Reply, so those frames are written as control messages,
//! and control messages read as those frames.

mod liveness;
mod receiving;
mod sending;
mod set_up;
mod startup_form;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::adaptation::{AdaptationError, Arrivals, ChunkKind, Role, Session};
use crate::counters::TcpCounters;
use crate::ddp::Placed;
use crate::ids::ListenerId;
use crate::memory::frames::FrameId;
use crate::tcp::{
    CongestionAlgorithm, Due, Keepalive, Liveness, State, TcpConfig, TcpFacts, TcpFailure,
};
use crate::time::Instant;
use crate::wire::mpa::StartupFrame;
use crate::wire::session::{Function, SessionControl};

use self::set_up::SetUp;
use self::startup_form::message_of;
use super::association::{Associated, Associations, LEAST_CHUNK, Seat};
use super::startup::set_tcp_options;
use super::{
    Connection, ConnectionOptions, Context, EndReason, FlowKey, LocalEnd, Path, PortReservation,
    Refusals, Transport,
};

/// Octets that a session keeps of chunks ahead of order, which cannot be placed yet, at most; each
/// chunk counts as [`OVERHEAD`] more.
const MOST_KEPT: usize = 8 << 20;
const OVERHEAD: usize = 128;

/// A chunk that has come ahead of order.
enum Early {
    /// Its payload is placed.
    Placed(Box<Placed>),
    /// It is handled in order.
    Aside { protocol: u32, octets: Box<[u8]> },
}

impl Early {
    fn memory(&self) -> usize {
        match self {
            Self::Placed(_) => OVERHEAD + size_of::<Placed>(),
            Self::Aside { octets, .. } => OVERHEAD + octets.len(),
        }
    }
}

/// A chunk that is to be sent.
struct Built {
    kind: ChunkKind,
    len: usize,
    /// The peer is asked to acknowledge it at once.
    urgent: bool,
}

/// One session of an association, as a connection sees it.
pub struct SctpSession<L> {
    association: usize,
    /// Its stream, once the association is up.
    stream: Option<u16>,
    seat: Seat,
    set_up: SetUp,
    session: Session,
    arrivals: Arrivals<Early>,
    /// Octets that the chunks ahead of order take.
    kept: usize,
    state: State,
    failure: Option<TcpFailure>,
    /// The association is over, or the peer is not waited for.
    is_gone: bool,
    /// The start-up frame that is to be sent.
    frame: Vec<u8>,
    /// A chunk that the kernel had no room for, and its octets.
    pending: Option<(Built, Vec<u8>)>,
    /// Our direction is to be closed behind all that is to be sent.
    close_asked: bool,
    /// The most octets of a chunk.
    max_chunk: usize,
    liveness: Liveness,
    /// How many packets had come from the peer when it was probed.
    heard: u64,
    /// The association does not know the user timeout yet.
    is_patience_new: bool,
    counters: TcpCounters,
    of: PhantomData<fn() -> L>,
}

impl<L> fmt::Debug for SctpSession<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SctpSession")
            .field("association", &self.association)
            .field("stream", &self.stream)
            .field("session", &self.session)
            .field("state", &self.state)
            .field("received", &self.arrivals.in_order())
            .finish_non_exhaustive()
    }
}

impl<L> SctpSession<L> {
    fn new(now: Instant, association: usize, role: Role, state: State) -> Self {
        Self {
            association,
            stream: None,
            seat: Seat {
                connection: usize::MAX,
                serial: u64::MAX,
            },
            set_up: SetUp::new(now),
            session: Session::new(role),
            arrivals: Arrivals::default(),
            kept: 0,
            state,
            failure: None,
            is_gone: false,
            frame: Vec::new(),
            pending: None,
            close_asked: false,
            max_chunk: LEAST_CHUNK,
            liveness: Liveness::new(now, &TcpConfig::default()),
            heard: 0,
            is_patience_new: false,
            counters: TcpCounters::default(),
            of: PhantomData,
        }
    }

    fn fail(&mut self, failure: TcpFailure) {
        if self.state != State::Closed {
            self.failure = Some(failure);
            self.state = State::Closed;
            self.pending = None;
            self.frame = Vec::new();
        }
    }

    /// Enters a state. Nothing waits out a TIME-WAIT: SCTP delivers nothing twice.
    fn enter(&mut self, state: State) {
        self.state = match state {
            State::TimeWait => State::Closed,
            other => other,
        };
    }

    /// Follows what was acknowledged: our last chunk may be.
    fn follow_acks(&mut self) {
        if self.session.acked() == self.session.submitted() && self.pending.is_none() {
            self.enter(self.state.after_fin_acked());
            if self.state == State::FinWait2 && self.session.needs_no_answer() {
                self.state = State::Closed;
            }
        }
    }

    /// Returns whether segments may be handed over to be sent.
    fn takes_segments(&self) -> bool {
        let is_open = matches!(self.state, State::Established | State::CloseWait);
        is_open && !self.close_asked && self.session.may_submit(ChunkKind::Segment)
    }

    /// Takes the start-up frame as a control message, if it may be sent now.
    fn build_control(&mut self, room: &mut [u8]) -> Option<Built> {
        let Ok(Some((frame, _))) = StartupFrame::parse(&self.frame) else {
            return None;
        };
        let message = message_of(&frame);
        let built = self.put_control(&message, room)?;
        self.frame = Vec::new();
        Some(built)
    }

    /// Writes a control message, if it may be sent now.
    fn put_control(&self, message: &SessionControl<'_>, room: &mut [u8]) -> Option<Built> {
        let kind = ChunkKind::Control(message.function);
        if !self.session.may_submit(kind) {
            return None;
        }
        let octets = message.octets(0);
        room[..octets.len()].copy_from_slice(&octets);
        Some(Built {
            kind,
            len: octets.len(),
            urgent: true,
        })
    }

    /// Keeps a chunk whose turn is later.
    fn keep(&mut self, at: u64, early: Early) -> Result<(), AdaptationError> {
        self.kept += early.memory();
        if self.kept > MOST_KEPT {
            return Err(AdaptationError::TooFarAhead);
        }
        self.arrivals.keep(at, early);
        Ok(())
    }

    /// Notes that a chunk was handed to the kernel.
    fn submitted(&mut self, kind: ChunkKind) {
        self.session.submit(kind);
        if kind == ChunkKind::Control(Function::Terminate) {
            self.close_asked = false;
            self.enter(self.state.after_close());
        }
    }
}

impl<L: Associations> Connection<SctpSession<L>> {
    /// Opens a connection on an association, which may not be up yet. Fails as [`ask`](Self::ask)
    /// does.
    pub(crate) fn connect_on(
        now: Instant,
        key: FlowKey,
        association: usize,
        reservation: PortReservation,
        end: LocalEnd,
        options: ConnectionOptions,
    ) -> Result<Self, (LocalEnd, EndReason)> {
        let mut session = SctpSession::new(now, association, Role::Active, State::SynSent);
        set_tcp_options(&mut session, &options);
        let path = Path::unknown(&key);
        Self::ask(now, key, session, path, reservation, end, options)
    }

    /// Makes the connection of a session that a peer has begun.
    pub(crate) fn begun_on(
        now: Instant,
        key: FlowKey,
        association: usize,
        reservation: PortReservation,
        listener: ListenerId,
        refusals: Arc<Refusals>,
    ) -> Self {
        let session = SctpSession::new(now, association, Role::Passive, State::Established);
        let path = Path::unknown(&key);
        Self::await_request(now, key, session, path, reservation, listener, refusals)
    }

    /// Returns the number of its association.
    pub(crate) fn association(&self) -> usize {
        self.tcp.association
    }

    /// Gives it its place in the association, which is up.
    pub(crate) fn take_seat(&mut self, stream: u16, seat: Seat) {
        (self.tcp.stream, self.tcp.seat) = (Some(stream), seat);
        if self.tcp.state == State::SynSent {
            self.tcp.state = State::Established;
        }
    }

    /// Gives it its place among those that wait for the association.
    pub(crate) fn wait_as(&mut self, connection: usize) {
        self.tcp.seat.connection = connection;
    }

    /// Returns whether it is time to look for its association, which is not up: once each time.
    pub(crate) fn take_overdue(&mut self) -> bool {
        self.tcp.set_up.take_overdue() && self.tcp.state == State::SynSent
    }

    /// Returns its stream, and the serial number of its session.
    pub(crate) fn place(&self) -> Option<(u16, u64)> {
        Some((self.tcp.stream?, self.tcp.seat.serial))
    }

    /// Notes that the association is over. A session that this side has ended is over with it, and
    /// any other fails: for `reason`, if that says more than `failure`.
    // rfc: 5043-s10 no Terminate of RDMAP for each stream when the association ends
    // rfc: 5043-s11 all consumers are told
    pub(crate) fn lose_association(
        &mut self,
        failure: TcpFailure,
        reason: Option<EndReason>,
        context: &mut Context<'_, '_>,
    ) {
        self.tcp.is_gone = true;
        if matches!(
            self.tcp.state,
            State::FinWait2 | State::Closing | State::LastAck
        ) {
            self.end(EndReason::Local, context);
            self.tcp.state = State::Closed;
        } else {
            if let Some(reason) = reason {
                self.end(reason, context);
            }
            self.tcp.fail(failure);
        }
        self.settle(context);
    }

    /// Returns whether this side has ended the session: the peer may begin another on its stream.
    pub(crate) fn is_past(&self) -> bool {
        self.tcp.session.has_ended()
    }

    /// Completes what the peer has acknowledged: so many more chunks.
    pub(crate) fn acknowledge(&mut self, chunks: u64, context: &mut Context<'_, '_>) {
        self.tcp.session.acknowledge(chunks);
        let is_owed = self.tcp.is_owed();
        self.tcp.liveness.on_progress(context.now, is_owed);
        self.tcp.follow_acks();
        if !self.settle_acked(context) {
            self.settle(context);
        }
    }
}

impl<L: Associations> Transport for SctpSession<L> {
    type Below = Associated<L>;

    const ACKNOWLEDGES_EARLY: bool = true;
    const KEEPS_BOUNDS: bool = true;

    fn begin(&mut self, frame: Vec<u8>) -> Vec<u8> {
        self.frame = frame;
        Vec::new()
    }

    /// One Terminate is enough for a session.
    // rfc: 5043-11 the peer need not end with one
    fn may_end_alone(&self) -> bool {
        self.state == State::FinWait2
    }

    fn leave(&mut self, below: &mut Associated<L>) {
        if let Some(association) = below.associations.get_mut(self.association) {
            let is_free = self.session.frees_stream() && !self.arrivals.has_gap();
            association.leave(self.stream, self.seat, is_free);
            below.left.push(self.association);
        }
    }

    fn state(&self) -> State {
        self.state
    }

    fn failure(&self) -> Option<TcpFailure> {
        self.failure
    }

    fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The peer learns of the end, if there is anybody to tell, and what it had sent comes in.
    fn is_finished(&self) -> bool {
        let is_told =
            || self.session.is_silent() && self.session.acked() == self.session.submitted();
        let has_heard = || self.session.peer_has_ended() || self.session.needs_no_answer();
        let is_nobody_there = self.is_gone || self.session.has_not_begun();
        self.is_closed() && (is_nobody_there || is_told() && has_heard())
    }

    fn peer_closed(&self) -> bool {
        self.failure.is_none() && self.session.peer_has_ended()
    }

    fn queued_offset(&self) -> u64 {
        self.session.submitted()
    }

    fn acked_offset(&self) -> u64 {
        self.session.acked()
    }

    fn receive_offset(&self) -> u64 {
        self.arrivals.in_order()
    }

    fn max_payload(&self) -> usize {
        self.max_chunk
    }

    fn due(&self, _: Instant) -> Due {
        let is_due = self.pending.is_some() || self.close_asked || !self.frame.is_empty();
        match is_due || self.liveness.keepalive_due || self.is_patience_new {
            true => Due::Segment,
            false => Due::Nothing,
        }
    }

    /// The window is the association's.
    fn set_buffered(&mut self, _: u32, _: u32) {}

    fn take_as_full(&mut self, _: u16) {}

    fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.liveness.keepalive = keepalive;
    }

    fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.is_patience_new |= self.liveness.user_timeout != timeout;
        self.liveness.user_timeout = timeout;
    }

    /// It is the association's.
    fn set_traffic_class(&mut self, _: u8) {}

    fn close(&mut self, _: Instant) {
        if matches!(self.state, State::Established | State::CloseWait) {
            self.close_asked = true;
        } else if self.state == State::SynSent {
            self.state = State::Closed;
        }
    }

    fn abort(&mut self) {
        self.fail(TcpFailure::Aborted);
    }

    /// The peer is not waited for any longer.
    fn drop_reset(&mut self) {
        self.state = State::Closed;
        self.is_gone = true;
    }

    fn timeout_but_next_turn(&self) -> Option<Instant> {
        match self.state {
            State::SynSent => Some(self.set_up.overdue_at()),
            _ => self.liveness_timeout(),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.state == State::SynSent {
            self.set_up.handle_timeout(now);
        }
        self.handle_liveness(now);
    }

    fn times_out_after(&self, at: Option<Instant>) -> bool {
        let own = self.timeout_but_next_turn();
        Instant::earliest([own, at]) == at
    }

    fn acks_next_turn(&self) -> bool {
        false
    }

    fn give_back_frames(&mut self, _: &mut Vec<FrameId>) {}

    fn facts(&self, now: Instant) -> TcpFacts {
        TcpFacts {
            state: self.state,
            rtt: None,
            min_rtt: None,
            reo_wnd: Duration::ZERO,
            rto: Duration::ZERO,
            backoff: 0,
            mss: self.max_chunk as u16,
            path_mss: self.max_chunk as u16,
            cwnd: 0,
            ssthresh: None,
            congestion: CongestionAlgorithm::NewReno.name().into(),
            pacing_rate: None,
            delivery_rate: None,
            unacked: self.session.submitted() - self.session.acked(),
            in_flight: 0,
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            send_window: 0,
            receive_window: 0,
            acked: self.session.acked(),
            received: self.arrivals.in_order(),
            options: [false; 4],
            timer: None,
            last_sent: None,
            last_received: now.since(self.liveness.last_received_at),
            counters: self.counters,
        }
    }

    fn counters(&self) -> &TcpCounters {
        &self.counters
    }
}
