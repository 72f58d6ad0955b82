//! A run: segments of new data that go out one behind the other while nothing else is due. What cannot change on the way
//! is settled once: before it that and how much may be sent, and after it what was.
//!
//! What a run does not do (the first segments of a window that is small, data that was queued before it could be sent,
//! whatever F-RTO has to count) goes by [`Tcp::queue`] and [`Tcp::poll_transmit`].

use core::ops::Range;

use super::recv::WindowField;
use super::{Seq, Tcp};
use crate::memory::frames::FrameId;
use crate::time::Instant;
use crate::wire::tcp::{DataHeader, Flags};

/// Segments of new data on their way out.
#[derive(Debug)]
pub struct Run {
    /// The header of the segment sent last, or what it has in common with the first.
    header: DataHeader,
    /// Where the next one stands.
    next: Seq,
    /// What the headers say beside PSH, and what the first one says in addition.
    flags: Flags,
    first: Flags,
    ecn_capable: bool,
    /// Octets of a segment that is full.
    full: u16,
    segments: u64,
    began: u64,
    window: WindowField,
}

impl Run {
    /// The header of the segment sent last, complete but for its checksum. Before the first, what all have but sequence
    /// number and flags.
    #[inline]
    pub fn header(&self) -> &DataHeader {
        &self.header
    }

    /// Routers may mark the segments instead of dropping them (ECT(0), RFC 3168).
    #[inline]
    pub fn ecn_capable(&self) -> bool {
        self.ecn_capable
    }
}

impl Tcp {
    /// How many octets of new data may be sent in a run now, each segment [`max_payload`](Self::max_payload) at most
    /// and only while as much is left; less than that if there can be no run.
    pub fn run_room(&mut self, now: Instant) -> u64 {
        self.pacer.advance(now);
        if self.has_special()
            || self.recv.duplicate_ack_due()
            || !self.state.may_queue()
            || !self.send.all_sent()
            || self.send.has_lost()
            || !self.recovery.runs()
        {
            return 0;
        }
        let segment = u64::from(self.options.max_payload());
        let room = if self.send.flight() == 0 {
            // It may find that the window is to be smaller, after a pause.
            segment
        } else {
            let paced = self.pacer.room(now, segment);
            self.recovery.room(&self.send).min(paced)
        };
        room.min(self.send.window_room())
    }

    /// Begins a run: an ACK that is due travels with it. A run in which nothing is sent has not been.
    #[inline]
    pub fn begin_run(&self, now: Instant) -> Run {
        let began = self.send.nxt();
        let window = self.recv.window_field();
        let header = DataHeader {
            source_port: self.local_port,
            destination_port: self.remote_port,
            seq: self.send.seq(began),
            ack: self.recv.ack(),
            flags: Flags::ACK | self.ecn.echo(),
            window: window.value,
            timestamps: self.options.stamp(now),
        };
        let ecn_capable = self.ecn.is_used();
        let reduced = ecn_capable && self.recovery.cwr_due();
        Run {
            next: header.seq,
            flags: header.flags,
            first: if reduced { Flags::CWR } else { Flags::NONE },
            header,
            ecn_capable,
            full: self.options.max_payload(),
            segments: 0,
            began,
            window,
        }
    }

    /// Takes over a frame as [`queue`](Self::queue) does, to be sent at once with the header that `run` has then.
    /// `push`: nothing follows for now.
    #[inline]
    pub fn send_in_run(
        &mut self,
        now: Instant,
        run: &mut Run,
        frame: FrameId,
        payload: Range<u16>,
        payload_sum: u16,
        push: bool,
    ) {
        let len = payload.end - payload.start;
        let push = push || len < run.full;
        run.header.seq = run.next;
        run.header.flags = run.flags | core::mem::take(&mut run.first);
        if push {
            run.header.flags |= Flags::PSH;
        }
        run.next += u32::from(len);
        run.segments += 1;
        self.send
            .queue_sent(now, frame, payload.start, len, payload_sum, push);
    }

    /// What was sent counts for congestion control, pacing and timers. Nothing is left to be sent unless more is queued.
    // By value: it is over.
    #[allow(clippy::needless_pass_by_value)]
    #[inline]
    pub fn end_run(&mut self, now: Instant, run: Run) {
        if run.segments == 0 {
            return;
        }
        self.recv.advertised(&run.window);
        if run.ecn_capable {
            self.recovery.take_cwr();
        }
        let octets = self.send.nxt() - run.began;
        self.counters.segments_sent += run.segments;
        self.counters.octets_sent += octets;
        self.recovery
            .on_new_data(now, &self.send, octets, &self.rtt);
        self.pacer.on_sent(now, octets);
        self.arm_timer(now);
        self.sent_at = Some(now);
        debug_assert!(self.is_at_rest(now));
    }
}
