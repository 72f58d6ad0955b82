//! The spine: one connection owns its TCP, MPA, DDP and RDMAP state and walks data through them.
//!
//! It knows the order of the layers, and none of their rules. Most frames take the paths in `fast`,
//! which read a DDP header to decide whether they are eligible; everything else is left to the
//! layers.

mod association;
mod context;
mod direct;
mod event;
mod facts;
mod fast;
mod flow;
mod framed;
mod lifecycle;
mod options;
mod path;
mod receive;
mod receiver_not_ready;
mod refusals;
mod reorder;
mod session;
mod socket;
mod socketed;
mod startup;
mod state;
mod stopping;
mod stream;
mod terminate;
mod transmit;
mod transport;
mod upper;

use std::sync::Arc;
use std::time::Duration;

use crate::counters::TcpCounters;
use crate::ids::{ListenerId, RequestId};
use crate::memory::frames::FrameId;
use crate::mpa::startup::{MpaInitiator, MpaNegotiated, MpaResponder};
use crate::tcp::{Due, Seq, State, Tcp};
use crate::time::Instant;
use crate::wire::hello::{Hello, Receipts};

pub use self::association::{
    Arrived, Associated, AssociationSocket, Associations, LONGEST_CHUNK, OutgoingChunk, PathFacts,
};
pub(crate) use self::association::{Association, FIRST_TRY, Standing};
pub(crate) use self::context::{Context, Scheduled, Upcoming, Wants};
pub use self::event::{EndReason, Event, Notice, ReadDepths};
pub use self::facts::{ConnectionFacts, MpaFacts};
pub(crate) use self::fast::{CoalescedRun, IdleSend, PredictedSegment, WholeMessage};
pub(crate) use self::flow::without_scope;
pub use self::flow::{AddressPair, FlowKey, PortReservation};
pub use self::options::ConnectionOptions;
pub use self::path::NextHop;
pub(crate) use self::path::{Path, is_within_device};
pub use self::refusals::{Refusal, Refusals};
use self::reorder::Reorder;
pub use self::session::SctpSession;
pub use self::socket::{Accepted, Ready, Received, Socket, Sockets};
pub use self::socketed::{KernelTcp, Socketed};
pub(crate) use self::socketed::{Listed, Owed};
use self::stream::Stream;
pub(crate) use self::transmit::has_room;
pub use self::transport::Transport;
pub(crate) use self::upper::{LocalEnd, flush};

/// How long the orderly end of a connection may go without progress before a RST ends it: the first
/// while requests are still carried out, the second when only FINs are outstanding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmit {
    /// One frame was queued in the device.
    Sent,
    /// There is nothing to send now.
    Nothing,
    /// There is something to send but no frame to build it in.
    Starved,
}

/// How a passive connection begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// With a SYN, to be answered with this initial sequence number.
    Syn(Seq),
    /// With the ACK of a SYN cookie, and the peer's segment size that was in it.
    Cookie(Seq, u16),
}

/// How much is known of a passive connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its address may be forged.
    HalfOpen,
    /// It has not been accepted yet.
    Starting,
    /// It has been accepted, or we opened the connection.
    Established,
}

/// The phase of a connection. What belongs to one phase alone is in a box, so that it takes no
/// memory in the others.
enum Phase {
    /// Initiator: until the MPA Reply.
    Connecting(Box<Connecting>),
    /// Responder: until the MPA Request is complete.
    Responding {
        listener: ListenerId,
        responder: Box<MpaResponder>,
        /// Where it is recorded if the Request does not come.
        refusals: Arc<Refusals>,
    },
    /// Responder: until the application decides on the request.
    Waiting {
        listener: ListenerId,
        request: RequestId,
        responder: Box<MpaResponder>,
        /// What the peer does about them.
        receipts: Receipts,
    },
    /// FPDUs flow.
    Streaming(Box<Stream>),
    /// Only TCP is left.
    Closing,
}

