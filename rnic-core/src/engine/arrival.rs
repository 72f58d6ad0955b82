//! Received frames: which connection each is for, and the actions that follow.

use super::Engine;
use super::drops::unreadable;
use crate::connection::{CoalescedRun, PredictedSegment, Wants, WholeMessage};
use crate::memory::epoch::Guard;
use crate::memory::frames::TxFrames;
use crate::tcp::Acknowledged;
use crate::time::Instant;
use crate::wire::packet::{self, Checksums};
use crate::wire::prediction::{Expected, Prediction};

impl Engine {
    /// Handles received frames, each with what is known of its checksums. Returns whether there
    /// were any.
    ///
    /// Frames in a row that hold nothing but the next data of one connection are handled as one
    /// run: the actions that follow (completions, ACKs, timers) are done once, at its end.
    pub fn handle_frames<F: TxFrames>(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        frames: &mut impl Iterator<Item = (impl AsRef<[u8]>, Checksums)>,
        tx: &mut F,
    ) -> bool {
        let before = self.counters.engine.frames_received;
        let mut run = None;
        let mut upcoming = frames.next();
        while let Some((frame, checksums)) = upcoming.take() {
            let frame = frame.as_ref();
            self.counters.engine.frames_received += 1;
            match &self.expected {
                Some((prediction, index)) => {
                    let index = *index;
                    match &prediction.parse(frame, checksums) {
                        // Behind a run, its actions come first.
                        Some(expected)
                            if run.is_none()
                                && self.handle_whole_message(index, expected, now, guard, tx) => {}
                        Some(expected) => {
                            let only_data = self.handle_expected(index, expected, now, guard, tx);
                            run = only_data.then_some(index);
                            if only_data
                                && let Some(coalesced) =
                                    self.begin_coalesced_run(frame, expected, guard)
                            {
                                upcoming =
                                    self.follow_coalesced_run(index, coalesced, now, guard, frames);
                                continue;
                            }
                        }
                        None => {
                            self.handle_unexpected(run.take(), now, guard, frame, checksums, tx);
                        }
                    }
                }
                None => self.handle_unexpected(run.take(), now, guard, frame, checksums, tx),
            }
            upcoming = frames.next();
        }
        if let Some(index) = run {
            self.end_run(index, now, guard);
        }
        self.counters.engine.frames_received != before
    }

    /// Handles a frame with predicted headers, if its segment is a [whole message](WholeMessage).
    /// Returns whether it is one.
    // Not inlined: it then keeps its own values in registers, and none of the other cases'.
    #[inline(never)]
    fn handle_whole_message<F: TxFrames>(
        &mut self,
        index: usize,
        expected: &Expected<'_>,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> bool {
        if !self.config.fast_paths.whole_message {
            return false;
        }
        let connection = &mut self.connections[index];
        let (cqs, counters) = (&mut self.cqs, &mut self.counters.rdma);
        let Some(message) = WholeMessage::eligible(connection, expected, now, guard, cqs) else {
            return false;
        };
        let Some(at_rest) = message.commit(connection, now, cqs, counters, tx) else {
            return false;
        };
        let wants = Wants {
            send: !at_rest,
            delayed_ack: Some(now),
            ..Wants::default()
        };
        self.schedule(index, wants);
        true
    }

    /// Handles a frame with predicted headers. Returns whether it holds the next data of its
    /// connection and nothing else: then its actions are still to be done, at the end of the run.
    #[inline(never)]
    fn handle_expected<F: TxFrames>(
        &mut self,
        index: usize,
        expected: &Expected<'_>,
        now: Instant,
        guard: &Guard<'_>,
        tx: &mut F,
    ) -> bool {
        let (connection, mut context) = self.lend(index, now, guard);
        let predicted = match context.fast_paths.header_prediction {
            true => PredictedSegment::eligible(connection, expected, now),
            false => None,
        };
        let Some(predicted) = predicted else {
            let segment = &expected.segment();
            let handled = connection.handle_segment(segment, false, &mut context, tx);
            self.end_run(index, now, guard);
            self.count_dropped(handled);
            return false;
        };
        match predicted.commit(connection, &mut context, tx) {
            Acknowledged::Nothing => return true,
            Acknowledged::All if connection.settle_acked(&mut context) => {
                let wants = connection.wants_to_send(now);
                self.schedule(index, wants);
            }
            Acknowledged::All | Acknowledged::Data => self.end_run(index, now, guard),
        }
        false
    }

