//! MPA start-up of a connection: it passes octets and the applications' decisions to MPA, and sends
//! MPA's frames.

use std::sync::Arc;
use std::time::Duration;

use crate::ddp::{LINE, Segmenter, UlpMessage};
use crate::ids::{ListenerId, RequestId};
use crate::mpa::startup::{
    MpaInitiator, MpaNegotiated, MpaOptions, MpaReply, MpaRequest, MpaResponder, Rtr,
};
use crate::mpa::{Action, MpaError};
use crate::rdmap::ReceivedTerminate;
use crate::tcp::{Seq, State, Tcp, TcpConfig};
use crate::time::Instant;
use crate::verbs::qp::QpState;
use crate::wire::hello::Receipts;
use crate::wire::tcp::TcpSegment;

use super::stream::{Hold, Stream};
use super::terminate::{self, StreamError};
use super::upper::{LocalEnd, message};
use super::{
    Arrival, CLOSE_TIMEOUT, Connecting, Connection, ConnectionOptions, Context, EndReason, Event,
    FlowKey, Path, Phase, PortReservation, ReadDepths, Refusals, Transport,
};

/// How long a responder waits for the initiator's MPA Request. The application's decision may take
/// any time.
// rfc: 5044-s12, 5044-s13 no side waits for ever for a start-up frame
const START_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the options of start-up. `framed`: MPA frames what follows.
fn mpa_options(options: &ConnectionOptions, framed: bool) -> MpaOptions {
    MpaOptions {
        revision: options.mpa_revision,
        crc: options.crc && framed,
        markers: options.markers && framed,
        ird: options.ird,
        ord: options.ord,
        max_ird: options.max_ird,
        negotiate_reads: options.negotiate_reads,
        // Without MPA either side may send first.
        rtr: if options.peer_to_peer && framed {
            Rtr::ALL
        } else {
            Rtr::NONE
        },
        private_data: options.private_data.clone(),
    }
}

/// Why an endpoint does not connect peer-to-peer.
const NO_OPENING: &str = "a peer-to-peer connection begins with a message of RDMAP, which is not what speaks on this \
     endpoint; connect without it";

/// Applies the options that concern TCP. What they leave out stays as the engine's settings have
/// it.
pub(super) fn set_tcp_options(tcp: &mut impl Transport, options: &ConnectionOptions) {
    if options.keepalive.is_some() {
        tcp.set_keepalive(options.keepalive);
    }
    if options.user_timeout.is_some() {
        tcp.set_user_timeout(options.user_timeout);
    }
}

/// Returns the depths that a peer stated, for the application.
// rfc: 6581-14, 6581-20 the application is told the peer's IRD and ORD
fn stated(ird: Option<u16>, ord: Option<u16>) -> Option<ReadDepths> {
    Some(ReadDepths {
        ird: ird?,
        ord: ord?,
    })
}

impl Connection {
    /// Opens a connection actively. Returns the local end with the error if MPA cannot ask for what
    /// the options want.
    pub(crate) fn connect(
        now: Instant,
        key: FlowKey,
        reservation: PortReservation,
        end: LocalEnd,
        options: ConnectionOptions,
        config: &TcpConfig,
        isn: Seq,
    ) -> Result<Self, (LocalEnd, EndReason)> {
        let mut tcp = Tcp::connect(now, config, key.local.port(), key.remote.port(), isn);
        set_tcp_options(&mut tcp, &options);
        let mut path = Path::unknown(&key);
        path.set_traffic_class(options.traffic_class);
        Self::ask(now, key, tcp, path, reservation, end, options)
    }

