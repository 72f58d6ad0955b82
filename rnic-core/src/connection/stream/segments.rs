//! Segments without MPA, where the layer below keeps their bounds: SCTP (RFC 5043).

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::LocalUlp;
use crate::ddp::Placed;

use super::intake::{Intake, receive_in_order};
use super::receipts::note_request;
use super::{Hold, Stream};

impl Stream {
    /// Has segments be sent and received without MPA. Either side may begin.
    pub(in crate::connection) fn go_without_mpa(&mut self) {
        self.is_bare = true;
        self.hold = Hold::Nothing;
        (self.crc, self.markers, self.marked_from) = (false, None, None);
    }

    /// Receives the next segment in order.
    pub(in crate::connection) fn receive_segment(
        &mut self,
        segment: &[u8],
        context: &mut Context<'_, '_>,
    ) {
        // rfc: 5041-75 behind an error, what comes is dropped silently
        if self.ddp.has_failed() {
            return;
        }
        self.between_messages = false;
        context.counters.rdma.fpdus_received += 1;
        note_request(&mut self.user, segment);
        let received = receive_in_order(
            segment,
            &mut self.intake,
            &mut self.ddp,
            &mut self.user,
            &mut self.parked,
            self.acked,
            self.rc,
            context,
        );
        self.conclude(received, context);
    }

    /// Places a segment that comes ahead of order, if nothing speaks against it. Errors are left
    /// until its turn comes.
    pub(in crate::connection) fn place_segment(
        &mut self,
        segment: &[u8],
        context: &mut Context<'_, '_>,
    ) -> Option<Placed> {
        if self.ddp.has_failed() || self.intake != Intake::Usual {
            return None;
        }
        let guard = context.guard;
        let placed = self.ddp.place(segment, &mut self.user.with(context), guard);
        let placed = placed.ok()?;
        let octets = u64::from(placed.payload_len());
        context.counters.rdma.octets_placed += octets;
        context.counters.rdma.octets_placed_early += octets;
        Some(placed)
    }

    /// Delivers a segment that was placed ahead of order, now that its turn has come.
    pub(in crate::connection) fn deliver_segment(
        &mut self,
        placed: Placed,
        context: &mut Context<'_, '_>,
    ) {
        if self.ddp.has_failed() {
            return;
        }
        self.between_messages = false;
        context.counters.rdma.fpdus_received += 1;
        self.note_placed(&placed);
        self.deliver_placed(placed, context);
    }

    /// Builds the next segment at the front of `room`, of at most as many octets. It will be the one
    /// before `end`. Returns its length and whether it is the last of its message. `None` if there
    /// is none to be sent now.
    // rfc: 5043-22, 5043-24 no segment is longer than the lower layer says
    pub(in crate::connection) fn build_segment(
        &mut self,
        room: &mut [u8],
        end: u64,
        context: &mut Context<'_, '_>,
    ) -> Option<(usize, bool)> {
        let len = self.build_unposted(room, context)?;
        Some((len, self.posted(end, context)))
    }

    /// Builds the next segment as [`build_segment`](Self::build_segment) does. The caller then says
    /// where it [ends](Self::posted). Returns its length.
    pub(in crate::connection) fn build_unposted(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_, '_>,
    ) -> Option<usize> {
        if !self.has_output(context) {
            return None;
        }
        let (mulpdu, guard) = (room.len(), context.guard);
        let upper = &mut self.user.with(context);
        match self.ddp.next_segment(mulpdu, room, upper, guard) {
            Ok(built) => {
                let len = built?.len;
                context.counters.rdma.fpdus_sent += 1;
                Some(len)
            }
            Err(error) => {
                self.fail_source(&error, context);
                None
            }
        }
    }

    /// Notes that the segment that was built last is the one before `end`. Returns whether it is
    /// the last of its message.
    pub(in crate::connection) fn posted(
        &mut self,
        end: u64,
        context: &mut Context<'_, '_>,
    ) -> bool {
        self.ddp.posted(end, &mut self.user.with(context))
    }

    /// Returns whether segments may be sent without the layers below, as far as this stream is
    /// concerned: RDMAP sends them, and its requests are done as soon as they are received.
    pub(in crate::connection) fn sends_directly(&self) -> bool {
        let is_open = matches!(&self.user, LocalUlp::Rdmap(user) if !user.rdmap.is_ending());
        is_open && self.may_send() && !self.takes_no_fast_path()
    }

    /// Returns whether segments may be received without the layers below: no part of another one
    /// has arrived, and none is parked.
    pub(in crate::connection) fn receives_directly(&self) -> bool {
        let is_usual = self.hold == Hold::Nothing && self.intake == Intake::Usual;
        let ends = self.ended || self.ddp.has_failed() || self.ddp.is_finishing();
        is_usual && !ends && !self.is_endpoint() && self.deframer.is_at_fpdu_boundary()
    }

    /// Drops the message that is being sent, whose source cannot be read.
    pub(super) fn fail_source(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        self.ddp.abort_message();
        if !self.user.has_failure() {
            self.fail(error, context);
        }
    }
}
