//! Coalesced run: segments in a row whose headers are as predicted are handled as one. This is what
//! GRO does with the headers of a flow, but each payload is placed as its frame comes.
//!
//! Each segment holds the next data of the stream, as one FPDU with the next segment of the same
//! Write, Send or Read Response, or of the Write behind a Write. The segment in front of the run is
//! handled by header prediction, and is the template for the next. Of each further segment the
//! checksum and CRC are checked, and the payload is placed; nothing else is done for it. Where
//! another Write begins, its buffer is looked up. A run of a Send or Read Response ends in front of
//! its last segment, and where a piece of the receive's scatter list ends. TCP, DDP and RDMAP learn
//! of all segments once, behind the last. A run ends with its batch of frames, and with the first
//! frame that is not of it: so nothing that it relies on changes meanwhile.

use std::mem;

use crate::connection::stream::run::Messages;
use crate::connection::{Connection, Context, Phase};
use crate::fast_paths::{FastPath, taken};
use crate::memory::epoch::Guard;
use crate::memory::place::Placement;
use crate::mpa::frame;
use crate::tcp::CoalescedSegments;
use crate::wire::checksum::Checksums;
use crate::wire::ddp::{DdpHeader, TaggedHeader};
use crate::wire::prediction::{Expected, Prediction};
use crate::wire::segment_template::{Coalescable, SegmentTemplate};
use crate::wire::tcp::DataHeader;

/// The proof that segments like the one received may follow, and the run of those that did.
pub(crate) struct CoalescedRun<'g> {
    next: SegmentTemplate,
    /// The part of the buffer that the next segments of the message go to, as far as TCP's window
    /// has room for them.
    place: Placement<'g>,
    /// Segments that came since a message last ended or began (a boundary).
    count: u32,
    messages: Messages<'g>,
    /// TCP's record of the segments before the boundary, and how many octets of them were placed.
    segments: CoalescedSegments,
    placed: u64,
    message: Message,
    /// The DDP header of the last segments, if any came. Its offset is the next one's.
    front: Option<DdpHeader>,
    /// The TCP header of the segment in front of the run.
    header: DataHeader,
}

/// What a run has of the last message in it.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    octets: u32,
    /// It begins with one of the segments of the run.
    begins: bool,
    /// It has ended: the next segment begins another.
    ended: bool,
}

impl Message {
    /// Adds segments that have so many octets each. `last`: each is the last one of its message.
    fn add(&mut self, count: u32, octets: u32, last: bool) {
        if count == 0 {
            return;
        }
        if self.ended {
            (self.octets, self.begins) = (0, true);
        }
        self.ended = last;
        if !last {
            self.octets = self.octets.saturating_add(octets.saturating_mul(count));
        } else if count == 1 {
            self.octets = self.octets.saturating_add(octets);
        } else {
            (self.octets, self.begins) = (octets, true);
        }
    }
}

/// A boundary within the run: the proof that a frame is the next one, where a message ends or
/// another begins.
struct BoundarySegment<'a, 'g> {
    template: SegmentTemplate,
    place: Placement<'g>,
    segment: Coalescable<'a>,
}

impl<'g> CoalescedRun<'g> {
    /// Returns the proof if a run can begin. `segment` was handled last, and was the [next
    /// data](super::PredictedSegment) of the stream and nothing else; `frame` held it.
    #[inline]
    pub(crate) fn eligible(
        connection: &Connection,
        prediction: &Prediction,
        frame: &[u8],
        segment: &Expected<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<Self> {
        let Phase::Streaming(stream) = &connection.phase else {
            return None;
        };
        // Otherwise it may look like an FPDU, and be a part of one.
        if !stream.began_fpdu {
            return None;
        }
        let next = SegmentTemplate::behind(prediction, frame, segment)?;
        let (place, messages) = stream.place_behind(segment.payload, &next.header(), guard)?;
        let segments = CoalescedSegments::eligible(&connection.tcp)?;
        let place = shortened(place, &next, segments.room());
        if place.len() < next.payload_len() {
            return None;
        }
        Some(Self {
            place,
            message: Message::default(),
            next,
            count: 0,
            messages,
            segments,
            placed: 0,
            front: None,
            header: segment.header,
        })
    }

    /// Accepts a frame if it is the next of the run, and places its octets. Otherwise nothing
    /// changes, the run ends, and the frame takes another path.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame: &[u8], checksums: Checksums) -> bool {
        match self.eligible_next(self.next.read_usual(frame, checksums)) {
            Some(segment) => self.commit_next(&segment),
            None => self.take_other(frame, checksums),
        }
    }