    /// Opens a connection passively: for a SYN, or for the ACK of a SYN cookie.
    #[allow(clippy::too_many_arguments)] // each is a different thing that a SYN meets
    pub(crate) fn accept_syn(
        now: Instant,
        key: FlowKey,
        reservation: PortReservation,
        listener: ListenerId,
        refusals: Arc<Refusals>,
        path: Path,
        config: &TcpConfig,
        arrival: Arrival,
        segment: &TcpSegment<'_>,
    ) -> Self {
        let tcp = match arrival {
            Arrival::Syn(isn) => Tcp::accept(now, config, isn, segment),
            Arrival::Cookie(isn, mss) => Tcp::accept_cookie(now, config, isn, mss, segment),
        };
        Self::await_request(now, key, tcp, path, reservation, listener, refusals)
    }
}

impl<T: Transport> Connection<T> {
    /// Makes the connection of an initiator, which sends its MPA Request as soon as TCP can. Returns
    /// the local end with the error if MPA cannot ask for what the options want.
    pub(super) fn ask(
        now: Instant,
        key: FlowKey,
        mut tcp: T,
        path: Path,
        reservation: PortReservation,
        end: LocalEnd,
        options: ConnectionOptions,
    ) -> Result<Self, (LocalEnd, EndReason)> {
        let mpa = mpa_options(&options, !T::KEEPS_BOUNDS);
        if !mpa.rtr.is_none() && !matches!(end, LocalEnd::Qp(_)) {
            return Err((end, EndReason::Startup(NO_OPENING.into())));
        }
        let (initiator, request) = match MpaInitiator::new(mpa) {
            Ok(begun) => begun,
            Err(error) => return Err((end, EndReason::Startup(error.to_string()))),
        };
        let deadline = Some(now + options.connect_timeout);
        let phase = Phase::Connecting(Box::new(Connecting {
            end,
            initiator,
            options,
        }));
        Ok(Self {
            loose_octets: tcp.begin(request),
            deadline,
            ..Self::new(key, tcp, path, phase, reservation)
        })
    }

    /// Makes the connection of a responder, which waits for the MPA Request.
    pub(super) fn await_request(
        now: Instant,
        key: FlowKey,
        tcp: T,
        path: Path,
        reservation: PortReservation,
        listener: ListenerId,
        refusals: Arc<Refusals>,
    ) -> Self {
        let phase = Phase::Responding {
            listener,
            responder: Box::new(MpaResponder::new()),
            refusals,
        };
        Self {
            deadline: Some(now + START_UP_TIMEOUT),
            ..Self::new(key, tcp, path, phase, reservation)
        }
    }

    /// Reads octets of the MPA Reply, as initiator. Those behind it stay in `bytes`.
    pub(super) fn receive_reply(&mut self, bytes: &mut &[u8], context: &mut Context<'_, '_>) {
        let Phase::Connecting(connecting) = &mut self.phase else {
            return;
        };
        match connecting.initiator.receive(bytes) {
            Ok(None) => {}
            Ok(Some(MpaReply::Accepted(reply))) if !connecting.is_answered_by(&reply) => {
                let stranger = "the peer accepts without the semantics of RC".into();
                self.give_up(EndReason::Startup(stranger), context);
            }
            Ok(Some(MpaReply::Accepted(negotiated))) => {
                self.start_as_initiator(negotiated, context)
            }
            Ok(Some(MpaReply::Rejected {
                private_data,
                peer_ird,
                peer_ord,
            })) => {
                if let Phase::Connecting(connecting) = self.take_phase() {
                    let end = connecting.end;
                    let event = Event::Rejected {
                        qp: end.number(),
                        private_data,
                        // rfc: 6581-20 of a rejection too
                        peer_depths: stated(peer_ird, peer_ord),
                    };
                    context.events.push_back(event);
                    self.returned_end = Some(end);
                }
                self.close(context);
            }
            Ok(Some(MpaReply::Fpdu(ulpdu))) => self.receive_instead_of_reply(&ulpdu, context),
            Err(error) if error.action() == Action::Terminate => {
                let initiator = &connecting.initiator;
                let (crc, markers) = (initiator.crc(), initiator.markers());
                let error = StreamError::from(error);
                self.terminate_startup(&error, crc, markers, error.end_reason(), context);
            }
            Err(error) => self.end_startup(&error, context),
        }
    }

