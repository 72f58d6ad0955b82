//! Send queues that the application stops, as InfiniBand's state SQD does.

use super::Engine;
use super::queue_pairs::EndLocation;
use crate::connection::{Event, LocalEnd, Transport};
use crate::ids::QpNumber;
use crate::memory::epoch::Guard;
use crate::time::Instant;
use crate::verbs::qp::QpState;

impl<T: Transport> Engine<T> {
    /// Lets no more requests of a queue pair begin. The application is told when those that have
    /// begun are done.
    pub(super) fn stop_sends(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        number: QpNumber,
        stop: u32,
    ) {
        match self.qps.place(number) {
            Some(EndLocation::Here(LocalEnd::Qp(qp))) => {
                qp.is_stopped = true;
                // Requests of an orphan may have begun; who gives up on the peer ends them.
                if qp.state == QpState::Idle || qp.sq.is_empty() {
                    let drained = Event::SendsDrained { qp: number, stop };
                    self.events.push_back(drained);
                }
            }
            Some(EndLocation::Connected(index)) => {
                let index = *index;
                self.with_connection(index, now, guard, |connection, context| {
                    connection.stop_sends(stop, context);
                });
            }
            Some(EndLocation::Here(LocalEnd::Endpoint(_))) | None => {}
        }
    }

    /// Lets the requests of a queue pair begin again.
    pub(super) fn resume_sends(&mut self, now: Instant, guard: &Guard<'_>, number: QpNumber) {
        match self.qps.place(number) {
            Some(EndLocation::Here(LocalEnd::Qp(qp))) => qp.is_stopped = false,
            Some(EndLocation::Connected(index)) => {
                let index = *index;
                self.with_connection(index, now, guard, |connection, context| {
                    connection.resume_sends(context);
                });
            }
            Some(EndLocation::Here(LocalEnd::Endpoint(_))) | None => {}
        }
    }
}
