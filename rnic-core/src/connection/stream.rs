//! A connection whose FPDUs flow: MPA's framing, a DDP stream, and the layer above it.

mod ahead;
mod alike;
mod build;
mod built;
mod departure;
mod ends;
mod intake;
mod opening;
mod parked;
mod peer_not_ready;
mod receipts;
mod reopening;
mod replay;
pub(super) mod run;
mod segments;

use std::fmt;
use std::mem::offset_of;

use crate::ddp::{BufferSupply, DdpStream, Llp, Placed, Ulp};
use crate::memory::prefetch::prefetch_front;
use crate::mpa::Deframer;
use crate::mpa::startup::MpaNegotiated;
use crate::rdmap::{self, RtrMessage, Token};
use crate::time::Instant;
use crate::wire::ddp::QueueNumber;

use super::context::{Context, Upcoming};
use super::facts::MpaFacts;
use super::terminate::{StreamError, reason_of};
use super::upper::{LocalEnd, LocalUlp, RdmapUser};

pub(super) use self::built::Built;
use self::intake::{Intake, receive_in_order};
use self::parked::Parked;

/// The first octets of a [`Stream`], which are read when data arrive: all in front of the layer
/// above DDP, and of that layer whether it ends or has something to send.
const TO_RECEIVE: usize = offset_of!(Stream, user) + RdmapUser::IN_EACH_TURN;

/// What keeps a side from sending its first FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// The application asked the initiator to wait: see [`Stream::wakes_at`].
    Delayed,
    /// A responder waits for the initiator's first FPDU.
    ForFirstFpdu,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("hold", &self.hold)
            .field("ended", &self.ended)
            .field("intake", &self.intake)
            .field("deframer", &self.deframer)
            .field("ddp", &self.ddp)
            .field("markers", &self.markers)
            .field("last_words", &self.last_words)
            .finish_non_exhaustive()
    }
}

/// The layers above TCP, once MPA start-up is over. The fields that receiving needs come first, in
/// order of use.
#[repr(C)]
pub(super) struct Stream {
    hold: Hold,
    ended: bool,
    crc: bool,
    /// How the next FPDU is received.
    intake: Intake,
    /// How often the ready-to-receive Write is still [sent again](Self::repeat_opening).
    repeats_left: u8,
    /// Segments take the ordinary way, and no fast path: the stream ends in order, is parked, or has
    /// a timer, or its send queue drains.
    ordinary_only: bool,
    /// The stream is surely [between messages](Self::is_between_messages).
    /// [`settle_acked`](Self::settle_acked) finds it so; what is received, and every end, sets it
    /// back.
    pub(super) between_messages: bool,
    /// The octets that were received last began an FPDU.
    pub(super) began_fpdu: bool,
    /// When the stream is to be called: its first FPDU may be sent then, or once more, or the peer
    /// has had no receive for too long.
    wakes_at: Option<Instant>,
    /// Up to where the peer had acknowledged our stream when the octets arrived that are being
    /// received. A Send among them is told behind the requests that this completes, as it may be
    /// the answer to them; a Terminate before, as it says how they ended.
    pub(super) acked: u64,
    /// Where the peer's first FPDU begins in its stream, if it sends markers.
    marked_from: Option<u64>,
    deframer: Deframer,
    pub(super) ddp: DdpStream,
    pub(super) user: LocalUlp,
    /// The position of the next FPDU among those that were sent, if the peer requires markers.
    markers: Option<u64>,
    /// The Terminate that is to be sent.
    last_words: Box<[u8]>,
    /// Both sides have agreed on the semantics of RC.
    rc: bool,
    /// The application was told that the peer has left.
    departure_told: bool,
    /// Segments go without MPA: the layer below keeps their bounds.
    is_bare: bool,
    /// The stream begins with a ready-to-receive Write.
    opens_with_write: bool,
    /// What waits for a receive.
    parked: Option<Box<Parked>>,
}

