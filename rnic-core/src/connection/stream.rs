//! A connection whose FPDUs flow: MPA's framing, a DDP stream, and who speaks above it.

mod ahead;
mod build;
mod built;

use std::fmt;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

use crate::ddp::{BufferSupply, DdpStream, Llp, Placed, Teardown, Ulp};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Writer};
use crate::memory::prefetch::prefetch_front;
use crate::mpa::Deframer;
use crate::mpa::startup::{MpaNegotiated, Rtr};
use crate::rdmap::{self, RtrMessage, Token};
use crate::time::Instant;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use crate::wire::mpa::Fpdu;

use super::context::{Context, Upcoming};
use super::terminate::{self, StreamError};
use super::upper::{LocalEnd, RdmapUser, User, message};
use super::{EndReason, Event};

pub(super) use self::built::Built;

/// Octets of a [`Stream`] that are looked at when data of the peer's come: all in front of the layer above DDP, and of that
/// whether anything ends or waits to be sent.
const TO_RECEIVE: usize = offset_of!(Stream, user) + RdmapUser::IN_EACH_TURN;

/// What keeps a side from sending its first FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// The initiator was asked to wait.
    Until(Instant),
    /// A responder waits for the initiator's first FPDU.
    ForFirstFpdu,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("hold", &self.hold)
            .field("ended", &self.ended)
            .field("send_may_open", &self.send_may_open)
            .field("deframer", &*self.deframer)
            .field("ddp", &self.ddp)
            .field("markers", &self.markers)
            .field("last_words", &self.last_words)
            .finish_non_exhaustive()
    }
}

/// The deframer, and whether the stream was found steady since it was last used: nothing else that a steady stream receives
/// or sends makes it another.
struct SteadyDeframer {
    deframer: Deframer,
    steady: bool,
}

impl SteadyDeframer {
    fn new(deframer: Deframer) -> Self {
        Self {
            deframer,
            steady: false,
        }
    }
}

impl Deref for SteadyDeframer {
    type Target = Deframer;

    #[inline(always)]
    fn deref(&self) -> &Deframer {
        &self.deframer
    }
}

impl DerefMut for SteadyDeframer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Deframer {
        self.steady = false;
        &mut self.deframer
    }
}

/// The layers above TCP, once MPA start-up is over. What is received needs the first fields, in this order.
#[repr(C)]
pub(super) struct Stream {
    hold: Hold,
    ended: bool,
    crc: bool,
    /// The peer may begin with a Send that is not for the application, and has not begun.
    send_may_open: bool,
    /// What the peer had acknowledged when the octets came that are being received.
    pub(super) acked: u64,
    /// Where the peer's first FPDU begins in its stream, if it sends markers.
    marked_from: Option<u64>,
    deframer: SteadyDeframer,
    pub(super) ddp: DdpStream,
    pub(super) user: User,
    /// Where the next FPDU stands among those that were sent, if the peer requires markers.
    markers: Option<u64>,
    /// The Terminate that the peer is owed.
    last_words: Vec<u8>,
}

impl Stream {
    pub(super) fn new(mut end: LocalEnd, negotiated: &MpaNegotiated, hold: Hold) -> Self {
        let responder = hold == Hold::ForFirstFpdu;
        // rfc: 5044-10 DDP is told the revision
        let mut ddp = DdpStream::new(end.origin(), negotiated.revision);
        match &mut end {
            LocalEnd::Qp(_) => open_queues(&mut ddp, negotiated.ird, negotiated.ord),
            LocalEnd::Endpoint(endpoint) => endpoint.ulp.handle_start(ddp.llp_version()),
        }
        let opening = opening(negotiated.rtr).filter(|_| !responder);
        Self {
            deframer: SteadyDeframer::new(match negotiated.peer_markers {
                false => Deframer::new(negotiated.crc),
                true => Deframer::with_markers(negotiated.crc),
            }),
            marked_from: negotiated.peer_markers.then_some(negotiated.peer_start),
            ddp,
            user: User::new(end, negotiated.ird, negotiated.ord, opening),
            send_may_open: responder && negotiated.rtr.send,
            crc: negotiated.crc,
            markers: negotiated.markers.then_some(0),
            hold,
            ended: false,
            acked: 0,
            last_words: Vec::new(),
        }
    }

    /// The application asks to end in order, after all that it has posted so far.
    pub(super) fn finish(&mut self) {
        self.ddp.finish();
        self.user.finish();
    }

    /// Whether the application has asked to end in order.
    pub(super) fn is_closing(&self) -> bool {
        self.ddp.is_finishing()
    }

