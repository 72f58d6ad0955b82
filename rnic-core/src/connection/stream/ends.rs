//! How a stream ends: by an error, with a Terminate of RDMAP, or for the application.

use crate::connection::context::Context;
use crate::connection::terminate::{self, StreamError};
use crate::connection::upper::{LocalUlp, RdmapUser, message};
use crate::connection::{EndReason, Event};
use crate::ddp::Teardown;

use super::intake::Intake;
use super::{Hold, Stream};

impl Stream {
    /// Handles an error. RDMAP sends a Terminate message, and the stream is over. Any other layer
    /// gets the error, and decides.
    // rfc: 5040-88b, 5040-s4, 5041-s7, 5041-s12 RDMAP sends one more message at once, a Terminate
    // rfc: 5041-70b, 5041-70c, 5041-71, 5041-74 the error is told; the ULP ends the stream
    #[cold]
    pub(super) fn fail(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        if self.ended {
            return;
        }
        let usual = self.intake == Intake::Usual;
        if usual && self.parked.is_some() && error.lacks_receive() {
            return self.begin_parking(context);
        }
        // What the peer has kept of our messages is still good: no Terminate.
        if error.is_receiver_not_ready() {
            return self.end(EndReason::ReceiverNotReady, context);
        }
        // rfc: 5044-88 a CRC error does not close the connection by itself
        if error.is_crc() {
            context.counters.rdma.crc_errors += 1;
        }
        // rfc: 5044-77b no Terminate before MPA has found an FPDU of the peer valid
        let is_mute = self.hold == Hold::ForFirstFpdu && error.is_mpa();
        match &mut self.user {
            LocalUlp::Rdmap(_) if is_mute => {
                self.end(EndReason::Startup(error.to_string()), context);
            }
            LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) => {
                // What the peer acknowledged before its fault completes.
                rdmap.acked(self.acked, qp, context.cqs);
                if let Some(sink) = error.faulted_sink() {
                    rdmap.sink_faulted(sink);
                }
                // rfc: 5040-88b at once, with type, code, length and DDP header
                rdmap.terminate(error.cause());
                if let Ok(Some(outbound)) = rdmap.next_message(qp, context.cqs, context.guard) {
                    let segmenter = self.ddp.start_message(&message(&outbound));
                    let words = match self.is_bare {
                        true => terminate::segment(&outbound, segmenter),
                        false => terminate::fpdu(&outbound, segmenter, self.crc, self.markers),
                    };
                    self.last_words = words.into();
                }
                context.counters.rdma.terminates_sent += 1;
                if error.is_overrun() {
                    let (cq, qp) = (qp.recv_cq, qp.number);
                    let overrun = Event::CompletionOverrun { cq, qp };
                    context.events.push_back(overrun);
                }
                self.end(error.end_reason(), context);
            }
            LocalUlp::Endpoint(endpoint) => {
                if !self.ddp.has_failed() {
                    self.ddp.fail();
                    // rfc: 5041-70c, 5041-71 the ULP is told, and decides when the stream ends
                    endpoint.ulp.handle_error(&error.report());
                }
            }
        }
    }

    /// Ends the stream abortively.
    pub(in crate::connection) fn end(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        if let Some(departure) = reason.departure()
            && self.rc
            && self.handle_departure(departure, context)
        {
            return;
        }
        self.end_as(Teardown::Abortive, reason, context);
    }

    /// Ends the stream for the application: every request that it posted completes, and the rest of
    /// a message that was sent in part is not sent.
    // rfc: 5040-68 nothing is sent behind a Terminate
    pub(in crate::connection) fn end_as(
        &mut self,
        teardown: Teardown,
        reason: EndReason,
        context: &mut Context<'_, '_>,
    ) {
        if self.ended {
            return;
        }
        (self.ended, self.between_messages) = (true, false);
        self.wakes_at = None;
        self.forget_parked(context);
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
}
