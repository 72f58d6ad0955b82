//! Transmit template: segments of one long message that leave one behind the other, each as full as the one before.
//!
//! What the message is made of is looked up and checked once, for all that is left of it; then the octets are copied and
//! sealed, and nothing else is done for each. A template ends before the last segment of its message, and with the
//! [burst](super::TxBurst) that it is in: nothing that it builds on changes meanwhile.

use crate::connection::stream::{Built, Stream};
use crate::connection::upper::{RdmapUser, User};
use crate::ddp::Series;
use crate::memory::epoch::Guard;
use crate::memory::place::Source;
use crate::mpa::frame;
use crate::wire::checksum;
use crate::wire::mpa::LENGTH_LEN;

/// The proof that the next segments of the message that is being sent are alike, and may be read.
pub(super) struct TxTemplate<'g> {
    series: Series,
    /// The octets of its segments that were not built yet.
    source: Source<'g>,
}

impl<'g> TxTemplate<'g> {
    /// Whether there is such a segment, of at most `mulpdu` octets of DDP's.
    pub(super) fn eligible(stream: &Stream, mulpdu: usize, guard: &'g Guard<'_>) -> Option<Self> {
        // Another layer than RDMAP may have its octets elsewhere each time. Where markers stand is another place in each.
        let User::Rdmap(RdmapUser { qp, outbound, .. }) = &stream.user else {
            return None;
        };
        if stream.has_markers() || !stream.may_send() {
            return None;
        }
        let series = stream.ddp.series(mulpdu)?;
        let source = outbound.as_ref()?.source.in_one_piece(
            guard,
            qp.origin(),
            series.offset(),
            series.octets(),
        )?;
        Some(Self { series, source })
    }

    /// Whether another segment is one of these.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.source.len() >= self.series.payload_len()
    }

    /// Builds the next segment, if there is [one](Self::has_next). `summed`: somebody needs its sum.
    #[inline]
    pub(super) fn commit_next(
        &mut self,
        stream: &mut Stream,
        segment: &mut [u8],
        summed: bool,
    ) -> Built {
        let Some(source) = self.source.split_front(self.series.payload_len()) else {
            return Built::NOTHING;
        };
        let ulpdu = &mut segment[LENGTH_LEN..];
        let Some(header_len) = stream.ddp.next_in_series(&mut self.series, ulpdu) else {
            return Built::NOTHING;
        };
        let len = header_len + source.len();
        source.read(&mut ulpdu[header_len..len]);
        let (len, sum) = frame::seal_and_sum(segment, len, stream.has_crcs(), summed);
        let sum = match sum {
            Some(sum) => sum,
            None if summed => checksum::sum(&segment[..len]),
            None => 0,
        };
        Built {
            len: len as u16,
            sum,
            push: false,
            rests: false,
        }
    }
}