impl Stream {
    pub(super) fn new(mut end: LocalEnd, negotiated: &MpaNegotiated, hold: Hold, rc: bool) -> Self {
        let responder = hold == Hold::ForFirstFpdu;
        // rfc: 5044-10 DDP is told the revision
        let mut ddp = DdpStream::new(end.origin(), negotiated.revision);
        match &mut end {
            LocalEnd::Qp(_) => open_queues(&mut ddp, negotiated.ird, negotiated.ord),
            LocalEnd::Endpoint(endpoint) => endpoint.ulp.handle_start(ddp.llp_version()),
        }
        let opening = opening::message(negotiated.rtr).filter(|_| !responder);
        Self {
            deframer: match negotiated.peer_markers {
                false => Deframer::new(negotiated.crc),
                true => Deframer::with_markers(negotiated.crc),
            },
            marked_from: negotiated.peer_markers.then_some(negotiated.peer_start),
            ddp,
            user: LocalUlp::new(end, negotiated.ird, negotiated.ord, opening),
            opens_with_write: opening == Some(RtrMessage::Write),
            repeats_left: 0,
            intake: match responder && negotiated.rtr.send {
                true => Intake::SendMayOpen,
                false => Intake::Usual,
            },
            ordinary_only: false,
            wakes_at: None,
            crc: negotiated.crc,
            markers: negotiated.markers.then_some(0),
            hold,
            between_messages: false,
            began_fpdu: false,
            ended: false,
            acked: 0,
            last_words: Box::default(),
            rc,
            parked: None,
            departure_told: false,
            is_bare: false,
        }
    }

    /// Ends the stream in order for the application, after all that it has posted so far.
    pub(super) fn finish(&mut self) {
        self.between_messages = false;
        self.ddp.finish();
        self.user.finish();
        self.choose_paths();
    }

    /// Returns whether both sides keep the semantics of RC.
    pub(super) fn keeps_rc(&self) -> bool {
        self.rc
    }

    /// Returns whether the application has asked to end in order.
    pub(super) fn is_closing(&self) -> bool {
        self.ddp.is_finishing()
    }

    /// Decides whether segments may take fast paths. Beside them stands only what this turns off, so
    /// that they need not look for it.
    pub(super) fn choose_paths(&mut self) {
        self.ordinary_only = self.ddp.is_finishing()
            || self.intake == Intake::Parked
            || (self.rc && self.wakes_at.is_some())
            || self.told().is_some()
            || self.user.is_draining();
    }

    /// Returns whether segments take no fast path.
    pub(super) fn takes_no_fast_path(&self) -> bool {
        self.ordinary_only
    }

    /// Returns whether the layer above is not RDMAP. Such a layer decides itself how long the
    /// stream lives.
    pub(super) fn is_endpoint(&self) -> bool {
        matches!(self.user, LocalUlp::Endpoint(_))
    }

    /// Prefetches what a turn needs, one step further with each depth from 0 to 2.
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

    /// Removes and returns the Terminate that a stream which has ended must still send. It is empty
    /// if there is none.
    pub(super) fn take_last_words(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.last_words).into_vec()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether the peer sends FPDUs with CRCs, and without markers.
    pub(super) fn receives_crcs(&self) -> bool {
        self.crc && self.marked_from.is_none()
    }

    /// Returns the octets of an FPDU that has arrived in part.
    pub(super) fn buffered(&self) -> usize {
        self.deframer.buffered()
    }

    /// Returns whether the stream, if it ended here, would end inside a message. Behind an error
    /// that was reported, what the peer began does not count.
    pub(super) fn is_inside_message(&self) -> bool {
        self.buffered() > 0 || (self.ddp.is_amid_message() && !self.ddp.has_failed())
    }

    /// Returns the octets that this FPDU still lacks.
    pub(super) fn missing(&self) -> usize {
        self.deframer.missing_len()
    }