    /// Ends the start-up because of what the peer has sent.
    fn end_startup(&mut self, error: &MpaError, context: &mut Context<'_, '_>) {
        let reason = match error.is_not_enhanced() {
            true => EndReason::NotEnhanced(error.to_string()),
            false => EndReason::Startup(error.to_string()),
        };
        match error.action() {
            Action::GiveUp => self.give_up(reason, context),
            _ => self.fail(reason, context),
        }
    }

    /// Handles, as initiator, an FPDU that came in place of the Reply. Only a Terminate message
    /// may: a responder that cannot go on sends it (RFC 6581 section 9.3). Any other FPDU is an
    /// error.
    fn receive_instead_of_reply(&mut self, ulpdu: &[u8], context: &mut Context<'_, '_>) {
        let Some(terminate) = ReceivedTerminate::before_stream(ulpdu) else {
            let early = "the peer sent an FPDU before its MPA Reply".into();
            return self.fail(EndReason::Startup(early), context);
        };
        self.end_by(&terminate, context);
    }

    /// Handles, as responder, octets that come before the application has decided. Only a Terminate
    /// may come: an initiator that gives up sends it (RFC 6581 section 9.3).
    // rfc: 6581-38 a Terminate before the Reply is understood
    pub(super) fn receive_early(&mut self, bytes: &mut &[u8], context: &mut Context<'_, '_>) {
        let Phase::Waiting { responder, .. } = &mut self.phase else {
            return;
        };
        match responder.receive_early(bytes) {
            Ok(None) => {}
            Ok(Some(ulpdu)) => match ReceivedTerminate::before_stream(&ulpdu) {
                Some(terminate) => self.end_by(&terminate, context),
                None => self.end_startup(&MpaError::Early, context),
            },
            Err(_) => self.end_startup(&MpaError::Early, context),
        }
    }

    /// Ends the start-up because of a Terminate of the peer.
    fn end_by(&mut self, terminate: &ReceivedTerminate, context: &mut Context<'_, '_>) {
        context.counters.rdma.terminates_received += 1;
        let reason = EndReason::TerminateReceived {
            control: terminate.control,
            quoted: terminate.quoted(),
        };
        self.end(reason, context);
        self.close(context);
    }

    /// Ends the start-up with a Terminate message, which is the first FPDU of this side: where a
    /// Reply asks for too much (RFC 6581 section 9.1), and where this side gives up (section 9.3).
    fn terminate_startup(
        &mut self,
        error: &StreamError,
        crc: bool,
        markers: bool,
        reason: EndReason,
        context: &mut Context<'_, '_>,
    ) {
        self.queue_terminate(error, crc, markers, context);
        self.end(reason, context);
        self.close(context);
    }

    /// Queues a Terminate message, which is the first FPDU of this side.
    fn queue_terminate(
        &mut self,
        error: &StreamError,
        crc: bool,
        markers: bool,
        context: &mut Context<'_, '_>,
    ) {
        let outbound = error.cause().message();
        let UlpMessage { header, length } = message(&outbound);
        let segmenter = Segmenter::first(header, length);
        let terminate = match T::KEEPS_BOUNDS {
            true => terminate::segment(&outbound, segmenter),
            false => terminate::fpdu(&outbound, segmenter, crc, markers.then_some(0)),
        };
        self.loose_octets.extend(terminate);
        context.counters.rdma.terminates_sent += 1;
    }

