//! TCP's part of a burst: segments of new data that leave one behind the other while nothing else
//! is due. Before the burst TCP computes how much may be sent, and behind it counts what was.
//!
//! A burst does not send the first segments of a small window, data that was queued before it could
//! be sent, or segments that F-RTO has to count: these go by [`Tcp::queue`] and
//! [`Tcp::poll_transmit`].

use core::ops::Range;

use crate::memory::frames::FrameId;
use crate::tcp::recv::WindowField;
use crate::tcp::{Due, Seq, Tcp};
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

/// The proof that segments of new data may leave, and the record of those that did.
#[derive(Debug)]
pub struct BurstSegments {
    /// The header of the segment sent last. Before the first, what all have in common.
    header: DataHeader,
    /// The sequence number of the next one.
    next: Seq,
    /// The flags of all segments apart from PSH, and those that the first one has in addition.
    flags: Flags,
    first: Flags,
    ecn_capable: bool,
    /// The fewest octets of a full segment.
    full: u16,
    /// Octets that may be sent in all.
    room: u64,
    segments: u64,
    began: u64,
    window: WindowField,
}

impl BurstSegments {
    /// Returns the proof if a full segment may leave now. It carries an ACK that is due.
    pub fn eligible(tcp: &Tcp, now: Instant) -> Option<Self> {
        let segment = u64::from(tcp.options.max_payload());
        let room = Self::room_now(tcp, now).filter(|room| *room >= segment)?;
        let began = tcp.send.nxt();
        let window = tcp.recv.window_field();
        let header = DataHeader {
            source_port: tcp.local_port,
            destination_port: tcp.remote_port,
            seq: tcp.send.seq(began),
            ack: tcp.recv.ack(),
            flags: Flags::ACK | tcp.ecn.echo(),
            window: window.value,
            timestamps: tcp.options.stamp(now),
        };
        let ecn_capable = tcp.ecn.is_used();
        let reduced = ecn_capable && tcp.recovery.cwr_due();
        Some(Self {
            next: header.seq,
            flags: header.flags,
            first: if reduced { Flags::CWR } else { Flags::NONE },
            header,
            ecn_capable,
            full: tcp.options.max_payload().saturating_sub(tcp.slack),
            room,
            segments: 0,
            began,
            window,
        })
    }

    /// Returns how many octets of new data may be sent now. `None` if anything else is to be sent.
    fn room_now(tcp: &Tcp, now: Instant) -> Option<u64> {
        if tcp.due(now) == Due::Segment
            || !tcp.options.fits_whole()
            || !tcp.state.may_queue()
            || !tcp.recovery.runs()
        {
            return None;
        }
        let segment = u64::from(tcp.options.max_payload());
        let room = if tcp.send.flight() == 0 {
            // The first segment after a pause may reduce the window, so only one is counted here.
            segment
        } else {
            let paced = tcp.pacer.room(now, segment);
            tcp.recovery.room(&tcp.send).min(paced)
        };
        Some(room.min(tcp.send.window_room()))
    }

    /// Returns how many octets may be sent in all. A segment has at most
    /// [`max_payload`](Tcp::max_payload), and is sent only while that much is left.
    #[inline]
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns the header of the segment sent last, complete except for its checksum. Before the
    /// first, it has what all have in common, which leaves out sequence number and flags.
    #[inline]
    pub fn header(&self) -> &DataHeader {
        &self.header
    }

    /// Returns whether routers may mark the segments instead of dropping them (ECT(0), RFC 3168).
    #[inline]
    pub fn ecn_capable(&self) -> bool {
        self.ecn_capable
    }

    /// Takes over a frame as [`queue`](Tcp::queue) does. The caller sends it at once with the
    /// [header](Self::header) that this makes. `push`: nothing follows for now.
    #[inline]
    pub fn send(
        &mut self,
        tcp: &mut Tcp,
        now: Instant,
        frame: FrameId,
        payload: Range<u16>,
        payload_sum: u16,
        push: bool,
    ) {
        let len = payload.end - payload.start;
        let push = push || len < self.full;
        self.header.seq = self.next;
        self.header.flags = self.flags | core::mem::take(&mut self.first);
        if push {
            self.header.flags |= Flags::PSH;
        }
        self.next += u32::from(len);
        self.segments += 1;
        tcp.send
            .queue_sent(now, frame, payload.start, len, payload_sum, push);
    }

    /// Counts what was sent, for congestion control, pacing and timers. Nothing is left to send
    /// unless more is queued. Where nothing was sent, nothing changes.
    // By value, because the burst is over.
    #[allow(clippy::needless_pass_by_value)]
    #[inline]
    pub fn commit(self, tcp: &mut Tcp, now: Instant) {
        if self.segments == 0 {
            return;
        }
        tcp.recv.advertised(&self.window);
        if self.ecn_capable {
            tcp.recovery.take_cwr();
        }
        let octets = tcp.send.nxt() - self.began;
        tcp.counters.segments_sent += self.segments;
        tcp.counters.octets_sent += octets;
        tcp.recovery.on_new_data(now, &tcp.send, octets, &tcp.rtt);
        tcp.pacer.advance(now);
        tcp.pacer.on_sent(now, octets);
        tcp.arm_timer(now);
        tcp.sent_at = Some(now);
        debug_assert_eq!(tcp.due(now), Due::Nothing);
    }
}