    /// Returns whether the stream is between messages: the next octet received begins an FPDU and a
    /// message. Also, no step of the stream's beginning or end, and no response of ours, is
    /// pending.
    pub(super) fn is_between_messages(&self) -> bool {
        let (LocalUlp::Rdmap(RdmapUser { rdmap, .. }), Hold::Nothing) = (&self.user, self.hold)
        else {
            return false;
        };
        let ends = self.ended || self.ddp.has_failed() || self.ddp.is_finishing();
        let between = self.deframer.is_at_fpdu_boundary() && !self.ddp.is_amid_message();
        !ends && self.intake == Intake::Usual && between && rdmap.is_between_messages()
    }

    /// Receives octets in order from TCP. `crc` is the CRC of all of them, if that is known
    /// already.
    // Within its callers, many short FPDUs cost 12 % more.
    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        crc: Option<u32>,
        context: &mut Context<'_, '_>,
    ) {
        self.receive_with::<false>(bytes, crc, |_, _| (), context);
    }

    /// Receives octets in order from TCP. `note` sees each segment first, except perhaps for some
    /// that are not the last of their message. `MANY`: they may be those of many segments.
    #[inline(always)]
    fn receive_with<const MANY: bool>(
        &mut self,
        mut bytes: &[u8],
        mut crc: Option<u32>,
        note: impl Fn(&mut LocalUlp, &[u8]),
        context: &mut Context<'_, '_>,
    ) {
        self.between_messages = false;
        self.repeats_left = 0;
        let mut buffered = self.deframer.buffered();
        self.began_fpdu = buffered == 0;
        // rfc: 5040-85, 5041-10, 5041-75 behind an error, what comes is dropped silently
        while !bytes.is_empty() && !self.ddp.has_failed() {
            let (piece, begins) = (bytes, buffered == 0);
            let outcome = match self.deframer.next_with_crc(&mut bytes, crc.take()) {
                Ok(None) => {
                    let more = self.deframer.buffered() - buffered;
                    context.counters.rdma.octets_buffered += more as u64;
                    return;
                }
                Ok(Some(ulpdu)) => {
                    // rfc: 5044-77a what MPA finds valid lets the responder send
                    if self.hold == Hold::ForFirstFpdu {
                        self.hold = Hold::Nothing;
                    }
                    buffered = 0;
                    context.counters.rdma.fpdus_received += 1;
                    note(&mut self.user, ulpdu);
                    receive_in_order(
                        ulpdu,
                        &mut self.intake,
                        &mut self.ddp,
                        &mut self.user,
                        &mut self.parked,
                        self.acked,
                        self.rc,
                        context,
                    )
                }
                Err(error) => Err(StreamError::from(error)),
            };
            self.conclude(outcome, context);
            if MANY && begins {
                let fpdu = &piece[..piece.len() - bytes.len()];
                self.receive_alike(fpdu, &mut bytes, context);
            }
        }
    }

    /// Lets the responder send, once the initiator's first FPDU has come.
    fn hold_no_longer(&mut self) {
        if self.hold == Hold::ForFirstFpdu {
            self.hold = Hold::Nothing;
        }
    }

    /// Delivers an FPDU of `len` octets that was placed early, now that the stream has come to it.
    pub(super) fn deliver_early(
        &mut self,
        len: u64,
        placed: Placed,
        context: &mut Context<'_, '_>,
    ) {
        if self.ddp.has_failed() {
            return;
        }
        self.between_messages = false;
        self.repeats_left = 0;
        let outcome = match self.deframer.skip_fpdu(len) {
            Ok(()) => {
                self.hold_no_longer();
                context.counters.rdma.fpdus_received += 1;
                return self.deliver_placed(placed, context);
            }
            Err(error) => Err(StreamError::from(error)),
        };
        self.conclude(outcome, context);
    }

    fn deliver_placed(&mut self, placed: Placed, context: &mut Context<'_, '_>) {
        if self.parks_placed(&placed, context) {
            return;
        }
        let guard = context.guard;
        let upper = &mut self.user.receiving(context, self.acked);
        let delivered = self.ddp.deliver(placed, upper, guard);
        let outcome = delivered.map_err(|error| error.about_placed(&placed));
        self.conclude(outcome, context);
    }

    // rfc: 5041-70b, 5041-70c, 5041-s8 an error of the LLP or of the DDP header ends the stream
    #[inline]
    fn conclude(&mut self, outcome: Result<(), StreamError>, context: &mut Context<'_, '_>) {
        if let Err(error) = outcome {
            self.fail(&error, context);
        } else if let LocalUlp::Rdmap(user) = &self.user
            && user.rdmap.has_news()
        {
            self.handle_news(context);
        }
    }

    /// Handles a message that RDMAP has read and that concerns the stream.
    #[cold]
    fn handle_news(&mut self, context: &mut Context<'_, '_>) {
        let LocalUlp::Rdmap(user) = &mut self.user else {
            return;
        };
        if user.rdmap.take_flow_control() {
            self.follow_peer(context);
        } else if let Some(done) = user.rdmap.follow_receipt() {
            // An answer behind it is told behind what it completes.
            self.acked = done;
        } else if let Some(terminate) = user.rdmap.received() {
            context.counters.rdma.terminates_received += 1;
            let reason = reason_of(terminate, self.rc);
            self.end(reason, context);
        }
    }

    /// Records up to where the peer has acknowledged our stream. The next Send of the peer, or
    /// [`settle`](Self::settle), completes the requests.
    pub(super) fn note_acked(&mut self, acked: u64) {
        self.acked = self.done(acked);
        if let LocalUlp::Rdmap(user) = &mut self.user {
            user.rdmap.note_acked_by_tcp(acked);
        }
    }

    /// Completes what the peer has acknowledged, if [`settle`](Self::settle) would do nothing else.
    /// Returns whether that was so.
    #[inline]
    pub(super) fn settle_acked(&mut self, acked: u64, context: &mut Context<'_, '_>) -> bool {
        let only_that = !self.ended && !self.ordinary_only && !self.is_endpoint();
        if only_that {
            self.between_messages = self.is_between_messages();
            self.user.with(context).transferred(acked);
        }
        only_that
    }

    /// Acts on the state of the layer below: what it acknowledged, and its half-closes.
    pub(super) fn settle(&mut self, llp: &mut impl Llp, context: &mut Context<'_, '_>) {
        if !self.ended {
            self.ddp.follow_llp(llp, &mut self.user.with(context));
        }
        if self.ordinary_only && self.user.tell_drained(context) {
            self.choose_paths();
        }
    }

    /// Carries out requests that send nothing, such as binding a window. They need not wait for
    /// room to send, nor for a Read Response that is being sent, nor for the peer's first FPDU,
    /// which may use a window that one of them binds. Where a message can begin, beginning it
    /// carries them out.
    pub(super) fn execute_local(&mut self, may_send: bool, context: &mut Context<'_, '_>) {
        let LocalUlp::Rdmap(RdmapUser {
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

    /// Returns whether there is surely nothing to send now, and no work request that waits.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        !self.ddp.is_sending() && self.user.is_at_rest()
    }

    /// Returns whether FPDUs may be sent now.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.hold == Hold::Nothing && !self.ended
    }

    /// Returns whether there is something to send now. May begin a message.
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

    /// Returns what was agreed on in MPA start-up, for an administrator.
    pub(super) fn facts(&self) -> MpaFacts {
        MpaFacts {
            revision: self.ddp.llp_version(),
            // SCTP's own covers each of its packets.
            crc: self.crc || self.is_bare,
            markers: self.has_markers(),
            peer_markers: self.marked_from.is_some(),
        }
    }

    /// Returns whether FPDUs have CRCs.
    #[inline]
    pub(super) fn has_crcs(&self) -> bool {
        self.crc
    }

    /// Returns whether the peer requires markers.
    pub(super) fn has_markers(&self) -> bool {
        self.markers.is_some()
    }
}

/// Opens RDMAP's queues.
fn open_queues(ddp: &mut DdpStream, ird: u16, ord: u16) {
    ddp.open(QueueNumber::SEND, BufferSupply::Posted);
    for (queue, count, size) in rdmap::rdmap_queues(ird, ord) {
        ddp.open(queue, BufferSupply::Internal { count, size });
    }
}