    /// Queues the Terminate by which a peer that speaks RFC 6581 learns that this side gives up
    /// during start-up. Returns whether it is such a peer.
    // rfc: 6581-38 a local error without a code is Terminate 2/0/5, then RST
    pub(super) fn queue_giving_up(&mut self, context: &mut Context<'_, '_>) -> bool {
        // Whether the peer requires markers, if it gets a Terminate. The Terminate has a CRC in any
        // case: a peer that wants none does not check it.
        let markers = match &self.phase {
            Phase::Connecting(connecting) => {
                let initiator = &connecting.initiator;
                initiator.is_enhanced().then(|| initiator.markers())
            }
            Phase::Waiting { responder, .. } => responder.may_terminate(),
            _ => None,
        };
        match markers {
            Some(markers) if self.tcp.state() == State::Established && !T::KEEPS_BOUNDS => {
                let error = StreamError::from(MpaError::GivenUp);
                self.queue_terminate(&error, true, markers, context);
                true
            }
            _ => false,
        }
    }

    /// Abandons the connection, for a local reason. During start-up, a peer that speaks RFC 6581
    /// gets a Terminate.
    pub(super) fn give_up(&mut self, reason: EndReason, context: &mut Context<'_, '_>) {
        if self.queue_giving_up(context) {
            self.end(reason, context);
            self.close(context);
        } else {
            self.fail(reason, context);
        }
    }

    /// Ends a connection that nobody knows of any more: what the peer is told of it, if anything,
    /// is followed by a RST, so that nothing of it is kept when the peer has heard it.
    pub(crate) fn turn_away(&mut self, context: &mut Context<'_, '_>) {
        // rfc: 6581-38 Terminate, then RST
        let told = self.queue_giving_up(context);
        self.phase = Phase::Closing;
        self.reset_behind(told, context);
    }

    /// Resets the connection. `told`: once the peer has what is queued for it.
    pub(super) fn reset_behind(&mut self, told: bool, context: &mut Context<'_, '_>) {
        self.reset_asked = told;
        if !told {
            self.tcp.abort();
        }
        self.deadline = Some(context.now + CLOSE_TIMEOUT);
    }

    fn start_as_initiator(&mut self, negotiated: MpaNegotiated, context: &mut Context<'_, '_>) {
        let Phase::Connecting(connecting) = self.take_phase() else {
            return;
        };
        let Connecting { end, options, .. } = *connecting;
        let receipts = Receipts::stated_in(&negotiated.private_data);
        self.start_streaming(end, negotiated, Hold::Nothing, &options, context);
        self.agree_on_receipts(&options, receipts);
        let delay = options.first_fpdu_delay;
        if let Phase::Streaming(stream) = &mut self.phase
            && !delay.is_zero()
            && !T::KEEPS_BOUNDS
        {
            stream.hold_until(context.now + delay);
        }
    }

    /// Reads octets of the MPA Request, as responder.
    pub(super) fn receive_request(&mut self, bytes: &mut &[u8], context: &mut Context<'_, '_>) {
        let Phase::Responding { responder, .. } = &mut self.phase else {
            return;
        };
        match responder.receive(bytes) {
            Ok(None) => {}
            Ok(Some(request)) => self.announce_request(request, context),
            Err(error) => {
                context.counters.rdma.requests_refused += 1;
                self.fail(EndReason::Startup(error.to_string()), context);
            }
        }
    }

    fn announce_request(&mut self, asked: MpaRequest, context: &mut Context<'_, '_>) {
        let Phase::Responding {
            listener,
            responder,
            ..
        } = self.take_phase()
        else {
            return;
        };
        let request = RequestId(*context.next_request);
        *context.next_request += 1;
        self.new_request = Some(request);
        self.phase = Phase::Waiting {
            listener,
            request,
            responder,
            receipts: Receipts::stated_in(&asked.private_data),
        };
        self.deadline = None;
        context.events.push_back(Event::ConnectRequest {
            listener,
            request,
            peer: self.key.remote,
            local: self.key.local,
            private_data: asked.private_data,
            ird: asked.ird,
            ord: asked.ord,
            // rfc: 5044-10 DDP is told the revision
            mpa_revision: asked.revision,
        });
    }

