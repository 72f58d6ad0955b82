//! Transmit template: full segments of one long message, which leave one behind the other.
//!
//! The source of the message is looked up and checked once, for all that is left of it. For each
//! segment the octets are copied and the CRC is computed, and nothing else is done. A template ends
//! before the last segment of its message, and with the [burst](super::TxBurst) that it is in: so
//! nothing that it relies on changes meanwhile.

use crate::connection::stream::{Built, Stream};
use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::ddp::FullSegments;
use crate::memory::epoch::Guard;
use crate::memory::place::Source;
use crate::mpa::frame;
use crate::wire::checksum;
use crate::wire::mpa::LENGTH_LEN;

/// The proof that the next segments of the message being sent are full, and that their source may
/// be read.
pub(super) struct TxTemplate<'g> {
    full: FullSegments,
    /// The source of the segments that were not built yet.
    source: Source<'g>,
}

impl<'g> TxTemplate<'g> {
    /// Returns the proof if there is such a segment, with a ULPDU of at most `mulpdu` octets.
    pub(super) fn eligible(stream: &Stream, mulpdu: usize, guard: &'g Guard<'_>) -> Option<Self> {
        // A layer other than RDMAP may have its octets elsewhere each time, and markers stand
        // elsewhere in each segment.
        let LocalUlp::Rdmap(RdmapUser { qp, outbound, .. }) = &stream.user else {
            return None;
        };
        if stream.has_markers() || !stream.may_send() {
            return None;
        }
        let full = stream.ddp.full_segments(mulpdu)?;
        let source = outbound.as_ref()?.source.in_one_piece(
            guard,
            qp.origin(),
            full.offset(),
            full.octets(),
        )?;
        Some(Self { full, source })
    }

    /// Returns whether there is another such segment.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.source.len() >= self.full.payload_len()
    }

    /// Builds the next segment, if there is [one](Self::has_next). `summed`: its checksum is
    /// needed. `None`, and no change, where the source is gone: the ordinary way finds the error.
    #[inline]
    pub(super) fn commit_next(
        &mut self,
        stream: &mut Stream,
        segment: &mut [u8],
        summed: bool,
    ) -> Option<Built> {
        let source = self.source.split_front(self.full.payload_len())?;
        let ulpdu = &mut segment[LENGTH_LEN..];
        let len = self.full.header_len() + source.len();
        source.read(&mut ulpdu[self.full.header_len()..len]).ok()?;
        stream.ddp.next_full(&mut self.full, ulpdu)?;
        let (len, sum) = frame::seal_and_sum(segment, len, stream.has_crcs(), summed);
        let sum = match sum {
            Some(sum) => sum,
            None if summed => checksum::sum(&segment[..len]),
            None => 0,
        };
        Some(Built {
            len: len as u16,
            sum,
            push: false,
            at_rest: false,
        })
    }
}