    /// Begins a [coalesced run](CoalescedRun) behind a frame that was handled, if it is eligible.
    fn begin_coalesced_run<'g>(
        &self,
        frame: &[u8],
        expected: &Expected<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<CoalescedRun<'g>> {
        if !self.config.fast_paths.coalesced_run {
            return None;
        }
        let (prediction, index) = self.expected.as_ref()?;
        let connection = &self.connections[*index];
        CoalescedRun::eligible(connection, prediction, frame, expected, guard)
    }

    /// Handles frames while they belong to a coalesced run. Returns the first that does not.
    fn follow_coalesced_run<T: AsRef<[u8]>>(
        &mut self,
        index: usize,
        mut run: CoalescedRun<'_>,
        now: Instant,
        guard: &Guard<'_>,
        frames: &mut impl Iterator<Item = (T, Checksums)>,
    ) -> Option<(T, Checksums)> {
        let other = frames.find(|(frame, checksums)| !run.take(frame.as_ref(), *checksums));
        let (connection, mut context) = self.lend(index, now, guard);
        let taken = run.commit(connection, &mut context);
        self.counters.engine.frames_received += taken;
        other
    }

    /// Carries out the actions that follow from the segments of a run.
    #[inline]
    fn end_run(&mut self, index: usize, now: Instant, guard: &Guard<'_>) {
        let (connection, mut context) = self.lend(index, now, guard);
        if connection.settle_acked(&mut context) {
            // `settle_acked` says no where the connection is over.
            let wants = Wants {
                ended: false,
                ..self.connections[index].wants(now, self.has_many())
            };
            self.schedule(index, wants);
        } else {
            self.with_connection(index, now, guard, |connection, context| {
                connection.settle(context);
            });
        }
    }

    /// Handles a frame whose headers were not as predicted, after the actions of the run in front
    /// of it.
    #[inline(never)]
    fn handle_unexpected<F: TxFrames>(
        &mut self,
        run: Option<usize>,
        now: Instant,
        guard: &Guard<'_>,
        frame: &[u8],
        checksums: Checksums,
        tx: &mut F,
    ) {
        if let Some(index) = run {
            self.end_run(index, now, guard);
        }
        if let Some(owner) = self.place.as_ref().and_then(|place| place.recognise(frame)) {
            return self.hand_over(owner, frame, checksums);
        }
        // By reference: it is large, and moving it would cost as much as reading the frame.
        let parsed = match self.config.partial_checksums {
            false => packet::parse(frame, checksums),
            true => packet::parse_with_partial(frame, checksums),
        };
        let packet = match &parsed {
            Ok(packet) => packet,
            Err(error) => return self.drop_frame(unreadable(error)),
        };
        let index = match self.find_or_open(now, packet) {
            Ok(index) => index,
            Err(stranger) => {
                return self.handle_stranger(stranger, frame, packet, tx);
            }
        };
        // Where the frames of several connections alternate, the next frame is not like this one.
        // It is if this one has data without PSH: then more follow.
        let again = self.latest.replace(index) == Some(index);
        let segment = &packet.segment;
        let goes_on = !segment.payload.is_empty() && !segment.header.flags.psh();
        let connection = &self.connections[index];
        let predicts = self.config.fast_paths.predict_headers();
        if predicts && (again || goes_on) && connection.is_streaming() {
            let expected = Prediction::like(frame, packet, connection.receives_crcs());
            self.expected = expected.map(|expected| (expected, index));
        }
        let handled = self.with_connection(index, now, guard, |connection, context| {
            let congested = packet.ecn == packet::CONGESTION_EXPERIENCED;
            let handled = connection.handle_segment(&packet.segment, congested, context, tx);
            connection.settle(context);
            handled
        });
        self.count_dropped(handled);
    }
}
