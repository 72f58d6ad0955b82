//! Segments without MPA, where the layer below keeps their bounds: SCTP (RFC 5043).

use crate::connection::Context;
use crate::connection::terminate::StreamError;
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
        if !self.has_output(context) {
            return None;
        }
        let (mulpdu, guard) = (room.len(), context.guard);
        let upper = &mut self.user.with(context);
        let built = match self.ddp.next_segment(mulpdu, room, upper, guard) {
            Ok(built) => built?,
            Err(error) => {
                self.fail_source(&error, context);
                return None;
            }
        };
        context.counters.rdma.fpdus_sent += 1;
        let last = self.ddp.posted(end, &mut self.user.with(context));
        Some((built.len, last))
    }

    /// Drops the message that is being sent, whose source cannot be read.
    pub(super) fn fail_source(&mut self, error: &StreamError, context: &mut Context<'_, '_>) {
        self.ddp.abort_message();
        if !self.user.has_failure() {
            self.fail(error, context);
        }
    }
}
