//! Trains: segments that follow each other closely, and are the same but for their octets. Each is the next of the stream,
//! and just one FPDU with the next segment of the same Write.
//!
//! The first is handled as any other is. It says what the next must be like, and where its octets belong; then the
//! octets of the others are checked and placed, and nothing else is done for each. What TCP has to know is told it
//! once, behind the last. A train does not outlive the batch of frames it came in, nor go on behind anything else of
//! any connection: nothing that it builds on changes meanwhile.

use super::{Connection, Context, Phase};
use crate::memory::epoch::Guard;
use crate::memory::place::Placement;
use crate::mpa::frame;
use crate::wire::checksum::Checksums;
use crate::wire::prediction::{Expected, Prediction};
use crate::wire::sequel::Sequel;
use crate::wire::tcp::TcpHeader;

/// A train that is arriving.
pub(crate) struct Train<'g> {
    next: Sequel,
    /// The buffer that the message goes to, from the next segment on, as far as TCP's window has room for its segments.
    place: Placement<'g>,
    /// Segments that came, beside the first.
    count: u32,
    /// The first one's.
    header: TcpHeader,
}

impl Train<'_> {
    /// Takes a frame if it is the next of the train, and places its octets. Otherwise it changes nothing: whatever is wrong
    /// with it is found out as ever.
    #[inline]
    pub(crate) fn take(&mut self, octets: &[u8], checksums: Checksums) -> bool {
        let Some(next) = self.next.read(octets, checksums) else {
            return false;
        };
        // No octet is placed before the CRC of its FPDU holds. rfc: 5044-37
        if !frame::holds(next.crc) {
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

    /// Segments that it took.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
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
        let mut place = stream.placement_behind(expected.segment.payload, guard)?;
        // A window is less than 2^30 octets.
        let segments = self.tcp.room_for_train() as usize / next.fpdu_len();
        place.shorten(segments * next.payload_len());
        Some(Train {
            next,
            place,
            count: 0,
            header: expected.segment.header,
        })
    }

    /// The train has ended. [`settle`](Self::settle) is to follow.
    pub(crate) fn end_train(&mut self, train: &Train<'_>, context: &mut Context<'_, '_>) {
        if train.count == 0 {
            return;
        }
        let (fpdu_len, payload_len) = (train.next.fpdu_len(), train.next.payload_len());
        self.tcp
            .receive_train(context.now, &train.header, train.count, fpdu_len);
        self.tcp.set_held(0, 0);
        let count = u64::from(train.count);
        context.counters.rdma.fpdus_received += count;
        context.counters.rdma.octets_placed += count * payload_len as u64;
    }
}
