//! Processes received segments (RFC 9293 section 3.10.7, with RFC 5961 and RFC 7323).

use super::recovery::Ack;
use super::scoreboard::AckOutcome;
use super::{Fin, State, StreamData, Tcp, TcpFailure};
use crate::counters::DropReason;
use crate::memory::frames::TxFrames;
use crate::time::{Instant, Span};
use crate::wire::tcp::{Flags, TcpHeader, TcpSegment};

impl Tcp {
    /// Handles a segment of this connection, and returns what of its data is new: the owner places
    /// or keeps it, and calls [`mark_received`](Self::mark_received) for that. Frames that it
    /// acknowledges are released. An error says why nothing of the segment was taken but, at most,
    /// its acknowledgment.
    ///
    /// `congested`: a router has marked it (CE, RFC 3168).
    ///
    /// Poll for segments to send afterwards, once for a batch of received segments.
    pub fn receive<'a, F: TxFrames>(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'a>,
        congested: bool,
        frames: &mut F,
    ) -> Result<Option<StreamData<'a>>, DropReason> {
        self.pacer.advance(now);
        self.counters.segments_received += 1;
        let data = match self.state {
            State::Closed => Err(DropReason::TcpClosed),
            State::SynSent => self
                .receive_in_syn_sent(now, &segment.header)
                .map(|()| None),
            _ => self.receive_synchronized(now, segment, congested, frames),
        };
        self.counters.duplicates += u64::from(matches!(
            data,
            Err(DropReason::TcpPaws
                | DropReason::TcpOldData
                | DropReason::TcpOutOfWindow
                | DropReason::TcpOutOfOrderFull)
        ));
        if self.state == State::Closed {
            self.release_frames(frames);
        }
        data
    }

    /// Handles a segment in SYN-SENT (RFC 9293 section 3.10.7.3). Data on a SYN is left for the
    /// peer to send again.
    fn receive_in_syn_sent(&mut self, now: Instant, header: &TcpHeader) -> Result<(), DropReason> {
        let flags = header.flags;
        let ours_acked = flags.ack() && self.send.offset_of(header.ack) == 0;
        if flags.ack() && !ours_acked {
            return Err(self.refuse_ack(header));
        }
        if flags.rst() {
            if !ours_acked {
                return Err(DropReason::TcpInvalidReset);
            }
            self.counters.resets_received += 1;
            self.finish(Some(TcpFailure::Refused));
            return Ok(());
        }
        if !flags.syn() {
            return Err(DropReason::TcpNoSyn);
        }
        self.process_syn(now, header);
        if ours_acked {
            self.establish(now, header);
            self.recv.ack_now();
        } else {
            // Both opened at the same time.
            self.state = State::SynReceived;
            self.syn_due = true;
        }
        Ok(())
    }

    /// Handles the peer's SYN: its sequence number, window and options.
    pub(super) fn process_syn(&mut self, now: Instant, header: &TcpHeader) {
        self.recv.synchronize(header.seq);
        self.ecn.process_syn(header.flags);
        self.options.settle(now, &header.options);
        if !self.options.scaling {
            self.recv.refuse_scaling();
        }
        if self.options.sack {
            self.recv.use_sack();
        }
        // Until the handshake is over nothing is sent, so the first ACK may set the scaled window.
        self.send.window.update(-1, 0, header.window);
        if let Some(scale) = header.options.window_scale {
            self.send.window.scale = scale;
        }
        self.recovery
            .agree(u64::from(self.options.max_payload()), self.options.sack);
    }

    /// Enters ESTABLISHED: our SYN is acknowledged, and the peer's has come.
    fn establish(&mut self, now: Instant, header: &TcpHeader) {
        if self.retries > 0 {
            self.rtt.handshake_timed_out();
            if self.retries > 1 {
                self.recovery.on_lost_syn();
            }
        }
        let measured = match self.syn_sent_at {
            Some(sent_at) if self.syn_sent_once => {
                self.rtt.update_min_rtt(now, now.span_since(sent_at));
                Some(now.span_since(sent_at))
            }
            Some(_) => self.options.round_trip(now, &header.options),
            None => None,
        };
        if let Some(rtt) = measured {
            self.rtt.sample(rtt);
        }
        self.retries = 0;
        self.retransmit_at = None;
        self.syn_due = false;
        self.liveness.on_segment(now);
        self.liveness.on_progress(now, false);
        let state = State::Established;
        self.state = if self.send.fin == Fin::Queued {
            state.after_close()
        } else {
            state
        };
    }

    fn receive_synchronized<'a, F: TxFrames>(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'a>,
        congested: bool,
        frames: &mut F,
    ) -> Result<Option<StreamData<'a>>, DropReason> {
        let header = &segment.header;
        let flags = header.flags;
        let start = self.recv.offset_of(header.seq);
        if flags.rst() {
            return self
                .receive_reset(now, header, start, frames)
                .map(|()| None);
        }
        if flags.syn() {
            return self.receive_late_syn(now, header, start).map(|()| None);
        }
        let len = segment.payload.len() as u64 + u64::from(flags.fin());
        if self.options.is_old(now, header.options.timestamps) {
            self.ack_unacceptable(now, start, len);
            return Err(DropReason::TcpPaws);
        }
        if !self.recv.acceptable(start, len) {
            self.receive_unacceptable(now, header, start, len, frames);
            return Err(self.recv.unwanted(start));
        }
        // RFC 9293 section 3.10.7.4, fifth: a segment without ACK says nothing.
        if !flags.ack() {
            return Err(DropReason::TcpNoAck);
        }
        self.receive_ack(now, header, start, len, frames)?;
        if self.state == State::Closed {
            return Ok(None);
        }
        // Only the peer can have sent it. RFC 7323 section 5.3, R3: were the timestamp of any other
        // remembered, all that the peer sends could become old by it.
        self.liveness.on_segment(now);
        if self.recv.reaches_last_ack(start) {
            self.options.remember(now, header.options.timestamps);
        }
        if self.ecn.on_segment(flags, congested) {
            self.recv.ack_now();
        }
        self.counters.congestion_marks += u64::from(congested && self.ecn.is_used());
        self.receive_text(now, segment, start)
    }

    /// Handles a RST (RFC 5961 section 3.2): only the very next sequence number resets; one
    /// elsewhere in the window is asked about, by an ACK that makes a true peer repeat it right.
    /// Of either the acknowledgment counts, as that of any other segment there, because nothing
    /// else may come that has it. The window does not: a RST has none.
    fn receive_reset<F: TxFrames>(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        start: i64,
        frames: &mut F,
    ) -> Result<(), DropReason> {
        let resets = start == self.recv.nxt().cast_signed();
        if !resets && !self.recv.acceptable(start, 0) {
            return Err(DropReason::TcpInvalidReset);
        }
        // In TIME-WAIT nothing is lost by it.
        let failure = (self.state != State::TimeWait).then_some(TcpFailure::Reset);
        if header.flags.ack() && self.state != State::SynReceived && self.send.awaits(header.ack) {
            let ack = self.send.offset_of(header.ack).unsigned_abs();
            self.process_ack(now, header, ack, false, frames);
        }
        if resets {
            self.counters.resets_received += 1;
            self.finish(failure);
            return Ok(());
        }
        self.challenge(now);
        Err(DropReason::TcpInvalidReset)
    }

    /// Handles a SYN after the first one.
    fn receive_late_syn(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        start: i64,
    ) -> Result<(), DropReason> {
        let again = start == -1;
        if self.state != State::SynReceived || !again {
            // RFC 5961 section 4.2.
            self.challenge(now);
            return Err(DropReason::TcpInvalidSyn);
        }
        if header.flags.ack() && self.send.offset_of(header.ack) == 0 {
            // The end of a simultaneous open (RFC 9293 figure 7).
            self.establish(now, header);
            self.recv.ack_now();
        } else {
            if !header.flags.ack() {
                // It may no longer ask for ECN.
                self.ecn.process_syn(header.flags);
            }
            self.syn_due = true;
        }
        Ok(())
    }

    /// Answers a segment outside the window with an ACK. Of one that ends behind what was last
    /// acknowledged, the acknowledgment counts all the same, as in Linux; its timestamp does not
    /// (RFC 7323 section 5.3, R2).
    fn receive_unacceptable<F: TxFrames>(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        start: i64,
        len: u64,
        frames: &mut F,
    ) {
        self.ack_unacceptable(now, start, len);
        if self.is_probe(header, start, len) {
            self.liveness.on_segment(now);
        }
        let end = start.saturating_add_unsigned(len);
        let recent = self.recv.is_recent(end) && self.state != State::SynReceived;
        if !recent
            || !header.flags.ack()
            || self.receive_ack(now, header, start, len, frames).is_err()
        {
            return;
        }
        // The peer's FIN once more: our ACK was lost.
        let again = header.flags.fin() && end == self.recv.nxt().cast_signed();
        if again && self.state == State::TimeWait {
            self.time_wait_ends = Some(now + self.time_wait);
        }
    }

    /// Returns whether a segment is a keepalive probe of the peer: right in front of the window, with
    /// a true acknowledgment. It is as good a sign of life as an answer.
    fn is_probe(&self, header: &TcpHeader, start: i64, len: u64) -> bool {
        let is_there = start == self.recv.nxt().cast_signed() - 1 && len <= 1;
        let ack = u64::try_from(self.send.offset_of(header.ack));
        let is_true = ack.is_ok_and(|ack| (self.send.una()..=self.send.nxt()).contains(&ack));
        is_there && header.flags.ack() && is_true && self.state != State::SynReceived
    }

    fn ack_unacceptable(&mut self, now: Instant, start: i64, len: u64) {
        if len > 0 {
            self.recv.note_duplicate(start, len);
            self.recv.ack_alone();
        } else {
            // Nothing was lost on us: two ends that disagree must not answer each other's ACKs for
            // ever.
            self.challenge(now);
        }
    }

    /// Handles the acknowledgment field, and the window with it.
    fn receive_ack<F: TxFrames>(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        start: i64,
        len: u64,
        frames: &mut F,
    ) -> Result<(), DropReason> {
        let offset = self.send.offset_of(header.ack);
        if self.state == State::SynReceived {
            if offset != 0 {
                return Err(self.refuse_ack(header));
            }
            self.establish(now, header);
        }
        let ack = match u64::try_from(offset) {
            Ok(ack) if ack >= self.send.una() && ack <= self.send.nxt() => ack,
            _ => return self.reject_ack(now, offset),
        };
        let moved = self.send.window.update(start, ack, header.window);
        let nothing_else = len == 0 && !moved && !self.send.window_closed();
        let repeats = ack == self.send.una() && nothing_else;
        if ack > self.send.una() || repeats || !header.options.sack.is_empty() {
            self.process_ack(now, header, ack, repeats, frames);
        }
        self.update_persist(now);
        Ok(())
    }

    /// Processes an ACK that may move SND.UNA, deliver segments or report their loss. `repeats`:
    /// its number is SND.UNA, and its segment has neither data nor a window update.
    pub(super) fn process_ack<F: TxFrames>(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        ack: u64,
        repeats: bool,
        frames: &mut F,
    ) {
        let flight = self.send.flight();
        let mut outcome = AckOutcome::default();
        let mut round_trip = None;
        if ack > self.send.una() {
            self.send.acknowledge(ack, frames, &mut outcome);
            round_trip = self.sample_rtt(now, header, &outcome);
            self.retries = 0;
        }
        if self.options.sack {
            self.send.apply_sack(&header.options.sack, &mut outcome);
        }
        if outcome.largest_segment > 0 {
            self.note_size(now, outcome.largest_segment);
        }
        let ack = Ack {
            now,
            outcome: &outcome,
            flight,
            round_trip,
            repeats,
            sacks: !header.options.sack.is_empty(),
            echo: self.options.echo(&header.options),
        };
        let (send, rtt, counters) = (&mut self.send, &mut self.rtt, &mut self.counters);
        self.recovery.on_ack(send, &ack, rtt, counters);
        if outcome.acked > 0 {
            // RFC 6298 sections 5.2 and 5.3.
            let more = self.send.flight() > 0;
            self.retransmit_at = more.then(|| now + self.rtt.rto());
            self.liveness.on_progress(now, more);
            if self.send.fin == Fin::Acked {
                self.enter(now, self.state.after_fin_acked());
            }
        }
        if header.flags.ece() && self.ecn.is_used() && flight > 0 {
            let reduced = self.recovery.on_congestion_echo(&self.send, flight);
            self.counters.congestion_echoes += u64::from(reduced);
        }
        self.pacer
            .update(self.recovery.congestion(), self.rtt.srtt());
    }

    /// Handles an unacceptable ACK. One of something never sent is answered and its segment
    /// dropped, and so is one too old to be true (RFC 5961 section 5.2). One just old is ignored,
    /// and its segment is not.
    fn reject_ack(&mut self, now: Instant, offset: i64) -> Result<(), DropReason> {
        let una = self.send.una().cast_signed();
        let oldest = una.saturating_sub_unsigned(self.send.window.max_snd_wnd);
        if (oldest..una).contains(&offset) {
            return Ok(());
        }
        self.challenge(now);
        Err(match offset < una {
            true => DropReason::TcpOldAck,
            false => DropReason::TcpInvalidAck,
        })
    }

    /// Returns the time if it is exact.
    fn sample_rtt(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        outcome: &AckOutcome,
    ) -> Option<Span> {
        let exact = outcome.sent_at.map(|sent_at| now.span_since(sent_at));
        let measured = match exact {
            Some(rtt) => {
                self.rtt.update_min_rtt(now, rtt);
                exact
            }
            None => self.options.round_trip(now, &header.options),
        };
        if let Some(rtt) = measured {
            self.rtt.sample(rtt);
        }
        exact
    }

    /// Enters or leaves the persist state as the peer's window closes or opens.
    pub(super) fn update_persist(&mut self, now: Instant) {
        if self.send.window_closed() {
            // The peer answers: it may keep its window closed for as long as it likes (RFC 9293
            // section 3.8.6.1).
            self.retries = 0;
        } else if self.probing {
            self.probing = false;
            self.probe_due = false;
            self.retries = 0;
            self.rtt.end_backoff();
            self.send.mark_probe_lost();
            let more = self.send.flight() > 0;
            self.retransmit_at = more.then(|| now + self.rtt.rto());
            self.liveness.on_progress(now, more);
        } else if self.send.flight() == 0 && !self.send.is_blocked() {
            // It was the persist timer, if any.
            self.retransmit_at = None;
            self.liveness.on_progress(now, false);
            self.probe_due = false;
        }
    }

    /// Handles data and FIN of an acceptable segment.
    ///
    /// Urgent data is data like any other (RFC 6093 section 6 advises applications to ask for just
    /// that): an RDMA stream has no use for it, and what marks it changes nothing that is
    /// delivered. We never send any.
    fn receive_text<'a>(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'a>,
        start: i64,
    ) -> Result<Option<StreamData<'a>>, DropReason> {
        let len = segment.payload.len() as u64;
        let flags = segment.header.flags;
        if flags.fin() {
            self.recv.note_fin(start.saturating_add_unsigned(len));
        }
        if len == 0 {
            if flags.fin() {
                self.recv.ack_now();
                self.take_fin(now);
            }
            return Ok(None);
        }
        let range = match self.recv.offer(now, start, len, flags.psh()) {
            Ok(range) => range,
            Err(reason) => {
                self.take_fin(now);
                return Err(reason);
            }
        };
        self.counters.out_of_order += u64::from(range.start > self.recv.data_nxt());
        // The range is inside the segment: both differences fit.
        let from = (range.start.cast_signed() - start) as usize;
        let to = (range.end.cast_signed() - start) as usize;
        Ok(segment.payload.get(from..to).map(|bytes| StreamData {
            offset: range.start,
            bytes,
        }))
    }

    /// Sends a challenge ACK, unless there were many lately (RFC 5961 section 7).
    fn challenge(&mut self, now: Instant) {
        if self.challenges.allows(now) {
            self.recv.ack_alone();
        }
    }

    /// Answers an ACK that is not of our SYN with a RST: during the handshake it is from another
    /// connection.
    fn refuse_ack(&mut self, header: &TcpHeader) -> DropReason {
        if !header.flags.rst() {
            let reset = TcpHeader {
                seq: header.ack,
                flags: Flags::RST,
                ..self.bare_header()
            };
            self.reset = Some(Box::new(reset));
        }
        DropReason::TcpInvalidAck
    }
}
