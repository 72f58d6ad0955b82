//! A connection whose FPDUs flow: MPA's framing, a DDP stream, and who speaks above it.

mod ahead;

use std::mem::offset_of;

use crate::ddp::{DdpStream, Llp, Message, Supply, Teardown, Ulp};
use crate::engine::{EndReason, Event};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Placement};
use crate::memory::prefetch::prefetch_front;
use crate::mpa::startup::{Negotiated, Rtr};
use crate::mpa::{Deframer, frame, marker};
use crate::rdmap::{self, Opening, Outbound, Token};
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, TAGGED_LEN};
use crate::wire::mpa::{Fpdu, LENGTH_LEN};

use super::reorder::EarlyFpdu;
use super::terminate::{self, StreamError};
use super::upper::{LocalEnd, RdmapUser, User};
use super::{Context, Upcoming};

/// Octets of a [`Stream`] that are looked at when data of the peer's come: all in front of the layer above DDP, and of that
/// whether anything ends or waits to be sent.
const TO_RECEIVE: usize = offset_of!(Stream, user) + RdmapUser::IN_EACH_TURN;

/// Octets of the shortest FPDU: a tagged message of none.
const LEAST_FPDU: usize = frame::fpdu_len(TAGGED_LEN);

/// What keeps a side from sending its first FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// The initiator was asked to wait.
    Until(Instant),
    /// A responder waits for the initiator's first FPDU.
    ForFirstFpdu,
}

/// The payload of a segment that was built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Built {
    pub(super) len: usize,
    /// Of its octets: their part of the checksum. Zero where nobody needs it.
    pub(super) sum: u16,
    /// Whether nothing follows for now.
    pub(super) push: bool,
    /// There surely is nothing more to send: [`Stream::is_at_rest`].
    pub(super) rests: bool,
}

/// FPDUs of short messages that were built.
struct Short {
    len: usize,
    /// As for [`Built`].
    rests: bool,
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
    acked: u64,
    /// Where the peer's first FPDU begins in its stream, if it sends markers.
    marked_from: Option<u64>,
    deframer: Deframer,
    ddp: DdpStream,
    user: User,
    /// Where the next FPDU stands among those that were sent, if the peer requires markers.
    markers: Option<u64>,
    /// The Terminate that the peer is owed.
    last_words: Vec<u8>,
}