    /// Whether the layer above is another than RDMAP, which decides itself how long the stream lives.
    pub(super) fn is_endpoint(&self) -> bool {
        matches!(self.user, User::Endpoint(_))
    }

    /// Has what it looks at fetched, one step further with each depth from 0 to 2.
    pub(super) fn prefetch(&self, turn: Upcoming, depth: usize) {
        match (depth.checked_sub(1), turn) {
            (None, Upcoming::Data) => prefetch_front(self, TO_RECEIVE),
            (None, Upcoming::Any) => prefetch_front(self, offset_of!(Self, markers)),
            (Some(depth), _) => self.user.prefetch(turn, depth),
        }
    }

    pub(super) fn into_end(self) -> LocalEnd {
        self.user.into_end()
    }

    /// What is still to be sent of a stream that has ended.
    pub(super) fn take_last_words(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.last_words)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the peer sends FPDUs with CRCs, and without markers.
    pub(super) fn receives_crcs(&self) -> bool {
        self.crc && self.marked_from.is_none()
    }

    /// Octets of an FPDU whose rest has not arrived.
    pub(super) fn held(&self) -> usize {
        self.deframer.buffered()
    }

    /// Whether the stream would not end between two messages here. Behind an error that was told, what the peer began does
    /// not count.
    pub(super) fn is_inside_message(&self) -> bool {
        self.held() > 0 || (self.ddp.is_amid_message() && !self.ddp.has_failed())
    }

    /// Octets that this FPDU still lacks.
    pub(super) fn missing(&self) -> usize {
        self.deframer.missing_len()
    }

    /// Whether the stream is steady: the next octet received begins an FPDU and a message, and nothing of the stream's beginning
    /// or end, and no response of ours, is under way.
    fn is_steady(&self) -> bool {
        let (User::Rdmap(RdmapUser { rdmap, .. }), Hold::Nothing) = (&self.user, self.hold) else {
            return false;
        };
        let ends = self.ended || self.ddp.has_failed() || self.ddp.is_finishing();
        let between = self.deframer.is_at_fpdu_boundary() && !self.ddp.is_amid_message();
        !ends && !self.send_may_open && between && rdmap.is_steady()
    }

    /// Whether the stream is certainly [steady](Self::is_steady), as it was found when it was [settled](Self::settle_acked).
    #[inline(always)]
    pub(super) fn is_still_steady(&self) -> bool {
        let steady = self.deframer.steady && !self.ended && !self.ddp.is_finishing();
        debug_assert!(!steady || self.is_steady());
        steady
    }

    /// Octets in order, from TCP, and the CRC of all of them, if that is known already.
    pub(super) fn receive(
        &mut self,
        mut bytes: &[u8],
        mut crc: Option<u32>,
        context: &mut Context<'_, '_>,
    ) {
        let mut held = self.deframer.buffered();
        // rfc: 5040-85, 5041-10, 5041-75 behind an error, what comes is dropped silently
        while !bytes.is_empty() && !self.ddp.has_failed() {
            let outcome = match self.deframer.next_with_crc(&mut bytes, crc.take()) {
                Ok(None) => {
                    let more = self.deframer.buffered() - held;
                    context.counters.rdma.octets_buffered += more as u64;
                    return;
                }
                Ok(Some(ulpdu)) => {
                    held = 0;
                    context.counters.rdma.fpdus_received += 1;
                    let opens = std::mem::take(&mut self.send_may_open) && is_opening(ulpdu);
                    let received = if opens {
                        deliver_without_buffer(&mut self.ddp, ulpdu)
                    } else {
                        let guard = context.guard;
                        self.ddp.receive(ulpdu, &mut self.user.with(context), guard)
                    };
                    match received {
                        Ok(octets) => {
                            context.counters.rdma.octets_placed += u64::from(octets);
                            Ok(())
                        }
                        Err(error) => Err(error.about(ulpdu)),
                    }
                }
                Err(error) => Err(StreamError::from(error)),
            };
            self.hold_no_longer();
            self.conclude(outcome, context);
        }
    }

