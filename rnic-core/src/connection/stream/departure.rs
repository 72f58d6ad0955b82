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

    /// Handles that the peer has left. Requests that it has acknowledged are done. If no other is
    /// left, the queue pair is orphaned: it stays as it is for the application. Returns whether
    /// that is so. Otherwise the caller ends the stream, and the oldest request tells why.
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
        let orphaned = rdmap.owes_nothing(qp) && !self.ddp.is_finishing();
        if orphaned {
            qp.state = QpState::Orphaned(departure);
            self.ended = true;
            self.between_messages = false;
            self.ddp.fail();
            self.ddp.abort_message();
        } else {
            rdmap.fail_oldest(WcStatus::RetryExceeded);
        }
        context.events.push_back(Event::PeerLeft {
            qp: qp.number,
            reason: EndReason::from(departure),
        });
        // Nothing is, where this goes as it should; else the device would count it for ever.
        self.forget_parked(context);
        orphaned
    }
}
