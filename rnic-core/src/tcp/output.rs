//! What is sent: retransmissions, data, FIN, acknowledgments, and the segments of the handshake.

use crate::memory::frames::{CONTROL_FRAMES, TxFrames};
use crate::tcp::sent_segment::{Fate, FramePart, SentSegment};
use crate::time::Instant;
use crate::wire::tcp::{Flags, TcpHeader, TcpOptions};
use core::time::Duration;

use super::{Due, Fin, Outgoing, Payload, State, Tcp};

/// When to look again whether the device has finished with a frame that is to be sent again.
const DEVICE_RETRY: Duration = Duration::from_millis(1);

impl Tcp {
    /// Returns the next segment to send; call until `None`. The caller does send it: where the
    /// device has no room, or no frame is free for a segment that needs a fresh one, it does not
    /// call.
    ///
    /// Build and queue what [`wants_data`](Self::wants_data) asks for first: an ACK that is due
    /// then travels with the data.
    pub fn poll_transmit<F: TxFrames>(&mut self, now: Instant, frames: &mut F) -> Option<Outgoing> {
        self.pacer.advance(now);
        self.recv.handle_timeout(now);
        let outgoing = self.next_segment(now, frames)?;
        self.counters.segments_sent += 1;
        if outgoing.payload != Payload::None {
            self.sent_at = Some(now);
        }
        Some(outgoing)
    }

    /// Returns what is to be sent before more is queued. A cheap test: what is due may have to wait
    /// for a window or a frame.
    #[inline(always)]
    pub fn due(&self, now: Instant) -> Due {
        let probe = self.probe_due | self.liveness.keepalive_due | self.recovery.tail_probe_due();
        let control = self.syn_due | probe || self.reset.is_some();
        match control || self.send.has_unsent() || self.send.has_lost() {
            true => Due::Segment,
            false => self.recv.due(now),
        }
    }

    fn next_segment<F: TxFrames>(&mut self, now: Instant, frames: &mut F) -> Option<Outgoing> {
        if let Some(header) = self.reset.take() {
            self.counters.resets_sent += 1;
            return Some(Outgoing::bare(*header));
        }
        if self.syn_due {
            return Some(self.syn(now));
        }
        // In front of a probe: the peer takes a probe for no answer to its own.
        if self.recv.due(now) == Due::Segment {
            return Some(self.pure_ack(now));
        }
        if let Some(probe) = self.keepalive_probe(now) {
            return Some(probe);
        }
        if self.state.may_send() {
            let segment = self
                .probe(now)
                .or_else(|| self.held_data(now, frames))
                .or_else(|| self.fin(now));
            if segment.is_some() {
                return segment;
            }
            self.persist(now);
        }
        (self.recv.due(now) != Due::Nothing).then(|| self.pure_ack(now))
    }

    /// Returns a data segment. It may need a frame for a copy: where frames are few, segments
    /// without data go first.
    #[inline]
    fn held_data<F: TxFrames>(&mut self, now: Instant, frames: &F) -> Option<Outgoing> {
        if frames.available() > CONTROL_FRAMES {
            return self
                .tail_probe(now, frames)
                .or_else(|| self.retransmission(now, frames))
                .or_else(|| self.new_data(now, frames));
        }
        if self.send.has_lost() || !self.send.all_sent() || self.recovery.tail_probe_due() {
            self.device_retry_at.get_or_insert(now + DEVICE_RETRY);
        }
        None
    }

