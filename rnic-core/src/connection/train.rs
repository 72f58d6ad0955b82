//! Trains: segments that follow each other closely, and are the same but for their octets. Each is the next of the stream,
//! and just one FPDU with the next segment of the same Write, or of the Write behind it.
//!
//! The first is handled as any other is. It says what the next must be like, and where its octets belong; then the
//! octets of the others are checked and placed, and nothing else is done for each. Where another Write begins, its place is
//! looked up. What TCP has to know is told it once, behind the last. A train does not outlive the batch of frames it came in,
//! nor go on behind anything else of any connection: nothing that it builds on changes meanwhile.

use std::mem;

use super::{Connection, Context, Phase};
use crate::fast_paths::{FastPath, taken};
use crate::memory::epoch::Guard;
use crate::memory::place::{Placement, Writer};
use crate::mpa::frame;
use crate::tcp::Followers;
use crate::wire::checksum::Checksums;
use crate::wire::ddp::TaggedHeader;
use crate::wire::prediction::{Expected, Prediction};
use crate::wire::sequel::{Next, Sequel};
use crate::wire::tcp::DataHeader;

/// A train that is arriving.
pub(crate) struct Train<'g> {
    next: Sequel,
    /// The buffer that the message goes to, from the next segment on, as far as TCP's window has room for its segments.
    place: Placement<'g>,
    /// Segments that came since the last turn.
    count: u32,
    writer: Writer<'g>,
    /// Octets that TCP had room for at that turn.
    room: u64,
    /// What came until then beside the first, in TCP's eyes, and octets of it that were placed.
    followers: Followers,
    placed: u64,
    /// The DDP header of one of the segments that came last, if any came.
    front: Option<TaggedHeader>,
    /// The first one's.
    header: DataHeader,
}

impl Train<'_> {
    /// Takes a frame if it is the next of the train, and places its octets. Otherwise it changes nothing, and nothing more
    /// is to be taken: whatever is wrong with it is found out as ever.
    #[inline(always)]
    pub(crate) fn take(&mut self, octets: &[u8], checksums: Checksums) -> bool {
        match self.next.read_usual(octets, checksums) {
            Some(next) => self.place(&next),
            None => self.take_other(octets, checksums),
        }
    }

    /// Places the octets of the next frame, if they may be.
    #[inline(always)]
    fn place(&mut self, next: &Next<'_>) -> bool {
        // No octet is placed before the CRC of its FPDU holds. rfc: 5044-37
        if !frame::crc_is_good(next.crc) {
            return false;
        }
        let Some(place) = self.place.split_front(next.payload.len()) else {
            return false;
        };
        place.write(next.payload);
        self.next.advance();
        self.count += 1;
        true
    }

    /// Takes a frame whose headers do not stand where they usually do, or where a message ends or another begins.
    // Apart from the others it does not make them slower.
    #[inline(never)]
    fn take_other(&mut self, octets: &[u8], checksums: Checksums) -> bool {
        let next = match self.next.is_usual() {
            true => None,
            false => self.next.read(octets, checksums),
        };
        let next = next.or_else(|| self.turn(octets, checksums));
        next.is_some_and(|next| self.place(&next))
    }

    /// Reads a frame where a message ends or another begins. That of another may go elsewhere.
    #[cold]
    #[inline(never)]
    fn turn<'a>(&mut self, octets: &'a [u8], checksums: Checksums) -> Option<Next<'a>> {
        self.add_up();
        self.next.turn_to(octets)?;
        // rfc: 5041-77
        self.place = place(&self.next, &self.writer, self.room)?;
        self.next.read(octets, checksums)
    }

    /// Counts what came since the last turn.
    fn add_up(&mut self) {
        let count = mem::take(&mut self.count);
        if count > 0 {
            self.front = Some(self.next.header());
        }
        let octets = self
            .followers
            .add(count, self.next.fpdu_len(), self.next.pushes());
        self.room -= octets;
        self.placed += u64::from(count) * self.next.payload_len() as u64;
    }

    /// Segments that it took, once it has [ended](Connection::end_train).
    pub(crate) fn count(&self) -> u32 {
        self.followers.count()
    }
}

/// The place of the next segments' octets, as far as TCP has room for such segments.
// rfc: 5041-73a, 5041-73b, 5041-73c, 5041-73d, 5041-73e, 5041-77, 5041-78, 5041-83
fn place<'g>(next: &Sequel, writer: &Writer<'g>, room: u64) -> Option<Placement<'g>> {
    let (stag, offset) = next.place();
    let mut place = writer.rest(stag, offset).ok()?;
    // A window is less than 2^30 octets.
    let segments = room as usize / next.fpdu_len();
    place.shorten(segments * next.payload_len());
    Some(place)
}

impl Connection {
    /// Begins a train behind a segment that was just [the next data](super::Next::Data) of the stream, where there can
    /// be one.
    #[inline]
    pub(crate) fn begin_train<'g>(
        &self,
        prediction: &Prediction,
        frame: &[u8],
        expected: &Expected<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<Train<'g>> {
        let Phase::Streaming(stream) = &self.phase else {
            return None;
        };
        let next = Sequel::of(prediction, frame, expected)?;
        let writer = stream.writer_behind(expected.payload, guard)?;
        let room = self.tcp.room_for_train();
        Some(Train {
            place: place(&next, &writer, room)?,
            next,
            count: 0,
            writer,
            room,
            followers: Followers::default(),
            placed: 0,
            front: None,
            header: expected.header,
        })
    }

    /// The train has ended. [`settle`](Self::settle) is to follow.
    pub(crate) fn end_train(&mut self, train: &mut Train<'_>, context: &mut Context<'_, '_>) {
        train.add_up();
        let count = u64::from(train.count());
        let (Some(front), Phase::Streaming(stream)) = (&train.front, &mut self.phase) else {
            return;
        };
        taken::count(FastPath::CoalescedRun);
        // rfc: 5041-63
        stream.ddp.passed(front);
        self.tcp
            .receive_train(context.now, &train.header, &train.followers);
        self.tcp.set_held(0, 0);
        context.counters.rdma.fpdus_received += count;
        context.counters.rdma.octets_placed += train.placed;
    }
}
