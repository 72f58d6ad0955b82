//! Header prediction: a segment that holds the next data of the stream and nothing else, except
//! perhaps an acknowledgment of ours.
//!
//! Van Jacobson's observation: most segments of a stream are like that. Their headers are compared
//! with those of the frame before (`wire::prediction`), and TCP only counts the octets. The layers
//! above get them in the ordinary way.

use crate::connection::{Connection, Context, Phase};
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::TxFrames;
use crate::tcp::{Acknowledged, NextData};
use crate::time::Instant;
use crate::wire::prediction::Expected;

/// The proof that a segment is the next data of a stream of FPDUs.
pub(crate) struct PredictedSegment<'a> {
    data: NextData<'a>,
    segment: &'a Expected<'a>,
}

impl<'a> PredictedSegment<'a> {
    /// Returns the proof if the segment may take this path. It was read from a frame with predicted
    /// headers.
    #[inline(always)]
    pub(crate) fn eligible(
        connection: &Connection,
        segment: &'a Expected<'a>,
        now: Instant,
    ) -> Option<Self> {
        let Phase::Streaming(stream) = &connection.phase else {
            return None;
        };
        // A side that ends in order closes behind the segment that leaves nothing to be done,
        // whatever follows it. What a parked stream keeps makes the window smaller.
        if stream.takes_no_fast_path() {
            return None;
        }
        let (header, len) = (&segment.header, segment.payload.len());
        let data = NextData::eligible(&connection.tcp, now, header, len)?;
        Some(Self { data, segment })
    }

    /// Handles the segment and hands its octets up. The caller then calls
    /// [`settle`](Connection::settle): at once where data of ours were acknowledged, otherwise once
    /// for a run of segments.
    #[inline(always)]
    pub(crate) fn commit<F: TxFrames>(
        self,
        connection: &mut Connection,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> Acknowledged {
        let (segment, tcp) = (self.segment, &mut connection.tcp);
        let Phase::Streaming(stream) = &mut connection.phase else {
            return Acknowledged::Nothing;
        };
        taken::count(FastPath::HeaderPrediction);
        let acknowledged = self.data.commit(tcp, context.now, tx);
        // Also where it acknowledges nothing new: an ACK without data may have come in between.
        stream.acked = tcp.acked_offset();
        stream.receive(segment.payload, segment.payload_crc, context);
        let buffered = stream.buffered();
        let missing = if buffered == 0 { 0 } else { stream.missing() };
        tcp.mark_next_received(context.now, segment.payload.len());
        tcp.set_buffered(buffered as u32, missing as u32);
        acknowledged
    }
}