/// What an initiator needs until the MPA Reply.
struct Connecting {
    end: LocalEnd,
    initiator: MpaInitiator,
    options: ConnectionOptions,
}

impl Connecting {
    /// Returns whether an accepting Reply agrees to the semantics of RC, if a [`Hello`] asks for
    /// them. Nobody else may be sent what they add to the RFCs.
    fn is_answered_by(&self, reply: &MpaNegotiated) -> bool {
        match Hello::parse(&self.options.private_data) {
            Some(asked) if self.options.rc => {
                Hello::parse(&reply.private_data).is_some_and(|hello| hello.answers(&asked))
            }
            _ => true,
        }
    }
}

/// One connection, over our own TCP or another [`Transport`]. Its fields stand in the order of use, as those of [`Tcp`] do: what each turn
/// needs first.
#[repr(C)]
pub(crate) struct Connection<T = Tcp> {
    pub(crate) scheduled: Scheduled,
    /// FIN is sent after everything else.
    fin_asked: bool,
    /// RST is sent once the peer has everything else.
    reset_asked: bool,
    unreachable: bool,
    /// The queue pair has left a connection with the semantics of RC: no octet of the peer is
    /// acknowledged any more.
    has_left: bool,
    phase: Phase,
    /// When the current phase ends at the latest.
    deadline: Option<Instant>,
    /// Octets to be sent that are no stream's: MPA start-up frames, and the Terminate of a stream
    /// that is over.
    loose_octets: Vec<u8>,
    /// Where the last of them that was sent ends, as an offset of TCP's stream.
    loose_end: u64,
    new_request: Option<RequestId>,
    gone_request: Option<RequestId>,
    returned_end: Option<LocalEnd>,
    key: FlowKey,
    path: Path,
    reorder: Reorder,
    tcp: T,
    /// The progress of a connection that is closing: how much of our stream was acknowledged, and
    /// of the peer's received.
    progress: (u64, u64),
    _reservation: PortReservation,
}

impl<T: Transport> Connection<T> {
    fn new(key: FlowKey, tcp: T, path: Path, phase: Phase, reservation: PortReservation) -> Self {
        Self {
            scheduled: Scheduled::default(),
            key,
            tcp,
            path,
            phase,
            loose_octets: Vec::new(),
            loose_end: 0,
            reorder: Reorder::default(),
            deadline: None,
            progress: (0, 0),
            fin_asked: false,
            reset_asked: false,
            new_request: None,
            gone_request: None,
            returned_end: None,
            unreachable: false,
            has_left: false,
            _reservation: reservation,
        }
    }

    pub(crate) fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Returns how much is known of a passive connection's peer.
    pub(crate) fn stage(&self) -> Stage {
        match self.phase {
            Phase::Responding { .. } if self.tcp.state() == State::SynReceived => Stage::HalfOpen,
            Phase::Responding { .. } | Phase::Waiting { .. } => Stage::Starting,
            _ => Stage::Established,
        }
    }