    /// Who writes what may follow, in a coalesced run, behind an FPDU that was received last and whole, and is a segment with the
    /// same opcode. `None` if more is to be done for a segment than to write it.
    pub(super) fn writer_behind<'g>(
        &self,
        fpdu: &[u8],
        guard: &'g Guard<'_>,
    ) -> Option<Writer<'g>> {
        // Another layer than RDMAP may want its payload elsewhere each time.
        let User::Rdmap(RdmapUser { rdmap, .. }) = &self.user else {
            return None;
        };
        if self.ended || !self.deframer.is_at_fpdu_boundary() {
            return None;
        }
        let segment = DdpSegment::parse(Fpdu::parse(fpdu)?.0.ulpdu).ok()?;
        let Destination::Silent(right) = rdmap.admit(&segment).ok()? else {
            return None;
        };
        self.ddp.writer(right, guard)
    }

    /// The initiator's first FPDU frees the responder to send.
    fn hold_no_longer(&mut self) {
        if self.hold == Hold::ForFirstFpdu {
            self.hold = Hold::Nothing;
        }
    }

    /// The stream has come to an FPDU of this many octets that was placed early.
    pub(super) fn deliver_early(
        &mut self,
        len: u64,
        placed: Placed,
        context: &mut Context<'_, '_>,
    ) {
        if self.ddp.has_failed() {
            return;
        }
        let outcome = match self.deframer.skip_fpdu(len) {
            Ok(()) => {
                context.counters.rdma.fpdus_received += 1;
                let guard = context.guard;
                self.ddp
                    .deliver(placed, &mut self.user.with(context), guard)
                    .map_err(|error| error.about_placed(&placed))
            }
            Err(error) => Err(StreamError::from(error)),
        };
        self.hold_no_longer();
        self.conclude(outcome, context);
    }

    // rfc: 5041-70b, 5041-70c, 5041-s8 an error of the LLP, or an invalid DDP header, ends the stream
    #[inline]
    fn conclude(&mut self, outcome: Result<(), StreamError>, context: &mut Context<'_, '_>) {
        if let Err(error) = outcome {
            self.fail(&error, context);
        } else if let User::Rdmap(user) = &self.user
            && let Some(terminate) = user.rdmap.received()
        {
            context.counters.rdma.terminates_received += 1;
            let control = terminate.control;
            self.end(EndReason::TerminateReceived { control }, context);
        }
    }

    /// An error: RDMAP tells the peer by a Terminate message, and the stream is over. Any other layer is told, and
    /// decides.
    // rfc: 5040-88b, 5040-s4, 5041-s7, 5041-s12 RDMAP sends one more message at once, a Terminate
    // rfc: 5041-70b, 5041-70c, 5041-71, 5041-74 the error is told; the stream ends when the layer above says so
    #[cold]
    fn fail(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        // rfc: 5044-88 a CRC error does not close the connection by itself
        if error.is_crc() {
            context.counters.rdma.crc_errors += 1;
        }
        match &mut self.user {
            User::Rdmap(RdmapUser { rdmap, qp, .. }) => {
                // The peer's fault takes nothing from what it has received.
                rdmap.acked(self.acked, qp, context.cqs);
                // rfc: 5040-88b at once, with type, code, length and DDP header
                rdmap.terminate(error.cause());
                if let Ok(Some(outbound)) = rdmap.next_message(qp, context.cqs, context.guard) {
                    let segmenter = self.ddp.start_message(&message(&outbound));
                    self.last_words = terminate::fpdu(&outbound, segmenter, self.crc, self.markers);
                }
                context.counters.rdma.terminates_sent += 1;
                if error.is_overrun() {
                    let (cq, qp) = (qp.recv_cq, qp.number);
                    let overrun = Event::CompletionOverrun { cq, qp };
                    context.events.push_back(overrun);
                }
                self.end(error.end_reason(), context);
            }
            User::Endpoint(endpoint) => {
                if !self.ddp.has_failed() {
                    self.ddp.fail();
                    // rfc: 5041-70c, 5041-71 the layer above is told, and decides when the stream ends
                    endpoint.ulp.handle_error(&error.report());
                }
            }
        }
    }

    /// The stream is over, not in order.
    pub(super) fn end(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        self.end_as(Teardown::Abortive, reason, context);
    }

    /// The stream is over for the application: every request it posted completes, and what was not sent of a
    /// message never is.
    // rfc: 5040-68 nothing is sent behind a Terminate
    pub(super) fn end_as(
        &mut self,
        teardown: Teardown,
        reason: EndReason,
        context: &mut Context<'_, '_>,
    ) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.ddp.fail();
        self.ddp.abort_message();
        self.user.end(teardown, context);
        context.events.push_back(Event::Disconnected {
            qp: self.user.number(),
            reason,
        });
        if self.user.shares_receives() {
            let qp = self.user.number();
            context.events.push_back(Event::LastReceive { qp });
        }
    }

    /// The peer has acknowledged this much of what was sent; [`settle`](Self::settle) completes what that ends.
    pub(super) fn note_acked(&mut self, acked: u64) {
        self.acked = acked;
    }

    /// [`settle`](Self::settle), if that is no more than to complete what the peer has acknowledged. Says whether it was.
    #[inline]
    pub(super) fn settle_acked(&mut self, acked: u64, context: &mut Context<'_, '_>) -> bool {
        let only_that = !self.ended && !self.ddp.is_finishing() && !self.is_endpoint();
        if only_that {
            self.deframer.steady = self.is_steady();
            self.user.with(context).transferred(acked);
        }
        only_that
    }

    /// Follows the layer below.
    pub(super) fn settle(&mut self, llp: &mut impl Llp, context: &mut Context<'_, '_>) {
        if !self.ended {
            self.ddp.follow_llp(llp, &mut self.user.with(context));
        }
    }

    /// When the first FPDU may go.
    pub(super) fn held_back_until(&self) -> Option<Instant> {
        match self.hold {
            Hold::Until(at) => Some(at),
            _ => None,
        }
    }

    /// The time has come at which the first FPDU may go.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.held_back_until().is_some_and(|at| at <= now) {
            self.hold = Hold::Nothing;
        }
    }

    /// Requests that send nothing wait for no room to send in, nor for a Read Response that is being sent, nor for the
    /// peer's first FPDU, which may be for a window that one of them binds. Where a message can begin, that carries
    /// them out.
    pub(super) fn execute_local(&mut self, may_send: bool, context: &mut Context<'_, '_>) {
        let User::Rdmap(RdmapUser {
            rdmap,
            qp,
            outbound,
        }) = &mut self.user
        else {
            return;
        };
        let due = match outbound {
            Some(outbound) => outbound.token == Token::Response,
            None => !may_send || self.hold != Hold::Nothing,
        };
        if due && !self.ended {
            rdmap.execute_local(qp, context.cqs, context.guard);
        }
    }

    /// Whether there is surely nothing to send now, nor anything else to be done for a send queue.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        !self.ended && !self.ddp.is_sending() && self.user.is_at_rest()
    }

    /// Whether FPDUs may be sent now.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.hold == Hold::Nothing && !self.ended
    }

    /// Whether there is something to send now. May begin a message.
    #[inline]
    pub(super) fn has_output(&mut self, context: &mut Context<'_, '_>) -> bool {
        self.may_send() && (self.ddp.is_sending() || self.begins_message(context))
    }

    fn begins_message(&mut self, context: &mut Context<'_, '_>) -> bool {
        if self.user.is_at_rest() {
            return false;
        }
        let guard = context.guard;
        let output = self.ddp.has_output(&mut self.user.with(context), guard);
        output.unwrap_or_else(|error| {
            self.fail(&error, context);
            false
        })
    }

    /// Whether FPDUs have CRCs.
    #[inline]
    pub(super) fn has_crcs(&self) -> bool {
        self.crc
    }

    /// Whether the peer requires markers.
    pub(super) fn has_markers(&self) -> bool {
        self.markers.is_some()
    }
}

