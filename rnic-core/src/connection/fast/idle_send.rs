//! Idle send: an inline message that is the only one to send, while nothing is in flight.
//!
//! Where a sender waits for the peer's message before it posts its next, every message is one of
//! these. It goes from the ring into a frame and to the device in one step. The frame, and the
//! state that is kept for it, are what [`Connection::transmit`] would have made.

use crate::connection::{Connection, Context, Phase};
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::{PASSING_FRAMES, TxFrames};
use crate::tcp::IdleSegment;
use crate::time::Instant;

use super::inline_messages::InlineFpdu;

/// The proof that an inline message is all that is to be sent, and may be sent now.
pub(crate) struct IdleSend {
    segment: IdleSegment,
    message: InlineFpdu,
}

impl IdleSend {
    /// Returns the proof if the next message may take this path. The caller knows that the device
    /// has room for a frame.
    #[inline(always)]
    pub(crate) fn eligible<F: TxFrames>(
        connection: &Connection,
        context: &Context<'_, '_>,
        tx: &F,
    ) -> Option<Self> {
        let (Some(_), Phase::Streaming(stream)) = (connection.path.template(), &connection.phase)
        else {
            return not_eligible();
        };
        let may_send = context.fast_paths.idle_send
            && connection.loose_octets.is_empty()
            && tx.available() > PASSING_FRAMES;
        if !may_send {
            return not_eligible();
        }
        let Some(segment) = IdleSegment::eligible(&connection.tcp, context.now) else {
            return not_eligible();
        };
        let Some(message) = InlineFpdu::eligible_alone(stream, context) else {
            return not_eligible();
        };
        Some(Self { segment, message })
    }

    /// Sends the message. After that nothing is left to send, and only the timers of a segment in
    /// flight were set.
    #[inline(always)]
    pub(crate) fn commit<F: TxFrames>(
        self,
        connection: &mut Connection,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) {
        let (Some(net), Phase::Streaming(stream)) =
            (connection.path.template(), &mut connection.phase)
        else {
            return;
        };
        let Some(frame) = tx.allocate() else {
            debug_assert!(false, "a frame was free");
            return;
        };
        let (now, tcp) = (context.now, &mut connection.tcp);
        let bytes = tx.bytes_mut(frame);
        let at = net.len() + tcp.data_header_len();
        let start = tcp.queued_offset();
        let (len, sum) = self
            .message
            .commit_and_sum_up(stream, &mut bytes[at..], start);
        context.counters.rdma.fpdus_sent += 1;
        let header = self.segment.commit(tcp, now, frame, at as u16, len, sum);
        let frame_len = net.write_data(bytes, &header, len, sum);
        tx.transmit(frame, frame_len);
        taken::count(FastPath::IdleSend);
    }
}

impl Connection {
    /// Returns whether the connection's timer goes off early enough after an [idle send](IdleSend).
    #[inline]
    pub(crate) fn has_timer_for_idle_send(&self, now: Instant) -> bool {
        let until = IdleSegment::waits_until(&self.tcp, now);
        self.scheduled.timer.is_some_and(|at| at <= until)
    }
}

/// Returns `None`. It is cold, so that the compiler takes eligibility for the common case.
#[cold]
#[inline(never)]
fn not_eligible() -> Option<IdleSend> {
    None
}
