//! How a connection with the semantics of RC takes it that its peer leaves: as InfiniBand does, where
//! nothing tells a queue pair so until it sends something.

use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::connection::{Context, EndReason, Event};
use crate::verbs::WcStatus;
use crate::verbs::qp::{Departure, QpState};

use super::Stream;

impl Stream {
    /// Sets how the oldest unfinished request completes when the stream ends.
    pub(in crate::connection) fn fail_oldest(&mut self, status: WcStatus) {
        if let LocalUlp::Rdmap(user) = &mut self.user {
            user.rdmap.fail_oldest(status);
        }
    }

    /// Handles that the peer has left. Requests that it has acknowledged are done. The queue pair is
    /// orphaned: it stays as it is for the application, with the others, which stand in its send
    /// queue. Returns whether that is so. Otherwise, where a request has failed or the application
    /// ends the stream, the caller ends it.
    #[cold]
    pub(super) fn handle_departure(
        &mut self,
        departure: Departure,
        context: &mut Context<'_, '_>,
    ) -> bool {
        let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user else {
            return false;
        };
        if self.ended {
            return false;
        }
        rdmap.acked(self.acked, qp, context.cqs);
        let orphaned = !rdmap.has_failure() && !self.ddp.is_finishing();
        if orphaned {
            qp.state = QpState::Orphaned(departure);
            self.ended = true;
            self.between_messages = false;
            self.ddp.fail();
            self.ddp.abort_message();
        } else {
            rdmap.fail_oldest(WcStatus::RetryExceeded);
        }
        // What the peer acknowledged last may have been what a stopped send queue waited for.
        self.user.tell_drained(context);
        self.tell_departure(&EndReason::from(departure), context);
        // Nothing is, where this goes as it should; else the device would count it for ever.
        self.forget_parked(context);
        orphaned
    }

    /// Tells the application that the peer has left, once.
    pub(in crate::connection) fn tell_departure(
        &mut self,
        reason: &EndReason,
        context: &mut Context<'_, '_>,
    ) {
        if !std::mem::replace(&mut self.departure_told, true) {
            context.events.push_back(Event::PeerLeft {
                qp: self.user.number(),
                reason: reason.clone(),
            });
        }
    }
}