/// Opens the queues that RDMAP asks for.
fn open_queues(ddp: &mut DdpStream, ird: u16, ord: u16) {
    ddp.open(QueueNumber::SEND, BufferSupply::Posted);
    for (queue, count, size) in rdmap::rdmap_queues(ird, ord) {
        ddp.open(queue, BufferSupply::Internal { count, size });
    }
}

/// What an initiator begins with.
fn opening(rtr: Rtr) -> Option<RtrMessage> {
    match rtr {
        Rtr { write: true, .. } => Some(RtrMessage::Write),
        Rtr { read: true, .. } => Some(RtrMessage::Read),
        Rtr { send: true, .. } => Some(RtrMessage::Send),
        Rtr::NONE => None,
    }
}

/// Whether the initiator's first FPDU is a ready-to-receive message that is a Send.
// rfc: 6581-27 a responder takes a Send as RTR message
fn is_opening(ulpdu: &[u8]) -> bool {
    DdpSegment::parse(ulpdu).is_ok_and(|segment| RtrMessage::is_send(&segment))
}

/// Such a Send takes no receive from the application.
fn deliver_without_buffer(ddp: &mut DdpStream, ulpdu: &[u8]) -> Result<u32, StreamError> {
    match DdpSegment::parse(ulpdu)?.header {
        DdpHeader::Untagged(header) => ddp.deliver_without_buffer(&header)?,
        DdpHeader::Tagged(_) => {}
    }
    Ok(0)
}
