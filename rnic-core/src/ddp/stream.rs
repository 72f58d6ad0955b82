//! A stream: between the layer above and the layer below, of which it knows no more than they must say.

use super::{
    BufferSupply, Ddp, DdpError, HalfCloseAction, Llp, Message, Placed, Segmenter, Series, Ulp,
};
use crate::memory::epoch::Guard;
use crate::memory::place::{Destination, Placement, Writer};
use crate::memory::table::{Access, Origin};
use crate::verbs::Sge;
use crate::wire::ddp::{DdpHeader, DdpSegment, QueueNumber, TaggedHeader, UntaggedHeader};

/// A segment that was built for the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Its octets, header included.
    pub len: usize,
    /// Whether it is the last of its message.
    pub last: bool,
}

/// One DDP stream.
///
/// What is received comes by [`receive`](Self::receive), or by [`place`](Self::place) and [`deliver`](Self::deliver).
/// What is to be sent goes by [`has_output`](Self::has_output), [`next_segment`](Self::next_segment) and
/// [`posted`](Self::posted). [`follow_llp`](Self::follow_llp) follows the layer below, and [`finish`](Self::finish) and
/// [`fail`](Self::fail) the layer above: DDP itself ends no stream (RFC 5041 section 6.2).
#[derive(Debug)]
// rfc: 5041-66
pub struct DdpStream {
    ddp: Ddp,
    /// The message that is being cut.
    sending: Option<Segmenter>,
    /// The version of the protocol below.
    llp_version: u8,
    /// The layer above sends no more than it has begun to.
    finishing: bool,
    /// The peer has closed its half.
    half_closed: bool,
    /// This half is closed.
    closed: bool,
    /// An error was found: what comes is dropped.
    failed: bool,
}

impl DdpStream {
    /// A stream on whose behalf memory is used as `origin` says. `llp_version` is what the layer below agreed on with its
    /// peer: the revision of MPA. DDP has version 1 above all that are spoken here.
    // rfc: 5044-10
    pub fn new(origin: Origin, llp_version: u8) -> Self {
        Self {
            ddp: Ddp::new(origin),
            sending: None,
            llp_version,
            finishing: false,
            half_closed: false,
            closed: false,
            failed: false,
        }
    }

    /// The version of the protocol below, for the layer above to hear.
    pub fn llp_version(&self) -> u8 {
        self.llp_version
    }

    /// Begins to receive in a queue. One that is open already stays as it is.
    pub fn open(&mut self, queue: QueueNumber, supply: BufferSupply) {
        self.ddp.open(queue, supply);
    }

