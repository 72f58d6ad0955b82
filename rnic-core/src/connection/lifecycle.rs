//! How connections end: in order, by a failure of TCP, or because the application asks for it.

use crate::ddp::{Llp, Teardown};
use crate::memory::table::Access;
use crate::mpa::{MpaInitiator, frame, marker};
use crate::tcp::{State, TcpFailure};
use crate::verbs::WcStatus;

use super::upper::LocalUlp;
use super::{
    CLOSE_TIMEOUT, Connection, Context, DRAIN_TIMEOUT, EndReason, Event, LocalEnd, Phase,
    Transport, flush,
};

impl<T: Transport> Connection<T> {
    /// Completes what the peer has acknowledged, if [`settle`](Self::settle) would do no more than
    /// that: FPDUs flow both ways, and neither side is ending. Returns whether it did; then the
    /// connection has nothing for the engine but frames. If not, the caller calls `settle`.
    #[inline]
    pub(crate) fn settle_acked(&mut self, context: &mut Context<'_, '_>) -> bool {
        match &mut self.phase {
            Phase::Streaming(stream)
                if self.tcp.state() == State::Established && !self.fin_asked =>
            {
                stream.settle_acked(self.tcp.acked_offset(), context)
            }
            _ => false,
        }
    }

    /// Acts on what TCP has learnt: completes what was acknowledged, and follows closes and
    /// failures.
    pub(crate) fn settle(&mut self, context: &mut Context<'_, '_>) {
        // rfc: 5041-5, 5041-70a, 5041-s6 a lost connection is told, and all requests fail
        if let Some(failure) = self.tcp.failure() {
            // What the peer acknowledged with its RST is done, and no request that waits.
            if let Phase::Streaming(stream) = &mut self.phase {
                stream.settle_acked(self.tcp.acked_offset(), context);
            }
            if self.outlives_tcp() {
                return self.tell_departure(&end_reason(failure), context);
            }
            self.end(end_reason(failure), context);
            self.leave_stream(context);
            self.deadline.get_or_insert(context.now + CLOSE_TIMEOUT);
            return;
        }
        if let Phase::Streaming(stream) = &mut self.phase {
            // What is parked comes before the end.
            let goes_on = stream.is_inside_message() || stream.is_parked();
            let mut llp = MpaTcp {
                told: stream.told(),
                ..MpaTcp::new(&self.tcp, stream.has_markers(), goes_on)
            };
            stream.settle(&mut llp, context);
            if llp.close_asked {
                self.close(context);
            }
        }
        if self.tcp.peer_closed() {
            self.handle_peer_close(context);
        }
        self.leave_stream(context);
        self.follow_close(context);
    }

    /// Returns the queue pair of a stream that has ended to the engine. What is left is TCP, and a
    /// Terminate if there is one to send.
    // rfc: 5040-86, 5040-s6, 5041-13 behind the Terminate the connection is closed in order
    pub(super) fn leave_stream(&mut self, context: &mut Context<'_, '_>) {
        if !matches!(&self.phase, Phase::Streaming(stream) if stream.has_ended()) {
            return;
        }
        if let Phase::Streaming(mut stream) = self.take_phase() {
            // rfc: 5040-68 nothing is sent behind a Terminate
            self.loose_octets.extend(stream.take_last_words());
            self.returned_end = Some(stream.into_end());
        }
        self.reorder.clear();
        self.close(context);
    }

    /// Sets the deadline of the orderly end, which moves on while there is progress. TIME-WAIT has
    /// its own timer.
    fn follow_close(&mut self, context: &mut Context<'_, '_>) {
        let draining = matches!(&self.phase, Phase::Streaming(stream) if stream.is_closing());
        let forever = matches!(&self.phase, Phase::Streaming(stream) if stream.is_endpoint());
        if self.tcp.state() == State::TimeWait || forever {
            self.deadline = None;
        } else if draining || self.fin_asked {
            // What the peer sends is progress too, while this side still waits for data.
            let received = if self.fin_asked {
                0
            } else {
                self.tcp.receive_offset()
            };
            let progress = (self.tcp.acked_offset(), received);
            if self.deadline.is_none() || progress != self.progress {
                self.progress = progress;
                let patience = if self.fin_asked {
                    CLOSE_TIMEOUT
                } else {
                    DRAIN_TIMEOUT
                };
                self.deadline = Some(context.now + patience);
            }
        }
    }

