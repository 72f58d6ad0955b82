//! A run: segments of new data that go out one behind the other while nothing else is due. What cannot change on the way
//! is settled once: before it that and how much may be sent, and after it what was.
//!
//! What a run does not do (the first segments of a window that is small, data that was queued before it could be sent,
//! whatever F-RTO has to count) goes by [`Tcp::queue`] and [`Tcp::poll_transmit`].

use core::ops::Range;

use super::Tcp;
use crate::memory::frames::FrameId;
use crate::time::Instant;
use crate::wire::tcp::{Flags, TcpHeader};

/// Segments of new data on their way out.
#[derive(Debug)]
pub struct Run {
    /// The header of the segment sent last.
    header: TcpHeader,
    /// What the headers say beside PSH, and what the first one says in addition.
    flags: Flags,
    first: Flags,
    ecn_capable: bool,
    segments: u64,
    began: u64,
}

impl Run {
    /// The header of the segment sent last, complete but for its checksum.
    #[inline]
    pub fn header(&self) -> &TcpHeader {
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
            || self.recv.owes_duplicate()
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

    /// Begins a run in which at least one segment is sent: an ACK that is due travels with it.
    pub fn begin_run(&mut self, now: Instant) -> Run {
        let began = self.send.nxt();
        let header = self.header(now, began, Flags::NONE);
        let (flags, ecn_capable) = (header.flags, self.ecn.is_used());
        let reduced = ecn_capable && self.recovery.take_reduction();
        Run {
            header,
            flags,
            first: if reduced { Flags::CWR } else { Flags::NONE },
            ecn_capable,
            segments: 0,
            began,
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
        let push = push || len < self.options.max_payload();
        run.header.seq = self.send.seq(self.send.nxt());
        run.header.flags = run.flags | core::mem::take(&mut run.first);
        if push {
            run.header.flags |= Flags::PSH;
        }
        run.segments += 1;
        self.send
            .queue_sent(now, frame, payload.start, len, payload_sum, push);
    }

    /// What was sent counts for congestion control, pacing and timers.
    // By value: it is over.
    #[allow(clippy::needless_pass_by_value)]
    pub fn end_run(&mut self, now: Instant, run: Run) {
        let octets = self.send.nxt() - run.began;
        self.counters.segments_sent += run.segments;
        self.counters.octets_sent += octets;
        self.recovery
            .on_new_data(now, &self.send, octets, &self.rtt);
        self.pacer.on_sent(now, octets);
        self.arm_timer(now);
        self.sent_at = Some(now);
    }
}
