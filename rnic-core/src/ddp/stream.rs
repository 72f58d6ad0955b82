//! A DDP stream between a ULP and an LLP. It knows of both only what their traits say.

use super::{
    BufferSupply, Ddp, DdpError, FullSegments, HalfCloseAction, Llp, MessageInProgress, Placed,
    Segmenter, Ulp, UlpMessage,
};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Placement, Writer};
use crate::memory::table::{Access, Origin};
use crate::verbs::{Sge, rest_of_piece};
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, TaggedHeader, UntaggedHeader};

/// A segment that was built for the LLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltSegment {
    /// Its length in octets, header included.
    pub len: usize,
    /// Whether it is the last segment of its message.
    pub last: bool,
}

/// One DDP stream.
///
/// The receiving side calls [`receive`](Self::receive) for what is in order, or
/// [`place`](Self::place) and later [`deliver`](Self::deliver) for what is ahead of order. The
/// sending side calls [`has_output`](Self::has_output), [`next_segment`](Self::next_segment) and
/// [`posted`](Self::posted). [`follow_llp`](Self::follow_llp) takes up changes of the LLP,
/// [`finish`](Self::finish) and [`fail`](Self::fail) those that the ULP wants: DDP ends no stream
/// by itself.
#[derive(Debug)]
// rfc: 5041-66 DDP does not tear a stream down by itself
pub struct DdpStream {
    ddp: Ddp,
    /// The message that is being sent.
    sending: Option<Segmenter>,
    /// The version of the LLP.
    llp_version: u8,
    /// The ULP begins no more messages.
    finishing: bool,
    /// The peer has closed its half.
    half_closed: bool,
    /// This half is closed.
    closed: bool,
    /// An error was found: segments that arrive are dropped.
    failed: bool,
    /// Segments of tagged messages end at multiples of a [line](super::LINE).
    whole_lines: bool,
}

impl DdpStream {
    /// Sets whose memory it may use from now on.
    pub fn set_origin(&mut self, origin: Origin) {
        self.ddp.set_origin(origin);
    }

    /// Makes a stream. `origin` says whose memory it may use. `llp_version` is the version that the
    /// LLP negotiated: the revision of MPA. DDP has version 1 above every revision that is
    /// supported here.
    // rfc: 5044-10 DDP learns the revision that was agreed on
    pub fn new(origin: Origin, llp_version: u8) -> Self {
        Self {
            ddp: Ddp::new(origin),
            sending: None,
            llp_version,
            finishing: false,
            half_closed: false,
            closed: false,
            failed: false,
            whole_lines: false,
        }
    }

    /// Ends segments of tagged messages that are sent from now on at multiples of a
    /// [line](super::LINE), where a segment has room for one.
    pub fn keep_lines(&mut self) {
        self.whole_lines = true;
    }

    /// Returns the version of the LLP, for the ULP.
    pub fn llp_version(&self) -> u8 {
        self.llp_version
    }

    /// Opens a queue for receiving. A queue that is open stays as it is.
    pub fn open(&mut self, queue: QueueNumber, supply: BufferSupply) {
        self.ddp.open(queue, supply);
    }