    /// Returns the segment that was read from a frame, if its octets may be placed.
    #[inline(always)]
    fn eligible_next<'a>(&self, segment: Option<Coalescable<'a>>) -> Option<Coalescable<'a>> {
        // rfc: 5044-37 the CRC of an FPDU is compared before anything else is done
        segment.filter(|segment| {
            frame::crc_is_good(segment.crc) && segment.payload.len() <= self.place.len()
        })
    }

    /// Places the octets of the next frame. False where their memory is gone: then the run ends,
    /// and the ordinary way finds the error.
    #[inline(always)]
    fn commit_next(&mut self, segment: &Coalescable<'_>) -> bool {
        let placed = write_front(&mut self.place, segment);
        if placed {
            self.next.advance();
            self.count += 1;
        }
        placed
    }

    /// Accepts a frame whose headers do not have the usual layout, or where a message ends or
    /// another begins.
    // Not inlined, so that it does not slow down the usual case.
    #[inline(never)]
    fn take_other(&mut self, frame: &[u8], checksums: Checksums) -> bool {
        if !self.next.is_usual()
            && let Some(segment) = self.eligible_next(self.next.read(frame, checksums))
        {
            return self.commit_next(&segment);
        }
        match self.eligible_segment(frame, checksums) {
            Some(boundary) => self.commit_segment(boundary),
            None => false,
        }
    }

    /// Reads a frame where a message ends or another begins. The octets of another message may
    /// belong elsewhere.
    #[cold]
    #[inline(never)]
    fn eligible_segment<'a>(
        &self,
        frame: &'a [u8],
        checksums: Checksums,
    ) -> Option<BoundarySegment<'a, 'g>> {
        let Messages::Writes(writer) = &self.messages else {
            return None;
        };
        let template = self.next.turned_to(frame)?;
        // rfc: 5041-77 an STag of another protection domain is an error: here the run ends
        let DdpHeader::Tagged(TaggedHeader { stag, offset, .. }) = template.header() else {
            return None;
        };
        let mut segments = self.segments;
        segments.add(self.count, self.next.fpdu_len(), self.next.pushes());
        let place = writer.rest(stag, offset).ok()?;
        let place = shortened(place, &template, segments.room());
        let segment = template.read(frame, checksums)?;
        let fits = frame::crc_is_good(segment.crc) && segment.payload.len() <= place.len();
        fits.then_some(BoundarySegment {
            template,
            place,
            segment,
        })
    }

    fn commit_segment(&mut self, mut boundary: BoundarySegment<'_, 'g>) -> bool {
        let placed = write_front(&mut boundary.place, &boundary.segment);
        if placed {
            self.add_up();
            (self.next, self.place) = (boundary.template, boundary.place);
            self.next.advance();
            self.count += 1;
        }
        placed
    }

    /// Adds up the segments since the last boundary.
    fn add_up(&mut self) {
        let count = mem::take(&mut self.count);
        if count > 0 {
            self.front = Some(self.next.header());
        }
        self.segments
            .add(count, self.next.fpdu_len(), self.next.pushes());
        let octets = self.next.payload_len();
        self.placed += u64::from(count) * octets as u64;
        // A segment is shorter than a window.
        let last = self.next.header().last();
        self.message.add(count, octets as u32, last);
    }

    /// Tells all layers of the segments that it took. Returns how many they are. The caller then
    /// calls [`settle`](Connection::settle).
    pub(crate) fn commit(
        mut self,
        connection: &mut Connection,
        context: &mut Context<'_, '_>,
    ) -> u64 {
        self.add_up();
        let (Some(front), Phase::Streaming(stream)) = (&self.front, &mut connection.phase) else {
            return 0;
        };
        taken::count(FastPath::CoalescedRun);
        let count = u64::from(self.segments.count());
        // rfc: 5041-63 messages are delivered in order, each once its last segment has come
        let Message { octets, begins, .. } = self.message;
        stream.pass(&self.messages, front, octets, begins);
        let tcp = &mut connection.tcp;
        self.segments.commit(tcp, context.now, &self.header);
        tcp.set_buffered(0, 0);
        context.counters.rdma.fpdus_received += count;
        context.counters.rdma.octets_placed += self.placed;
        count
    }
}

/// Writes the octets of a segment to the front of a place. Returns whether that was done.
#[inline(always)]
fn write_front(place: &mut Placement<'_>, segment: &Coalescable<'_>) -> bool {
    let front = place.split_front(segment.payload.len());
    front.is_some_and(|front| front.write(segment.payload).is_ok())
}

/// Shortens the place of the next segments' octets to what TCP's window has room for.
fn shortened<'g>(mut place: Placement<'g>, next: &SegmentTemplate, room: u64) -> Placement<'g> {
    // A window is less than 2^30 octets.
    let segments = room as usize / next.fpdu_len();
    place.shorten(segments * next.payload_len());
    place
}