    /// Handles the peer's FIN. RDMAP has no use for a half-closed stream, so this side closes too.
    /// Any other layer decides itself, and its stream is over when both sides have closed.
    // rfc: 5041-69, 5041-s3, 5041-s4 a half-close is told; the other half is closed when asked
    fn handle_peer_close(&mut self, context: &mut Context<'_, '_>) {
        if self.outlives_tcp() {
            self.tell_departure(&EndReason::Peer, context);
            return self.close(context);
        }
        if let Phase::Streaming(stream) = &mut self.phase
            && stream.is_endpoint()
            && !stream.is_inside_message()
        {
            if matches!(self.tcp.state(), State::TimeWait | State::Closed) {
                stream.end_as(Teardown::Graceful, EndReason::Local, context);
            }
            return;
        }
        let reason = match &self.phase {
            Phase::Streaming(stream) if stream.is_closing() => EndReason::Local,
            Phase::Streaming(stream) if stream.is_inside_message() => EndReason::CutOff,
            // rfc: 5041-11, 5041-12, 5044-s16 the orderly end of stream and connection is told
            Phase::Streaming(_) => EndReason::Peer,
            Phase::Closing => EndReason::Local,
            Phase::Connecting(connecting) if !connecting.initiator.has_heard() => {
                closed_unheard(&connecting.initiator)
            }
            _ => EndReason::Startup("the peer closed the connection during start-up".into()),
        };
        let refused_half_way = self.is_starting();
        self.end(reason, context);
        if refused_half_way {
            self.loose_octets.clear();
        }
        self.close(context);
    }

    /// Sends FIN after what is queued, and sets a deadline for the end.
    pub(super) fn close(&mut self, context: &mut Context<'_, '_>) {
        if !self.fin_asked {
            self.fin_asked = true;
            self.deadline = Some(context.now + CLOSE_TIMEOUT);
        }
    }

    /// Ends the connection with a RST, for this reason. If the RST cannot leave for some time, the
    /// connection ends without it.
    pub(crate) fn fail(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        self.end(reason, context);
        self.tcp.abort();
        self.deadline = Some(context.now + CLOSE_TIMEOUT);
    }

    /// Ends the connection in order for the application, after all that it posted.
    // rfc: 5041-s5 behind our half-close, data is still received
    pub(crate) fn disconnect(&mut self, context: &mut Context<'_, '_>) {
        match &mut self.phase {
            Phase::Streaming(stream) => {
                stream.finish();
                self.settle(context);
            }
            Phase::Closing => {}
            _ => self.give_up(EndReason::Local, context),
        }
    }

    /// Ends the connection now, for the application.
    pub(crate) fn abort(&mut self, context: &mut Context<'_, '_>) {
        if !self.keeps_rc() {
            return self.give_up(EndReason::Local, context);
        }
        self.leave_receipt();
        self.has_left = self.denies_what_comes();
        self.end(EndReason::Local, context);
        self.leave_stream(context);
    }

    /// Returns whether the application has left it, as programs leave connections with RC, and the
    /// peer has not acknowledged the FIN.
    pub(crate) fn is_leaving(&self) -> bool {
        let is_heard = matches!(
            self.tcp.state(),
            State::FinWait2 | State::TimeWait | State::Closed
        );
        self.has_left && matches!(self.phase, Phase::Closing) && !is_heard
    }

    /// Queues the receipt that has not left yet.
    fn leave_receipt(&mut self) {
        if let Phase::Streaming(stream) = &mut self.phase {
            self.loose_octets.extend(stream.last_receipt());
        }
    }