    /// Places and delivers the next segment in order. Returns the length of its payload.
    pub fn receive<U: Ulp>(
        &mut self,
        segment: &[u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<u32, U::Error> {
        self.check_open()?;
        let segment = DdpSegment::parse(segment)?;
        let destination = ulp.admit(&segment)?;
        if let (DdpHeader::Tagged(header), Destination::PlaceOnly(right)) =
            (&segment.header, destination)
        {
            let begins = !self.ddp.is_amid_message();
            // A whole message behind a whole message needs no check of the order.
            if !header.last || !begins {
                self.begin_or_continue(&segment.header, segment.payload.len(), ulp)?;
            }
            // The ULP does not see these: placing is all there is to do.
            self.ddp
                .place_tagged(header, segment.payload, right, guard)?;
            let octets = segment.payload.len() as u32;
            self.ddp.count_placed(octets, begins);
            return Ok(octets);
        }
        let begins = !self.ddp.is_amid_message();
        self.open_for(&segment.header, ulp);
        self.begin_or_continue(&segment.header, segment.payload.len(), ulp)?;
        let placed = match self.ddp.place(&segment, destination, ulp, guard) {
            Ok(placed) => placed,
            Err(error) => {
                if begins {
                    // Nothing has changed: the ULP may try again when it has a buffer.
                    self.ddp.abandon_message();
                }
                return Err(error.into());
            }
        };
        if let Some(delivery) = self.ddp.deliver_next(placed, begins)? {
            ulp.deliver(delivery, guard)?;
        }
        Ok(placed.payload_len())
    }

    /// Checks that the peer's half is open. The LLP tells of its end behind the last segment.
    // rfc: 5041-68 data behind the peer's orderly close is an error, which ends the stream
    #[inline]
    fn check_open(&self) -> Result<(), DdpError> {
        match self.half_closed {
            false => Ok(()),
            true => Err(DdpError::AfterClose),
        }
    }

    /// Checks that a segment in order continues the partial message, or begins one if there is
    /// none.
    #[inline]
    fn begin_or_continue<U: Ulp>(
        &mut self,
        header: &DdpHeader,
        len: usize,
        ulp: &U,
    ) -> Result<(), U::Error> {
        if let Some(begun) = self.ddp.interrupted_message(header)
            && ulp.abandons_message(begun, header)?
        {
            self.ddp.abandon_message();
        }
        Ok(self.ddp.begin_or_continue(header, len)?)
    }

    /// Returns a writer for tagged segments that are placed and not delivered, with the access
    /// right `right`. `None` after an error, and after the peer's half-close.
    pub fn writer<'g>(&self, right: Access, guard: &'g Guard<'_>) -> Option<Writer<'g>> {
        (!self.failed && !self.half_closed).then(|| self.ddp.writer(right, guard))
    }

    /// Returns the placement of the octets that follow in an untagged message, `next` being the
    /// header of the segment that they begin with: up to the end of the piece of the posted buffer
    /// that they go to. `None` if they do not go on with the next message of the queue, and after
    /// an error or the peer's half-close.
    // rfc: 5041-72c, 5041-72d the whole payload lies inside the buffer
    pub fn place_for_rest<'g>(
        &self,
        next: &UntaggedHeader,
        buffer: &[Sge],
        guard: &'g Guard<'_>,
    ) -> Option<Placement<'g>> {
        if self.failed || self.half_closed || !self.ddp.continues_next(next) {
            return None;
        }
        let offset = next.offset.0;
        // rfc: 5041-50 messages are shorter than 2^32 octets
        let most = (u32::MAX - offset) as usize;
        rest_of_piece(guard, self.ddp.origin, buffer, offset.into(), most)
    }

    /// Records that segments were placed in order by a [`writer`](Self::writer), of one tagged
    /// message or several, or in the [rest](Self::place_for_rest) of a buffer. `last` is the header
    /// of the last of them, of whose message they are `octets`; all, if it `begins` with one of
    /// them.
    pub fn passed(&mut self, last: &DdpHeader, octets: u32, begins: bool) {
        match last {
            DdpHeader::Tagged(last) => self.ddp.pass_tagged(last, octets, begins),
            DdpHeader::Untagged(last) => self.ddp.pass_untagged(last.queue, octets),
        }
    }