    /// Accepts the request with a queue pair, for the application.
    // rfc: 5044-s9 an accepting Reply, behind which FPDUs may come
    pub(crate) fn accept(
        &mut self,
        end: LocalEnd,
        options: &ConnectionOptions,
        context: &mut Context<'_, '_>,
    ) {
        let Phase::Waiting {
            responder,
            receipts,
            ..
        } = &mut self.phase
        else {
            return self.return_end(end, EndReason::Reset, context);
        };
        let receipts = *receipts;
        // Asked before the Reply is made: instead of one the peer gets a Terminate.
        if responder.is_peer_to_peer() && !matches!(end, LocalEnd::Qp(_)) {
            self.return_end(end, EndReason::Startup(NO_OPENING.into()), context);
            return self.abort(context);
        }
        match responder.accept(&mpa_options(options, !T::KEEPS_BOUNDS)) {
            Ok((reply, negotiated)) => {
                let early = responder.take_early();
                set_tcp_options(&mut self.tcp, options);
                self.path.set_traffic_class(options.traffic_class);
                self.tcp.set_traffic_class(options.traffic_class);
                self.loose_octets = self.tcp.begin(reply);
                // rfc: 5044-77a: the first FPDU is the initiator's.
                let hold = Hold::ForFirstFpdu;
                self.start_streaming(end, negotiated, hold, options, context);
                self.agree_on_receipts(options, receipts);
                self.consume(&early, context);
            }
            Err(error) => {
                self.return_end(end, EndReason::Startup(error.to_string()), context);
                self.abort(context);
            }
        }
    }

    fn return_end(&mut self, end: LocalEnd, reason: EndReason, context: &mut Context<'_, '_>) {
        context.events.push_back(Event::Failed {
            qp: end.number(),
            reason,
        });
        self.returned_end = Some(end);
    }

    /// Rejects the request, for the application.
    // rfc: 5044-s8, 5044-s11 a rejecting Reply
    pub(crate) fn reject(&mut self, private_data: &[u8], context: &mut Context<'_, '_>) {
        if let Phase::Waiting { mut responder, .. } = self.take_phase() {
            // The host checked that the private data fit.
            let reply = responder.reject(private_data).unwrap_or_default();
            self.loose_octets = self.tcp.begin(reply);
            self.close(context);
        }
    }

    fn start_streaming(
        &mut self,
        mut end: LocalEnd,
        negotiated: MpaNegotiated,
        hold: Hold,
        options: &ConnectionOptions,
        context: &mut Context<'_, '_>,
    ) {
        end.set_state(QpState::Rts);
        end.set_remote_access(options.remote_access);
        self.deadline = None;
        if options.rc {
            self.tcp.take_as_full(LINE as u16 - 1);
        }
        let (ird, ord) = (negotiated.ird, negotiated.ord);
        context.events.push_back(Event::Established {
            qp: end.number(),
            local: self.key.local,
            peer: self.key.remote,
            private_data: negotiated.private_data.clone(),
            ird,
            ord,
            // rfc: 6581-14 the peer's IRD and ORD
            peer_depths: stated(negotiated.peer_ird, negotiated.peer_ord),
        });
        // rfc: 5044-50, 5044-s10 the DDP endpoint is bound; FPDUs may come
        let mut stream = Stream::new(end, &negotiated, hold, options.rc);
        stream.keep_rc(options.min_rnr_timer);
        if T::KEEPS_BOUNDS {
            stream.go_without_mpa();
        }
        self.phase = Phase::Streaming(Box::new(stream));
    }

    fn agree_on_receipts(&mut self, options: &ConnectionOptions, peer: Receipts) {
        if let Phase::Streaming(stream) = &mut self.phase {
            let own = Receipts::stated_in(&options.private_data);
            stream.agree_on_receipts((own, peer), T::ACKNOWLEDGES_EARLY);
        }
    }

    /// Takes the present phase, and leaves [`Phase::Closing`], in which there is only TCP. The
    /// caller sets the next one.
    pub(super) fn take_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Closing)
    }
}