    /// Returns whether the peer takes what is acknowledged for done, so that nothing more must be.
    fn denies_what_comes(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.keeps_rc() && !stream.tells())
    }

    /// Sets what the peer may do to memory at all. An endpoint's layer says that itself.
    pub(crate) fn set_remote_access(&mut self, remote_access: Access) {
        match &mut self.phase {
            Phase::Streaming(stream) => {
                if let LocalUlp::Rdmap(user) = &mut stream.user {
                    user.qp.remote_access = remote_access;
                    stream.ddp.set_origin(user.qp.origin());
                }
            }
            Phase::Connecting(connecting) => connecting.options.remote_access = remote_access,
            Phase::Responding { .. } | Phase::Waiting { .. } | Phase::Closing => {}
        }
    }

    /// Sets how the oldest unfinished request completes when the stream ends.
    pub(crate) fn fail_oldest(&mut self, status: WcStatus) {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.fail_oldest(status);
        }
    }

    /// Returns whether FPDUs flow, with the semantics of RC.
    fn keeps_rc(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.keeps_rc())
    }

    /// Resets the connection of a queue pair that the application destroyed. Behind an orderly end
    /// that has sent everything it lets TCP go on with that instead: the peer would take a RST for
    /// a failure. With the semantics of RC there is no RST at first either: the peer's requests
    /// that were carried out succeed by the acknowledgment that comes with the FIN, and TCP sends a
    /// FIN until it has arrived. No event follows. What the queue pair had taken from a shared
    /// receive queue completes nevertheless, because those receives belong to the shared queue.
    pub(crate) fn abandon(&mut self, context: &mut Context<'_, '_>) {
        // rfc: 6581-38 during start-up the peer is told
        let told = self.queue_giving_up(context);
        let (leaves, denies) = (self.keeps_rc(), self.denies_what_comes());
        self.leave_receipt();
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.forget_parked(context);
        }
        let ends_in_order = self.fin_asked
            && matches!(&self.phase, Phase::Streaming(stream) if stream.is_closing());
        if let Phase::Streaming(stream) = self.take_phase()
            && let LocalEnd::Qp(mut qp) = stream.into_end()
            && qp.rq.is_shared()
        {
            flush(&mut qp, context.cqs);
        }
        if ends_in_order || leaves {
            self.has_left = denies;
            self.reorder.clear();
            return self.close(context);
        }
        self.reset_behind(told, context);
    }

    /// Reports to the application, once, that its connection is over and why.
    pub(super) fn end(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        match &mut self.phase {
            Phase::Streaming(stream) => {
                stream.note_acked(self.tcp.acked_offset());
                stream.end(reason, context);
            }
            Phase::Connecting(_) => {
                if let Phase::Connecting(connecting) = self.take_phase() {
                    let end = connecting.end;
                    context.events.push_back(Event::Failed {
                        qp: end.number(),
                        reason,
                    });
                    self.returned_end = Some(end);
                }
            }
            Phase::Waiting { request, .. } => {
                context
                    .events
                    .push_back(Event::RequestGone { request: *request });
                self.gone_request = Some(*request);
                self.phase = Phase::Closing;
            }
            Phase::Responding { refusals, .. } => {
                // A peer that has not finished the handshake may have a forged address.
                let is_there = matches!(self.tcp.state(), State::Established | State::CloseWait);
                if reason != EndReason::Local && is_there {
                    refusals.tell(self.key.remote, reason);
                }
                self.phase = Phase::Closing;
            }
            Phase::Closing => {}
        }
    }
}

/// MPA on TCP as DDP sees it.
pub(super) struct MpaTcp<'a, T> {
    tcp: &'a T,
    markers: bool,
    /// Up to where the peer has placed what was sent, if it tells so.
    told: Option<u64>,
    /// A message has arrived in part.
    inside_message: bool,
    /// The layer above asks to close this half, behind everything that was sent.
    close_asked: bool,
}

impl<'a, T: Transport> MpaTcp<'a, T> {
    pub(super) fn new(tcp: &'a T, markers: bool, inside_message: bool) -> Self {
        Self {
            told: None,
            tcp,
            markers,
            inside_message,
            close_asked: false,
        }
    }
}

impl<T: Transport> Llp for MpaTcp<'_, T> {
    // rfc: 5041-3, 5044-5, 5044-s5 DDP is told the MULPDU, by section 4.5, and every change of it
    fn mulpdu(&self) -> usize {
        let room = self.tcp.max_payload();
        if self.markers {
            marker::mulpdu(room)
        } else {
            frame::mulpdu(room)
        }
    }

    fn transferred(&self) -> u64 {
        let acked = self.tcp.acked_offset();
        self.told.map_or(acked, |told| told.min(acked))
    }

    // rfc: 5041-11, 5041-12, 5044-s16 the orderly end of stream and connection is told
    fn peer_closed(&self) -> bool {
        self.tcp.peer_closed() && !self.inside_message
    }

    fn close(&mut self) {
        self.close_asked = true;
    }
}

/// Returns why connecting failed where the peer closed in the place of a Reply: what RFC 5044 has a
/// responder do with a Request that it does not know.
// rfc: 6581-39 an unenhanced responder closes the connection, and can be asked again
fn closed_unheard(initiator: &MpaInitiator) -> EndReason {
    let closed = "the peer closed the connection in the place of an MPA Reply: ask it for revision 1 \
        if it does not know RFC 6581";
    match initiator.is_enhanced() {
        true => EndReason::NotEnhanced(closed.into()),
        false => EndReason::Peer,
    }
}

// rfc: 5044-85a that TCP was lost is told, whatever the cause
fn end_reason(failure: TcpFailure) -> EndReason {
    match failure {
        TcpFailure::Refused => EndReason::Refused,
        TcpFailure::Reset => EndReason::Reset,
        TcpFailure::TimedOut => EndReason::TimedOut,
        TcpFailure::Aborted => EndReason::Local,
    }
}
