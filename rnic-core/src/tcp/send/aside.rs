//! What a peer leaves unacknowledged for too long gives its frames back: the octets are kept aside in ordinary memory, and
//! each time they are sent again they go in a copy. Frames are few, and others need them.

use core::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Place, Sender, SentSegment};
use crate::memory::frames::TxFrames;
use crate::tcp::Tcp;

/// Octets that all connections of a worker keep aside.
pub type KeptAside = Arc<AtomicUsize>;

/// Octets of the stream, one behind the other, from the first that is held on.
#[derive(Debug)]
pub(in crate::tcp) struct Aside {
    start: u64,
    octets: Vec<u8>,
    sum: KeptAside,
}

impl Aside {
    fn end(&self) -> u64 {
        self.start + self.octets.len() as u64
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.octets.len(), Ordering::Relaxed);
    }
}

impl Sender {
    /// Keeps every segment aside that is in a frame, and gives the frames back. `sum` is that of all connections. Returns how
    /// many there were.
    pub(in crate::tcp) fn put_aside<F: TxFrames>(
        &mut self,
        frames: &mut F,
        sum: &KeptAside,
    ) -> u64 {
        let Some(head) = self.segments.front() else {
            return 0;
        };
        let first = head.start;
        // What was put aside before stands in front of what is put aside now.
        let from = self.segments.partition_point(|s| s.place == Place::Aside);
        if from == self.segments.len() {
            return 0;
        }
        let aside = self.aside.get_or_insert_with(|| {
            Box::new(Aside {
                start: first,
                octets: Vec::new(),
                sum: sum.clone(),
            })
        });
        let before = aside.octets.len();
        aside.octets.drain(..(first - aside.start) as usize);
        aside.start = first;
        let more = self.segments.range(from..).map(|s| usize::from(s.len));
        aside.octets.reserve_exact(more.sum());
        for segment in self.segments.range_mut(from..) {
            let at = usize::from(segment.payload_at);
            let payload = at..at + usize::from(segment.len);
            aside
                .octets
                .extend_from_slice(&frames.bytes(segment.frame)[payload]);
            if segment.place.ends_frame() {
                frames.release(segment.frame);
            }
            segment.place = Place::Aside;
        }
        sum.fetch_add(aside.octets.len(), Ordering::Relaxed);
        sum.fetch_sub(before, Ordering::Relaxed);
        (self.segments.len() - from) as u64
    }

    /// Octets of the stream that are kept aside.
    pub(in crate::tcp) fn aside(&self, range: Range<u64>) -> &[u8] {
        let Some(aside) = &self.aside else {
            return &[];
        };
        let at = |offset: u64| offset.saturating_sub(aside.start) as usize;
        aside
            .octets
            .get(at(range.start)..at(range.end))
            .unwrap_or_default()
    }

    /// A segment that did not end its frame is acknowledged up to `end`.
    #[cold]
    pub(super) fn forget_aside(&mut self, end: u64) {
        if self.aside.as_ref().is_some_and(|aside| aside.end() <= end) {
            self.aside = None;
        }
    }
}

impl Tcp {
    /// Has a connection whose peer is silent give back its frames: what they hold is kept aside from here on. To be called
    /// behind [`handle_timeout`](Self::handle_timeout). `sum` counts the octets of all connections.
    pub fn put_aside<F: TxFrames>(&mut self, frames: &mut F, sum: &KeptAside) {
        let waits_in_device =
            |head: &SentSegment| head.place.begins_frame() && frames.busy(head.frame);
        if self.retries > 0 && !self.send.first().is_some_and(waits_in_device) {
            self.counters.put_aside += self.send.put_aside(frames, sum);
        }
    }

    /// The octets of a [`Payload::Aside`].
    pub fn aside(&self, range: Range<u64>) -> &[u8] {
        self.send.aside(range)
    }
}
