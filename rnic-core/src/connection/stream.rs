//! A connection whose FPDUs flow: MPA's framing, DDP's placement and RDMAP's messages in one place.

use crate::ddp::{Ddp, Delivery, Placed, Segmenter, Supply};
use crate::engine::{EndReason, Event};
use crate::mpa::startup::{Negotiated, Rtr};
use crate::mpa::{Deframer, frame, marker};
use crate::rdmap::{self, Opening, Outbound, Rdmap, Token};
use crate::time::Instant;
use crate::verbs::qp::{QpState, QueuePair};
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber};
use crate::wire::mpa::LENGTH_LEN;

use super::Context;
use super::reorder::{EarlyFpdu, Reorder};
use super::terminate::{self, StreamError};

/// What keeps a side from sending its first FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// The initiator was asked to wait.
    Until(Instant),
    /// A responder waits for the initiator's first FPDU.
    ForFirstFpdu,
}

/// A message that is being cut into FPDUs.
struct Sending {
    outbound: Outbound,
    segmenter: Segmenter,
    /// The last FPDU was built: TCP will say where it ends.
    complete: bool,
}

impl Sending {
    fn new(outbound: Outbound, ddp: &mut Ddp) -> Self {
        let segmenter = ddp.start_message(outbound.header, outbound.length);
        Self {
            outbound,
            segmenter,
            complete: false,
        }
    }
}

/// The layers above TCP, once MPA start-up is over.
pub(super) struct Stream {
    closing: bool,
    deframer: Deframer,
    upper: Upper,
    crc: bool,
    /// Where the next FPDU stands among those that were sent, if the peer requires markers.
    markers: Option<u64>,
    hold: Hold,
    sending: Option<Sending>,
    ended: bool,
    /// The Terminate that the peer is owed.
    last_words: Vec<u8>,
}

impl Stream {
    pub(super) fn new(qp: Box<QueuePair>, negotiated: &Negotiated, hold: Hold) -> Self {
        let responder = hold == Hold::ForFirstFpdu;
        let mut rdmap = Rdmap::new(negotiated.ird, negotiated.ord, qp.sq.capacity());
        if let Some(opening) = opening(negotiated.rtr).filter(|_| !responder) {
            rdmap.open_with(opening);
        }
        Self {
            closing: false,
            deframer: Deframer::new(negotiated.crc),
            upper: Upper {
                ddp: queues(negotiated.ird, negotiated.ord),
                rdmap,
                qp,
                send_may_open: responder && negotiated.rtr.send,
            },
            // rfc: 5044-31
            crc: negotiated.crc,
            markers: negotiated.markers.then_some(0),
            hold,
            sending: None,
            ended: false,
            last_words: Vec::new(),
        }
    }

    /// The application asks to end in order, after all that it has posted so far.
    pub(super) fn finish(&mut self) {
        self.closing = true;
        self.upper.rdmap.finish(&self.upper.qp);
    }

