//! Trains: segments of one long message that go one behind the other, each as full as the one before.
//!
//! What the message is made of is looked up and checked once, for all that is left of it; then the octets are copied and
//! sealed, and nothing else is done for each. A train ends before the last segment of its message, and with the run of
//! segments that it is in: nothing that it builds on changes meanwhile.

use crate::connection::upper::{RdmapUser, User};
use crate::ddp::Series;
use crate::memory::epoch::Guard;
use crate::memory::place::Source;
use crate::mpa::frame;
use crate::wire::checksum;
use crate::wire::mpa::LENGTH_LEN;

use super::Stream;
use super::built::Built;

/// A train that is leaving.
pub(super) struct Train<'g> {
    series: Series,
    /// The octets of its segments that were not built yet.
    source: Source<'g>,
}

impl Train<'_> {
    /// Builds the next segment, if it is one of the train.
    #[inline]
    pub(super) fn build(
        &mut self,
        stream: &mut Stream,
        segment: &mut [u8],
        summed: bool,
    ) -> Option<Built> {
        let source = self.source.split_front(self.series.payload_len())?;
        let ulpdu = &mut segment[LENGTH_LEN..];
        let header_len = stream.ddp.next_in_series(&mut self.series, ulpdu)?;
        let len = header_len + source.len();
        source.read(&mut ulpdu[header_len..len]);
        let (len, sum) = frame::seal_and_sum(segment, len, stream.crc, summed);
        let sum = match sum {
            Some(sum) => sum,
            None if summed => checksum::sum(&segment[..len]),
            None => 0,
        };
        Some(Built {
            len: len as u16,
            sum,
            push: false,
            rests: false,
        })
    }
}

impl Stream {
    /// Begins a train with the next segment of the message that is being sent, where there can be one: of at most `mulpdu`
    /// octets of DDP's each.
    pub(super) fn begin_train<'g>(&self, mulpdu: usize, guard: &'g Guard<'_>) -> Option<Train<'g>> {
        // Another layer than RDMAP may have its octets elsewhere each time. Where markers stand is another place in each.
        let User::Rdmap(RdmapUser { qp, outbound, .. }) = &self.user else {
            return None;
        };
        if self.has_markers() {
            return None;
        }
        let series = self.ddp.series(mulpdu)?;
        let origin = qp.origin();
        let source = outbound.as_ref()?.source.in_one_piece(
            guard,
            origin,
            series.offset(),
            series.octets(),
        )?;
        Some(Train { series, source })
    }
}