impl Stream {
    pub(super) fn new(end: LocalEnd, negotiated: &Negotiated, hold: Hold) -> Self {
        let responder = hold == Hold::ForFirstFpdu;
        let mut ddp = DdpStream::new(end.origin());
        if let LocalEnd::Qp(_) = end {
            open_queues(&mut ddp, negotiated.ird, negotiated.ord);
        }
        let opening = opening(negotiated.rtr).filter(|_| !responder);
        Self {
            deframer: match negotiated.peer_markers {
                false => Deframer::new(negotiated.crc),
                true => Deframer::with_markers(negotiated.crc),
            },
            marked_from: negotiated.peer_markers.then_some(negotiated.peer_start),
            ddp,
            user: User::new(end, negotiated.ird, negotiated.ord, opening),
            send_may_open: responder && negotiated.rtr.send,
            // rfc: 5044-31
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

    /// Has what it looks at fetched, one step further with each depth from 0 to 3.
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
        self.deframer.held()
    }

    /// Octets that this FPDU still lacks.
    pub(super) fn missing(&self) -> usize {
        self.deframer.missing()
    }

    /// Octets in order, from TCP, and the CRC of all of them, if that is known already.
    pub(super) fn receive(
        &mut self,
        mut bytes: &[u8],
        mut crc: Option<u32>,
        context: &mut Context<'_, '_>,
    ) {
        let mut held = self.deframer.held();
        // rfc: 5040-85, 5041-10, 5041-75
        while !bytes.is_empty() && !self.ddp.has_failed() {
            let outcome = match self.deframer.next_with_crc(&mut bytes, crc.take()) {
                Ok(None) => {
                    let more = self.deframer.held() - held;
                    context.counters.rdma.octets_kept_aside += more as u64;
                    return;
                }
                Ok(Some(ulpdu)) => {
                    held = 0;
                    context.counters.rdma.fpdus_received += 1;
                    let opens = std::mem::take(&mut self.send_may_open) && is_opening(ulpdu);
                    let received = if opens {
                        pass_over(&mut self.ddp, ulpdu)
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

    /// The place of what may follow, as a train, behind an FPDU that was received last and whole: the rest of the buffer to
    /// which the peer writes. `None` if more is to be done for a segment than to write it there.
    pub(super) fn placement_behind<'g>(
        &self,
        fpdu: &[u8],
        guard: &'g Guard<'_>,
    ) -> Option<Placement<'g>> {
        // Another layer than RDMAP may want its payload elsewhere each time.
        let User::Rdmap(RdmapUser { rdmap, .. }) = &self.user else {
            return None;
        };
        if self.ended || !self.deframer.is_between_fpdus() {
            return None;
        }
        let segment = DdpSegment::parse(Fpdu::parse(fpdu)?.0.ulpdu).ok()?;
        let (Destination::Silent(right), DdpHeader::Tagged(header)) =
            (rdmap.admit(&segment).ok()?, &segment.header)
        else {
            return None;
        };
        let len = segment.payload.len();
        self.ddp.placement_behind(header, len, right, guard)
    }

    /// The initiator's first FPDU frees the responder to send.
    fn hold_no_longer(&mut self) {
        if self.hold == Hold::ForFirstFpdu {
            self.hold = Hold::Nothing;
        }
    }

    /// The stream has come to an FPDU that was placed early.
    pub(super) fn deliver_early(&mut self, fpdu: &EarlyFpdu, context: &mut Context<'_, '_>) {
        if self.ddp.has_failed() {
            return;
        }
        let outcome = match self.deframer.pass_over(fpdu.end - fpdu.start) {
            Ok(()) => {
                context.counters.rdma.fpdus_received += 1;
                let (placed, guard) = (fpdu.placed, context.guard);
                self.ddp
                    .deliver(placed, &mut self.user.with(context), guard)
                    .map_err(|error| error.about_placed(&placed))
            }
            Err(error) => Err(StreamError::from(error)),
        };
        self.hold_no_longer();
        self.conclude(outcome, context);
    }

    // rfc: 5041-70, 5041-s8
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
    // rfc: 5040-s4, 5041-70, 5041-71, 5041-74, 5041-s7, 5041-s12
    fn fail(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        if error.is_crc() {
            context.counters.rdma.crc_errors += 1;
        }
        match &mut self.user {
            User::Rdmap(RdmapUser { rdmap, qp, .. }) => {
                // The peer's fault takes nothing from what it has received.
                rdmap.acked(self.acked, qp, context.cqs);
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
    // rfc: 5040-68
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
        self.ddp.cut_short();
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
            self.user.with(context).transferred(acked);
        }
        only_that
    }

    /// Follows the layer below.
    pub(super) fn settle(&mut self, llp: &mut impl Llp, context: &mut Context<'_, '_>) {
        if !self.ended {
            self.ddp.settle(llp, &mut self.user.with(context));
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
    pub(super) fn carry_out_local(&mut self, may_send: bool, context: &mut Context<'_, '_>) {
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
            rdmap.carry_out_local(qp, context.cqs, context.guard);
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

    /// Whether the peer requires markers.
    pub(super) fn has_markers(&self) -> bool {
        self.markers.is_some()
    }

    /// Builds the payload of a segment, whose first octet stands at `start` of the stream, with at most `mulpdu` octets
    /// of DDP's in an FPDU: one FPDU, and behind it those that wait already and fit whole. `summed`: somebody needs its sum.
    pub(super) fn build_segment(
        &mut self,
        payload: &mut [u8],
        mulpdu: usize,
        start: u64,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> Built {
        let (mut len, mut sum, mut rests) = (0, Some(0), false);
        let push = loop {
            if !self.ddp.is_sending() {
                let at = start + len as u64;
                let short = self.build_short(&mut payload[len..], mulpdu, at, context);
                if short.len > 0 {
                    len += short.len;
                    sum = None;
                }
                rests = short.rests || self.user.is_at_rest();
                if rests || !self.goes_on(payload.len() - len, len, mulpdu, context) {
                    break len > 0;
                }
            }
            let (more, sum_of_more) = self.build_fpdu(&mut payload[len..], mulpdu, summed, context);
            if more == 0 {
                break len > 0;
            }
            len += more;
            // FPDUs have an even number of octets.
            sum = sum.zip(sum_of_more).map(|(a, b)| checksum::combine(a, b));
            if !self.handle_built(start + len as u64, context) {
                break false;
            }
        };
        let sum = match sum {
            _ if !summed => 0,
            Some(sum) => sum,
            None => checksum::sum(&payload[..len]),
        };
        Built {
            len,
            sum,
            push,
            rests,
        }
    }

    /// Whether another FPDU belongs into a segment that has `len` octets, and room for so many. May begin a message.
    fn goes_on(
        &mut self,
        room: usize,
        len: usize,
        mulpdu: usize,
        context: &mut Context<'_, '_>,
    ) -> bool {
        if len == 0 {
            return self.has_output(context);
        }
        // With markers each FPDU has a segment of its own, which is how analysers, too, find it best.
        let alone = self.has_markers() || room < LEAST_FPDU;
        !alone && self.has_output(context) && self.next_fits(room, mulpdu)
    }

    /// Builds FPDUs of short messages that wait, each whole, for as long as they fit. The first octet stands at `start` of
    /// the stream.
    fn build_short(
        &mut self,
        room: &mut [u8],
        mulpdu: usize,
        start: u64,
        context: &mut Context<'_, '_>,
    ) -> Short {
        let mut short = Short {
            len: 0,
            rests: false,
        };
        if self.has_markers() {
            return short;
        }
        let mut fpdus = 0;
        let upper = &mut self.user.with(context);
        while !short.rests {
            let fpdu = &mut room[short.len..];
            let most = frame::ulpdu_room(fpdu.len()).min(mulpdu);
            let Some(ulpdu) = fpdu.get_mut(LENGTH_LEN..LENGTH_LEN + most) else {
                break;
            };
            let Some(ulpdu_len) = self.ddp.next_short(ulpdu, upper) else {
                break;
            };
            short.len += frame::seal(fpdu, ulpdu_len, self.crc);
            self.ddp.posted_short(start + short.len as u64, upper);
            short.rests = upper.is_at_rest();
            fpdus += 1;
        }
        context.counters.rdma.fpdus_sent += fpdus;
        short
    }

    /// Whether all that is left of the message being sent is one FPDU that fits into this room.
    // rfc: 5044-s7
    fn next_fits(&self, room: usize, mulpdu: usize) -> bool {
        let rest = self.ddp.rest_len();
        rest.is_some_and(|rest| rest <= mulpdu && frame::fpdu_len(rest) <= room)
    }

    /// Builds the next FPDU in `frame`, with at most `mulpdu` octets of DDP's. Returns its length, and its sum if that is
    /// wanted and came with its CRC.
    fn build_fpdu(
        &mut self,
        frame: &mut [u8],
        mulpdu: usize,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> (usize, Option<u16>) {
        let (room, guard) = (&mut frame[LENGTH_LEN..], context.guard);
        let upper = &mut self.user.with(context);
        let len = match self.ddp.next_segment(mulpdu, room, upper, guard) {
            Ok(Some(built)) => built.len,
            Ok(None) => return (0, None),
            Err(error) => {
                self.ddp.cut_short();
                self.fail(&error, context);
                return (0, None);
            }
        };
        context.counters.rdma.fpdus_sent += 1;
        // rfc: 5044-58
        let Some(position) = &mut self.markers else {
            return frame::seal_and_sum(frame, len, self.crc, summed);
        };
        let len = marker::seal(frame, len, *position, self.crc);
        *position += len as u64;
        (len, None)
    }

    /// The FPDU just built ends at `end` of the stream. Says whether it was the last of its message.
    fn handle_built(&mut self, end: u64, context: &mut Context<'_, '_>) -> bool {
        self.ddp.posted(end, &mut self.user.with(context))
    }
}

/// Opens the queues that RDMAP asks for.
fn open_queues(ddp: &mut DdpStream, ird: u16, ord: u16) {
    ddp.open(QueueNumber::SEND, Supply::Posted);
    for (queue, count, size) in rdmap::own_queues(ird, ord) {
        ddp.open(queue, Supply::Kept { count, size });
    }
}

/// What an initiator begins with.
fn opening(rtr: Rtr) -> Option<Opening> {
    match rtr {
        Rtr { write: true, .. } => Some(Opening::Write),
        Rtr { read: true, .. } => Some(Opening::Read),
        Rtr { send: true, .. } => Some(Opening::Send),
        Rtr::NONE => None,
    }
}

/// Whether the initiator's first FPDU is a ready-to-receive message that is a Send.
// rfc: 6581-27
fn is_opening(ulpdu: &[u8]) -> bool {
    DdpSegment::parse(ulpdu).is_ok_and(|segment| Opening::is_send(&segment))
}

/// Such a Send takes no receive from the application.
fn pass_over(ddp: &mut DdpStream, ulpdu: &[u8]) -> Result<u32, StreamError> {
    match DdpSegment::parse(ulpdu)?.header {
        DdpHeader::Untagged(header) => ddp.pass_over(&header)?,
        DdpHeader::Tagged(_) => {}
    }
    Ok(0)
}

/// What DDP needs to know of a message.
pub(super) fn message(outbound: &Outbound) -> Message {
    Message {
        header: outbound.header,
        length: outbound.length,
    }
}