    /// Checks a segment and places its payload, possibly ahead of order. A segment that is refused
    /// here may be placed again once it is in order, because nothing else has changed.
    pub fn place<U: Ulp>(
        &mut self,
        segment: &[u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<Placed, U::Error> {
        self.check_open()?;
        let segment = DdpSegment::parse(segment)?;
        let destination = ulp.admit(&segment)?;
        self.open_for(&segment.header, ulp);
        Ok(self.ddp.place(&segment, destination, ulp, guard)?)
    }

    /// Opens the queue of a segment if the ULP receives in it.
    #[inline]
    fn open_for<U: Ulp>(&mut self, header: &DdpHeader, ulp: &U) {
        if let DdpHeader::Untagged(header) = header
            && !self.ddp.is_open(header.queue)
            && let Some(supply) = ulp.supply(header.queue)
        {
            self.ddp.open(header.queue, supply);
        }
    }

    /// Delivers a placed segment, which is the next in order.
    pub fn deliver<U: Ulp>(
        &mut self,
        placed: Placed,
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<(), U::Error> {
        self.check_open()?;
        let begins = !self.ddp.is_amid_message();
        self.begin_or_continue(placed.header(), placed.payload_len() as usize, ulp)?;
        match self.ddp.deliver_next(placed, begins)? {
            Some(delivery) => ulp.deliver(delivery, guard),
            None => Ok(()),
        }
    }

    /// Returns whether a message has begun to arrive and is not complete.
    #[inline]
    pub fn is_amid_message(&self) -> bool {
        self.ddp.is_amid_message()
    }

    /// Exchanges the message in progress with that of another order of segments. The ULP may
    /// receive some messages later than others that were sent behind them; then each of the two has
    /// an order of its own.
    pub fn exchange_message(&mut self, other: &mut MessageInProgress) {
        std::mem::swap(&mut self.ddp.partial, &mut other.0);
    }

    /// Returns the placement of a tagged segment that is not delivered, if the peer has the access
    /// right `right` there.
    #[inline(always)]
    pub fn place_for_tagged<'g>(
        &self,
        header: &TaggedHeader,
        len: usize,
        right: Access,
        guard: &'g Guard<'_>,
    ) -> Option<Placement<'g>> {
        guard.placement(header.stag, header.offset, len, self.ddp.origin, right)
    }

    /// Returns the placement of the next message of a queue, if this segment is all of it and it
    /// fits the posted buffer, of one piece. [`delivered_whole`](Self::delivered_whole) must
    /// follow.
    // rfc: 5041-72b, 5041-72e queue and MSN have a buffer: that of the next message
    // rfc: 5041-72c, 5041-72d the whole payload lies inside the buffer
    #[inline(always)]
    pub fn place_for_whole<'g>(
        &self,
        header: &UntaggedHeader,
        len: usize,
        buffer: &Sge,
        guard: &'g Guard<'_>,
    ) -> Option<Placement<'g>> {
        let fits = header.last && self.ddp.begins_next(header) && len <= buffer.length as usize;
        if !fits {
            return None;
        }
        let (stag, offset) = (buffer.stag(), buffer.tagged_offset());
        guard.placement(stag, offset, len, self.ddp.origin, Access::LOCAL_WRITE)
    }

    /// Records that a tagged message of so many octets was [placed](Self::place_for_tagged) as a
    /// whole, and is not delivered.
    #[inline(always)]
    pub fn passed_whole(&mut self, octets: u32) {
        self.ddp.count_placed(octets, true);
    }

    /// Delivers the next message of a queue, which was [placed](Self::place_for_whole).
    #[inline(always)]
    pub fn delivered_whole(&mut self, queue: QueueNumber) {
        self.ddp.pass_next(queue);
    }

    /// Delivers a message without payload that uses up no buffer.
    pub fn deliver_without_buffer(&mut self, header: &UntaggedHeader) -> Result<(), DdpError> {
        self.ddp.deliver_without_buffer(header)
    }

    /// Returns whether a message is being sent.
    #[inline]
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Returns whether there is a segment to send. May begin a message.
    pub fn has_output<U: Ulp>(&mut self, ulp: &mut U, guard: &Guard<'_>) -> Result<bool, U::Error> {
        if self.sending.is_none() {
            if self.closed {
                return Ok(false);
            }
            // rfc: 5041-60 messages are sent in the order in which they were submitted
            let Some(message) = ulp.next_message(guard)? else {
                return Ok(false);
            };
            let mut segmenter = self.start_message(&message);
            segmenter.keep_lines(self.whole_lines);
            self.sending = Some(segmenter);
        }
        Ok(true)
    }

    /// Returns the length of a segment that would carry all that remains of the message being sent,
    /// header included.
    pub fn remaining_len(&self) -> Option<usize> {
        self.sending.as_ref().map(Segmenter::remaining_len)
    }

    /// Begins a message although another is not finished, which is aborted. The stream sends
    /// nothing behind it.
    pub fn start_message(&mut self, message: &UlpMessage) -> Segmenter {
        self.ddp.start_message(message.header, message.length)
    }

    /// Builds the next segment at the front of `room`, of at most `mulpdu` octets
    /// ([`Llp::mulpdu`]). `None` if there is no message, or no room for an octet of payload.
    // rfc: 5041-3, 5044-5, 5044-s5 DDP learns the MULPDU and every change of it
    // rfc: 5041-4 what was handed down is not segmented again for a new MULPDU
    #[inline]
    pub fn next_segment<U: Ulp>(
        &mut self,
        mulpdu: usize,
        room: &mut [u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<Option<BuiltSegment>, U::Error> {
        let Some(cut) = self
            .sending
            .as_mut()
            .and_then(|sending| sending.next(mulpdu))
        else {
            return Ok(None);
        };
        let header_len = cut.header.emit(room);
        let len = header_len + cut.len;
        ulp.read(cut.offset, &mut room[header_len..len], guard)?;
        Ok(Some(BuiltSegment {
            len,
            last: cut.last,
        }))
    }

    /// Returns the next segments of the message being sent that have just `mulpdu` octets.
    pub fn full_segments(&self, mulpdu: usize) -> Option<FullSegments> {
        // rfc: 5041-3 DDP learns the MULPDU and every change of it
        self.sending.as_ref()?.full_segments(mulpdu)
    }

    /// Writes the header of the next of the [full segments](Self::full_segments) at the front of
    /// `room`, in place of [`next_segment`](Self::next_segment) and [`posted`](Self::posted).
    /// Returns the length of the header, behind which the payload belongs. `None` if no message is
    /// being sent.
    #[inline]
    pub fn next_full(&mut self, full: &mut FullSegments, room: &mut [u8]) -> Option<usize> {
        Some(self.sending.as_mut()?.next_full(full).emit(room))
    }

    /// Returns whether a message may begin: none is being sent, and this half is not closed.
    #[inline]
    pub fn may_begin(&self) -> bool {
        self.sending.is_none() && !self.closed
    }

    /// Begins a message of `len` octets in one segment, if [one may begin](Self::may_begin).
    /// Returns its header.
    #[inline]
    pub fn whole(&mut self, header: DdpHeader, len: u32) -> DdpHeader {
        self.ddp.start_message(header, len).whole()
    }

    /// Notes that the LLP has taken the segment that was built last, up to `end` of its stream.
    /// Returns whether it was the last of its message.
    pub fn posted(&mut self, end: u64, ulp: &mut impl Ulp) -> bool {
        let complete = self.sending.take_if(|sending| sending.is_finished());
        if complete.is_some() {
            ulp.posted(end);
        }
        complete.is_some()
    }

    /// Drops the rest of the message being sent.
    pub fn abort_message(&mut self) {
        self.sending = None;
    }

    /// Drops everything that arrives from now on: the ULP was told of an error. The ULP can still
    /// send, and the stream stays until the ULP or the LLP tears it down.
    // rfc: 5041-71 after a fatal error the stream stays until the ULP tears it down
    // rfc: 5041-75 segments that arrive later are dropped silently
    // rfc: 5041-s7, 5041-s12 the ULP can still send a message
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Returns whether an error has ended receiving.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Closes this half in order once the ULP has sent everything. Receiving goes on.
    // rfc: 5041-s5 after this side's half-close, data is still received
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    /// Returns whether the ULP wants an orderly end.
    pub fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Handles changes of the LLP: what was transferred, and the peer's half-close (RFC 5041
    /// section 6.2).
    pub fn follow_llp<U: Ulp>(&mut self, llp: &mut impl Llp, ulp: &mut U) {
        ulp.transferred(llp.transferred());
        // rfc: 5041-66, 5041-69 this half is closed in order when the ULP asks for it
        // rfc: 5041-s2 before an orderly end all data is transferred
        if self.finishing && !self.closed && self.sending.is_none() && ulp.is_drained() {
            self.close(llp);
        }
        // rfc: 5041-s3 the ULP learns of the peer's half-close, and may go on sending
        // rfc: 5041-s4 the other half is closed in order
        if llp.peer_closed() && !self.half_closed {
            self.half_closed = true;
            if ulp.handle_half_close() == HalfCloseAction::Close {
                self.close(llp);
            }
        }
    }

    fn close(&mut self, llp: &mut impl Llp) {
        self.closed = true;
        llp.close();
    }
}