    /// A segment has come in its turn: places and delivers it. Says how many octets it placed.
    pub fn receive<U: Ulp>(
        &mut self,
        segment: &[u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<u32, U::Error> {
        let segment = DdpSegment::parse(segment)?;
        let destination = ulp.admit(&segment)?;
        if let (DdpHeader::Tagged(header), Destination::Silent(right)) =
            (&segment.header, destination)
        {
            // The whole of a message behind a whole one is in its turn.
            if !header.last || self.ddp.is_amid_message() {
                self.begin_or_continue(&segment.header, segment.payload.len(), ulp)?;
            }
            // Nobody is to hear of it: once it is placed, all is done.
            self.ddp
                .place_tagged(header, segment.payload, right, guard)?;
            return Ok(segment.payload.len() as u32);
        }
        self.open_for(&segment.header, ulp);
        self.begin_or_continue(&segment.header, segment.payload.len(), ulp)?;
        let placed = self.ddp.place(&segment, destination, ulp, guard)?;
        if let Some(delivery) = self.ddp.deliver_next(placed)? {
            ulp.deliver(delivery, guard)?;
        }
        Ok(placed.payload_len())
    }

    /// The turn of a segment has come: it is to be of the message that was begun, or begin the next behind a whole one.
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

    /// Who writes tagged segments of which nobody is to hear, for a peer that needs `right`: to be written is all that is to
    /// be done for them. `None` if none may come.
    pub fn writer<'g>(&self, right: Access, guard: &'g Guard<'_>) -> Option<Writer<'g>> {
        (!self.failed).then(|| self.ddp.writer(right, guard))
    }

    /// Tagged segments were placed by a [`writer`](Self::writer) in their turn. The last of them had this header; where one
    /// message ended, another may have begun.
    pub fn passed(&mut self, last: &TaggedHeader) {
        self.ddp.pass_tagged(last);
    }

    /// Validates a segment and copies its payload to its place; its turn may come later. Changes nothing else, so a
    /// segment that is refused here may be tried again in its turn.
    pub fn place<U: Ulp>(
        &mut self,
        segment: &[u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<Placed, U::Error> {
        let segment = DdpSegment::parse(segment)?;
        let destination = ulp.admit(&segment)?;
        self.open_for(&segment.header, ulp);
        Ok(self.ddp.place(&segment, destination, ulp, guard)?)
    }

    /// Opens the queue of a segment if the layer above receives in it.
    #[inline]
    fn open_for<U: Ulp>(&mut self, header: &DdpHeader, ulp: &U) {
        if let DdpHeader::Untagged(header) = header
            && !self.ddp.is_open(header.queue)
            && let Some(supply) = ulp.supply(header.queue)
        {
            self.ddp.open(header.queue, supply);
        }
    }

    /// The turn of a placed segment has come.
    pub fn deliver<U: Ulp>(
        &mut self,
        placed: Placed,
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<(), U::Error> {
        self.begin_or_continue(placed.header(), placed.payload_len() as usize, ulp)?;
        match self.ddp.deliver_next(placed)? {
            Some(delivery) => ulp.deliver(delivery, guard),
            None => Ok(()),
        }
    }

    /// Whether a message has begun to come and is not whole.
    #[inline]
    pub fn is_amid_message(&self) -> bool {
        self.ddp.is_amid_message()
    }

    /// Where the octets of a tagged segment belong of which nobody is to hear, if the peer has this right there.
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

    /// Where the octets of an untagged message belong that is next in its queue, and whole in this segment, if they fit the
    /// buffer that is posted for it, which is one piece. [`delivered_whole`](Self::delivered_whole) is to follow.
    // rfc: 5041-72b, 5041-72c, 5041-72d, 5041-72e
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

    /// The message whose turn it is in a queue was [placed](Self::place_for_whole), and is delivered.
    #[inline(always)]
    pub fn delivered_whole(&mut self, queue: QueueNumber) {
        self.ddp.pass_next(queue);
    }

    /// Takes a message without octets in its turn, as one that meets no buffer.
    pub fn deliver_without_buffer(&mut self, header: &UntaggedHeader) -> Result<(), DdpError> {
        self.ddp.deliver_without_buffer(header)
    }

    /// Whether a message was begun and is not finished.
    #[inline]
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Whether there is a segment to be sent. May begin a message.
    pub fn has_output<U: Ulp>(&mut self, ulp: &mut U, guard: &Guard<'_>) -> Result<bool, U::Error> {
        if self.sending.is_none() {
            if self.closed {
                return Ok(false);
            }
            // rfc: 5041-60
            let Some(message) = ulp.next_message(guard)? else {
                return Ok(false);
            };
            self.sending = Some(self.start_message(&message));
        }
        Ok(true)
    }

    /// Octets of the segment that would carry all that is left of the message being sent, header included.
    pub fn remaining_len(&self) -> Option<usize> {
        self.sending.as_ref().map(Segmenter::remaining_len)
    }

    /// Begins a message out of turn: the one before it is not finished, and this is the last.
    pub fn start_message(&mut self, message: &Message) -> Segmenter {
        self.ddp.start_message(message.header, message.length)
    }

    /// Builds the next segment at the front of `room`: at most `mulpdu` octets, which is what the layer below allows now
    /// ([`Llp::mulpdu`]). `None` if there is no message, or no room for an octet of it.
    // rfc: 5041-3, 5041-4, 5044-5, 5044-s5
    #[inline]
    pub fn next_segment<U: Ulp>(
        &mut self,
        mulpdu: usize,
        room: &mut [u8],
        ulp: &mut U,
        guard: &Guard<'_>,
    ) -> Result<Option<Built>, U::Error> {
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
        Ok(Some(Built {
            len,
            last: cut.last,
        }))
    }

    /// The next segments of the message being sent that carry equally many octets, with at most `mulpdu` octets each.
    pub fn series(&self, mulpdu: usize) -> Option<Series> {
        // rfc: 5041-3
        self.sending.as_ref()?.series(mulpdu)
    }

    /// Writes the header of the next segment, which is the next of a [series](Self::series), at the front of `room`: instead
    /// of [`next_segment`](Self::next_segment) and [`posted`](Self::posted). Returns its octets, behind which the payload
    /// belongs. `None` if no message is being sent.
    #[inline]
    pub fn next_in_series(&mut self, series: &mut Series, room: &mut [u8]) -> Option<usize> {
        Some(self.sending.as_mut()?.next_in_series(series).emit(room))
    }

    /// Builds the segment of a whole message at the front of `room`, if none is being sent and the next is one that
    /// [`Ulp::next_short`] gives out. `room` is at most what the layer below allows now. Returns the segment's octets. The
    /// layer below takes it, and it ends there where `end` says of so many octets.
    #[inline]
    pub fn next_short<U: Ulp>(
        &mut self,
        room: &mut [u8],
        end: impl FnOnce(usize) -> u64,
        ulp: &mut U,
    ) -> Option<usize> {
        if !self.may_begin() {
            return None;
        }
        let (header, len) = ulp.next_short(room, end)?;
        Some(self.whole(header, len as u32).emit(room) + len)
    }

    /// Whether a message may begin: none is being sent, and this half is not closed.
    #[inline]
    pub fn may_begin(&self) -> bool {
        self.sending.is_none() && !self.closed
    }

    /// Begins a message of `len` octets that one segment carries, where [one may begin](Self::may_begin): its header.
    #[inline]
    pub fn whole(&mut self, header: DdpHeader, len: u32) -> DdpHeader {
        self.ddp.start_message(header, len).whole()
    }

    /// The layer below has taken the segment that was built last, which ends at `end`. Says whether it was the last of
    /// its message.
    pub fn posted(&mut self, end: u64, ulp: &mut impl Ulp) -> bool {
        let complete = self.sending.take_if(|sending| sending.is_finished());
        if complete.is_some() {
            ulp.posted(end);
        }
        complete.is_some()
    }

    /// What was begun of a message is not finished.
    pub fn abort_message(&mut self) {
        self.sending = None;
    }

    /// The layer above was told of an error: what comes is dropped from now on. What it still has to say to the peer
    /// goes out, and the stream stays until it is torn down from above or below.
    // rfc: 5041-71, 5041-75, 5041-s7, 5041-s12
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether an error has ended what this side receives.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The layer above wants to end in order, when it has sent what it has. It goes on receiving.
    // rfc: 5041-s5
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    /// Whether the layer above wants to end in order.
    pub fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Draws the conclusions from how the layer below stands (RFC 5041 section 6.2).
    pub fn follow_llp<U: Ulp>(&mut self, llp: &mut impl Llp, ulp: &mut U) {
        ulp.transferred(llp.transferred());
        // rfc: 5041-66, 5041-69, 5041-s2
        if self.finishing && !self.closed && self.sending.is_none() && ulp.is_idle() {
            self.close(llp);
        }
        // rfc: 5041-s3, 5041-s4
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