    /// Returns whether FPDUs flow. Then the connection has nothing for the engine but frames and
    /// events: the engine took the rest when FPDUs began to flow.
    #[inline]
    pub(crate) fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Streaming(_))
    }

    /// Returns whether MPA start-up is not over.
    pub(super) fn is_starting(&self) -> bool {
        matches!(
            self.phase,
            Phase::Connecting(_) | Phase::Responding { .. } | Phase::Waiting { .. }
        )
    }

    /// Returns whether nothing is left to do, and the connection may be removed.
    pub(crate) fn is_finished(&self) -> bool {
        self.tcp.is_finished() && !self.outlives_tcp()
    }

    /// Returns whether the connection is settled: it owes its peer nothing more, but may wait out
    /// its TIME-WAIT.
    pub(crate) fn is_settled(&self) -> bool {
        self.tcp.is_finished() || self.tcp.state() == State::TimeWait
    }

    /// Removes and returns the new request, which the engine has to learn of.
    pub(crate) fn take_new_request(&mut self) -> Option<RequestId> {
        self.new_request.take()
    }

    /// Removes and returns a request that no longer waits for a decision.
    pub(crate) fn take_gone_request(&mut self) -> Option<RequestId> {
        self.gone_request.take()
    }

    /// Returns the request that waits for the application's decision.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::Waiting { request, .. } => Some(*request),
            _ => None,
        }
    }

    /// Returns the listener of a connection that was not accepted yet.
    pub(crate) fn listener(&self) -> Option<ListenerId> {
        match &self.phase {
            Phase::Responding { listener, .. } | Phase::Waiting { listener, .. } => Some(*listener),
            _ => None,
        }
    }

    /// Removes and returns the local end of a connection that was not established, or is over.
    pub(crate) fn take_returned_end(&mut self) -> Option<LocalEnd> {
        self.returned_end.take()
    }

    /// Returns the local end of a connection that is removed.
    pub(crate) fn into_end(self) -> Option<LocalEnd> {
        match self.phase {
            Phase::Connecting(connecting) => Some(connecting.end),
            Phase::Streaming(stream) => Some(stream.into_end()),
            _ => self.returned_end,
        }
    }

    /// Returns the path of its frames.
    #[inline]
    pub(crate) fn path(&mut self) -> &mut Path {
        &mut self.path
    }

    /// Returns when its next timer is due. A delayed ACK is no timer: see
    /// [`acks_next_turn`](Self::acks_next_turn).
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.unreachable {
            return Some(Instant::ZERO);
        }
        let held_back = match &self.phase {
            Phase::Streaming(stream) => stream.wakes_at(),
            _ => None,
        };
        let tcp = self.tcp.timeout_but_next_turn();
        Instant::earliest([tcp, self.deadline, held_back])
    }

    /// Returns what it wants of the engine. `is_crowded`: there are many connections, so a timer
    /// that is no longer wanted is removed rather than left to go off in vain.
    #[inline(always)]
    pub(crate) fn wants(&self, now: Instant, is_crowded: bool) -> Wants {
        // With many connections, its state would have to come back into the cache for that.
        let in_vain =
            || self.scheduled.timer.is_some() && is_crowded && self.next_timeout().is_none();
        Wants {
            timer: !self.has_timer_in_time() || in_vain(),
            ended: self.is_finished(),
            ..self.wants_to_send(now)
        }
    }

    /// Returns what it [wants](Self::wants) of the engine where no timer of it is due earlier than
    /// before, and it is not over.
    #[inline(always)]
    pub(crate) fn wants_to_send(&self, now: Instant) -> Wants {
        Wants {
            send: !self.is_at_rest(now),
            delayed_ack: self.acks_next_turn().then_some(now),
            ..Wants::default()
        }
    }

    /// Returns whether its timer surely goes off early enough, if it wants one. `false` may be
    /// wrong, `true` is not.
    #[inline]
    fn has_timer_in_time(&self) -> bool {
        let phase_waits = match &self.phase {
            Phase::Streaming(stream) => stream.wakes_at().is_some(),
            _ => true,
        };
        let waits = phase_waits || self.unreachable || self.deadline.is_some();
        !waits && self.tcp.times_out_after(self.scheduled.timer)
    }

    /// Returns whether it has a delayed ACK, to be sent in the next turn unless data carry it
    /// before.
    #[inline]
    pub(crate) fn acks_next_turn(&self) -> bool {
        self.tcp.acks_next_turn()
    }

    /// Returns whether the connection is at rest: there is surely nothing to send now. `false` may
    /// be wrong, `true` is not.
    #[inline]
    pub(crate) fn is_at_rest(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Streaming(stream) => {
                stream.is_at_rest()
                    && self.loose_octets.is_empty()
                    && !self.fin_asked
                    && self.tcp.due(now) == Due::Nothing
            }
            _ => false,
        }
    }

    /// Handles the timers that are due of a connection behind a socket.
    pub(crate) fn handle_socket_timer(&mut self, context: &mut Context<'_, '_>) {
        self.tcp.handle_timeout(context.now);
        self.handle_deadlines(context);
    }

    /// Handles the timers of all but TCP that are due.
    pub(crate) fn handle_deadlines(&mut self, context: &mut Context<'_, '_>) {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.handle_timeout(context);
        }
        if std::mem::take(&mut self.unreachable) {
            self.fail(EndReason::Unreachable, context);
        } else if self.deadline.is_some_and(|at| at <= context.now) {
            if self.tcp.is_closed() {
                // The device has no room for the RST: the peer will find out without.
                self.tcp.drop_reset();
                self.deadline = None;
            } else if self.outlives_tcp() {
                self.tcp.abort();
                self.deadline = Some(context.now + CLOSE_TIMEOUT);
            } else if self.tcp.may_end_alone() {
                self.end(EndReason::Local, context);
                self.leave_stream(context);
                self.tcp.drop_reset();
            } else {
                self.give_up(EndReason::TimedOut, context);
            }
        }
        self.settle(context);
    }

    /// Notes below that the connection is no more.
    pub(crate) fn leave(&mut self, below: &mut T::Below) {
        self.tcp.leave(below);
    }

    /// Moves the frames that it holds to `into`.
    pub(crate) fn give_back_frames(&mut self, into: &mut Vec<FrameId>) {
        self.tcp.give_back_frames(into);
    }

    /// Does so if only the RST of the connection is left to send.
    #[inline]
    pub(crate) fn give_back_useless_frames(&mut self, into: &mut Vec<FrameId>) {
        if self.tcp.is_closed() {
            self.tcp.give_back_frames(into);
        }
    }

    /// Returns TCP's counters.
    pub(crate) fn tcp_counters(&self) -> &TcpCounters {
        self.tcp.counters()
    }

    /// Returns the octets in memory of our own: the front of an FPDU, which makes the window
    /// smaller, out-of-order data, which lie inside the window, and what is parked.
    fn buffered(&self) -> usize {
        let part_of_fpdu = match &self.phase {
            Phase::Streaming(stream) => stream.buffered() + stream.parked_octets(),
            _ => 0,
        };
        self.reorder.buffered() + part_of_fpdu
    }

    /// Returns the facts of the connection for an administrator.
    pub(crate) fn facts(&self, now: Instant) -> ConnectionFacts {
        let phase = match &self.phase {
            Phase::Connecting(_) => "MPA request sent",
            Phase::Responding { .. } => "waiting for the MPA request",
            Phase::Waiting { .. } => "waiting for the application's decision",
            Phase::Streaming(_) => "streaming",
            Phase::Closing => "closing",
        };
        let (qp, mpa) = match &self.phase {
            Phase::Connecting(connecting) => (Some(connecting.end.number()), None),
            Phase::Streaming(stream) => (Some(stream.user.number()), Some(stream.facts())),
            Phase::Responding { .. } | Phase::Waiting { .. } | Phase::Closing => (None, None),
        };
        ConnectionFacts {
            local: self.key.local,
            remote: self.key.remote,
            state: format!("{:?}, {phase}", self.tcp.state()),
            phase,
            qp,
            mpa,
            tcp: self.tcp.facts(now),
            buffered: self.buffered(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::qp::QueuePair;

    /// Of ten thousand connections most have nothing in flight. What only some need, or each only
    /// for a time, is in boxes.
    #[test]
    fn an_idle_connection_takes_few_octets() {
        let records = [
            size_of::<Connection<Tcp>>(),
            size_of::<Stream>(),
            size_of::<QueuePair>(),
        ];
        let octets: usize = records.iter().sum();
        assert!(octets <= 2968, "{records:?}");
    }
}
