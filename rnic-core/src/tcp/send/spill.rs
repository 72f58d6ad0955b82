//! Segments that a silent peer leaves unacknowledged are spilled: their octets move to ordinary
//! memory, and their frames are released. Frames are few, and other connections need them. A
//! spilled segment is sent again in a copy each time.

use core::ops::Range;
use std::sync::atomic::Ordering;

use crate::memory::frames::TxFrames;
use crate::tcp::Tcp;
use crate::tcp::sent_segment::{FramePart, SentSegment};
use crate::tcp::spilled_octets::{Spill, SpilledOctets};

use super::Sender;

impl Sender {
    /// Spills every segment that is in a frame, and releases the frames. `sum` counts the octets of
    /// all connections. Returns the number of segments spilled.
    pub(in crate::tcp) fn spill<F: TxFrames>(
        &mut self,
        frames: &mut F,
        sum: &SpilledOctets,
    ) -> u64 {
        let Some(head) = self.segments.front() else {
            return 0;
        };
        let first = head.start;
        // Segments that were spilled before stand in front of those that are spilled now.
        let from = self
            .segments
            .partition_point(|s| s.part == FramePart::Spilled);
        if from == self.segments.len() {
            return 0;
        }
        let spill = self.spill.get_or_insert_with(|| {
            Box::new(Spill {
                start: first,
                octets: Vec::new(),
                sum: sum.clone(),
            })
        });
        let before = spill.octets.len();
        spill.octets.drain(..(first - spill.start) as usize);
        spill.start = first;
        let more = self.segments.range(from..).map(|s| usize::from(s.len));
        spill.octets.reserve_exact(more.sum());
        for segment in self.segments.range_mut(from..) {
            let at = usize::from(segment.payload_at);
            let payload = at..at + usize::from(segment.len);
            spill
                .octets
                .extend_from_slice(&frames.bytes(segment.frame)[payload]);
            if segment.part.ends_frame() {
                frames.release(segment.frame);
            }
            segment.part = FramePart::Spilled;
        }
        sum.fetch_add(spill.octets.len(), Ordering::Relaxed);
        sum.fetch_sub(before, Ordering::Relaxed);
        (self.segments.len() - from) as u64
    }

    /// Returns spilled octets of the stream; none if these are not spilled.
    pub(in crate::tcp) fn spilled(&self, range: Range<u64>) -> &[u8] {
        let Some(spill) = &self.spill else {
            return &[];
        };
        let at = |offset: u64| offset.saturating_sub(spill.start) as usize;
        spill
            .octets
            .get(at(range.start)..at(range.end))
            .unwrap_or_default()
    }

    /// Frees the spilled octets if all of them, up to `end`, are acknowledged.
    #[cold]
    pub(super) fn drop_spill(&mut self, end: u64) {
        if self.spill.as_ref().is_some_and(|spill| spill.end() <= end) {
            self.spill = None;
        }
    }
}

impl Tcp {
    /// Spills the segments of a connection whose peer is silent, and releases their frames. Call it
    /// after [`handle_timeout`](Self::handle_timeout). `sum` counts the octets of all connections.
    pub fn spill<F: TxFrames>(&mut self, frames: &mut F, sum: &SpilledOctets) {
        let waits_in_device =
            |head: &SentSegment| head.part.begins_frame() && frames.busy(head.frame);
        if self.retries > 0 && !self.send.first().is_some_and(waits_in_device) {
            self.counters.segments_spilled += self.send.spill(frames, sum);
        }
    }

    /// Returns the octets of a `Payload::Spilled`.
    pub fn spilled(&self, range: Range<u64>) -> &[u8] {
        self.send.spilled(range)
    }
}