    /// Whether the application has asked to end in order.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn into_qp(self) -> Box<QueuePair> {
        self.upper.qp
    }

    /// What is still to be sent of a stream that has ended.
    pub(super) fn take_last_words(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.last_words)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Octets of an FPDU whose rest has not arrived.
    pub(super) fn held(&self) -> usize {
        self.deframer.held()
    }

    /// Octets that this FPDU still lacks.
    pub(super) fn missing(&self) -> usize {
        self.deframer.missing()
    }

    /// Octets in order, from TCP.
    pub(super) fn receive(&mut self, mut bytes: &[u8], context: &mut Context<'_, '_>) {
        let mut held = self.deframer.held();
        // rfc: 5040-85, 5041-10, 5041-75
        while !self.ended {
            let outcome = match self.deframer.next(&mut bytes) {
                Ok(None) => {
                    let more = self.deframer.held() - held;
                    context.counters.rdma.octets_kept_aside += more as u64;
                    return;
                }
                Ok(Some(ulpdu)) => {
                    held = 0;
                    context.counters.rdma.fpdus_received += 1;
                    if self.hold == Hold::ForFirstFpdu {
                        self.upper.receive_first(ulpdu, context)
                    } else {
                        self.upper.receive(ulpdu, context)
                    }
                }
                Err(error) => Err(StreamError::from(error)),
            };
            self.hold_no_longer();
            self.conclude(outcome, context);
        }
    }

    /// The initiator's first FPDU frees the responder to send.
    fn hold_no_longer(&mut self) {
        if self.hold == Hold::ForFirstFpdu {
            self.hold = Hold::Nothing;
        }
    }

    /// An out-of-order segment: if it is whole FPDUs that are in order themselves, their payload is placed now.
    /// Errors are left for when their turn comes. Returns how many octets were placed.
    // rfc: 5044-s2
    pub(super) fn place_early(
        &mut self,
        start: u64,
        segment: &[u8],
        reorder: &mut Reorder,
        context: &mut Context<'_, '_>,
    ) -> usize {
        // Before it is known whether a Send opened the connection it is not known which receive takes the next.
        if self.ended || self.upper.send_may_open {
            return 0;
        }
        let Some(fpdus) = self.deframer.whole_fpdus(segment) else {
            return 0;
        };
        let mut at = 0;
        for ulpdu in fpdus {
            if !reorder.has_room() {
                break;
            }
            let Ok(placed) = self.upper.place(ulpdu, context) else {
                break;
            };
            let len = frame::fpdu_len(ulpdu.len());
            let start = start + at as u64;
            reorder.insert_early(EarlyFpdu {
                start,
                end: start + len as u64,
                placed,
            });
            let octets = u64::from(placed.payload_len());
            context.counters.rdma.octets_placed += octets;
            context.counters.rdma.octets_placed_early += octets;
            at += len;
        }
        at
    }

    /// The stream has come to an FPDU that was placed early.
    pub(super) fn deliver_early(&mut self, fpdu: &EarlyFpdu, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        let outcome = match self.deframer.pass_over() {
            Ok(()) => {
                context.counters.rdma.fpdus_received += 1;
                let placed = fpdu.placed;
                self.upper
                    .deliver(placed, context)
                    .map_err(|error| error.about_placed(&placed))
            }
            Err(error) => Err(StreamError::from(error)),
        };
        self.hold_no_longer();
        self.conclude(outcome, context);
    }

    /// An error ends the stream: the peer is told by a Terminate message, the application by an event.
    // rfc: 5041-70, 5041-s8
    fn conclude(&mut self, outcome: Result<(), StreamError>, context: &mut Context<'_, '_>) {
        match outcome {
            Ok(()) => {
                if let Some(terminate) = self.upper.rdmap.received() {
                    context.counters.rdma.terminates_received += 1;
                    let control = terminate.control;
                    self.end(EndReason::TerminateReceived { control }, context);
                }
            }
            Err(error) => self.terminate(&error, context),
        }
    }

    /// Sends a Terminate for the first error.
    // rfc: 5040-s4, 5041-71, 5041-s7, 5041-s12
    pub(super) fn terminate(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        if error.is_crc() {
            context.counters.rdma.crc_errors += 1;
        }
        let Upper { qp, rdmap, ddp, .. } = &mut self.upper;
        rdmap.terminate(error.cause());
        if let Ok(Some(outbound)) = rdmap.next_message(qp, context.cqs, context.guard) {
            self.last_words = terminate::fpdu(&outbound, ddp, self.crc, self.markers);
        }
        context.counters.rdma.terminates_sent += 1;
        self.end(error.end_reason(), context);
    }

    /// The stream is over for the application: every request it posted completes, and what was not sent of a
    /// message never is.
    // rfc: 5040-68
    pub(super) fn end(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.sending = None;
        let Upper { qp, rdmap, .. } = &mut self.upper;
        qp.state = QpState::Error;
        // rfc: 5040-s5
        rdmap.flush(qp, context.cqs);
        context.events.push_back(Event::Disconnected {
            qp: qp.number,
            reason,
        });
    }

    /// The peer acknowledged the stream up to here.
    pub(super) fn handle_acked(&mut self, acked: u64, context: &mut Context<'_, '_>) {
        if !self.ended {
            self.upper
                .rdmap
                .acked(acked, &mut self.upper.qp, context.cqs);
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

    /// Everything that the application posted has completed, and the peer has its answers.
    pub(super) fn is_drained(&self) -> bool {
        self.sending.is_none() && self.upper.rdmap.is_idle(&self.upper.qp)
    }

    /// Requests that send nothing wait for no room to send in, nor for a Read Response that is being sent, nor for the
    /// peer's first FPDU, which may be for a window that one of them binds. Where a message can begin, that carries
    /// them out.
    pub(super) fn carry_out_local(&mut self, may_send: bool, context: &mut Context<'_, '_>) {
        let due = match &self.sending {
            Some(sending) => sending.outbound.token == Token::Response,
            None => !may_send || self.hold != Hold::Nothing,
        };
        if due && !self.ended {
            let Upper { qp, rdmap, .. } = &mut self.upper;
            rdmap.carry_out_local(qp, context.cqs, context.guard);
        }
    }

    /// Whether there is something to send now. May begin a message.
    pub(super) fn has_output(&mut self, context: &mut Context<'_, '_>) -> bool {
        if self.hold != Hold::Nothing {
            return false;
        }
        if self.sending.is_none() && !self.ended {
            self.begin_message(context);
        }
        self.sending.is_some()
    }

    fn begin_message(&mut self, context: &mut Context<'_, '_>) {
        let Upper { qp, rdmap, ddp, .. } = &mut self.upper;
        match rdmap.next_message(qp, context.cqs, context.guard) {
            Ok(Some(outbound)) => self.sending = Some(Sending::new(outbound, ddp)),
            Ok(None) => {}
            Err(error) => self.terminate(&StreamError::from(error), context),
        }
    }

    /// Builds the next FPDU in `frame`, for a segment of at most `room` octets. Returns its length.
    pub(super) fn build_fpdu(
        &mut self,
        frame: &mut [u8],
        room: usize,
        context: &mut Context<'_, '_>,
    ) -> usize {
        let Some(sending) = &mut self.sending else {
            return 0;
        };
        // rfc: 5041-3, 5044-5, 5044-s5
        let mulpdu = match self.markers {
            None => frame::mulpdu(room),
            Some(_) => marker::mulpdu(room),
        };
        let Some(cut) = sending.segmenter.next(mulpdu) else {
            return 0;
        };
        let header_len = cut.header.emit(&mut frame[LENGTH_LEN..]);
        let payload_at = LENGTH_LEN + header_len;
        let payload = &mut frame[payload_at..payload_at + cut.len];
        let Upper { qp, rdmap, .. } = &mut self.upper;
        let Outbound { source, token, .. } = sending.outbound;
        if let Err(error) = source.read(context.guard, qp.origin(), cut.offset, payload) {
            let error = rdmap.source_failed(token, cut.offset, error);
            self.terminate(&StreamError::from(error), context);
            return 0;
        }
        sending.complete = cut.last;
        context.counters.rdma.fpdus_sent += 1;
        // rfc: 5044-58
        let Some(position) = &mut self.markers else {
            return frame::seal(frame, header_len + cut.len, self.crc);
        };
        let len = marker::seal(frame, header_len + cut.len, *position, self.crc);
        *position += len as u64;
        len
    }

    /// TCP has taken the FPDU just built; it ends at `end` of the stream. Says whether it was the last of its message.
    pub(super) fn handle_queued(&mut self, end: u64) -> bool {
        let complete = self.sending.take_if(|sending| sending.complete);
        if let Some(sending) = &complete {
            self.upper.rdmap.sent(sending.outbound.token, end);
        }
        complete.is_some()
    }
}

/// DDP and RDMAP with the queue pair that they serve.
struct Upper {
    ddp: Ddp,
    rdmap: Rdmap,
    qp: Box<QueuePair>,
    /// The peer may begin with a Send that is not for the application, and has not begun.
    send_may_open: bool,
}

/// DDP with the queues that RDMAP asks for.
// rfc: 5040-47
fn queues(ird: u16, ord: u16) -> Ddp {
    let mut ddp = Ddp::new();
    ddp.open(QueueNumber::SEND, Supply::Posted);
    for (queue, count, size) in rdmap::own_queues(ird, ord) {
        ddp.open(queue, Supply::Kept { count, size });
    }
    ddp
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

impl Upper {
    /// The initiator's first FPDU. A ready-to-receive message that is a Send takes no receive from the application.
    // rfc: 6581-27
    fn receive_first(
        &mut self,
        ulpdu: &[u8],
        context: &mut Context<'_, '_>,
    ) -> Result<(), StreamError> {
        if std::mem::take(&mut self.send_may_open)
            && let Ok(segment) = DdpSegment::parse(ulpdu)
            && let DdpHeader::Untagged(header) = &segment.header
            && Opening::is_send(&segment)
        {
            let passed = self.ddp.pass_over(header);
            return passed.map_err(|error| StreamError::from(error).about(ulpdu));
        }
        self.receive(ulpdu, context)
    }

    fn receive(&mut self, ulpdu: &[u8], context: &mut Context<'_, '_>) -> Result<(), StreamError> {
        let placed = self
            .place(ulpdu, context)
            .map_err(|error| error.about(ulpdu))?;
        context.counters.rdma.octets_placed += u64::from(placed.payload_len());
        self.deliver(placed, context)
            .map_err(|error| error.about(ulpdu))
    }

    /// Validates and copies; changes nothing else.
    fn place(&mut self, ulpdu: &[u8], context: &Context<'_, '_>) -> Result<Placed, StreamError> {
        let segment = DdpSegment::parse(ulpdu)?;
        let destination = self.rdmap.admit(&segment)?;
        Ok(self
            .ddp
            .place(&segment, destination, &*self.qp, context.guard)?)
    }

    fn deliver(
        &mut self,
        placed: Placed,
        context: &mut Context<'_, '_>,
    ) -> Result<(), StreamError> {
        let Self { ddp, rdmap, qp, .. } = self;
        match ddp.deliver(placed)? {
            None => {}
            Some(Delivery::Tagged { header, len }) => {
                rdmap.handle_tagged(&header, len, qp, context.cqs)?;
            }
            Some(Delivery::Untagged {
                header,
                length,
                octets,
            }) => {
                rdmap.handle_untagged(&header, length, octets, qp, context.cqs, context.guard)?;
            }
        }
        Ok(())
    }
}