    pub(super) fn syn(&mut self, now: Instant) -> Outgoing {
        self.syn_due = false;
        let received = self.state == State::SynReceived;
        self.arm_timer(now);
        self.syn_sent_once = self.syn_sent_at.is_none();
        self.syn_sent_at = Some(now);
        self.counters.retransmits += u64::from(!self.syn_sent_once);
        let ecn = match received {
            true => self.ecn.syn_ack(),
            false => self.ecn.syn(!self.syn_sent_once),
        };
        let options = TcpOptions {
            mss: Some(self.mss_to_offer),
            window_scale: self.options.scaling.then(|| self.recv.scale()),
            sack_permitted: self.options.sack,
            timestamps: self.options.stamp(now),
            ..TcpOptions::default()
        };
        let mut header = TcpHeader {
            seq: self.send.syn(),
            flags: Flags::SYN | ecn,
            window: self.recv.advertise_in_syn(),
            options,
            ..self.bare_header()
        };
        if received {
            header.flags |= Flags::ACK;
            header.ack = self.recv.ack();
        }
        Outgoing::bare(header)
    }

    /// Returns a header that acknowledges all that was taken, and clears every ACK that is due.
    pub(super) fn header(&mut self, now: Instant, offset: u64, flags: Flags) -> TcpHeader {
        TcpHeader {
            seq: self.send.seq(offset),
            ack: self.recv.ack(),
            flags: flags | Flags::ACK | self.ecn.echo(),
            window: self.recv.advertise(),
            options: TcpOptions {
                timestamps: self.options.stamp(now),
                ..TcpOptions::default()
            },
            ..self.bare_header()
        }
    }

    fn pure_ack(&mut self, now: Instant) -> Outgoing {
        let mut header = self.header(now, self.send.nxt(), Flags::NONE);
        if self.options.sack {
            let (blocks, duplicate) = self.recv.sack_blocks();
            header.options.sack = blocks;
            self.counters.dsacks_sent += u64::from(duplicate);
        }
        Outgoing::bare(header)
    }

    /// Returns the octets `from..to` of a segment: the frame itself if that is all of it.
    fn data(&mut self, now: Instant, segment: &SentSegment, from: u16, to: u16) -> Outgoing {
        let payload = if (from, to) == (0, segment.len) && segment.part.begins_frame() {
            Payload::Whole {
                frame: segment.frame,
                payload_at: segment.payload_at,
                len: segment.len,
                sum: segment.payload_sum,
            }
        } else {
            part(segment, from, to)
        };
        self.segment(now, segment, from, to, payload)
    }

    /// Returns a segment with octets `from..to` of one that is held.
    fn segment(
        &mut self,
        now: Instant,
        segment: &SentSegment,
        from: u16,
        to: u16,
        payload: Payload,
    ) -> Outgoing {
        let push = segment.push && to == segment.len;
        let flags = if push { Flags::PSH } else { Flags::NONE };
        Outgoing {
            header: self.header(now, segment.start + u64::from(from), flags),
            payload,
            ecn_capable: false,
        }
    }

