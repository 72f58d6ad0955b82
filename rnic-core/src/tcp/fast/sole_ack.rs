//! Sole ACK: the acknowledgment of the only segment in flight, without SACK blocks.
//!
//! Nothing was lost or retransmitted, and nothing is left in flight. So little remains of the
//! ordinary processing of an ACK; the outcome is the same.

use crate::memory::frames::TxFrames;
use crate::tcp::{
    Tcp, recovery,
    sent_segment::{Fate, FramePart},
};
use crate::time::Instant;

/// The proof that an acknowledgment is for the only segment in flight.
#[derive(Debug)]
pub(in crate::tcp) struct SoleAck {
    ack: u64,
}

impl SoleAck {
    /// Returns the proof if an acknowledgment up to offset `ack` of our stream may take this path.
    #[inline(always)]
    pub(in crate::tcp) fn eligible(tcp: &Tcp, ack: u64) -> Option<Self> {
        let send = &tcp.send;
        if send.segments.len() != 1 || ack != send.nxt || !tcp.recovery.is_calm() {
            return None;
        }
        // If a segment was sent only in part, the rest must still be sent. `end` tells whether
        // there is a FIN behind it.
        let sole = send.segments.front().is_some_and(|sole| {
            sole.end() == ack
                && !sole.retransmitted
                && sole.fate == Fate::InFlight
                && sole.part == FramePart::Whole
        });
        sole.then_some(Self { ack })
    }

    /// Handles the acknowledgment, except its window. Releases the frame of the segment.
    #[inline(always)]
    pub(in crate::tcp) fn commit<F: TxFrames>(self, tcp: &mut Tcp, now: Instant, frames: &mut F) {
        let Self { ack } = self;
        let Some(sole) = tcp.send.segments.front() else {
            return;
        };
        let (frame, sent_at, len) = (sole.frame, sole.sent_at, sole.len);
        frames.release(frame);
        let from = core::mem::replace(&mut tcp.send.una, ack);
        tcp.send.segments.clear();
        tcp.send.unsent = 0;
        tcp.send.board.advance(ack);

        let round_trip = now.span_since(sent_at);
        tcp.rtt.update_min_rtt(now, round_trip);
        tcp.rtt.sample(round_trip);
        tcp.retries = 0;
        tcp.note_size(now, len);
        let sole = recovery::SoleAcknowledgment {
            now,
            sent_at,
            acked: from..ack,
            round_trip,
        };
        tcp.recovery.on_sole_ack(&sole, &tcp.rtt);
        tcp.retransmit_at = None;
        tcp.probe_due = false;
        tcp.liveness.on_progress(now, false);
        tcp.pacer.update(tcp.recovery.congestion(), tcp.rtt.srtt());
    }
}
