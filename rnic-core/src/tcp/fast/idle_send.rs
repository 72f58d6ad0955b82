//! TCP's part of an idle send: the only segment, while nothing is in flight and nothing else is
//! due. One check and one step replace those of a [burst](super::BurstSegments); the outcome is the
//! same.

use crate::memory::frames::FrameId;
use crate::tcp::recovery::Recovery;
use crate::tcp::{Due, State, Tcp};
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

/// The proof that a segment of any size up to the MSS may be sent, and that nothing else is in
/// flight or due.
#[derive(Debug)]
pub struct IdleSegment(());

impl IdleSegment {
    /// Returns the proof if it is certain that a segment may be sent.
    #[inline(always)]
    pub fn eligible(tcp: &Tcp, now: Instant) -> Option<Self> {
        let idle = tcp.state == State::Established
            && tcp.send.is_empty()
            && tcp.due(now) != Due::Segment
            && tcp.options.fits_whole()
            && tcp.pacer.rate().is_none()
            && !tcp.ecn.is_used()
            && tcp.send.window_room() >= u64::from(tcp.options.max_payload());
        idle.then_some(Self(()))
    }

    /// Takes over a frame as [`queue`](Tcp::queue) does, to be sent at once with the header that
    /// this returns. An ACK that is due travels with it.
    #[inline(always)]
    pub fn commit(
        self,
        tcp: &mut Tcp,
        now: Instant,
        frame: FrameId,
        payload_at: u16,
        len: u16,
        payload_sum: u16,
    ) -> DataHeader {
        let window = tcp.recv.window_field();
        let header = DataHeader {
            source_port: tcp.local_port,
            destination_port: tcp.remote_port,
            seq: tcp.send.seq(tcp.send.nxt()),
            ack: tcp.recv.ack(),
            flags: Flags::ACK | Flags::PSH,
            window: window.value,
            timestamps: tcp.options.stamp(now),
        };
        tcp.recv.advertised(&window);
        tcp.send
            .queue_sent(now, frame, payload_at, len, payload_sum, true);
        tcp.counters.segments_sent += 1;
        tcp.counters.octets_sent += u64::from(len);
        tcp.recovery
            .on_sole_data(now, &tcp.send, len.into(), &tcp.rtt);
        tcp.arm_timer(now);
        tcp.sent_at = Some(now);
        debug_assert_eq!(tcp.due(now), Due::Nothing);
        header
    }

    /// Returns a time before which no timer expires that such a segment sets, if it is sent now.
    #[inline(always)]
    pub fn waits_until(tcp: &Tcp, now: Instant) -> Instant {
        now + tcp.rtt.rto().min(Recovery::PROBES_SOLE_AFTER)
    }
}