    /// Returns one octet (or the FIN) into a closed window, or what fits into one that has stayed
    /// too small for a segment (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn probe(&mut self, now: Instant) -> Option<Outgoing> {
        if !core::mem::take(&mut self.probe_due) {
            return None;
        }
        if !self.send.window_closed() && !self.send.is_blocked() {
            // The window has opened since the timer expired.
            return None;
        }
        self.probing |= self.send.window_closed();
        self.counters.window_probes += 1;
        if self.send.flight() > 0 {
            return self.probe_again(now);
        }
        let Some(segment) = self.send.next_unsent().cloned() else {
            return (self.send.fin == Fin::Queued).then(|| self.send_fin(now));
        };
        let most = self.options.max_payload().max(segment.sent + 1);
        let left = u64::from(segment.len.min(most) - segment.sent);
        // At most `left`, which fits.
        let octets = self.send.window_room().clamp(1, left) as u16;
        let (from, to) = (segment.sent, segment.sent + octets);
        self.send.mark_sent(now, to);
        self.arm_timer(now);
        self.counters.octets_sent += u64::from(octets);
        Some(self.data(now, &segment, from, to))
    }

    /// Returns the first octet not acknowledged, once more.
    fn probe_again(&mut self, now: Instant) -> Option<Outgoing> {
        let Some(head) = self.send.head_sent_again(now) else {
            return self.fin_again(now);
        };
        self.arm_timer(now);
        // Never the frame itself, not even one of a single octet: the device may still have it.
        let payload = part(&head, 0, 1);
        Some(self.segment(now, &head, 0, 1, payload))
    }

    /// Returns one more segment, as no ACK comes back: a new one if there is one, else the last one
    /// again (RFC 8985 section 7.3), or in recovery the first.
    fn tail_probe<F: TxFrames>(&mut self, now: Instant, frames: &F) -> Option<Outgoing> {
        if !self.recovery.tail_probe_due() {
            return None;
        }
        if let Some(mut outgoing) = self.new_data(now, frames) {
            self.counters.tail_probes += 1;
            let end = self.send.nxt();
            self.recovery.on_tail_probe(end, &mut self.rtt, false);
            // It asks for an answer: as a single segment it might wait for a second one.
            outgoing.header.flags |= Flags::PSH;
            return Some(outgoing);
        }
        self.recovery.drop_tail_probe();
        let probed = match self.recovery.probes_head() {
            true => self.send.head(),
            false => self.send.tail(),
        };
        let Some((index, segment)) = probed else {
            let outgoing = self.fin_again(now)?;
            self.counters.tail_probes += 1;
            let end = self.send.nxt();
            self.recovery.on_tail_probe(end, &mut self.rtt, true);
            return Some(outgoing);
        };
        let segment = segment.clone();
        if is_busy(&segment, frames) || segment.len > self.options.max_payload() {
            // It has not even left, or cannot get through: the retransmission timer watches it.
            return None;
        }
        self.counters.tail_probes += 1;
        self.resend(now, index, segment.sent);
        let end = match self.recovery.probes_head() {
            true => segment.start + u64::from(segment.sent),
            false => self.send.nxt(),
        };
        self.recovery.on_tail_probe(end, &mut self.rtt, true);
        let mut outgoing = self.data(now, &segment, 0, segment.sent);
        outgoing.header.flags |= Flags::PSH;
        Some(outgoing)
    }

    /// Returns whether what is thought lost goes before anything new.
    pub(super) fn must_retransmit(&self) -> bool {
        self.send.has_lost() && !self.recovery.prefers_new_data()
    }

    /// Marks the first `octets` of a segment as retransmitted now.
    fn resend(&mut self, now: Instant, index: usize, octets: u16) {
        self.send.mark_retransmitted(now, index, octets);
        if let Some(segment) = self.send.get(index) {
            let end = segment.start + u64::from(octets);
            self.recovery.on_retransmission(now, segment.start..end);
        }
        self.counters.retransmits += 1;
        if index == 0 {
            // A whole timeout for the answer: on a long path the timer has run for a round trip
            // already.
            self.retransmit_at = None;
        }
        self.arm_timer(now);
    }

    /// Returns the first segment thought lost, as far as the windows allow.
    fn retransmission<F: TxFrames>(&mut self, now: Instant, frames: &F) -> Option<Outgoing> {
        if !self.send.has_lost() || self.device_retry_at.is_some() {
            return None;
        }
        if self.recovery.prefers_new_data()
            && (self.room_for_new_data().is_some() || self.recovery.lacks_new_data())
        {
            return None;
        }
        let edge = self.send.window.edge;
        let Some((index, segment)) = self.send.next_lost() else {
            return self.fin_again(now);
        };
        let len = segment.len.min(self.options.max_payload());
        let octets = edge.saturating_sub(segment.start).min(u64::from(len)) as u16;
        let (busy, segment_len) = (is_busy(segment, frames), segment.len);
        if octets == 0
            || !self
                .recovery
                .allows_retransmission(&self.send, u64::from(octets))
        {
            return None;
        }
        if busy {
            self.device_retry_at = Some(now + DEVICE_RETRY);
            return None;
        }
        if segment_len > self.options.max_payload() {
            self.cut(index, frames);
        }
        let segment = self.send.get(index)?.clone();
        self.resend(now, index, octets);
        Some(self.data(now, &segment, 0, octets))
    }

    /// Returns how much of the next segment that has not been sent may be, as far as congestion and
    /// the peer's window go.
    fn room_for_new_data(&self) -> Option<u64> {
        let segment = self.send.next_unsent()?;
        if segment.fate == Fate::Lost {
            return None;
        }
        let left = u64::from((segment.len - segment.sent).min(self.options.max_payload()));
        let room = self.recovery.allows(&self.send, left) && self.send.window_suffices(left);
        room.then(|| self.send.window_room().min(left))
    }

    /// Returns the next segment that has not been sent, or the rest of one.
    fn new_data<F: TxFrames>(&mut self, now: Instant, frames: &F) -> Option<Outgoing> {
        if self.must_retransmit() || self.paces(now) || self.recovery.has_probed_timeout() {
            return None;
        }
        let room = self.room_for_new_data()?;
        // One of which a part was sent goes on in parts.
        let next = self.send.next_unsent()?;
        if next.sent == 0 && next.len > self.options.max_payload() {
            self.cut(self.send.first_unsent(), frames);
        }
        let segment = self.send.next_unsent()?.clone();
        let to = segment.sent + room as u16;
        self.send.mark_sent(now, to);
        let octets = u64::from(to - segment.sent);
        self.counters.octets_sent += octets;
        self.recovery
            .on_new_data(now, &self.send, octets, &self.rtt);
        self.pacer.on_sent(now, octets);
        self.arm_timer(now);
        let mut outgoing = self.data(now, &segment, segment.sent, to);
        if self.ecn.is_used() {
            // New data only: a mark on anything else might be lost with it, or be another's (RFC
            // 3168 section 6.1.5).
            outgoing.ecn_capable = true;
            if self.recovery.take_cwr() {
                outgoing.header.flags |= Flags::CWR;
            }
        }
        Some(outgoing)
    }

    /// Returns the FIN, once all data is sent.
    fn fin(&mut self, now: Instant) -> Option<Outgoing> {
        let ready = self.send.fin == Fin::Queued && self.send.all_sent();
        (ready && self.send.window_room() > 0).then(|| self.send_fin(now))
    }

    /// Returns the FIN once more, if it was sent and is not acknowledged.
    fn fin_again(&mut self, now: Instant) -> Option<Outgoing> {
        if !matches!(self.send.fin, Fin::InFlight | Fin::Lost) {
            return None;
        }
        let end = self.send.nxt();
        self.recovery.on_retransmission(now, end - 1..end);
        self.counters.retransmits += 1;
        Some(self.send_fin(now))
    }

    fn send_fin(&mut self, now: Instant) -> Outgoing {
        self.send.mark_fin_sent();
        self.arm_timer(now);
        let header = self.header(now, self.send.nxt() - 1, Flags::FIN);
        Outgoing::bare(header)
    }

    /// Starts the persist timer if nothing is in flight whose ACK could open the window.
    fn persist(&mut self, now: Instant) {
        if self.send.flight() == 0 && self.send.is_blocked() {
            self.arm_timer(now);
        }
    }

    pub(super) fn arm_timer(&mut self, now: Instant) {
        self.liveness.on_outstanding(now);
        if self.retransmit_at.is_none() {
            self.retransmit_at = Some(now + self.rtt.rto());
        }
    }
}

/// Returns whether the device may still have the frame that is to be sent once more as it is.
fn is_busy<F: TxFrames>(segment: &SentSegment, frames: &F) -> bool {
    segment.part.begins_frame() && frames.busy(segment.frame)
}

/// Returns the octets `from..to` of a segment, to be copied.
#[cold]
fn part(segment: &SentSegment, from: u16, to: u16) -> Payload {
    let at = |octets: u16| usize::from(segment.payload_at) + usize::from(octets);
    let place = |octets: u16| segment.start + u64::from(octets);
    match segment.part {
        FramePart::Spilled => Payload::Spilled(place(from)..place(to)),
        _ => Payload::Part {
            frame: segment.frame,
            range: at(from)..at(to),
        },
    }
}
