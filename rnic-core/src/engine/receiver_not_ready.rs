//! Receiver not ready (RNR): the turns of streams whose parked messages wait for receives.

use std::time::Duration;

use super::Engine;
use super::queue_pairs::EndLocation;
use crate::connection::{Connection, Transport};
use crate::ids::{QpNumber, SrqId};
use crate::memory::epoch::Guard;
use crate::time::Instant;

impl<T: Transport> Engine<T> {
    /// Lets a parked stream receive what it can: something was posted to its queue pair. Returns
    /// false if there is no such stream.
    #[cold]
    pub(super) fn replay(&mut self, now: Instant, guard: &Guard<'_>, qp: QpNumber) -> bool {
        let connection = self.qps.connection_of(qp);
        let parked = connection.filter(|index| self.connections[*index].is_parked());
        let Some(index) = parked else {
            return false;
        };
        self.with_connection(index, now, guard, |connection, context| {
            // Those that share receives have them in turn.
            let most = if connection.shares_receives() {
                0
            } else {
                usize::MAX
            };
            connection.replay(most, context);
        });
        true
    }

    /// Gives the receives of a shared queue to the streams that wait for one: one message of each in
    /// turn.
    pub(super) fn serve_waiting(&mut self, now: Instant, guard: &Guard<'_>, srq: SrqId) {
        loop {
            let mut any = false;
            for _ in 0..self.srqs.waiting(srq) {
                let Some(qp) = self.srqs.next_waiting(srq) else {
                    break;
                };
                let Some(index) = self.qps.connection_of(qp) else {
                    continue;
                };
                any |= self.with_connection(index, now, guard, Connection::replay_one);
            }
            // Receives may be left that the streams are denied.
            if !any {
                break;
            }
        }
    }

    /// Sets how long the requests of a queue pair wait for a peer without receives.
    pub(super) fn set_rnr_retry(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        rnr_retry: u8,
    ) {
        match self.qps.place(qp) {
            Some(EndLocation::Here(end)) => end.set_rnr_retry(rnr_retry),
            Some(EndLocation::Connected(index)) => {
                let index = *index;
                self.with_connection(index, now, guard, |connection, context| {
                    connection.set_rnr_retry(rnr_retry, context);
                });
            }
            None => {}
        }
    }

    /// Sets how long the peer of a connected queue pair may leave what it is owed without
    /// acknowledgment.
    pub(super) fn set_user_timeout(
        &mut self,
        now: Instant,
        guard: &Guard<'_>,
        qp: QpNumber,
        timeout: Option<Duration>,
    ) {
        if let Some(EndLocation::Connected(index)) = self.qps.place(qp) {
            let index = *index;
            self.with_connection(index, now, guard, |connection, _| {
                connection.set_user_timeout(timeout);
            });
        }
    }
}
