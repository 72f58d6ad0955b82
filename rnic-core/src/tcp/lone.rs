//! A segment that is alone: the answer to one that has come, or a question behind which the sender waits. Nothing is in
//! flight, and nothing else is due. So there is one question in place of all that [`Tcp::run_room`] asks, and one step in
//! place of a [run](super::run); the outcome is the same.

use super::recovery::Recovery;
use super::{State, Tcp};
use crate::memory::frames::FrameId;
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

impl Tcp {
    /// Whether a segment may be sent that is alone, as large as there are any. Where that is not sure, it says no.
    #[inline(always)]
    pub fn may_send_lone(&self) -> bool {
        self.state == State::Established
            && self.send.is_empty()
            && !self.has_special()
            && !self.recv.duplicate_ack_due()
            && self.pacer.rate().is_none()
            && !self.ecn.is_used()
            && self.send.window_room() >= u64::from(self.options.max_payload())
    }

    /// Takes over a frame as [`queue`](Self::queue) does, to be sent at once and alone with the header that this returns.
    /// An ACK that is due travels with it.
    #[inline(always)]
    pub fn send_lone(
        &mut self,
        now: Instant,
        frame: FrameId,
        payload_at: u16,
        len: u16,
        payload_sum: u16,
    ) -> DataHeader {
        let window = self.recv.window_field();
        let header = DataHeader {
            source_port: self.local_port,
            destination_port: self.remote_port,
            seq: self.send.seq(self.send.nxt()),
            ack: self.recv.ack(),
            flags: Flags::ACK | Flags::PSH,
            window: window.value,
            timestamps: self.options.stamp(now),
        };
        self.recv.advertised(&window);
        self.send
            .queue_sent(now, frame, payload_at, len, payload_sum, true);
        self.counters.segments_sent += 1;
        self.counters.octets_sent += u64::from(len);
        self.recovery
            .on_lone_data(now, &self.send, len.into(), &self.rtt);
        self.arm_timer(now);
        self.sent_at = Some(now);
        debug_assert!(self.is_at_rest(now));
        header
    }

    /// A time before which surely none of the timers goes off that [a segment alone](Self::send_lone), sent now, has set.
    #[inline(always)]
    pub fn lone_waits_until(&self, now: Instant) -> Instant {
        now + self.rtt.rto().min(Recovery::PROBES_LONE_AFTER)
    }
}
